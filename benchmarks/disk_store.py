"""What a store on a disk is made of: SQLite in several layouts beside LMDB, by CPU time per row.

    python -m benchmarks.disk_store [--rows 100000] [--rounds 7] [--only "sqlite;lmdb"] [--sizes 100,1024]
    python -m benchmarks.disk_store --faults [--only "sqlite;lmdb"]

Each system is filled with rows of random 16-byte keys. Then processes put new rows, and get random ones, in batches of
10,000 and 100: one process, and four at the same time. The figure is CPU time (user and system) per row, the least of
several rounds, as other work on the machine adds to it; of four processes it is their mean. LMDB is measured as the
store uses it: transactions of 100 rows, a lock of a file for writers, no fsync.

`--faults` says what is left after a writer was killed, and what a process meets whose files may not grow, or were cut
off while it had them open.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SPAWN = multiprocessing.get_context("spawn")
BATCHES = (10_000, 100)
PAUSE = 0.001
NOW, NEVER = 1, 2**62
PRIME = 2**61 - 1

Rows = Sequence[tuple[bytes, bytes]]


def key(number: int) -> bytes:
    """A key as those of results: a digest."""
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16).digest()


class SQLite:
    """A rowid table with an index over 61 bits of the key; lookups by IN."""

    schema = (
        "CREATE TABLE results (id INTEGER PRIMARY KEY, hash INTEGER, key BLOB, ends INTEGER, value BLOB)",
        "CREATE UNIQUE INDEX by_hash ON results (hash)",
    )
    insert = "INSERT OR REPLACE INTO results (hash, key, ends, value) VALUES (?, ?, ?, ?)"
    select = "SELECT key, value FROM results WHERE hash IN ({}) AND ends > ?"
    synchronous = "OFF"
    at_once = 250

    def __init__(self, folder: str, *, create: bool) -> None:
        self.db = sqlite3.connect(os.path.join(folder, "results.sqlite"), timeout=0, isolation_level=None)
        self.db.execute(f"PRAGMA synchronous = {self.synchronous}")
        if create:
            self.db.execute("PRAGMA journal_mode = WAL")
            for statement in self.schema:
                self.db.execute(statement)

    def put(self, rows: Rows) -> None:
        entries = sorted(self.entries(rows))
        while True:
            try:
                self.db.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError:
                time.sleep(PAUSE)
        self.db.executemany(self.insert, entries)
        self.db.execute("COMMIT")

    def entries(self, rows: Rows) -> list[tuple[Any, ...]]:
        return [(int.from_bytes(key) % PRIME, key, NEVER, value) for key, value in rows]

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes] = {}
        for start in range(0, len(keys), self.at_once):
            part = self.sought(keys[start : start + self.at_once])
            found.update(self.db.execute(self.select.format(",".join("?" * len(part))), (*part, NOW)).fetchall())
        return [*map(found.get, keys)]

    def sought(self, keys: Sequence[bytes]) -> Sequence[Any]:
        return [int.from_bytes(key) % PRIME for key in keys]


class SQLiteNormal(SQLite):
    """The same with an fsync at each checkpoint."""

    synchronous = "NORMAL"


class SQLiteKeys(SQLite):
    """An index over the key itself."""

    schema = ("CREATE TABLE results (id INTEGER PRIMARY KEY, key BLOB UNIQUE, ends INTEGER, value BLOB)",)
    insert = "INSERT OR REPLACE INTO results (key, ends, value) VALUES (?, ?, ?)"
    select = "SELECT key, value FROM results WHERE key IN ({}) AND ends > ?"

    def entries(self, rows: Rows) -> list[tuple[Any, ...]]:
        return [(key, NEVER, value) for key, value in rows]

    def sought(self, keys: Sequence[bytes]) -> Sequence[Any]:
        return keys


class SQLiteWithoutRowid(SQLiteKeys):
    """The values in the index."""

    schema = ("CREATE TABLE results (key BLOB PRIMARY KEY, ends INTEGER, value BLOB) WITHOUT ROWID",)


class SQLiteJoin(SQLiteKeys):
    """A statement for any number of keys: a recursive query cuts them from one value."""

    select = """WITH RECURSIVE sought(at) AS (SELECT 1 UNION ALL SELECT at + 16 FROM sought WHERE at + 16 < length(?1))
        SELECT (SELECT value FROM results WHERE key = substr(?1, at, 16) AND ends > ?2) FROM sought"""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [value for (value,) in self.db.execute(self.select, (b"".join(keys), NOW))]


class SQLiteOneByOne(SQLiteKeys):
    """A statement for each key, in one transaction."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.db.execute("BEGIN")
        statement = "SELECT value FROM results WHERE key = ? AND ends > ?"
        found = [self.db.execute(statement, (key, NOW)).fetchone() for key in keys]
        self.db.execute("COMMIT")
        return [row and row[0] for row in found]


