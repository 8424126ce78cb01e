"""One row's call, from its admission to its result: slots, attempts, deadlines, resources. Knows no Arrow."""
