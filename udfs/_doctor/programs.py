"""Other programs are started, and ended with all that they have started in turn."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from .findings import one_line

__all__ = ("end_group", "run_program")

LAST_WORDS = 1.0  # seconds for the pipes of a program that was ended


@dataclass(frozen=True)
class Ran:
    """What came of a program.

    Attributes:
        stdout: what it printed.
        stderr: what it printed there.
        status: it ended with.
        problem: why there is none of these.
    """

    stdout: str = ""
    stderr: str = ""
    status: int = 0
    problem: str = ""

    @property
    def without_version(self) -> str:
        """Why it has not told its version."""
        told = one_line(self.stderr) or one_line(self.stdout)
        if self.problem or self.status:
            return self.problem or told or f"it ends with status {self.status}"
        return f"it prints no version, but: {told}" if told else "it prints no version"


def run_program(command: Sequence[str], limit: float) -> Ran:
    """Run a program to its end. When its time is up, or the doctor is interrupted, all that it has started is ended."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Ran(problem=str(error))
    with process:
        try:
            stdout, stderr = process.communicate(timeout=limit)
        except BaseException as error:
            end_group(process)
            # A program with a session of its own may have the pipes still.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=LAST_WORDS)
            if isinstance(error, subprocess.TimeoutExpired):
                return Ran(problem=f"no answer in {limit:g} s")
            raise
    return Ran(stdout, stderr, process.returncode)


def end_group(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a program that was started with a session of its own, and all programs of that session."""
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