class LMDB:
    """A file of LMDB, as the store had it."""

    def __init__(self, folder: str, *, create: bool) -> None:
        import lmdb

        path = os.path.join(folder, "results")
        self.lock = os.open(path + ".writer", os.O_RDWR | os.O_CREAT)
        self.env: Any = lmdb.open(path, map_size=10 * 2**30, subdir=False, sync=False)

    def put(self, rows: Rows) -> None:
        import fcntl

        ends = bytes(8)
        for start in range(0, len(rows), 100):
            while True:
                try:
                    fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(PAUSE)
            with self.env.begin(write=True) as transaction:
                transaction.cursor().putmulti([(key, ends + value) for key, value in rows[start : start + 100]])
            fcntl.flock(self.lock, fcntl.LOCK_UN)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for start in range(0, len(keys), 256):
            with self.env.begin() as transaction:
                found += map(transaction.get, keys[start : start + 256])
        return [entry and entry[8:] for entry in found]


SYSTEMS: dict[str, Any] = {
    "sqlite": SQLite,
    "sqlite, synchronous=NORMAL": SQLiteNormal,
    "sqlite, index of keys": SQLiteKeys,
    "sqlite, WITHOUT ROWID": SQLiteWithoutRowid,
    "sqlite, keys joined": SQLiteJoin,
    "sqlite, one by one": SQLiteOneByOne,
    "lmdb": LMDB,
}


def work(name: str, folder: str, what: str, batch: int, numbers: range, size: int, pipe: Any) -> None:
    """What one process does in a round, and how long it takes of a CPU, and the longest batch."""
    store = SYSTEMS[name](folder, create=False)
    value = random.Random(size).randbytes(size)
    keys = [key(number) for number in numbers]
    batches = [keys[start : start + batch] for start in range(0, len(keys), batch)]
    rows = [[(one, value) for one in part] for part in batches]
    use: Callable[[Any], Any] = store.put if what == "put" else store.get
    pipe.send("ready")
    pipe.recv()
    longest = used = 0.0
    for part in rows if what == "put" else batches:
        start, wall = time.process_time(), time.perf_counter()
        found = use(part)
        used += time.process_time() - start
        longest = max(longest, time.perf_counter() - wall)
        assert what == "put" or found == [value] * len(part)
    pipe.send((used / len(keys) * 1e6, longest * 1e3))


def measured(name: str, folder: str, what: str, batch: int, parts: Sequence[range], size: int) -> tuple[float, float]:
    """Mean CPU microseconds per row of processes that work at the same time, and the longest batch in milliseconds."""
    pipes = []
    processes = []
    for numbers in parts:
        ours, theirs = SPAWN.Pipe()
        processes.append(SPAWN.Process(target=work, args=(name, folder, what, batch, numbers, size, theirs)))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    for message in (None, "go"):
        for pipe in pipes:
            pipe.recv() if message is None else pipe.send(message)
    told = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return sum(used for used, _ in told) / len(told), max(longest for _, longest in told)


def rounds(name: str, size: int, rows: int, count: int) -> Iterator[tuple[str, float, float]]:
    """The figures of one system: the best of several rounds each."""
    folder = tempfile.mkdtemp(prefix="asyncudf-benchmark-")
    try:
        store, value = SYSTEMS[name](folder, create=True), random.Random(size).randbytes(size)
        for start in range(0, rows, 10_000):
            store.put([(key(number), value) for number in range(start, start + 10_000)])
        fresh = rows
        for what in ("get", "put"):
            for processes in (1, 4):
                for batch in BATCHES:
                    many = 2 * max(BATCHES) // (1 if processes == 1 else 2)
                    told = []
                    for turn in range(count):
                        first = fresh if what == "put" else turn * many * processes % (rows - many * processes + 1)
                        parts = [range(first + many * at, first + many * (at + 1)) for at in range(processes)]
                        fresh += many * processes * (what == "put")
                        told.append(measured(name, folder, what, batch, parts, size))
                    label = f"{what} {batch:>6,}, {processes} at a time"
                    yield label, min(used for used, _ in told), min(longest for _, longest in told)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put_forever(name: str, folder: str, limit: int, pipe: Any) -> None:
    """Put batches of 100 rows, and tell of each that is there; until the end, or until files may not grow any more."""
    if limit:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    store = SYSTEMS[name](folder, create=bool(limit))
    number = 0
    try:
        while True:
            store.put([(key(one), b"%d" % one * 100) for one in range(number, number + 100)])
            number += 100
            if not limit:
                pipe.send(number)
    except Exception as error:
        left = store.get([key(one) for one in range(number)])
        pipe.send(f"{type(error).__name__}: {error}; {left.count(None)} of {number} rows lost")


