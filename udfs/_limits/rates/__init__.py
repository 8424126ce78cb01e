"""How many calls may begin in a second, minute or hour: the option, the permits, the gates, and what tasks share."""
