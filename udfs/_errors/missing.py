"""What to say where a library is not there that asyncudf needs and does not install."""

MISSING = {
    "pyspark": "asyncudf needs PySpark and does not install it, as there are several: pip install 'asyncudf[spark]' "
    "for a Spark of your own, 'asyncudf[sail]' for Sail, or databricks-connect for Databricks. Only one of them: each "
    "overwrites files of the others"
}
