"""The plan of a chain, which travels to the executors, and the running chain that is made of it there."""
