"""Spark's classes of data sources in Python, as far as this version has them.

Apart from the other differences between versions, as only sinks need them: a worker would import them for nothing.
"""

from __future__ import annotations

try:
    from pyspark.sql.datasource import DataSource as DataSource
    from pyspark.sql.datasource import DataSourceArrowWriter as DataSourceArrowWriter
    from pyspark.sql.datasource import WriterCommitMessage as WriterCommitMessage
except ImportError:  # before Spark 4.0
    DataSource = DataSourceArrowWriter = WriterCommitMessage = object  # type: ignore[assignment,misc]
try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as DataSourceStreamArrowWriter

    HAS_STREAM_WRITERS = True
except ImportError:  # before Spark 4.1: writers of streams get rows, and not each value in them is exact
    DataSourceStreamArrowWriter = object  # type: ignore[assignment,misc]
    HAS_STREAM_WRITERS = False
