"""What the doctor says: a line for each thing that it looks at, and where something is wrong the line that mends it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from .._text.safe import printable

__all__ = ("Finding", "as_text", "clear", "exit_status", "export", "one_line")

Status = Literal["ok", "warn", "fail"]

ON_WINDOWS = sys.platform == "win32"
LONGEST = 220  # characters of a foreign message: the next line of the report must be seen too


@dataclass(frozen=True)
class Finding:
    """What one look has shown.

    Attributes:
        name: what was looked at.
        status: "ok"; "warn" if work can go on, "fail" if it cannot.
        found: what is there.
        mend: the one line that mends it, if something is wrong.
        detail: all that a failed program has printed; too long for people, so only `--json` shows it.
    """

    name: str
    status: Status
    found: str
    mend: str = ""
    detail: str = ""


def as_text(finding: Finding) -> str:
    """A finding as people read it: a line, and a second one with what mends it."""
    line = f"{finding.status:<5} {_visible(finding.name):<22} {_visible(finding.found)}"
    return f"{line}\n{'':<5} {'':<22} -> {_visible(finding.mend)}" if finding.mend else line


def _visible(text: str) -> str:
    """A text that may hold a path with a line break in it, or what a terminal takes for a command."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def exit_status(findings: Iterable[Finding]) -> int:
    """0 if work can go on, 1 if something fails."""
    return int(any(finding.status == "fail" for finding in findings))


def export(name: str, value: str, *, windows: bool = ON_WINDOWS) -> str:
    """The line for a shell that sets a variable of the environment."""
    return f'set "{name}={value}"' if windows else f"export {name}={shlex.quote(value)}"


def clear(name: str, *, windows: bool = ON_WINDOWS) -> str:
    """The line for a shell that takes a variable out of the environment."""
    return f"set {name}=" if windows else f"unset {name}"


def one_line(text: str) -> str:
    """A message of another program, short, without line breaks, and without the secrets of its URLs."""
    line = " ".join(printable(text).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
