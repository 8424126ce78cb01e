"""What must not happen while calls are in flight."""

import json

import pytest

pytestmark = pytest.mark.spark

# Workers of another environment are new ones, and the cluster's have what Spark itself has imported.
PROGRAM = """
import gc
spark.sparkContext.environment["NEW_WORKERS"] = ENTRY_POINT

@async_pandas_udf
async def found(id: int) -> str:
    return json.dumps(["pandas" in sys.modules, gc.get_freeze_count()])

df = spark.range(0, 1, 1, 1)
rows = df.select(found("id").alias("found")) if ENTRY_POINT == "column" else ordered_wait(df, found)
print(rows.first().found)
del spark.sparkContext.environment["NEW_WORKERS"]
"""


@pytest.mark.parametrize("entry_point", ["column", "operator"])
def test_a_new_worker_is_ready_before_its_first_call(cluster, entry_point):
    """pyarrow imports pandas with its first array: a quarter of a second in which every call would stand still.

    And a full collection of garbage looks at all that is imported, unless it is frozen.
    """
    has_pandas, frozen = json.loads(cluster.run(f"ENTRY_POINT = {entry_point!r}\n{PROGRAM}"))
    assert has_pandas
    assert frozen > 10_000
