"""Spark's physical plan before it runs: which async functions it calls, how often, and with how many rows."""
