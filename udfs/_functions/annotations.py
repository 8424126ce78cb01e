"""The annotations of a user's function: read one by one, as Spark's types (DDL), and as vectors."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

from .._errors.exceptions import FunctionError
from .async_function import RuntimeContext


class _Unimported:
    """Stands for a package that only the type checker imports: its classes are known by their names."""

    def __init__(self, package: str) -> None:
        self._package = package

    def __getattr__(self, name: str) -> type:
        return type(name, (), {"__module__": self._package})


# The types that annotations are searched for, under their usual names, for modules that import them for type checkers.
_UNIMPORTED: Mapping[str, Any] = {
    "RuntimeContext": RuntimeContext,
    "asyncudf": types.SimpleNamespace(RuntimeContext=RuntimeContext),
    "typing": typing,
    "Annotated": typing.Annotated,
    "Optional": typing.Optional,
    "pd": _Unimported("pandas"),
    "pandas": _Unimported("pandas"),
    "pa": _Unimported("pyarrow"),
    "pyarrow": _Unimported("pyarrow"),
}


def function_hints(function: Any) -> dict[str, Any]:
    """The types of a function's parameters and of its result (`return`), as far as they can be read.

    If the type of the result cannot be read, `return` is a text: then the type has to be declared.
    """
    while isinstance(function, functools.partial):
        function = function.func
    target = function if inspect.isroutine(function) else type(function).__call__
    origin = inspect.unwrap(target)  # functools.wraps copies the annotations, but not the names in them
    origin = getattr(origin, "__func__", origin)
    annotations = _annotations(target)
    hints = _read(annotations, _closure(origin), getattr(origin, "__globals__", {}))
    result = annotations.get("return")
    if isinstance(text := getattr(result, "__forward_arg__", result), str):
        hints.setdefault("return", text)
    return hints


def class_hints(cls: type) -> dict[str, Any]:
    """The types of the fields of a dataclass, a NamedTuple or a TypedDict, as far as they can be read."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        module = vars(sys.modules[base.__module__]) if base.__module__ in sys.modules else {}
        # The module first: `date: date = None` speaks of the type, not of the default.
        hints |= _read(_annotations(base), module, vars(base))
    return hints


