"""A store on disk: bounded, in many processes at once, and none of them loses what another has put."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncudf import AsyncUDFError, ResultStore
from asyncudf._stores.lmdb_files import RotatingFiles
from asyncudf._stores.local import LEASE_FILES, SMALLEST, LocalResults
from tests.kit.stores import begin_another_file, key
from tests.kit.thorough import times

SPAWN = multiprocessing.get_context("spawn")


def results(folder: Path, clock: Callable[[], float] = lambda: 1000.0) -> LocalResults:
    """An open store with a clock of the test's."""
    return LocalResults(str(folder), SMALLEST, clock)


async def test_a_result_ends_to_the_millisecond(tmp_path: Path) -> None:
    """It is there until its ttl is over, by the clock that all processes have."""
    now = [1000.0]
    store = results(tmp_path, lambda: now[0])
    await store.put_many({key(1): b"a"}, 10.0)
    now[0] = 1009.999
    assert await store.get_many([key(1)]) == [b"a"]
    now[0] = 1010.0
    assert await store.get_many([key(1)]) == [None]
    await store.put_many({key(1): b"b"}, 1e300)  # longer than any file lives
    now[0] = 1e12
    assert await store.get_many([key(1)]) == [b"b"]
    await store.close()


async def test_what_is_too_old_or_replaced_is_not_counted(tmp_path: Path) -> None:
    """`info` counts the results that are found, each once, in both files."""
    now = [1000.0]
    store = results(tmp_path, lambda: now[0])
    await store.put_many({key(n): b"old" for n in range(5000)}, 10.0)
    await store.put_many({key(n): b"stays" for n in range(5000, 10_000)}, None)
    begin_another_file(store)
    await store.put_many({key(n): b"again" for n in range(9000, 11_000)}, None)
    assert (await store.info())["entries"] == 11_000
    await store.delete([key(0), key(9000), key(10_000), key(-1)])
    assert (await store.info())["entries"] == 10_997
    now[0] = 1020.0
    assert (await store.info())["entries"] == 5998
    await store.close()


