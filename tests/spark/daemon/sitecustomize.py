"""What plans table functions and data sources has daemons of Spark's own: these too begin with all that they need.

Python imports this module as it starts. It is quick in any other process.
"""

import sys

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401

    import asyncudf  # noqa: F401
