"""Files that are damaged, of somebody else, or on a full disk: each is told for what it is, and no process ends."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import lmdb
import pytest

from asyncudf import AsyncUDFError, OptionError
from asyncudf._stores import lmdb_files
from asyncudf._stores.base import ResultStore
from asyncudf.testing import run_rows
from tests.kit.stores import key


async def put(folder: Path, count: int = 1000) -> None:
    """Put results into a folder."""
    await put_into(ResultStore.disk(folder), count)


async def put_into(store: ResultStore, count: int = 1000) -> None:
    async with store:
        await store.put_many({key(n): b"%d" % n for n in range(count)}, None)


def file_of(folder: Path) -> Path:
    """The only file with results."""
    (found,) = folder.glob("results-*[0-9]")
    return found


@pytest.mark.parametrize("harm", ["foreign", "short", "text"])
def test_a_damaged_file_is_told(tmp_path: Path, harm: str) -> None:
    """What is no file of LMDB's is an error with its name and what to do, and is left as it is."""
    asyncio.run(put(tmp_path))
    file = file_of(tmp_path)
    content = file.read_bytes()
    file.write_bytes(
        {"foreign": os.urandom(len(content)), "short": content[: len(content) // 2], "text": b"my notes"}[harm]
    )
    before = file.read_bytes()
    for _ in range(2):
        with pytest.raises(AsyncUDFError, match=rf"{file} is damaged.*delete it"):
            asyncio.run(put(tmp_path))
    assert file.read_bytes() == before


def test_damage_inside_of_the_file_is_told(tmp_path: Path) -> None:
    """A page that is lost is an error with the file and what to do, or a miss; other results are as they were."""

    async def look() -> set[object]:
        found: set[object] = set()
        async with ResultStore.disk(tmp_path) as store:
            for n in range(2000):
                try:
                    value = (await store.get_many([key(n)]))[0]
                except AsyncUDFError as error:
                    found.add(str(error))
                else:
                    found.add(None if value is None else value == b"%d" % n)
        return found

    asyncio.run(put(tmp_path, 2000))
    with file_of(tmp_path).open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        for page in range(2, size // 4096, 7):
            file.seek(page * 4096)
            file.write(bytes(4096))
    try:
        found = asyncio.run(look())
    except AsyncUDFError as error:  # the page that it begins with
        found = {str(error)}
    told = [one for one in found if isinstance(one, str)]
    assert told
    assert all(f"{tmp_path}/results-" in one and one.endswith("delete it") for one in told)
    assert False not in found


def test_somebody_elses_files_are_left_alone(tmp_path: Path) -> None:
    """A folder may have another database in it; one under a name of ours is refused, and not to be deleted."""
    with lmdb.open(str(tmp_path)) as env, env.begin(write=True) as transaction:
        transaction.put(b"their key", b"their value")
    before = (tmp_path / "data.mdb").read_bytes()
    asyncio.run(put(tmp_path))
    assert (tmp_path / "data.mdb").read_bytes() == before
    file_of(tmp_path).write_bytes(before)
    with pytest.raises(AsyncUDFError, match=r"is somebody else's.*use another folder") as raised:
        asyncio.run(put(tmp_path))
    assert "delete" not in str(raised.value)
    assert file_of(tmp_path).read_bytes() == before


def test_a_file_of_another_version_is_told(tmp_path: Path) -> None:
    """A layout that this version does not know is not read as its own."""
    asyncio.run(put(tmp_path))
    with lmdb.open(str(file_of(tmp_path)), subdir=False) as env, env.begin(write=True) as transaction:
        transaction.put(lmdb_files.HEADER[0], b"results 99")
    with pytest.raises(AsyncUDFError, match="of another version of asyncudf; delete it"):
        asyncio.run(put(tmp_path))


CUT_OFF = """
import asyncio, os, sys
from pathlib import Path
from asyncudf import AsyncUDFError, ResultStore
folder, ending, length = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
keys = [n.to_bytes(16, "big") for n in range(1000)]
async def main():
    async with ResultStore.disk(folder) as store:
        await store.put_many(dict.fromkeys(keys, b"value"), None)
        [file] = folder.glob("results-*" + ending)
        os.truncate(file, length)
        for step in (lambda: store.get_many(keys), lambda: store.put_many({keys[0]: b"again"}, None), store.info):
            try:
                print(await step())
            except AsyncUDFError as error:
                print(error)
        for file in folder.glob("results-*"):
            file.unlink()
        await store.put_many({keys[0]: b"anew"}, None)
        print(await store.get_many(keys[:2]))
asyncio.run(main())
"""


@pytest.mark.parametrize(("ending", "length"), [("[0-9]", 9000), ("-lock", 0)])
def test_a_file_that_is_cut_off_while_open_ends_no_process(tmp_path: Path, ending: str, length: int) -> None:
    """The system ended the process that read on behind the end (SIGBUS). Now it is told, and deleting it helps."""
    told = subprocess.run(
        [sys.executable, "-c", CUT_OFF, str(tmp_path), ending, str(length)], capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stderr) == (0, "")
    *damaged, anew = told.stdout.splitlines()
    assert len(damaged) == 3
    assert all("is damaged: it is too short; delete it" in line for line in damaged)
    assert anew == "[b'anew', None]"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no FIFOs")
@pytest.mark.parametrize("which", ["results-*[0-9]", "results-*-lock", "writer.lock", "leases-0"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "FIFO", "folder", "somebody's file"])
def test_only_regular_files_of_ones_own_are_opened(
    tmp_path: Path, which: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link had its target written over, and a task waited for ever at a FIFO."""
    folder, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    asyncio.run(put(folder))
    [file] = folder.glob(which)
    file.rename(elsewhere)
    if kind == "dangling link":
        elsewhere.unlink()
    before = elsewhere.read_bytes() if elsewhere.exists() else None
    if kind == "FIFO":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "somebody's file":
        elsewhere.rename(file)
        as_of_another(file, monkeypatch)
    else:
        file.symlink_to(elsewhere)
    with pytest.raises(AsyncUDFError, match=rf"{file} is no regular file of this user's.*; remove it"):
        asyncio.run(put(folder))
    if kind != "somebody's file":
        assert (elsewhere.read_bytes() if elsewhere.exists() else None) == before


def as_of_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a file were another user's."""
    fstat = os.fstat

    def owned(file: int) -> os.stat_result:
        found = fstat(file)
        if not os.path.samestat(found, os.stat(path)):
            return found
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))

    monkeypatch.setattr(os, "fstat", owned)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders have no owner")
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write to it can lead a task elsewhere; nothing is made in it."""
    folder = tmp_path / "store"
    folder.mkdir()
    for mode in (0o777, 0o1777, 0o770, 0o702):
        folder.chmod(0o755)
        store = ResultStore.disk(folder)
        folder.chmod(mode)
        with pytest.raises(OptionError, match=rf"which others cannot write to; chmod go-w {folder}"):
            ResultStore.disk(folder)
        with pytest.raises(AsyncUDFError, match=rf"others can write to the folder {folder}; chmod go-w it"):
            asyncio.run(put_into(store))
    folder.chmod(0o755)
    (tmp_path / "link").symlink_to(folder)
    asyncio.run(put(tmp_path / "link"))  # one's own link to one's own folder
    uid = os.geteuid()
    for path in (folder, tmp_path / "link"):
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: uid + 1)
            with pytest.raises(AsyncUDFError, match=rf"the folder {path} belongs to another user \(uid {uid}\)"):
                asyncio.run(put(path))


def test_what_is_no_folder_is_refused_when_the_store_is_made(tmp_path: Path) -> None:
    """The first task told it, as an error of the system."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(OptionError, match=rf"path must be that of a folder, but {tmp_path / name} is none"):
            ResultStore.disk(tmp_path / name)


@pytest.mark.parametrize("what", ["posix_fallocate", "DiskError"])
def test_a_full_disk_is_told_as_one(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told to delete results that are good, and nothing half-made is left."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device") if what == "posix_fallocate" else lmdb.DiskError("full")

    if not hasattr(os, "posix_fallocate"):
        pytest.skip("the system cannot say that a file is to have its blocks")
    with monkeypatch.context() as patch:
        patch.setattr(*((os, "posix_fallocate") if what == "posix_fallocate" else (lmdb, "open")), fail)
        with pytest.raises(AsyncUDFError, match=r"cannot be written: the disk is full$"):
            asyncio.run(put(tmp_path))
    assert not list(tmp_path.glob("results-*"))
    asyncio.run(put(tmp_path))


FULL_DISK = """
import asyncio, os, sys
from asyncudf import ResultStore
from asyncudf.testing import run_rows
from tests.kit.stores import key
folder = sys.argv[1]
async def double(x: int) -> int:
    return 2 * x
def run():
    print(run_rows(double, [1, 2, 3], store=ResultStore.disk(folder + "/store"), returnType="bigint"))
if sys.argv[2] == "before":
    run()
with open(folder + "/filler", "wb", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
run()
run()
"""


@pytest.mark.parametrize("opened", ["before", "after"])
@pytest.mark.skipif(not shutil.which("unshare"), reason="makes a small disk: needs the command unshare of Linux")
def test_a_full_disk_ends_no_process(tmp_path: Path, opened: str) -> None:
    """The system ended each process that opened a store on a full disk (SIGBUS), whatever `on_store_error` was."""
    # The disk is the process's own: it is gone with it, also if the test is killed.
    mount = ["sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"', str(tmp_path)]
    small_disk = ["unshare", "--map-root-user", "--mount", *mount]
    if subprocess.run([*small_disk, "true"], capture_output=True).returncode:
        pytest.skip("no small disk can be made here: neither as root nor as another user")
    program = [sys.executable, "-c", FULL_DISK, str(tmp_path), opened]
    told = subprocess.run([*small_disk, *program], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told
    assert told.stdout.splitlines()[-2:] == ["[2, 4, 6]"] * 2
    assert opened == "before" or "the disk is full" in told.stderr


def test_counts_that_cannot_be_written_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk a task whose results were all found failed when it closed its store."""

    async def double(x: int) -> int:
        return 2 * x

    store = ResultStore.disk(tmp_path)
    options = {"store": store, "returnType": "bigint", "on_store_error": "fail"}
    assert run_rows(double, [1, 2], **options) == [2, 4]

    def fail(*_: Any) -> bool:
        raise AsyncUDFError("the disk is full")

    monkeypatch.setattr(lmdb_files.LmdbFile, "put", fail)
    assert run_rows(double, [1, 2], **options) == [2, 4]


def test_a_forked_child_leaves_its_parents_folder(tmp_path: Path) -> None:
    """A child that ended by `sys.exit` deleted the folder of its parent's executor store."""
    program = (
        "import os, sys\n"
        "from asyncudf._stores.lmdb_files import own_folder\n"
        "folder = own_folder()\n"
        "child = os.fork()\n"
        "if not child: sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "print(folder, os.path.exists(folder))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    folder, was_there = told.stdout.split()
    assert was_there == "True"
    assert not Path(folder).exists()


def test_a_process_that_may_use_few_addresses_has_a_store_that_fits(tmp_path: Path) -> None:
    """With spark.executor.pyspark.memory no file could be mapped, and each row was called: 200 calls for one result."""
    program = """
        import asyncio, resource, sys
        from asyncudf import ResultStore
        from asyncudf.testing import run_rows

        async def call(x: int) -> int:
            calls.append(x)
            return x

        resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
        for folder in sys.argv[1:]:
            calls, options = [], {"store": ResultStore.disk(folder), "on_store_error": "fail"}
            try:
                print(run_rows(call, [1, 1, 2, 1], version="1", capacity=1, **options), calls)
            except Exception as error:
                print(error)
    """
    asyncio.run(put(tmp_path / "of another"))
    folders = [str(tmp_path / "new"), str(tmp_path / "of another")]
    command = [sys.executable, "-c", textwrap.dedent(program), *folders]
    fits, error = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert fits == "[1, 1, 2, 1] [1, 2]"
    assert "(ulimit -v, spark.executor.pyspark.memory): another process has begun it; use another folder" in error
