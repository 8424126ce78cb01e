"""Limits by key: which parameters of a function make the key of a call, and the key of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol

from .._errors.checks import text
from .._errors.exceptions import AsyncUDFError, OptionError
from .._errors.safe import safe_repr, type_name
from .._stores.base import need
from .._stores.keys import KEY_BYTES, canonical
from .gate import Key


class MayBeByKey(Protocol):
    """A limit or budget; with `by` each key has one of its own."""

    @property
    def by(self) -> Any: ...


def key_names(value: Any) -> tuple[str, ...] | None:
    """What `by=` accepts: None, the name of a parameter, or several of them; OptionError for anything else."""
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not names:
        raise OptionError(
            f"by must be the name of a parameter of the function, such as 'tenant', or a list of them, not "
            f"{safe_repr(value)}"
        )
    for name in names:
        text(name, "a name in by")
        if names.count(name) > 1:
            raise OptionError(f"by has {name!r} twice; name each parameter once")
    need("by", "store", "msgspec")
    return tuple(names)


def key_parameters(limits: Iterable[MayBeByKey]) -> tuple[str, ...]:
    """The parameters of a function that make keys."""
    return tuple(dict.fromkeys(name for limit in limits for name in limit.by or ()))


def by_label(by: Sequence[str] | None) -> str | None:
    """`by` as people are shown it.

    >>> by_label(("tenant",)), by_label(("tenant", "model"))
    ('"tenant"', '["tenant", "model"]')
    """
    if by is None:
        return None
    shown = [f'"{name}"' for name in by]
    return shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"


def key_of(by: Sequence[str], takes: Sequence[str] | None) -> Callable[[Any], Key]:
    """Makes a function that gives the key of a row, which raises AsyncUDFError for values that no key can be made of.

    Keys are equal where a function cannot tell the values apart, as in a store: NULL is a key, 1 and 1.0 are two.
    `takes`: the names of a row's values, in their order; None: a row is a mapping.
    """
    places: Sequence[Any] = by if takes is None else [takes.index(name) for name in by]

    def key(row: Sequence[Any] | Mapping[str, Any]) -> Key:
        try:
            values = [row[place] for place in places]
        except LookupError:
            raise AsyncUDFError(f"by={by_label(by)} finds only {', '.join(map(str, row))} in this row") from None
        try:
            return blake2b(canonical(values), digest_size=KEY_BYTES).hexdigest()
        except AsyncUDFError:
            kinds = ", ".join(map(type_name, values))
            raise AsyncUDFError(
                f"by={by_label(by)} can make no key of a value of type {kinds}: let it name parameters with numbers, "
                "strings, dates, or lists and dicts of such"
            ) from None

    return key
