"""What is said of a result that does not fit its declared type."""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from .._text.safe import safe_repr, safe_str, type_name
from .exceptions import ResultError
from .records import misfit_error

__all__ = ("MisfitError", "check_awaited", "fields_misfit", "told_misfit", "unchecked")


SHOWN_FIELDS = 8


class MisfitError(Exception):
    """A value, perhaps deep inside a result, that does not fit.

    Args:
        path: of the field; empty for the result itself.
        problem: why, and what to do.
        detail: more of it, which may quote the result.
    """

    # Raised where it is found, without knowing the function: that is added once, by `told_misfit`. An exception and not
    # a return value, because results that fit are by far the most, and `try` costs them nothing.

    def __init__(self, path: str, value: Any, problem: str, detail: str = "") -> None:
        super().__init__(path, value, problem, detail)
        self.path, self.value, self.problem, self.detail = path, value, problem, detail


def told_misfit(function: str, misfit: MisfitError, result: Any) -> ResultError:
    """The error of a result; coroutines in it are closed, so that they do not complain as well."""
    field = f" in field {misfit.path!r}" if misfit.path else ""
    problem, detail = _await_missing(misfit.value), ""
    if problem is None:
        problem, detail = misfit.problem, misfit.detail
    error = misfit_error(f"{function} returned", misfit.value, f"{field}: {problem}", detail)
    for coroutine in _inside(result):
        if type(coroutine) is types.CoroutineType and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            coroutine.close()
    return error


def unchecked(value: Any, arrow_type: Any, error: Exception) -> MisfitError:
    """The error of a result whose own code fails when it is looked at."""
    return MisfitError(
        "", value, f"it cannot be checked against {arrow_type}", f": {type_name(error)}: {safe_str(error)}"
    )


def check_awaited(function: str, result: Any) -> None:
    """Raises ResultError for a result, of whatever type, that is still to be awaited, or holds such a value."""
    for value in _inside(result):
        if _await_missing(value) is not None:
            raise told_misfit(function, MisfitError("", value, ""), result)


def _await_missing(value: Any) -> str | None:
    """What is wrong with a value that somebody should have awaited; None with any other."""
    cls = type(value)
    if issubclass(cls, types.AsyncGeneratorType):
        return "async for is missing; for 0..n results of a row write yield in the function itself"
    return "await is missing before the call that made it" if inspect.getattr_static(cls, "__await__", None) else None


def _inside(result: Any) -> Iterator[Any]:
    """A value, and those in its dicts, lists and tuples."""
    # No recursion, and each once: a result may be deeper than Python's stack, or hold itself.
    waiting, seen = [result], set()
    while waiting:
        value = waiting.pop()
        yield value
        if type(value) in (dict, list, tuple) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if type(value) is dict else value


def fields_misfit(
    path: str, value: Any, given: Collection[Any], names: Sequence[str], *, may_drop: bool
) -> MisfitError:
    """The error of a struct with other fields than declared.

    Args:
        may_drop: whether there is an option that leaves fields out.
    """
    near = dict(_near([name for name in given if name not in names], [name for name in names if name not in given]))
    missing = [name for name in names if name not in given and name not in near.values()]
    unknown = [name for name in given if name not in names and name not in near]
    problem = f"declared struct<{', '.join(names)}>"
    if missing:
        problem += f"; missing {_listed(missing)}: return every field, None for NULL"
    detail = "".join(f"; unknown {_listed([name])}: did you mean {meant!r}?" for name, meant in near.items())
    if unknown:
        way_out = "have such fields left out with extra_fields='drop'" if may_drop else "leave it out"
        detail += f"; unknown {_listed(unknown)}: declare it, or {way_out}"
    return MisfitError(path, value, problem, detail)


def _near(unknown: Sequence[Any], missing: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each unknown name that is nearly a missing one, and that one."""
    left: Mapping[str, str] = {name.lower(): name for name in missing}
    for name in unknown:
        found = difflib.get_close_matches(name.lower(), left, n=1) if isinstance(name, str) else []
        if found:
            yield name, left[found[0]]
            left = {key: other for key, other in left.items() if key != found[0]}


def _listed(names: Sequence[Any]) -> str:
    more = ", ..." if len(names) > SHOWN_FIELDS else ""
    return f"field{'s'[: len(names) - 1]} {', '.join(map(safe_repr, names[:SHOWN_FIELDS]))}{more}"
