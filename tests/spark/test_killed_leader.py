"""A Python worker is killed while it calls for keys that a worker beside it waits for: the other one calls for them.

All tasks are of one host, and their store has leases. A call hangs until the test has killed its worker. So the kill
comes while the calls of one worker are in flight and rows of the other wait for them.
"""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.drivers import SharedDriver

from .conftest import until

pytestmark = pytest.mark.spark

SHARED, OWN = 6, 20  # rows that both tasks have, and rows of each alone
PROMPT = 120.0  # seconds on a busy machine; a lease is looked at each 0.05 s, and a row waits for one for 180 s

# Each task has the shared rows first. So when its own rows have left, their results are in the store, and the task has
# asked for the leases of the shared ones.
PROGRAM = """
import uuid
from pyspark.sql import functions as sf

def noted(*words):
    file = os.open(JOURNAL, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(file, (" ".join(map(str, words)) + "\\n").encode())
    os.close(file)

@async_pandas_udf(store=STORE, version=uuid.uuid4().hex, capacity=10)
async def squared(n: int) -> int:
    noted("call", n, os.getpid())
    if n < SHARED:
        while not os.path.exists(KILLED):
            await asyncio.sleep(0.01)
    return n * n

def left(row):
    noted("left", row["n"], os.getpid())
    return row

rows = spark.range(0, 2 * (SHARED + OWN), 1, 2)
number, task = sf.col("id") % (SHARED + OWN), sf.floor(sf.col("id") / (SHARED + OWN))
numbers = rows.select(sf.when(number < SHARED, number).otherwise(number + task * OWN).alias("n"))
print(sorted(row.squared for row in AsyncStream(numbers).unordered_wait(squared).map(left).to_df().collect()))
"""


class Calls:
    """What the workers have noted: of each call and each row that has left its number and the process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def noted(self, what: str) -> list[tuple[int, int]]:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [(int(n), int(pid)) for kind, n, pid in map(str.split, lines) if kind == what]

    def are_waited_for(self) -> bool:
        """The rows of each task alone have left, and each shared one is called for by one of the two."""
        return len(self.noted("left")) == 2 * OWN and len(self.noted("call")) == 2 * OWN + SHARED


def assert_the_other_calls(driver: SharedDriver, store: str, folder: Path) -> None:
    journal, killed = folder / "journal", folder / "killed"
    constants = f"JOURNAL, KILLED, SHARED, OWN = {str(journal)!r}, {str(killed)!r}, {SHARED}, {OWN}"
    driver.begin(f"{constants}\n{PROGRAM.replace('STORE', store)}")
    calls = Calls(journal)
    until(calls.are_waited_for, "each task waits for the calls of the other, or has them in flight")
    before = calls.noted("call")
    assert max(Counter(n for n, _ in before).values()) == 1, "each key has one call, whoever makes it"
    assert len({pid for _, pid in before}) == 2
    leader = Counter(pid for n, pid in before if n < SHARED).most_common(1)[0][0]
    in_flight = {n for n, pid in before if pid == leader and n < SHARED}

    os.kill(leader, signal.SIGKILL)
    until(lambda: in_flight <= {n for n, _ in calls.noted("call")[len(before) :]}, "the other worker calls", PROMPT)
    killed.touch()

    expected = [n * n for n in range(SHARED)] * 2 + [n * n for n in range(SHARED, SHARED + 2 * OWN)]
    assert driver.finish().strip() == str(sorted(expected))
    assert len(calls.noted("call")) <= SHARED + 2 * OWN + len(in_flight)


def test_of_two_executors_of_a_host(cluster: SharedDriver, tmp_path: Path) -> None:
    """The killed task runs again, on whichever executor."""
    assert_the_other_calls(cluster, f"ResultStore.disk({str(tmp_path / 'store')!r})", tmp_path)
