"""Budgets of calls: the option, the amounts, the gate, and the part that the tasks of a job share."""
