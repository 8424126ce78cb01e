"""What a task waits for is told where the executors write their errors, and to the driver's monitor."""

import re

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import os, signal, threading

from asyncudf._observe.waits import Waiting

class Client:
    async def __aenter__(self):
        self.usual = Waiting.OPENING.value
        Waiting.OPENING._value_ = self.usual._replace(told=1.0)  # 10 s are tested on the virtual clock
        await asyncio.sleep(4)

    async def __aexit__(self, *error):
        Waiting.OPENING._value_ = self.usual
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0.5)

async def weather(id: int, client) -> int:
    if id == 4:
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0.5)
    return id

seen = []
over = threading.Event()

with monitor(spark) as run:
    def look():
        while not over.wait(0.2):
            for function in run.metrics["functions"]:
                seen.extend((wait["kind"], wait["what"], wait["at_most"], wait["tasks"]) for wait in function["waits"])
                seen.extend([function["verdict"]["text"]] if function["waits"] else [])

    thread = threading.Thread(target=look)
    thread.start()
    rows = ordered_wait(spark.range(0, 5, 1, 1), weather, resources={"client": Client}).count()
    over.set()
    thread.join()
print(rows, spark.sparkContext.applicationId)
print(sorted({one for one in seen if isinstance(one, tuple)}))
print(any(str(one).startswith("no call has begun in ") for one in seen))
print(run.metrics["functions"][0]["waits"])
"""


def test_what_opens_is_told_and_a_signal_prints_the_stacks(standalone, cluster, until):
    """Opening took up to ten minutes and said nothing; a signal ended the worker."""
    first, waits, verdict, after = cluster.run(PROGRAM).strip().splitlines()[-4:]
    rows, application = first.split()
    assert (rows, waits) == ("5", "[('opening', \"resource 'client' to open\", 60.0, 1)]")
    assert (verdict, after) == ("True", "[]")

    def told():
        return "".join(path.read_text() for path in standalone.folder.glob(f"*/{application}/*/stderr"))

    line = r"weather has waited for [1-4](\.\d)? s for resource 'client' to open, for 1 min at most; to change it: "
    until(lambda: re.search(line, told()), "what opens is told")
    until(lambda: told().count("what its tasks wait for") == 2, "each signal is told")
    assert told().count("The thread of the event loop is at:") == 2
    assert "in weather" in told()
    assert "in __aexit__" in told()
