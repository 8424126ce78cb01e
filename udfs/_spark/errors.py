"""How Spark shows that a task has failed: the message first, then the user's frames, and none of ours."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from .._errors.exceptions import AsyncUDFError
from .._errors.traces import trace_of

__all__ = ("ErrorReporting",)


def _is_full() -> bool:
    return os.environ.get("ASYNCUDF_FULL_TRACEBACK", "") not in ("", "0")


@dataclasses.dataclass(frozen=True)
class ErrorReporting:
    """Goes around what runs in one of Spark's Python workers, and travels there.

    Args:
        full: show all frames; said on the driver, when the query is planned, by `ASYNCUDF_FULL_TRACEBACK=1` in the
            environment.
    """

    full: bool = dataclasses.field(default_factory=_is_full)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Errors of this library get the traceback of the user's exception; others stay what they are."""
        try:
            yield
        except AsyncUDFError as error:
            cause = error.__cause__
            if cause is not None and (trace := trace_of(cause, full=self.full, redacted=error.is_redacted)):
                error.add_note(f"\n{trace.rstrip()}")
            error.__cause__ = None  # or Spark may show it as well, with all of its frames
            if not self.full:
                # Spark's own switch, which its handler of exceptions reads in the worker. A worker ends after an
                # error, so no other task meets it.
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise
