"""Programs that print the figures; each runs alone: `python -m benchmarks.p1_engine`."""
