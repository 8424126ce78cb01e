"""What is kept of budgets for the next run: each message counts once, and what earlier versions have written counts."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncudf import Budget, ResultStore
from asyncudf._limits.budgets.ledger import shared_amounts
from asyncudf._stores.ledgers import FolderLedger, Window, ledger_of, locked
from tests.kit.coordinators import Server, coordinator, linked, space_of_its_own, start_server

pytestmark = pytest.mark.services

DAY = "4099680000"  # when one begins, in the year 2099


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with contextlib.closing(start_server()) as started:
        yield started


@pytest.fixture(params=["disk", "redis"])
def store(request: Any, server: Server, tmp_path: Path) -> ResultStore:
    return ResultStore.disk(tmp_path) if request.param == "disk" else ResultStore.redis(server.url, space_of_its_own())


async def test_an_older_answer_does_not_replace_a_younger_one(store: ResultStore) -> None:
    async with ledger_of(store, "b") as ledger:
        assert ledger is not None
        await ledger.write("run", 10, 5.0)
        await ledger.write("run", 9, 99.0)
        await ledger.write("other", 1, 2.0)
        assert await ledger.spent_before("new") == 7.0
        assert await ledger.spent_before("run") == 2.0


async def test_a_batch_that_is_sent_again_counts_once_and_old_windows_are_dropped(store: ResultStore) -> None:
    first, second = Window(100.0, 200.0, "first"), Window(200.0, 4e9, "second")
    async with ledger_of(store, "b") as ledger:
        assert ledger is not None
        assert await ledger.newest() == 0.0
        await ledger.add(first, "t", 1, {"a": 2.0})
        await ledger.add(second, "t", 2, {"a": 3.0, "b": 0.5})
        if "redis" in repr(store):  # where an answer can be lost
            await ledger.add(second, "t", 2, {"a": 3.0, "b": 0.5})
        await ledger.add(second, "other", 1, {"a": -1.0})
        assert await ledger.newest() == 200.0
        assert await ledger.spent(second, ["a", "b", "c"]) == {"a": 2.0, "b": 0.5, "c": 0.0}
        assert await ledger.spent(first, ["a"]) == {"a": 0.0}


async def test_both_kinds_of_entries_are_apart(store: ResultStore) -> None:
    whole = Window(float("-inf"), float("inf"), "")
    async with ledger_of(store, "b") as ledger:
        assert ledger is not None
        await ledger.write("run", 1, 5.0)
        await ledger.add(whole, "t", 1, {"a": 2.0})
        assert await ledger.spent_before("new") == 5.0
        assert await ledger.spent(whole, ["a", "run"]) == {"a": 2.0, "run": 0.0}
        assert await ledger.newest() == 0.0


async def test_a_store_of_an_executor_keeps_no_ledger() -> None:
    async with ledger_of(ResultStore.executor(max_bytes=2**24), "b") as ledger:
        assert ledger is None
    async with ledger_of(None, "b") as ledger:
        assert ledger is None


def test_what_runs_have_spent_is_written_by_one_task_at_a_time(tmp_path: Path) -> None:
    """Another one waits: two that write at once would lose an amount."""
    ledger = FolderLedger(tmp_path / "budget")
    asyncio.run(ledger.write("first", 1, 0.5))
    other = threading.Thread(target=lambda: asyncio.run(ledger.write("second", 1, 0.25)))
    with locked(tmp_path / "budget"):
        other.start()
        other.join(0.3)
        assert other.is_alive()
    other.join(60)
    assert asyncio.run(ledger.spent_before("third")) == 0.75


# What version 0.2 has left behind, written by hand: 7 of 10 calls.


def left_on_disk(folder: Path, ledger: str, amounts: dict[str, Any]) -> None:
    place = folder / "budgets" / hashlib.sha256(ledger.encode()).hexdigest()[:32]
    place.mkdir(parents=True)
    for run, entry in amounts.get("runs", {}).items():
        (place / f"{run}.run").write_text(entry)
    if keys := amounts.get("keys"):
        with contextlib.closing(sqlite3.connect(place / "keys.sqlite")) as database, database:
            database.execute(
                "CREATE TABLE spent (start REAL, key TEXT, amount REAL, PRIMARY KEY (start, key)) WITHOUT ROWID"
            )
            for (start, key), amount in keys.items():
                database.execute("INSERT INTO spent VALUES (?, ?, ?)", (float(start or 0), key, float(amount)))


def left_in_redis(server: Server, prefix: str, ledger: str, amounts: dict[str, Any]) -> None:
    import redis

    with contextlib.closing(redis.Redis.from_url(server.url)) as client:
        for run, entry in amounts.get("runs", {}).items():
            client.hset(f"{prefix}:asyncudf.budget:{ledger}", run, entry)
        for (start, key), amount in amounts.get("keys", {}).items():
            client.hset(f"{prefix}:asyncudf.budget:{ledger}:{start}", key, amount)
            if start:
                client.set(f"{prefix}:asyncudf.budget:{ledger}:newest", start)


@pytest.mark.parametrize("kind", ["disk", "redis"])
@pytest.mark.parametrize(
    ("divided", "ending", "amounts"),
    [
        ({}, "", {"runs": {"3@1699999000.5": "12 4", "7@1699999500.25": "120 3"}}),
        ({"per": "day"}, ":day", {"keys": {(DAY, ""): "7"}}),
        ({"by": "tenant"}, ":", {"keys": {("", "acme"): "7"}}),
        ({"per": "day", "by": "tenant"}, ":day", {"keys": {(DAY, "acme"): "7", (DAY, "another"): "9"}}),
        ({"per": 60, "by": "tenant"}, ":60.0", {"keys": {(DAY, "acme"): "7"}}),
    ],
    ids=["whole", "day", "by", "day and by", "seconds"],
)
async def test_what_an_earlier_version_has_written_counts(
    server: Server, tmp_path: Path, kind: str, divided: dict[str, Any], ending: str, amounts: dict[str, Any]
) -> None:
    """In a window that begins later than now: nobody's clock may go back behind it."""
    budget = Budget(10, "calls", name=space_of_its_own(), **divided)
    name = f"{budget.name}:calls"
    if kind == "disk":
        left_on_disk(tmp_path, name + ending, amounts)
        store = ResultStore.disk(tmp_path)
    else:
        left_in_redis(server, name, name + ending, amounts)
        store = ResultStore.redis(server.url, prefix=name)
    woken, calls = asyncio.Event(), 0
    async with coordinator(server, space_of_its_own()) as connection:
        link = linked(connection, "t", woken.set)
        async with shared_amounts(link, name, budget, store, lambda _: woken.set(), lambda _: 1) as shared:
            while not (amount := shared.of("acme" if budget.by else "")).is_spent(1.0):
                woken.clear()
                if amount.ask(1.0):
                    amount.reserve(1.0)
                    calls += 1
                else:
                    await woken.wait()
    assert calls == 3
