"""How many calls may be in flight: in a task by what its service takes, and in the whole job."""
