"""What calls may cost: the option, the amounts, the gate, and what tasks share of it."""
