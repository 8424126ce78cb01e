"""The limits of calls: of each its option, its arithmetic, its gate, and what the tasks of a job share of it."""
