"""What `submit` and `collect` cost: `python -m benchmarks.batches --rows 1000000 --cores 2`.

The service is a folder: a job is a file, and is over at the next look; its answers are computed where they are fetched.
So what is measured is asyncudf and Spark. One answer in a hundred does not fit, and is asked again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from asyncudf import RuntimeContext, Submission, batch_function, submit
from asyncudf.batches import BatchRequest, BatchService, JobStatus

from ._spark import local_spark, noop

TEXT = 400  # characters of a row


class FolderService(BatchService):
    """Jobs are files; `calls` has a line for each request."""

    max_requests = 50_000
    max_bytes = 190_000_000
    poll_every = 0.1

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def _note(self, what: str) -> None:
        with open(self._folder / "calls", "a") as file:
            file.write(f"{what}\n")

    def submit(self, requests: Sequence[BatchRequest], key: str) -> str:
        self._note("submit")
        with open(self._folder / key, "w") as file:
            lines = ([request.key, request.body["attempt"], len(request.body["text"])] for request in requests)
            file.writelines(f"{json.dumps(line)}\n" for line in lines)
        return key

    def poll(self, job: str) -> JobStatus:
        self._note("poll")
        return JobStatus("ended")

    def fetch(self, job: str) -> Iterator[tuple[str, Any]]:
        self._note("fetch")
        with open(self._folder / job) as file:
            for number, line in enumerate(file):
                key, attempt, length = json.loads(line)
                is_bad = attempt == 1 and number % 100 == 0
                yield key, {"length": "many" if is_bad else length, "usage": {"total_tokens": length // 4}}

    def cancel(self, job: str) -> None:
        self._note("cancel")

    def find(self, key: str) -> str | None:
        self._note("find")
        return key if (self._folder / key).exists() else None


def read(answer: dict[str, Any]) -> int:
    return answer["length"]  # type: ignore[no-any-return]


@batch_function(parse=read)
def measure(text: str, context: RuntimeContext) -> dict[str, Any]:
    return {"model": "a-model", "attempt": context.attempt_number, "text": text}


class Memory:
    """The largest resident memory of this process and of its JVM while the block runs, in MB."""

    def __enter__(self) -> Self:
        self.python = self.java = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._end.wait(0.1):
            java = [one.memory_info().rss for one in own.children() if "java" in one.name()]
            self.python = max(self.python, own.memory_info().rss / 1e6)
            self.java = max(self.java, max(java, default=0) / 1e6)

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--size", type=int, default=TEXT, help="characters of a row")
    given = parser.parse_args()
    with local_spark(cores=given.cores) as session:
        for rows in given.rows:
            with tempfile.TemporaryDirectory() as folder, Memory() as memory:
                texts = session.range(0, rows, 1, 2 * given.cores).selectExpr(
                    "id", f"concat(id, repeat('x', {given.size})) AS text"
                )
                service, moments = FolderService(folder), [time.monotonic()]
                submit(texts, measure, "text", service=service, state=f"{folder}/state")
                moments.append(time.monotonic())
                submission = Submission.open(f"{folder}/state", session)
                status = submission.wait()
                moments.append(time.monotonic())
                noop(submission.collect())
                moments.append(time.monotonic())
                assert status.requests["done"] == rows, status
                taken = [after - before for before, after in itertools.pairwise(moments)]
                calls = Path(folder, "calls").read_text().split()
                written = sum(one.stat().st_size for one in Path(folder, "state").rglob("*.parquet")) / 1e6
                requests = ", ".join(f"{calls.count(name)} {name}" for name in sorted(set(calls)))
                print(
                    f"{rows:,} rows of {given.size} characters: submit {taken[0]:.0f} s, wait {taken[1]:.0f} s, "
                    f"collect {taken[2]:.0f} s; requests to the service: {requests}; state {written:.0f} MB; memory of "
                    f"the driver's Python {memory.python:.0f} MB, of its JVM, which runs the tasks too, "
                    f"{memory.java:.0f} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
