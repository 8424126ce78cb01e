"""What the tasks of a job agree on, over a server that speaks Redis' protocol: permits, shares, pauses, failures."""
