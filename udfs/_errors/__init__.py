"""What went wrong, and how it is told."""
