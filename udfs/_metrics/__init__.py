"""Numbers that merge: what a function did in a task, how long its calls took, and where the time went."""
