"""The names in a LookupTable: those of its own columns, and how ours keep clear of the user's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = (
    "CALLED_AT",
    "COLUMNS",
    "ERROR",
    "FUNCTION",
    "KEY",
    "RESULT",
    "VERSION",
    "WAVE",
    "free_name",
    "is_case_sensitive",
    "quoted",
)


# The arguments are one struct, so that no name of theirs is that of another column, and so that a NULL among them
# equals a NULL.
KEY, RESULT, ERROR, CALLED_AT = "arguments", "result", "error", "called_at"
FUNCTION, VERSION, WAVE = "function", "version", "wave"
COLUMNS = (KEY, RESULT, ERROR, CALLED_AT, FUNCTION, VERSION, WAVE)


def free_name(wanted: str, taken: Iterable[str]) -> str:
    """A name that none of the others is, in any case: Spark finds `Key` where `key` is asked for, and drops both."""
    names = {name.casefold() for name in taken}
    while wanted.casefold() in names:
        wanted += "_"
    return wanted


def quoted(name: str) -> str:
    """The name as Spark reads it literally."""
    return "`" + name.replace("`", "``") + "`"


def is_case_sensitive(session: Any) -> bool:
    """Whether `City` and `city` are two columns for this session."""
    return str(session.conf.get("spark.sql.caseSensitive")).lower() == "true"
