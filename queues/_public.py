"""What makes a name of a private module one of the package that shows it."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from types import FunctionType
from typing import Any

__all__ = ("publish",)


def publish(package: str, public: Iterable[Any]) -> None:
    """Let classes and functions say that they are found in `package`.

    So tracebacks name `asyncudf.AsyncUDFError`, and what was pickled survives a move between private modules.
    """
    for one in public:
        if isinstance(one, type) and "__annotations__" in vars(one):
            # They are texts, which whoever asks later would look up in the package.
            hints = typing.get_type_hints(one)
            one.__annotations__ = {name: hints[name] for name in one.__annotations__}
        if isinstance(one, (type, FunctionType)):
            one.__module__ = package
