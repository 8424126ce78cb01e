"""What a client of Spark Connect, which has no JVM, has to find out in another way."""

import pytest

pytestmark = pytest.mark.spark


def test_a_column_is_given_by_a_reference_over_spark_connect(connect):
    """Where a client knows the name and the DataFrame of a reference, and nothing else."""
    assert (
        connect.run("""
from pyspark.sql import functions as sf

df = spark.range(5, 6).selectExpr("id", "id * 2 AS `a.b`")

@async_pandas_udf
async def told(x: int) -> int:
    return x

def answer(column):
    try:
        return ordered_wait(df, told, column).first().told
    except FunctionError as error:
        return "give the name of one" in str(error)

good = [sf.col("id"), df.id, df["`a.b`"], sf.col("`a.b`")]
bad = [sf.col("id") + 1, spark.range(1).id, sf.col("a.b"), df.withColumn("id", sf.lit(1)).id]
print([answer(column) for column in good + bad])
""")
        == "[5, 5, 10, 10, True, True, True, True]\n"
    )


def test_a_path_is_no_pattern_over_spark_connect(connect, tmp_path):
    """The option that says so has no effect there: nothing was found at `run[1]`, and all was called for again."""
    program = f"""
from asyncudf import LookupTable, OptionError

@async_pandas_udf
async def told(x: int) -> int:
    return x

df = spark.range(3).withColumnRenamed("id", "x")
for name in ("run[1] {{a,b}} *?t", "12:30", "12:30?"):
    table = LookupTable(spark, f"{tmp_path}/{{name}}", told)
    try:
        print([(done.called, done.reused) for done in (table.update(df, progress=False) for _ in range(2))])
    except OptionError as error:
        print("take a path without a colon" in str(error))
"""
    assert connect.run(program).splitlines() == ["[(3, 0), (0, 3)]", "[(3, 0), (0, 3)]", "True"]


def test_results_that_could_not_be_written_are_written_by_the_next_wait(connect, tmp_path):
    """What was left of the first try was a folder without rows, of which Spark could tell no schema."""
    program = f"""
import tests.kit
from asyncudf import Budget, Submission, batch_function, submit
from pyspark import cloudpickle
from pyspark.errors import PythonException
from tests.kit.batch_services import Jobs, billing

cloudpickle.register_pickle_by_value(tests.kit)

@batch_function("bigint", parse=lambda answer: answer["value"])
def twice(n):
    return {{"n": n}}

def budget(settle):
    return Budget(1000, "tokens", reserve=10, settle=settle)

with billing() as (url, server):
    rows = spark.range(10).withColumnRenamed("id", "n")
    service, wrong = Jobs(url), budget(lambda n, answer: float("nan"))
    submission = submit(rows, twice, "n", service=service, state="{tmp_path}/state", budget=wrong)
    try:
        submission.wait()
    except PythonException as error:
        print("settle must give a number" in str(error))
    opened = Submission.open("{tmp_path}/state", budget=budget(lambda n, answer: 3))
    print(opened.wait().spent, opened.collect().count(), sum(server.billed.values()))
"""
    assert connect.run(program).splitlines() == ["True", "{'tokens': 30.0} 10 10"]
