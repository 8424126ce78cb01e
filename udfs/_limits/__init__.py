"""The limits of calls: the option of each limit, its arithmetic, its gate, and the part that tasks of a job share."""
