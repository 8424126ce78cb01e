"""What the doctor says of each thing that it looks at: a line with what is there, and a line that fixes it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..._errors.safe import presentable

ON_WINDOWS = sys.platform == "win32"
MESSAGE_CHARACTERS = 220  # characters of another program's message, so that the next line of the report stays in sight


@dataclass(frozen=True)
class Finding:
    """What the doctor found out about one thing; with these names in `--json`."""

    name: str  # what was looked at
    status: Literal["ok", "warn", "fail", "skip"]  # "warn" if work can go on, "fail" if it cannot
    found: str  # what is there
    fix: str = ""  # the line that fixes it; empty if nothing is wrong
    detail: str = ""  # all that a failed program printed; only `--json` shows it


def as_text(finding: Finding) -> str:
    """A finding as people read it: a line, and a second one with what fixes it."""
    line = f"{finding.status:<5} {_visible(finding.name):<22} {_visible(finding.found)}"
    return f"{line}\n{'':<5} {'':<22} -> {_visible(finding.fix)}" if finding.fix else line


def _visible(text: str) -> str:
    # A path may hold a line break, or a terminal's control sequence.
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def exit_status(findings: Iterable[Finding]) -> int:
    """0 if work can go on, 1 if something fails."""
    return int(any(finding.status == "fail" for finding in findings))


def export(name: str, value: str, *, windows: bool = ON_WINDOWS) -> str:
    """The shell's line that sets an environment variable."""
    return f'set "{name}={value}"' if windows else f"export {name}={shlex.quote(value)}"


def clear(name: str, *, windows: bool = ON_WINDOWS) -> str:
    """The shell's line that removes an environment variable."""
    return f"set {name}=" if windows else f"unset {name}"


def short_message(text: str) -> str:
    """A message of another program, short, without line breaks, and without the secrets of its URLs."""
    line = " ".join(presentable(text).split())
    return line if len(line) <= MESSAGE_CHARACTERS else line[: MESSAGE_CHARACTERS - 3] + "..."
