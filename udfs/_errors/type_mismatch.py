"""The errors of results that do not fit their declared type, or that were never awaited."""

from __future__ import annotations

import inspect
import types
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from .exceptions import ResultError
from .safe import safe_repr, safe_str, type_name

SHOWN_FIELDS = 8
CONTAINERS = (dict, list, tuple)
PLAIN = (int, str, float, bool, bytes, types.NoneType)

# Read from `type` itself: a metaclass may have attributes of these names, which run a user's code.
_bases: Any = vars(type)["__mro__"].__get__
_namespace: Any = vars(type)["__dict__"].__get__


class TypeMismatchError(Exception):
    """A value, perhaps deep inside a result, that does not fit: at the path of a field, empty for the result itself.

    The problem is why it does not fit, and what to do; the detail may quote the result.
    """

    # The code that raises it does not know the function: `mismatch_error` adds it. An exception and not a return value,
    # because nearly all results fit, and `try` costs them nothing.

    def __init__(self, path: str, value: Any, problem: str, detail: str = "") -> None:
        super().__init__(path, value, problem, detail)
        self.path, self.value, self.problem, self.detail = path, value, problem, detail


def result_error(before: str, value: Any, after: str, detail: str = "") -> ResultError:
    """The error that shows a value between two texts; `detail` may quote the value, and is left out with `redact=`."""
    error = ResultError(f"{before} {safe_repr(value)} ({type_name(value)}){after}{detail}")
    error.without_value = f"{before} a {type_name(value)}{after}"
    return error


def mismatch_error(function: str, mismatch: TypeMismatchError, result: Any) -> ResultError:
    """The error of a function's result. Closes coroutines in it: Python warns of each that is never awaited."""
    field = f" in field {mismatch.path!r}" if mismatch.path else ""
    problem, detail = _mistake_in(mismatch.value), ""
    if problem is None:
        problem, detail = mismatch.problem, mismatch.detail
    error = result_error(f"{function} returned", mismatch.value, f"{field}: {problem}", detail)
    for coroutine in _inside(result):
        if type(coroutine) is types.CoroutineType and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            coroutine.close()
    return error


def uncheckable(value: Any, arrow_type: Any, error: Exception) -> TypeMismatchError:
    """The mismatch of a result whose own code raises while it is checked."""
    return TypeMismatchError(
        "", value, f"it cannot be checked against {arrow_type}", f": {type_name(error)}: {safe_str(error)}"
    )


def check_awaited(function: str, result: Any) -> Any:
    """The result; raises ResultError if it is, or holds, an exception or a value that was never awaited."""
    if type(result) in PLAIN:
        return result
    for value in _inside(result) if type(result) in CONTAINERS else (result,):
        if _mistake_in(value) is not None:
            raise mismatch_error(function, TypeMismatchError("", value, ""), result)
    return result


def _mistake_in(value: Any) -> str | None:
    """What is wrong with a value that is no result of any type, such as one that was never awaited; else None."""
    cls = type(value)
    if issubclass(cls, BaseException):
        return "raise it; only a vectorized function returns exceptions, in a list with an answer for each row"
    if issubclass(cls, type) and issubclass(value, BaseException):
        return "this is a class; raise it, or return an exception of it from a vectorized function"
    if issubclass(cls, types.AsyncGeneratorType):
        return "async for is missing; for 0..n results of a row write yield in the function itself"
    # Not inspect.getattr_static, which takes 3 us: without a declared type this is done for each value of each result.
    for base in _bases(cls):
        if "__await__" in _namespace(base):
            is_awaitable = _namespace(base)["__await__"] is not None
            return "await is missing before the call that made it" if is_awaitable else None
    return None


def _inside(result: Any) -> Iterator[Any]:
    """A value, and the values in its dicts, lists and tuples, at any depth."""
    # No recursion, and each container once: a result may be deeper than Python's stack, or hold itself.
    waiting, seen = [result], set()
    while waiting:
        value = waiting.pop()
        yield value
        if type(value) in CONTAINERS and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if type(value) is dict else value


def fields_mismatch(
    path: str, value: Any, given: Collection[Any], names: Sequence[str], *, may_drop: bool
) -> TypeMismatchError:
    """The mismatch of a struct with other fields than declared. `may_drop`: an option can leave fields out."""
    near = dict(_near([name for name in given if name not in names], [name for name in names if name not in given]))
    missing = [name for name in names if name not in given and name not in near.values()]
    unknown = [name for name in given if name not in names and name not in near]
    problem = f"declared struct<{', '.join(names)}>"
    if missing:
        problem += f"; missing {listed(missing)}: return every field, None for NULL"
    detail = "".join(f"; unknown {listed([name])}: did you mean {meant!r}?" for name, meant in near.items())
    if unknown:
        way_out = "have such fields left out with extra_fields='drop'" if may_drop else "leave it out"
        detail += f"; unknown {listed(unknown)}: declare it, or {way_out}"
    return TypeMismatchError(path, value, problem, detail)


def _near(unknown: Sequence[Any], missing: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each unknown name that is close to a missing one, with the missing one."""
    from difflib import get_close_matches  # only a message needs it

    left = {name.lower(): name for name in missing}
    for name in unknown:
        found = get_close_matches(name.lower(), left, n=1) if isinstance(name, str) else []
        if found:
            yield name, left.pop(found[0])


def listed(names: Sequence[Any]) -> str:
    """The names of fields, for a message."""
    more = ", ..." if len(names) > SHOWN_FIELDS else ""
    return f"field{'s'[: len(names) - 1]} {', '.join(map(safe_repr, names[:SHOWN_FIELDS]))}{more}"
