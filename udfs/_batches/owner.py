"""One process at a time goes on with a submission; another one gets an error that names it."""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from .._errors.exceptions import AsyncUDFError
from .journal import Event
from .state import StateFolder

logger = logging.getLogger("asyncudf")

CLAIM_LASTS = 600.0  # seconds after which a process that has written nothing counts as dead, if nobody can look
TRIES = 5  # of two processes that begin at the same moment

_PROCESS = uuid.uuid4().hex


class Owner:
    """The right to go on with a submission, while the block runs; AsyncUDFError if another process has it.

    A process writes its claim, and then looks for claims of other processes: if there is one, it takes its own back. So
    at most one of two processes goes on, on any storage where later readers see what was written; nothing has to be
    created atomically. A claim ends when it is released, when its process has ended (seen on the same machine), or
    `CLAIM_LASTS` seconds after its last sign of life.
    """

    def __init__(self, journal: StateFolder, clock: Callable[[], float] = time.time) -> None:
        self._journal, self._clock = journal, clock
        self.id = uuid.uuid4().hex
        self.events: list[Event] = []
        self._ended = threading.Event()
        self._beats: threading.Thread | None = None

    def __enter__(self) -> Self:
        try:
            self._claim()
        except BaseException:  # a journal that cannot be read, or Ctrl-C: this process lives on
            self._release()
            raise
        self._beats = threading.Thread(target=self._beat, daemon=True, name="asyncudf-batches")
        self._beats.start()
        return self

    def _claim(self) -> None:
        for tries in range(1, TRIES + 1):
            began = self._clock()
            self._write("claim", json.dumps(_this_process()))
            self.events = self._journal.events()
            others = living(self.events, self._clock(), but=self.id)
            if not others:
                break
            # One that was there before goes on. Of two that began together each sees the other: both try again.
            before = [claim for claim in others if claim.at < began - 5]
            if before or tries == TRIES:
                raise AsyncUDFError(_text(self._journal.path, (before or others)[0]))
            self._release()
            self._ended.wait(random.uniform(0.1, 0.5 * tries))
            self.id = uuid.uuid4().hex

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._release()

    def _release(self) -> None:
        with contextlib.suppress(Exception):  # Spark may have ended; then the claim ends with the process
            self._write("release")

    def _beat(self) -> None:
        while not self._ended.wait(CLAIM_LASTS / 4):
            try:
                self._write("beat")
            except Exception as error:  # the next one may succeed
                logger.warning("no sign of life could be written to %s: %s", self._journal.path, error)

    def _write(self, kind: str, text: str = "") -> None:
        self._journal.add([Event(self._clock(), self.id, kind, text=text)])


def living(events: Iterable[Event], now: float, but: str = "") -> list[Event]:
    """The claims of owners that may be at work, the oldest first."""
    claims: dict[str, Event] = {}
    last: dict[str, float] = {}
    gone = {but}
    for event in events:
        if event.kind in ("claim", "beat"):
            last[event.owner] = max(last.get(event.owner, 0.0), event.at)
        if event.kind == "claim":
            claims[event.owner] = event
        elif event.kind == "release":
            gone.add(event.owner)
    found = [claim for owner, claim in claims.items() if owner not in gone and last[owner] > now - CLAIM_LASTS]
    return sorted((claim for claim in found if not _has_ended(json.loads(claim.text))), key=lambda claim: claim.at)


def _this_process() -> dict[str, Any]:
    try:
        user = getpass.getuser()
    except Exception:  # a container may have a user without a name
        user = str(os.getuid()) if hasattr(os, "getuid") else "?"
    return {
        "host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "user": user, "process": _PROCESS,
    }  # fmt: skip


def _machine() -> str:
    """Identifies a machine, and a container on it: process ids are unique in it. Empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _has_ended(owner: dict[str, Any]) -> bool:
    """Whether the process is known to have ended; not if it is on another machine."""
    if not owner["machine"] or owner["machine"] != _machine():
        return False
    if owner["pid"] == os.getpid():
        return bool(owner["process"] != _PROCESS)
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
        return False
    return _is_zombie(owner["pid"])


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _text(path: str, claim: Event) -> str:
    owner = json.loads(claim.text)
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(claim.at))
    return (
        f"another process goes on with the submission in {path}: process {owner['pid']} of {owner['user']} on "
        f"{owner['host']}, since {since}. Wait until it has ended; status() only reads. If it was killed on another "
        f"machine, its claim ends {CLAIM_LASTS / 60:.0f} minutes after its last sign of life"
    )
