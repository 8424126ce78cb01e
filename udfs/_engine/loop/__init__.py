"""The event loop of a task, its threads, and how everything on it is ended in bounded time."""
