"""What to say where a library is not there that asyncudf needs and does not install."""

MISSING = {
    "pyspark": "asyncudf needs PySpark and does not install it, as there are two: pip install 'asyncudf[spark]' for a "
    "Spark of your own, or pip install databricks-connect for Databricks. Not both: each overwrites files of the other"
}
