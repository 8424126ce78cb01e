"""Gives what a private module defines the name of the package that exports it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable
from types import FunctionType
from typing import Any


def publish(package: str, public: Iterable[Any]) -> None:
    """Set `package` as the module of classes and functions.

    So tracebacks name `asyncudf.AsyncUDFError`, and what was pickled survives a move between private modules.
    """
    for one in public:
        # Not vars(one)["__annotations__"], which a class need not have since Python 3.14.
        if isinstance(one, type) and (own := inspect.get_annotations(one)):
            # They are texts, whose names would be looked up in the package after this.
            hints = typing.get_type_hints(one)
            one.__annotations__ = {name: hints[name] for name in own}
        if isinstance(one, (type, FunctionType)):
            one.__module__ = package
