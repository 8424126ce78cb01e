"""A blocked loop is told where the executors write their errors, and is counted in the metrics."""

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
async def weather(id: int) -> int:
    if id == 0:
        time.sleep(2.5)  # Spark's thread gives its sign of life twice meanwhile
    return id

with monitor(spark) as run:
    rows = ordered_wait(spark.range(0, 5, 1, 1), weather).count()
print(rows, spark.sparkContext.applicationId, run.metrics["functions"][0]["time"]["blocked_loop"])
"""


def test_a_blocked_loop_is_told_on_the_error_stream_of_the_executor(standalone, cluster, until):
    rows, application, blocked = cluster.run(PROGRAM).split()
    assert rows == "5"
    assert float(blocked) >= 2.4

    def told():
        return "".join(path.read_text() for path in standalone.folder.glob(f"*/{application}/*/stderr"))

    until(lambda: "by weather or the like" in told(), "the end of the task is told")
    assert told().count("weather has blocked the event loop for more than 1 s") == 1
    assert "in weather" in told()
    assert told().count("by weather or the like") == 1
