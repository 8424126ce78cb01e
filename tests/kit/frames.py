"""What a test reads of a DataFrame."""


def tuples(frame):
    return [tuple(row) for row in frame.collect()]
