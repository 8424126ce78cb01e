"""A folder that is full: the newest results are kept, whatever came before, whoever reads, and whoever writes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from asyncudf._stores.base import ResultStore
from asyncudf._stores.lmdb_files import RotatingFiles
from asyncudf._stores.local import SMALLEST, LocalResults
from tests.kit.stores import key

SPAWN = multiprocessing.get_context("spawn")
SMALL = SMALLEST // 8  # is full after an eighth of the results


@pytest.fixture(autouse=True)
def small_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores may be smaller than those of a user: to fill one takes most of the time of these tests."""
    monkeypatch.setattr("asyncudf._stores.local.SMALLEST", SMALL)


async def fill(store: Any, first: int, count: int, length: int = 1000, batch: int = 100) -> int:
    """How many of the results were there when they had just been put."""
    kept = 0
    for start in range(first, first + count, batch):
        keys = [key(n) for n in range(start, start + batch)]
        await store.put_many(dict.fromkeys(keys, bytes(length)), None)
        kept += sum(value is not None for value in await store.get_many(keys))
    return kept


def taken(folder: Path) -> int:
    """Bytes of all files."""
    return sum(one.stat().st_size for one in folder.iterdir())


@pytest.mark.parametrize(("max_bytes", "length", "batch"), [(SMALL, 300, 10), (SMALL, 1300, 10), (SMALLEST, 1900, 37)])
async def test_a_full_folder_keeps_what_comes(tmp_path: Path, max_bytes: int, length: int, batch: int) -> None:
    """Results that came ten at a time filled a file for ever: of the next 5,000 none was kept."""
    count = 3 * max_bytes // length // batch * batch
    for first in (0, count):
        async with ResultStore.disk(tmp_path, max_bytes=max_bytes) as store:
            assert await fill(store, first, count, length, batch) == count
    assert taken(tmp_path) <= max_bytes


