"""What holds the calls of a function back: the health of its service, budgets, shares and rates. Knows no queue."""
