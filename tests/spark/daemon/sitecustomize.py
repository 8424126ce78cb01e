"""Table functions and data sources are planned by daemons of Spark's own: their workers too begin with all they need.

Python imports this module as it starts, whatever it runs.
"""

import contextlib
import sys

PLANNERS = {"analyze_udtf", "create_data_source", "write_into_data_source", "commit_data_source_write"}

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"] and sys.orig_argv[-1].rpartition(".")[2] in PLANNERS:
    with contextlib.suppress(ImportError):
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401

        import asyncudf  # noqa: F401
