"""Spark's daemon of Python workers with asyncudf and its libraries imported: a worker is forked in milliseconds.

A worker ends with each task that fails, and importing all of this in the next one takes a second. A Python without
asyncudf has the daemon as Spark starts it, and so has the test about the start of a worker.
"""

import contextlib

from pyspark.daemon import manager

with contextlib.suppress(ImportError):
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
    import pyspark.worker  # noqa: F401

    import asyncudf  # noqa: F401

if __name__ == "__main__":
    manager()
