"""Runs in Spark what most tests run, so that Java can archive the classes of it; scripts/test says where."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.range(10).withColumn("text", sf.col("id").cast("string"))
df.createOrReplaceTempView("rows")
df.mapInArrow(lambda batches: batches, df.schema).groupBy("text").count().orderBy("text").collect()
spark.sql("SELECT * FROM rows JOIN range(5) AS few USING (id) LIMIT 3").collect()
spark.stop()