def read_cut_off(name: str, folder: str, pipe: Any) -> None:
    """Read from a file that another cuts off."""
    store = SYSTEMS[name](folder, create=False)
    keys = [key(one) for one in range(5000)]
    store.get(keys)
    pipe.send("ready")
    pipe.recv()
    try:
        found = store.get(keys)
        wrong = sum(value not in (None, b"%d" % one * 100) for one, value in enumerate(found))
        pipe.send(f"{found.count(None)} of {len(keys)} rows missing, {wrong} wrong")
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


def faults(name: str) -> Iterator[tuple[str, str]]:
    """What becomes of a store and a process by accidents."""
    with tempfile.TemporaryDirectory(prefix="asyncudf-benchmark-") as folder:
        SYSTEMS[name](folder, create=True)
        lost = rows = 0
        for _ in range(5):
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=put_forever, args=(name, folder, 0, theirs))
            process.start()
            theirs.close()
            number = 0
            while number < 20_000:
                number = ours.recv()
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
            while ours.poll():
                try:
                    number = ours.recv()
                except EOFError:
                    break
            found = SYSTEMS[name](folder, create=False).get([key(one) for one in range(number)])
            lost += sum(value != b"%d" % one * 100 for one, value in enumerate(found))
            rows += number
        yield "kill -9 of a writer, five times", f"{lost} of {rows} rows lost or wrong"
        if name.startswith("sqlite"):
            [[told]] = SQLite(folder, create=False).db.execute("PRAGMA integrity_check").fetchall()
            yield "integrity_check after it", told
        for end in ("", "-wal", "-shm", "-lock"):
            for path in (os.path.join(folder, one) for one in os.listdir(folder)):
                if path.endswith(("results.sqlite" + end, "results" + end)):
                    yield f"{os.path.basename(path)} cut to nothing while open", cut_off(name, folder, path)
    with tempfile.TemporaryDirectory(prefix="asyncudf-benchmark-") as folder:
        yield "files of at most 8 MiB", told_by(put_forever, (name, folder, 8 * 2**20))


def cut_off(name: str, folder: str, path: str) -> str:
    """What a reader of a copy tells whose file is cut off."""
    with tempfile.TemporaryDirectory(prefix="asyncudf-benchmark-") as other:
        copied = shutil.copytree(folder, os.path.join(other, "copy"))
        return told_by(
            read_cut_off, (name, copied), lambda: os.truncate(os.path.join(copied, os.path.basename(path)), 0)
        )


def told_by(target: Callable[..., None], given: tuple[Any, ...], harm: Callable[[], None] | None = None) -> str:
    """What a process says, or the signal that ended it."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(*given, theirs))
    process.start()
    theirs.close()
    try:
        if harm:
            ours.recv()
            harm()
            ours.send("go")
        return str(ours.recv())
    except EOFError:
        process.join()
        return f"ended by {signal.Signals(-(process.exitcode or 0)).name}"
    finally:
        process.join()


def main() -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="that are there before")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default=";".join(SYSTEMS), help="systems, separated by ;")
    parser.add_argument("--sizes", default="100,1024", help="bytes of a value")
    parser.add_argument("--faults", action="store_true", help="accidents instead of times")
    given = parser.parse_args()
    if given.faults:
        for name in given.only.split(";"):
            for what, told in faults(name):
                print(f"{name:<28} {what:<46} {told}", flush=True)
        return
    print(f"SQLite {sqlite3.sqlite_version}, {given.rows:,} rows, best of {given.rounds}", flush=True)
    for size in map(int, given.sizes.split(",")):
        for name in given.only.split(";"):
            for label, used, longest in rounds(name, size, given.rows, given.rounds):
                print(f"{size:>5} B  {name:<28} {label:<26} {used:6.2f} us/row  batch {longest:7.2f} ms", flush=True)


if __name__ == "__main__":
    main()