@pytest.mark.parametrize(("length", "count"), [(700, 20_000), (5_000, 6_000), (400_000, 200)])
async def test_a_full_file_forgets_the_oldest(tmp_path: Path, length: int, count: int) -> None:
    """The file stays in its bounds, the newest results are in it, and none of the oldest."""
    store = results(tmp_path)
    for start in range(0, count, 100):
        await store.put_many({key(n): n.to_bytes(8, "big") * (length // 8) for n in range(start, start + 100)}, None)
    info = await store.info()
    kept = info["entries"]
    assert kept * length > SMALLEST / 8  # half of it, of which the tables take a part
    newest = await store.get_many([key(n) for n in range(count)[-kept:]])
    assert newest == [n.to_bytes(8, "big") * (length // 8) for n in range(count)[-kept:]]
    assert await store.get_many([key(n) for n in range(count - kept)[-50:]]) == [None] * 50
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= SMALLEST
    await store.close()


async def test_put_again_is_young_again(tmp_path: Path) -> None:
    """A result that is put anew counts as new: it stays when those that came with it at first make room."""
    store = results(tmp_path)
    await store.put_many({key(n): b"first" for n in range(3)}, None)
    for start in range(10, 30_000, 100):
        await store.put_many({key(n): bytes(700) for n in range(start, start + 100)}, None)
        if start == 26_010:
            await store.put_many({key(0): b"again"}, None)
    assert await store.get_many([key(0), key(1), key(2)]) == [b"again", None, None]
    await store.close()


async def test_a_result_that_is_too_large_is_not_kept(tmp_path: Path) -> None:
    """One that would push out most others is left out, without an error, and the others stay."""
    store = results(tmp_path)
    await store.put_many({key(1): b"small", key(2): bytes(SMALLEST), key(3): b"small too"}, None)
    assert await store.get_many([key(1), key(2), key(3)]) == [b"small", None, b"small too"]
    await store.close()


async def test_hits_are_counted_for_all(tmp_path: Path) -> None:
    """`info` tells of the hits and misses of all that have used the store, also of those that only read."""
    async with ResultStore.disk(tmp_path) as store:
        await store.put_many({key(1): b"a"}, None)
    async with ResultStore.disk(tmp_path) as store:
        await store.get_many([key(1), key(2), key(1)])
    async with ResultStore.disk(tmp_path) as store:
        await store.get_many([key(1)])
        told = await store.info()
        assert (told["entries"], told["hits"], told["misses"]) == (1, 3, 1)


def put_forever(folder: str, worker: int, ready: Any) -> None:
    """A process that puts, until it is killed."""

    async def main() -> None:
        async with ResultStore.disk(folder) as store:
            number = 0
            while True:
                await store.put_many({key(worker * 10**9 + n): b"%d" % n for n in range(number, number + 100)}, None)
                number += 100
                ready.send(number)

    asyncio.run(main())


def test_killed_writers_lose_nothing_and_block_nobody(tmp_path: Path) -> None:
    """Processes that are killed with -9 while they put: what `put_many` has returned for is there, and others go on."""
    for round_ in times(1, 3):
        done = []
        for worker in range(2):
            ours, theirs = SPAWN.Pipe(duplex=False)
            process = SPAWN.Process(target=put_forever, args=(str(tmp_path), 2 * round_ + worker, theirs))
            process.start()
            theirs.close()
            done.append((process, ours))
        for _, ours in done:
            while ours.recv() < 3000 + 700 * round_:
                pass
        told = []
        for process, ours in done:
            os.kill(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
            process.join()
            told.append(_last(ours))

        async def look(told: list[int], first: int) -> None:
            async with ResultStore.disk(tmp_path) as store:
                for worker, number in enumerate(told, first):
                    found = await store.get_many([key(worker * 10**9 + n) for n in range(number)])
                    assert found == [b"%d" % n for n in range(number)]
                await asyncio.wait_for(store.put_many({key(-1): b"after"}, None), 10)

        asyncio.run(look(told, 2 * round_))


def _last(pipe: Any) -> int:
    number = 3000
    try:
        while True:
            number = pipe.recv()
    except EOFError:
        return int(number)


def hold(folder: str, ready: Any, go: Any) -> None:
    """A process that writes for as long as it is told to."""
    with RotatingFiles(folder, SMALLEST).writing() as is_ours:
        assert is_ours
        ready.set()
        go.wait()


async def test_waiting_for_another_writer_blocks_nothing(tmp_path: Path) -> None:
    """While another process writes, the loop goes on, reads are answered, and the wait can be cancelled."""
    ready, go = SPAWN.Event(), SPAWN.Event()
    process = SPAWN.Process(target=hold, args=(str(tmp_path), ready, go))
    process.start()
    assert ready.wait(30)
    async with ResultStore.disk(tmp_path) as store:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.put_many({key(1): b"a"}, None), 0.05)
        assert await store.get_many([key(1)]) == [None]
        waiting = asyncio.ensure_future(store.put_many({key(2): b"b"}, None))
        await asyncio.sleep(0)
        go.set()
        await asyncio.wait_for(waiting, 10)
        assert await store.get_many([key(2)]) == [b"b"]
    process.join()


async def test_what_was_open_before_a_fork_is_the_parents(tmp_path: Path) -> None:
    """A forked process is told that it cannot use an open store; one that was closed before it can, and the parent.

    It was not told any more once it had closed the store that it had inherited, and then opened the files again.
    """
    async with ResultStore.disk(tmp_path / "closed"):
        pass
    async with ResultStore.disk(tmp_path / "open") as store:
        await store.put_many({key(1): b"parent"}, None)
        process = multiprocessing.get_context("fork").Process(target=_forked, args=(str(tmp_path), store))
        process.start()
        process.join()
        assert process.exitcode == 0
        await store.put_many({key(2): b"parent"}, None)
        assert await store.get_many([key(1), key(2)]) == [b"parent"] * 2


def _forked(folder: str, inherited: ResultStore) -> None:
    async def main() -> None:
        await inherited.close()
        async with ResultStore.disk(f"{folder}/closed") as store:
            await store.put_many({key(2): b"child"}, None)
        with pytest.raises(AsyncUDFError, match="was open when this process was forked"):
            await ResultStore.disk(f"{folder}/open").open()

    asyncio.new_event_loop().run_until_complete(main())


async def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    """Results may be secret: folder and files are the owner's alone."""
    async with ResultStore.disk(tmp_path / "new") as store:
        await store.put_many({key(1): b"a"}, None)
    folder = tmp_path / "new"
    files = [folder, *folder.iterdir()]
    assert len(files) == 4 + LEASE_FILES  # the folder, results, LMDB's lock, ours, and those of leases
    assert {one.stat().st_mode & 0o077 for one in files} == {0}
