"""Leases in a file: of one task at a time, until it gives them back, closes, or dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncudf import AsyncUDFError
from asyncudf._stores.leases import FileLeases, leases_in

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
        "import sys; from asyncudf._stores.leases import leases_in\n"
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


def test_a_link_or_a_pipe_is_refused(tmp_path: Path) -> None:
    """A folder that others can write may have anything under the name."""
    victim, name = tmp_path / "victim", tmp_path / "leases"
    name.symlink_to(victim)
    with pytest.raises(AsyncUDFError, match="symbolic link, which a store does not follow; delete it"):
        FileLeases(str(name))
    assert not victim.exists()
    name.unlink()
    os.mkfifo(name)
    with pytest.raises(AsyncUDFError, match="no regular file; delete it"):
        FileLeases(str(name))
