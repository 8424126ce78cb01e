"""Names the public package as the module of what private modules define."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, ForwardRef, TypeVar

T = TypeVar("T")


def public(package: str) -> Callable[[T], T]:
    """A decorator that publishes one class or function of a private module; see `publish`."""

    def mark(one: T) -> T:
        publish(package, [one])
        return one

    return mark


def publish(package: str, public: Iterable[Any]) -> None:
    """Set `package` as the module of classes and functions.

    So tracebacks name `asyncudf.AsyncUDFError`, and what was pickled survives a move between private modules.
    """
    for one in public:
        # Not vars(one)["__annotations__"], which a class need not have since Python 3.14.
        if isinstance(one, type) and (own := inspect.get_annotations(one)):
            # They are texts, or a NamedTuple's references to texts, whose names would be looked up in the package after
            # this.
            texts = {name: getattr(hint, "__forward_arg__", hint) for name, hint in own.items()}
            one.__annotations__ = {
                name: ForwardRef(text, module=one.__module__, is_class=True) if isinstance(text, str) else text
                for name, text in texts.items()
            }
        if isinstance(one, (type, FunctionType)):
            one.__module__ = package
