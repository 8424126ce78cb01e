"""A blocked loop is told where the executors write their errors."""

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
async def weather(id: int) -> int:
    time.sleep(0.5)
    return id

print(ordered_wait(spark.range(0, 5, 1, 1), weather).count(), spark.sparkContext.applicationId)
"""


def test_a_blocked_loop_is_told_on_the_error_stream_of_the_executor(standalone, cluster, until):
    rows, application = cluster.run(PROGRAM).split()
    assert rows == "5"

    def told():
        return "".join(path.read_text() for path in standalone.folder.glob(f"*/{application}/*/stderr"))

    until(lambda: "by weather or the like" in told(), "the end of the task is told")
    assert told().count("weather has blocked the event loop for more than 1 s") == 1
    assert "in weather" in told()
    assert told().count("by weather or the like") == 1