def without_none(hint: Any) -> Any:
    """`X` for `X | None` and `Optional[X]`, and for an alias of them or of X."""
    hint = _unaliased(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [one for one in typing.get_args(hint) if one is not types.NoneType]
        if len(others) == 1:
            return _unaliased(others[0])
    return hint


def without_exceptions(hint: Any) -> Any:
    """`X` for `X | Exception`, which a vectorized function answers for each row."""
    hint = _unaliased(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [one for one in typing.get_args(hint) if not _is_exception(one)]
        return typing.Union[tuple(others)] if others else None  # noqa: UP007
    return None if _is_exception(hint) else hint


class Answers(enum.Enum):
    """What a vectorized function says by its annotation of the list that it returns."""

    UNSAID = enum.auto()
    FOR_EACH_ROW = enum.auto()  # list[X | Exception]
    ERRORS = enum.auto()  # list[Exception | None]: None is for a row without an error


def answers_of(hint: Any) -> Answers:
    """As the annotation of its result says: `list[Exception]` may be of some rows, and what may be None of none."""
    hint = _unaliased(hint)
    item = _unaliased(next(iter(typing.get_args(hint)), None)) if typing.get_origin(hint) in (list, Sequence) else None
    is_union = typing.get_origin(item) in (typing.Union, types.UnionType)
    parts = typing.get_args(item) if is_union else [item]
    if not any(map(_is_exception, parts)) or all(map(_is_exception, parts)):
        return Answers.UNSAID
    others = [one for one in parts if not _is_exception(one) and one is not types.NoneType]
    return Answers.FOR_EACH_ROW if others else Answers.ERRORS


def _unaliased(hint: Any) -> Any:
    """What an alias or a `NewType` stands for; an alias with arguments, or of itself, stays."""
    passed: list[Any] = []
    with contextlib.suppress(Exception):  # the value of an alias is read late, and may say anything
        while type(hint).__name__ in ("TypeAliasType", "NewType") and hint not in passed:
            passed.append(hint)
            hint = getattr(hint, "__value__", None) or hint.__supertype__
    return hint


def _is_exception(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseException)


def _annotations(owner: Any) -> Mapping[str, Any]:
    """The annotations as they are written; since Python 3.14 a name that has no value yet is a `ForwardRef`."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(owner)


def _closure(function: Any) -> dict[str, Any]:
    """The variables of enclosing functions that a function uses: an annotation may name a class that is one of them."""
    code = getattr(function, "__code__", None)
    found = {}
    for name, cell in zip(code.co_freevars if code else (), getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # an empty cell: a variable that is set later
            found[name] = cell.cell_contents
    return found


def _read(annotations: Mapping[str, Any], nearer: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations that can be read; names are looked up in `nearer` first."""
    # Each alone, as that of a made-up object: typing.get_type_hints reads all annotations of an object or none.
    scope = {**_UNIMPORTED, **further}
    hints: dict[str, Any] = {}
    for name, annotation in annotations.items():
        text = getattr(annotation, "__forward_arg__", annotation)
        # Only type checkers know pd.Series[int].
        plainer = [re.sub(r"\[[^][]*\]", "", text)] if isinstance(text, str) else []
        for spelling in [annotation, *plainer]:
            with contextlib.suppress(Exception):  # a text may say anything
                alone = types.SimpleNamespace(__annotations__={name: spelling})
                found = typing.get_type_hints(alone, scope, dict(nearer))
                if spelling is annotation or any(map(_is_vector, _parts(found[name]))):
                    hints |= found
                break
    return hints


class UnknownTypeError(Exception):
    """An annotation or a DDL text that stands for no type that is known here."""


_SCALARS: dict[Any, str] = {
    str: "string",
    int: "bigint",
    float: "double",
    bool: "boolean",
    bytes: "binary",
    datetime.date: "date",
    datetime.datetime: "timestamp",
    datetime.timedelta: "interval day to second",
    decimal.Decimal: "decimal(38,18)",  # as Spark itself infers it
}

_NOT_FOUND = "a class of an enclosing function is not found by its name; define it at the top of the module"

# Classes of Pydantic that stand for a plain type, by name: it is not imported here.
_OF_PYDANTIC: dict[str, str] = {
    "AwareDatetime": "timestamp_ltz",  # "timestamp" is what the session says
    "PastDatetime": "timestamp",
    "FutureDatetime": "timestamp",
    "NaiveDatetime": "timestamp_ntz",
    "PastDate": "date",
    "FutureDate": "date",
    "ByteSize": "bigint",
    "EmailStr": "string",
}


def from_annotation(hint: Any) -> str:
    """The DDL of the type that an annotation stands for.

    Raises:
        UnknownTypeError: the annotation does not say enough.

    >>> from_annotation(dict[str, list[int]]), from_annotation(typing.Literal["a", "b"])
    ('map<string,array<bigint>>', 'string')
    """
    try:
        return _ddl(hint)
    except RecursionError:  # of an alias, such as `type Tree = list[Tree]`
        raise UnknownTypeError(
            f"{hint} contains itself, and no Spark type does: give the depth that you need"
        ) from None


def _ddl(hint: Any, inside: tuple[Any, ...] = ()) -> str:
    """The DDL of a type; `inside`: the classes that it is a field of, to find a class that contains itself."""
    hint = without_none(hint)
    if isinstance(hint, str):
        raise UnknownTypeError(f"its annotation {hint!r} cannot be read: {_NOT_FOUND}, or give it as returnType=")
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _ddl(args[0], inside)
    if origin is typing.Literal:
        return _of_values(hint, args)
    if isinstance(hint, type) and hint in _SCALARS:
        return _SCALARS[hint]
    is_of_pydantic = getattr(hint, "__module__", None) in ("pydantic.types", "pydantic.networks")
    if is_of_pydantic and (known := _OF_PYDANTIC.get(getattr(hint, "__name__", ""))):
        return known
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _of_values(hint, [member.value for member in hint])
    if (origin in (list, collections.abc.Sequence) and args) or (origin is tuple and args[1:] == (Ellipsis,)):
        return f"array<{_ddl(args[0], inside)}>"
    if origin in (dict, collections.abc.Mapping) and args:
        return f"map<{_ddl(args[0], inside)},{_ddl(args[1], inside)}>"
    if hint in inside:
        raise UnknownTypeError(f"{hint.__name__} contains itself, and no Spark type does: give the depth that you need")
    if fields := _fields(hint):
        inner = ",".join(f"{_quoted(name)}:{_of_field(hint, name, of, inside)}" for name, of in fields.items())
        return f"struct<{inner}>"
    if origin in (typing.Union, types.UnionType):
        raise UnknownTypeError(f"no Spark type for {hint!r}: a value has one type, or is None")
    way_out = "; annotate the field with a type that Spark has, such as str, or leave it out" if inside else ""
    raise UnknownTypeError(f"no Spark type for {hint!r}{way_out}")


def _of_field(owner: Any, name: str, hint: Any, inside: tuple[Any, ...]) -> str:
    try:
        return _ddl(hint, (*inside, owner))
    except UnknownTypeError as error:
        raise UnknownTypeError(f"{owner.__name__}.{name}: {error}") from None


def _of_values(hint: Any, values: Sequence[Any]) -> str:
    """The DDL of what has one of some values: a `Literal`, or an enum, which is stored as its value."""
    kinds = {
        next((kind for kind in (bool, str, int, float, bytes) if isinstance(value, kind)), None)
        for value in (value.value if isinstance(value, enum.Enum) else value for value in values if value is not None)
    }
    if len(kinds) != 1 or None in kinds:
        raise UnknownTypeError(f"{hint!r} has values of several types, or of none that Spark has: give them one type")
    return _SCALARS[kinds.pop()]


def _fields(hint: Any) -> dict[str, Any] | None:
    """The fields of a dataclass, TypedDict, NamedTuple or Pydantic model with their annotations; else None."""
    if not has_fields(hint):
        return None
    if is_model(hint):
        fields = hint.model_fields.items()  # type: ignore[attr-defined]
        return {name: _annotation_of(hint, name, field) for name, field in fields if not field.exclude}
    if dataclasses.is_dataclass(hint):
        names = [field.name for field in dataclasses.fields(hint)]
    elif _is_typed_dict(hint):
        names = list(_annotations(hint))
    elif issubclass(hint, tuple):
        names = list(getattr(hint, "_fields", ()))
    else:
        raise UnknownTypeError(f"{hint.__name__} is a model of Pydantic 1; asyncudf reads those of Pydantic 2")
    hints = class_hints(hint)
    if missing := [name for name in names if name not in hints]:
        raise UnknownTypeError(f"the annotation of {', '.join(missing)} in {hint!r} cannot be read: {_NOT_FOUND}")
    return {name: hints[name] for name in names}


def has_fields(hint: Any) -> typing.TypeGuard[type]:
    """Whether it is a class with annotated fields: a type that a user may declare, and no function."""
    if not isinstance(hint, type):
        return False
    is_tuple = issubclass(hint, tuple) and hasattr(hint, "_fields")
    if is_model(hint) or dataclasses.is_dataclass(hint) or _is_typed_dict(hint) or is_tuple:
        return True
    # A model of Pydantic 1, to be refused as a type; to ask one of version 2 for the last of these gives a warning.
    return hasattr(hint, "__validators__") and hasattr(hint, "__fields__")


def is_model(cls: type) -> bool:
    """Whether a class is a model of Pydantic, which is not imported here."""
    # Not an attribute of the class alone: a class of the user's may have one of that name. Pydantic 1 has no such one.
    return hasattr(cls, "model_fields") and any(
        base.__module__ == "pydantic.main" and base.__name__ == "BaseModel" for base in cls.__mro__
    )


def _is_typed_dict(hint: Any) -> bool:
    # By name: typing.is_typeddict does not know those of typing_extensions, which Pydantic wants before Python 3.12.
    return type(hint).__name__ == "_TypedDictMeta"


def _annotation_of(model: Any, name: str, field: Any) -> Any:
    if name == "root":
        raise UnknownTypeError(f"{model.__name__} is a RootModel; return its root, and declare the type of that")
    if isinstance(field.annotation, (str, typing.ForwardRef)):
        raise UnknownTypeError(
            f"{model.__name__}.{name} is annotated with {field.annotation!r}, which is not known yet; call "
            f"{model.__name__}.model_rebuild()"
        )
    return field.annotation


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else "`" + name.replace("`", "``") + "`"


# Also made of rows, but no call gets them: listed to be refused, or they would pass for scalars.
UNKNOWN = (("pandas", "Index"), ("pyarrow", "RecordBatch"), ("pyarrow", "Table"))


class Vector(enum.Enum):
    """What a vectorized function's parameter takes."""

    SERIES = "pandas.Series"
    FRAME = "pandas.DataFrame"
    ARRAY = "pyarrow.Array"


def vector_of(hint: Any) -> Vector | None:
    """The vector that an annotation stands for; None for anything else."""
    package, name = _place(hint)
    if (package, name) == ("pyspark", "SeriesType"):  # pd.Series[int] is that once pyspark.pandas is imported
        return Vector.SERIES
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
) -> tuple[tuple[Vector, ...], Vector | None]:
    """The vector kind of each column's parameter, then of `*columns`; and of `**columns`, if it takes vectors.

    All are empty for scalars. Raises FunctionError for what no batch can fill.
    """
    rest = [p for p in parameters if p.kind is Parameter.VAR_POSITIONAL]
    named = [p for p in parameters if p.kind is Parameter.VAR_KEYWORD]
    named = [p for p in named if any(map(_is_vector, _parts(hints.get(p.name))))]  # else it is for resources
    taken = [*columns, *rest, *named]
    for p in taken:
        hint = hints.get(p.name)
        if vector_of(hint) is None and any(map(_is_vector, _parts(hint))):
            raise FunctionError(
                f"{name} takes {p.name} as {hint}, which no batch of rows is; annotate it with pd.Series, pd.DataFrame "
                "or pa.Array: each call gets the rows of one batch"
            )
    found = [vector_of(hints.get(p.name)) for p in taken]
    if not any(found):
        return (), None
    if not all(found):
        raise FunctionError(
            f"{name} mixes vectors and scalars; annotate every column parameter: pd.Series, pd.DataFrame or pa.Array"
        )
    if rest and found[len(columns)] is Vector.FRAME:
        raise FunctionError(
            f"{name} takes *{rest[0].name} as a pd.DataFrame each; take all columns in one, without the *, or each "
            "as a pd.Series"
        )
    if is_generator:
        raise FunctionError(f"{name} is vectorized and a generator; a vectorized function returns one value per row")
    vectors = [v for v in found if v]
    return (tuple(vectors[:-1]), vectors[-1]) if named else (tuple(vectors), None)


def _place(hint: Any) -> tuple[str, str]:
    # By name: a worker that does not need pandas does not import it.
    return (getattr(hint, "__module__", None) or "").split(".")[0], getattr(hint, "__name__", "")


def _is_vector(hint: Any) -> bool:
    return vector_of(hint) is not None or _place(hint) in UNKNOWN


def _parts(hint: Any, inside: tuple[Any, ...] = ()) -> Iterator[Any]:
    if hint in inside:  # an alias that contains itself
        return
    whole = _unaliased(hint)
    yield whole
    for part in typing.get_args(whole):
        yield from _parts(part, inside if whole is hint else (*inside, hint))
