"""What is measured, and how it is shown: figures, reports, and what is wrong with an installation."""
