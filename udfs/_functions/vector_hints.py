"""Which parameters of a function take vectors: those that are annotated as one."""

from __future__ import annotations

import enum
import typing
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

from .._errors.exceptions import FunctionError

__all__ = ("Vector", "vector_of", "vectors_of")


# Made of rows as well, but not what a call is given: known here to be refused, or they would pass for scalars.
UNKNOWN = (("pandas", "Index"), ("pyarrow", "RecordBatch"), ("pyarrow", "Table"))


class Vector(enum.Enum):
    """What a vectorized function's parameter takes."""

    SERIES = "pandas.Series"
    FRAME = "pandas.DataFrame"
    ARRAY = "pyarrow.Array"


def vector_of(hint: Any) -> Vector | None:
    """The vector that an annotation stands for; None for anything else."""
    package, name = _place(hint)
    if package == "pandas":
        return {"Series": Vector.SERIES, "DataFrame": Vector.FRAME}.get(name)
    return Vector.ARRAY if package == "pyarrow" and name.endswith("Array") else None


def vectors_of(
    parameters: Sequence[Parameter],
    columns: Sequence[Parameter],
    hints: Mapping[str, Any],
    name: str,
    *,
    is_generator: bool,
) -> tuple[Vector, ...]:
    """What each parameter that a column fills takes; nothing for a function of scalars.

    Raises:
        FunctionError: not all of them are vectors, or one is made of vectors in a way that nothing could fill.
    """
    rest = next((p for p in parameters if p.kind is Parameter.VAR_POSITIONAL), None)
    for p in (*columns, *([rest] if rest else ())):
        hint = hints.get(p.name)
        if vector_of(hint) is None and any(map(_is_vector, _parts(hint))):
            raise FunctionError(
                f"{name} takes {p.name} as {hint}, which no batch of rows is; annotate it with pd.Series, pd.DataFrame "
                "or pa.Array: each call gets the rows of one batch"
            )
    found = [vector_of(hints.get(p.name)) for p in columns]
    if rest is not None and (any(found) or vector_of(hints.get(rest.name))):
        raise FunctionError(
            f"{name} takes vectors and *{rest.name}; give each column a parameter of its own, or take them all in one "
            "pd.DataFrame"
        )
    if not any(found):
        return ()
    if not all(found):
        raise FunctionError(
            f"{name} mixes vectors and scalars; annotate every column parameter: pd.Series, pd.DataFrame or pa.Array"
        )
    if is_generator:
        raise FunctionError(f"{name} is vectorized and a generator; a vectorized function returns one value per row")
    return tuple(v for v in found if v)


def _place(hint: Any) -> tuple[str, str]:
    # By name, so that pandas is not imported in a worker that does not need it.
    return (getattr(hint, "__module__", None) or "").split(".")[0], getattr(hint, "__name__", "")


def _is_vector(hint: Any) -> bool:
    return vector_of(hint) is not None or _place(hint) in UNKNOWN


def _parts(hint: Any) -> Iterator[Any]:
    """An annotation, and those that it is made of."""
    yield hint
    for part in typing.get_args(hint):
        yield from _parts(part)
