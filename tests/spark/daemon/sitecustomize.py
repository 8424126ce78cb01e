"""Table functions are planned by a daemon of Spark's own: its workers too begin with all that they need.

Python imports this module as it starts, whatever it runs.
"""

import sys

if sys.orig_argv[1:] == ["-m", "pyspark.daemon", "pyspark.sql.worker.analyze_udtf"]:
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401

    import asyncudf  # noqa: F401
