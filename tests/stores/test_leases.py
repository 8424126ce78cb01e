"""Leases in a file: of one task at a time, until it gives them back, closes, or dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from asyncudf._stores.local import FileLeases, leases_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs locks of open files")
OSLO, BERGEN = b"o" * 16, b"b" * 16


def test_one_at_a_time(tmp_path: Path) -> None:
    """Also of two in one process, of which one is closed."""
    first, second, third = (leases_in(str(tmp_path)) for _ in range(3))
    assert isinstance(first, FileLeases)
    assert isinstance(second, FileLeases)
    assert isinstance(third, FileLeases)
    assert [first.take(OSLO), first.take(OSLO), second.take(OSLO), second.take(BERGEN)] == [True, True, False, True]
    third.close()
    second.give_back(OSLO)
    assert not second.take(OSLO)
    first.give_back(OSLO)
    assert second.take(OSLO)
    assert not first.take(OSLO)
    second.close()
    assert first.take(OSLO)
    assert first.take(BERGEN)
    first.close()


def test_those_of_a_killed_process_end(tmp_path: Path) -> None:
    """Without a word from it, and at once."""
    program = (
        "import sys; from asyncudf._stores.local import leases_in\n"
        "leases = leases_in(sys.argv[1]); print(leases.take(b'o' * 16), flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == b"True\n"
        mine = FileLeases(str(tmp_path / "leases"))
        assert not mine.take(OSLO)
        assert mine.take(BERGEN)
        other.send_signal(signal.SIGKILL)
        other.wait(10)
        assert mine.take(OSLO)
        mine.close()


def test_a_process_that_was_forked_off_keeps_none(tmp_path: Path) -> None:
    """It may outlive the task, as those of a pool do when the task is killed."""
    mine, other = leases_in(str(tmp_path)), leases_in(str(tmp_path))
    assert isinstance(mine, FileLeases)
    assert isinstance(other, FileLeases)
    assert mine.take(OSLO)
    is_done, tell = os.pipe()
    is_ready, tell_ready = os.pipe()
    child = os.fork()
    if not child:
        os.close(tell)
        os.write(tell_ready, b"x")
        os.read(is_done, 1)  # until the parent has closed its end
        os._exit(0)
    try:
        assert os.read(is_ready, 1) == b"x"
        assert not other.take(OSLO)
        mine.close()
        assert other.take(OSLO)
    finally:
        os.close(tell)
        os.waitpid(child, 0)
        for pipe in (is_done, is_ready, tell_ready):
            os.close(pipe)
        other.close()


def test_many_leases_are_spread_over_files(tmp_path: Path) -> None:
    """The system looks through all locks of a file for each that is taken."""
    mine = FileLeases(str(tmp_path / "leases"))
    keys = [number.to_bytes(2, "big") * 8 for number in range(0, 65536, 37)]
    assert all(map(mine.take, keys))
    inodes = {found.st_ino for found in map(os.stat, tmp_path.iterdir())}
    for _ in range(20):  # the system's list may lack some while other processes take or leave locks
        files = Counter[int]()
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            inode = int(next(word for word in words if word.count(":") == 2).rpartition(":")[2])
            if inode in inodes and words[1] == "OFDLCK":
                files[inode] += 1
        if files.total() == len(keys):
            break
    assert files.total() == len(keys)
    assert max(files.values()) < len(keys) / 8
    mine.close()
