"""Where the tasks of a job share limits: the client of its server, the server, and what is asked of it."""
