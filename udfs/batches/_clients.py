"""What the services of providers share: a client for each process, which is made there, and the lines of its files."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .._batches.service import NotAnsweredError
from .._errors.exceptions import OptionError
from .._errors.records import error_text
from .._errors.safe import safe_repr, type_name

logger = logging.getLogger("asyncudf")

_KEY = re.compile(rb'"custom_id"\s*:\s*"([^"\\]*)"')


class CachedClient:
    """Makes a client when it is first asked for one, by `default` unless the user gives a way; its pickle has none."""

    def __init__(self, make: Callable[[], Any] | None, default: Callable[[], Any]) -> None:
        if make is not None and not callable(make):
            raise OptionError(
                "client must be a function that makes the client, as each process needs one, such as "
                f"functools.partial({type_name(make)}, ...), not a value of type {type_name(make)}"
            )
        self._make = default if make is None else make
        self._client: Any = None

    @property
    def client(self) -> Any:
        """The client of this process."""
        if self._client is None:
            self._client = self._make()
        return self._client

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_client": None}


def answers_of(lines: Iterable[bytes], read: Callable[[dict[str, Any]], Any]) -> Iterator[tuple[str, Any]]:
    """The key of each line of a file of answers, with what `read` makes of it, or an error if it is damaged.

    A damaged line whose key cannot be seen is left out.
    """
    for line in lines:
        try:
            row = json.loads(line)
            key = row["custom_id"]
            if not isinstance(key, str):
                raise TypeError(f"custom_id is of type {type_name(key)}")
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            logger.warning("a line of %d bytes among the answers cannot be read: %s", len(line), error_text(error))
            if found := _KEY.search(line):
                beginning = line[:200].decode(errors="replace")
                why = f"the line with it cannot be read: {error_text(error)}"
                damaged = not_answered(f"{why}, in {safe_repr(beginning)}", why)
                damaged.is_damaged = True
                yield found[1].decode(errors="replace"), damaged
            continue
        yield key, read(row)


def not_answered(why: str, without_value: str) -> NotAnsweredError:
    """The error of a request without an answer, and what may be told if nothing of an answer may."""
    error = NotAnsweredError(f"the request has no answer: {why}")
    error.without_value = f"the request has no answer: {without_value}"
    return error


def lines_of(response: Any) -> Iterator[bytes]:
    """The lines of a response that are not blank.

    They end at a line feed alone: JSON may have other separators, such as U+2028, at which `iter_lines` splits too.
    """
    if not hasattr(response, "iter_bytes"):  # what plays a response in a test may have lines alone
        yield from (line.encode() for line in response.iter_lines())
        return
    begun: list[bytes] = []  # the pieces of a line that has not ended
    for chunk in response.iter_bytes():
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            line = b"".join([*begun, piece])
            begun.clear()
            if line.strip():
                yield line
        begun.append(rest)
    if (last := b"".join(begun)).strip():
        yield last
