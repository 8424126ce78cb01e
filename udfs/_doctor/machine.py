"""What this machine allows: open files, ports, its own name, and the folders that Spark writes to."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .findings import Finding, clear, export

OWN_FILES = 64  # open in a worker besides its calls: libraries, pipes, its connections to Spark
LITTLE = 1024**3  # bytes that a shuffle soon fills
TOO_LITTLE = 64 * 1024**2
SLOW = 5.0  # seconds: Java asks for the name several times before a first job
NAME_LIMIT = 15.0  # seconds to wait for a name
JAVA_OPTIONS, JAVA_FOLDER = "JDK_JAVA_OPTIONS", "-Djava.io.tmpdir="
LOCAL_DIRS = "SPARK_LOCAL_DIRS"
HOST_NAME, ADDRESS = "SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP"


@dataclass(frozen=True)
class Host:
    """A name of this machine, and what it resolves to."""

    name: str  # what Spark asks for
    setting: str = ""  # the variable that says so; empty for the machine's own name
    address: str = ""  # what it resolves to; empty if it does not
    problem: str = ""  # why it does not, or why nothing can listen there
    seconds: float = 0.0  # how long that took


@dataclass(frozen=True)
class Folder:
    """A folder that Spark writes to."""

    path: str
    setting: str  # the variable that can name another folder
    problem: str = ""  # why nothing can be written there
    free: int = LITTLE  # bytes
    runs_code: bool = True  # libraries in it can be loaded, if Java loads any from there


def check_open_files(limits: tuple[float, float] | None, capacity: int) -> Finding:
    """The soft and the hard limit of open files (None: no limits) against `capacity` calls of one task.

    Each task has a worker process of its own, and the limit counts for each process.
    """
    if limits is None:
        return Finding("open files", "ok", "no limit is known here")
    soft, hard = limits
    need = capacity + OWN_FILES
    if soft >= need:
        found = f"{_files(soft)} in a process; {capacity:,} calls in a task need about {need:,}"
        return Finding("open files", "ok", found)
    if hard >= need:
        # Java raises its own limit as far as it may when it starts, and Spark's workers inherit that.
        there = f"{_files(soft)} in a process, more in Spark's workers"
        found = f"{there}; without Spark {capacity:,} calls need about {need:,}"
        return Finding("open files", "warn", found, f"ulimit -n {int(min(hard, 1 << (need - 1).bit_length()))}")
    found = f"at most {_files(hard)} in a process, and {capacity:,} calls in a task need about {need:,}"
    fix = f"capacity={max(1, int(hard) - OWN_FILES)}, or let root raise the limit of {_files(hard)}"
    return Finding("open files", "fail", found, fix)


def check_worker_files(limit: float, capacity: int) -> Finding:
    """The limit of open files in a worker that Spark has started; -1: none."""
    need, found = capacity + OWN_FILES, "no limit" if limit < 0 else _files(limit)
    if limit < 0 or limit >= need:
        return Finding("workers' files", "ok", f"{found} in a worker; {capacity:,} calls in a task need about {need:,}")
    fix = (
        f"capacity={max(1, int(limit) - OWN_FILES)}, or raise the limit (ulimit -n) where Spark's executors are started"
    )
    return Finding(
        "workers' files", "fail", f"{found} in a worker, and {capacity:,} calls in a task need about {need:,}", fix
    )


def _files(limit: float) -> str:
    return "no limit" if limit == float("inf") else f"{limit:,.0f}"


def check_ports(ports: int | None, capacity: int, tasks: int) -> Finding:
    """The ports of this machine against the calls of all its tasks: each call to one address may need one."""
    total = capacity * tasks
    calls = f"{capacity:,} calls in each of {tasks:,} tasks"
    if ports is None:
        return Finding("ports", "ok", f"{calls} are {total:,}; no limit is known here")
    found = f"{ports:,} to one address; {calls} need {total:,}"
    if total <= ports:
        return Finding("ports", "ok", found)
    return Finding("ports", "warn", found, f"capacity={max(1, ports // tasks)}, or fewer tasks on each machine")


def check_host(host: Host) -> Finding:
    """Whether the name of this machine leads to it. If not, Spark hangs or fails when it starts."""
    fix = host_fix(host.setting)
    shown = f"{host.setting} {host.name}" if host.setting else host.name
    if host.problem:
        return Finding("host name", "fail", f"{shown}: {host.problem}", fix)
    if host.seconds > SLOW:
        return Finding("host name", "warn", f"{shown} took {host.seconds:.0f} s to resolve", fix)
    return Finding("host name", "ok", f"{shown} is {host.address}")


def host_fix(setting: str = "") -> str:
    """The line that fixes a bad name: by the variable that sets it, or of the machine's own name."""
    # Spark ignores the address if a host name is set: then another address fixes nothing.
    return clear(HOST_NAME) if setting == HOST_NAME else export(ADDRESS, "127.0.0.1")


def check_folder(folder: Folder) -> Finding:
    """Whether Spark can write its files, has room for them, and Java can load the libraries that it unpacks."""
    name = f"folder {folder.path}"
    value = "/a/folder/with/space"
    other = export(folder.setting, f"{JAVA_FOLDER}{value}" if folder.setting == JAVA_OPTIONS else value)
    if folder.problem:
        return Finding(name, "fail", f"cannot be written: {folder.problem}", other)
    free = f"{folder.free / 1024**3:,.1f} GiB free"
    # Shuffles need room; beside them a few small files are written, and libraries unpacked.
    if folder.free < (LITTLE if folder.setting == LOCAL_DIRS else TOO_LITTLE):
        return Finding(name, "fail" if folder.free < TOO_LITTLE else "warn", f"only {free}", other)
    if not folder.runs_code:
        found = f"{free}, but nothing in it can be run (noexec), and Java loads libraries from there"
        return Finding(name, "warn", found, export(JAVA_OPTIONS, f"{JAVA_FOLDER}/another/folder"))
    return Finding(name, "ok", f"can be written, {free}")


def open_file_limits() -> tuple[float, float] | None:
    """The soft and the hard limit of open files in a process; None without such limits, as on Windows."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    return float("inf") if soft == endless else soft, float("inf") if hard == endless else hard


def port_count() -> int | None:
    """How many connections this machine may have to one address; None if unknown."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(last) - int(first) + 1
    except (OSError, ValueError):
        return None


def host_settings(environment: Mapping[str, str]) -> list[str]:
    """The variables that give Spark a name of this machine: the first counts; Spark's web page takes the address."""
    return [name for name in (HOST_NAME, ADDRESS) if environment.get(name)]


def read_hosts(environment: Mapping[str, str]) -> list[Host]:
    """Resolve each name that Spark asks for, and listen there for a moment."""
    settings = host_settings(environment)
    return [_read_host(environment[name], name) for name in settings] or [_read_host(socket.gethostname(), "")]


def _read_host(name: str, setting: str) -> Host:
    found: list[Host] = []
    begin = time.monotonic()
    # In a thread, since nothing else can end a look-up.
    thread = threading.Thread(target=lambda: found.append(_resolved(name, setting, begin)), daemon=True)
    thread.start()
    thread.join(NAME_LIMIT)
    return found[0] if found else Host(name, setting, problem=f"not resolved in {NAME_LIMIT:g} s")


def _resolved(name: str, setting: str, begin: float) -> Host:
    try:
        family, _, _, _, address = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        return Host(name, setting, problem=f"does not resolve: {error}", seconds=time.monotonic() - begin)
    seconds = time.monotonic() - begin
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(address)
        except OSError as error:
            problem = f"is {address[0]}, where nothing can listen: {error.strerror}"
            return Host(name, setting, str(address[0]), problem, seconds)
    return Host(name, setting, str(address[0]), seconds=seconds)


def read_folders(environment: Mapping[str, str]) -> list[Folder]:
    """Each folder that Spark writes to: those in SPARK_LOCAL_DIRS, and the temporary ones of Java and Python."""
    local = [path.strip() for path in environment.get(LOCAL_DIRS, "").split(",") if path.strip()]
    of_java = _java_folder(environment)
    # Without SPARK_LOCAL_DIRS shuffles go to Java's folder.
    settings = {
        _temporary_folder(environment): "TMPDIR",
        of_java: JAVA_OPTIONS if local else LOCAL_DIRS,
        **dict.fromkeys(local, LOCAL_DIRS),
    }
    return [_folder(path, setting, loads_code=path == of_java) for path, setting in settings.items()]


def _java_folder(environment: Mapping[str, str]) -> str:
    """Java's folder for temporary files: on Linux it does not read TMPDIR."""
    # In the order in which Java reads them: the last one counts.
    options = " ".join(environment.get(name, "") for name in ("JAVA_TOOL_OPTIONS", JAVA_OPTIONS, "_JAVA_OPTIONS"))
    set_to = re.findall(rf"(?:^|\s)[\"']?{re.escape(JAVA_FOLDER)}[\"']?([^\s\"']+)", options)
    if set_to:
        return str(set_to[-1])
    return _temporary_folder(environment) if sys.platform in ("win32", "darwin") else "/tmp"


def _temporary_folder(environment: Mapping[str, str]) -> str:
    """Python's folder for temporary files; if it can write to none, the first that it tries."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return environment.get("TMPDIR") or "/tmp"


def _folder(path: str, setting: str, *, loads_code: bool) -> Folder:
    # Spark makes a folder that is missing, if it may.
    above = path
    while not os.path.exists(above) and os.path.dirname(above) != above:
        above = os.path.dirname(above)
    try:
        with tempfile.NamedTemporaryFile(dir=above) as file:
            file.write(b"asyncudf")
            file.flush()
        free = shutil.disk_usage(above).free
    except OSError as error:
        return Folder(path, setting, problem=error.strerror or str(error))
    flags = os.statvfs(above).f_flag if loads_code and hasattr(os, "statvfs") else 0
    return Folder(path, setting, free=free, runs_code=not flags & getattr(os, "ST_NOEXEC", 0))
