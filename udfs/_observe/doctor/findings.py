"""What the doctor says of each thing that it looks at: a line with what is there, and a line that fixes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..._errors.safe import presentable

MESSAGE_CHARACTERS = 220  # of another program, so that the next line of the report stays in sight


@dataclass(frozen=True)
class Finding:
    """What the doctor found out about one thing; with these names in `--json`."""

    name: str  # what was looked at
    status: Literal["ok", "warn", "fail"]  # "warn" if work can go on, "fail" if it cannot
    found: str  # what is there
    fix: str = ""  # the line that fixes it; empty if nothing is wrong


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


def short_message(text: str) -> str:
    """A message of another program, short, without line breaks, and without the secrets of its URLs."""
    line = " ".join(presentable(text).split())
    return line if len(line) <= MESSAGE_CHARACTERS else line[: MESSAGE_CHARACTERS - 3] + "..."
