"""The client of a provider, one for each process, which is made there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._errors.exceptions import OptionError
from .._errors.safe import type_name


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
