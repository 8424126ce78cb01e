"""What is wrong with an installation, and the line that fixes it."""
