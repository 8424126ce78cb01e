"""What users write, how it is read, and what it meets when it runs."""
