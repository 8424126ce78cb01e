"""Spark's daemon of Python workers with asyncudf and its libraries imported: a worker is forked in milliseconds.

A worker ends with each task that fails, and importing all of this in the next one takes a second. The tests on a
cluster and over Spark Connect have the daemon as Spark starts it.
"""

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import asyncudf  # noqa: F401

if __name__ == "__main__":
    manager()