@pytest.mark.parametrize(("max_bytes", "small"), [(SMALL, 60), (SMALL, 700), (SMALLEST, 5000)])
@pytest.mark.parametrize("share", [800, 40])
async def test_large_results_find_room_among_small_ones(tmp_path: Path, max_bytes: int, small: int, share: int) -> None:
    """Of 200 results of 100 kB 13 were kept where many small ones had been before, and all of these were forgotten."""
    async with ResultStore.disk(tmp_path, max_bytes=max_bytes) as store:
        await fill(store, 0, 2 * max_bytes // small // 100 * 100, small)
        for _ in range(2):
            assert await fill(store, -100, 100, max_bytes // share, batch=1) == 100
            assert await fill(store, -1000, 900, small) == 900


@pytest.mark.parametrize("sizes", [(8, 2, 2), (2, 8, 2), (8, 2, 8)], ids=str)
@pytest.mark.parametrize("together", [True, False])
async def test_stores_of_one_folder_may_differ_in_size(tmp_path: Path, sizes: tuple[int, ...], together: bool) -> None:
    """A file that was open with 16 MiB was full for ever once it was opened with 64, and could not be cleared."""
    stores = [ResultStore.disk(tmp_path, max_bytes=size * 2**20) for size in sizes]
    if together:
        for store in stores:
            await store.open()
    for turn, (store, size) in enumerate(zip(stores, sizes, strict=True)):
        if not together:
            await store.open()
        assert await fill(store, turn * 10**6, size * 1000) == size * 1000
        assert taken(tmp_path) <= size * 2**20
        if not together:
            await store.close()
    if together:
        await stores[0].clear()
        assert await fill(stores[1], 0, 1000) == 1000
        for store in stores:
            await store.close()


async def test_a_full_folder_forgets_what_it_is_told_to(tmp_path: Path) -> None:
    """To delete from a full file, and to clear it, needed room in it, and raised LMDB's own error."""
    async with ResultStore.disk(tmp_path, max_bytes=SMALLEST) as store:
        await fill(store, 0, 30_000)
        left = [n for n, value in enumerate(await store.get_many([key(n) for n in range(30_000)])) if value]
        assert len(left) > 5000
        await store.delete([key(n) for n in left if n % 2])
        found = await store.get_many([key(n) for n in left])
        assert not any(value for n, value in zip(left, found, strict=True) if n % 2)
        assert any(found)
        await store.clear()
        assert (await store.info())["entries"] == 0
        assert taken(tmp_path) == 0


async def test_who_reads_for_long_holds_up_nobody(tmp_path: Path) -> None:
    """While somebody reads an old state all that comes is kept, deleted and cleared."""
    store = LocalResults(str(tmp_path), SMALLEST)
    await fill(store, 0, 2000)
    with store._files.current()[0].transaction():  # holds all pages that are in use now
        other = LocalResults(str(tmp_path), SMALLEST)
        assert await fill(other, 2000, 28_000) == 28_000
        await other.delete([key(29_999)])
        assert await other.get_many([key(29_999), key(29_998)]) == [None, bytes(1000)]
        await other.clear()
        assert await fill(other, 0, 1000) == 1000
        await other.close()
    await store.close()


def read_forever(folder: str, ready: Any) -> None:
    """A process that reads, until it is killed."""
    with RotatingFiles(folder, SMALLEST).current()[0].transaction():
        ready.set()
        signal.pause()


async def test_a_killed_reader_holds_up_nobody(tmp_path: Path) -> None:
    """A process that is killed while it reads does not keep the folder full for the others."""
    async with ResultStore.disk(tmp_path, max_bytes=SMALLEST) as store:
        await fill(store, 0, 2000)
        ready = SPAWN.Event()
        process = SPAWN.Process(target=read_forever, args=(str(tmp_path), ready))
        process.start()
        assert ready.wait(30)
        process.kill()
        process.join()
        assert await fill(store, 2000, 28_000) == 28_000
    assert taken(tmp_path) <= SMALLEST


async def test_a_new_file_that_was_not_finished_is_gone_on_with(tmp_path: Path) -> None:
    """Killed between two files, before the new one is written to and the oldest is deleted, no newer one is lost."""
    async with ResultStore.disk(tmp_path, max_bytes=SMALLEST) as store:
        await fill(store, 0, 3000)
    (only,) = tmp_path.glob("results-*[0-9]")
    _, number, size = only.name.split("-")
    (tmp_path / f"results-{1:020}-{size}").write_bytes(b"left over")
    (tmp_path / f"results-{int(number) + 1:020}-{size}").touch()
    async with ResultStore.disk(tmp_path, max_bytes=SMALLEST) as store:
        assert await store.get_many([key(n) for n in range(3000)]) == [bytes(1000)] * 3000
        assert await fill(store, 3000, 3000) == 3000
        assert await store.get_many([key(n) for n in range(3000)]) == [bytes(1000)] * 3000
        assert await fill(store, 6000, 20_000) == 20_000
    assert taken(tmp_path) <= SMALLEST


async def test_a_clock_that_goes_back_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New files get numbers by the clock: the newest has the highest all the same, also for others."""
    async with (
        ResultStore.disk(tmp_path, max_bytes=SMALL) as store,
        ResultStore.disk(tmp_path, max_bytes=SMALL) as other,
    ):
        await fill(store, 0, 3000)
        monkeypatch.setattr("time.time_ns", lambda: 10**18)  # in 2001
        monkeypatch.setattr("time.time", lambda: 1e9)
        assert await fill(store, 3000, 3000) == 3000
        newest = [key(n) for n in range(5900, 6000)]
        assert await other.get_many(newest) == [bytes(1000)] * 100
        assert await other.get_many([key(0)]) == [None]
    assert taken(tmp_path) <= SMALL


async def test_a_folder_that_is_deleted_while_open_is_begun_anew(tmp_path: Path) -> None:
    """Results went on into files that nobody could find; now the folder is empty, and made again by the next result."""
    folder = tmp_path / "results"
    async with ResultStore.disk(folder) as store:
        await fill(store, 0, 100)
        for one in folder.iterdir():
            os.remove(one)
        folder.rmdir()
        assert await store.get_many([key(1)]) == [None]
        assert await fill(store, 100, 100) == 100
        async with ResultStore.disk(folder) as other:
            assert await other.get_many([key(101), key(1)]) == [bytes(1000), None]
