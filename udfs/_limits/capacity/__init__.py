"""How many calls may be in flight: in a task, as many as its service can take, and in the whole job."""
