"""Whether a function can be sent to the executors, and if not, what in it cannot."""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pyspark import cloudpickle

from .._chain.function_plan import FunctionPlan
from .._errors.exceptions import FunctionError

__all__ = ("check_function_picklable", "check_picklable", "with_import_help")


_dumps: Callable[[Any], bytes] = cloudpickle.dumps


def check_picklable(function_plan: FunctionPlan) -> None:
    """Raises FunctionError with the name of the culprit."""
    # As Spark will do it, only earlier: its own error comes with the first action, and names a class, not a variable.
    try:
        _dumps(function_plan)
    except Exception as error:
        raise FunctionError(
            f"{function_plan.spec.name} cannot be sent to the executors: {_culprit(function_plan)} cannot be pickled "
            f"({type(error).__name__}: {error}). Make such an object on the executor: with resources=..., or in "
            "AsyncFunction.open()"
        ) from error


def check_function_picklable(name: str, function: Any) -> None:
    """Raises FunctionError if a plain function of a chain cannot be pickled."""
    try:
        _dumps(function)
    except Exception as error:
        culprit = next((what for what, value in _variables(function, "") if not _is_picklable(value)), "it")
        raise FunctionError(
            f"{name} cannot be sent to the executors: {culprit} cannot be pickled ({type(error).__name__}: {error}). "
            "Make such an object on the executor: in ProcessFunction.open()"
        ) from error


def with_import_help(task: Any) -> tuple[Any, ...]:
    """What the `__reduce__` of a task returns, so that a worker which cannot import something says what to do.

    It works with the `pickle` of the standard library, too, with which Spark sends what a table function has planned.
    """
    return pickle.loads, (_dumps(_Loading(_dumps((type(task), vars(task))))),)


class _Loading:
    """Loads a task that was pickled."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> Any:
        return _loaded, (self._pickled, sys.executable)


def _loaded(pickled: bytes, driver: str) -> Any:
    import pickle
    import sys

    try:
        kind, state = pickle.loads(pickled)  # what the driver has sent, as all that Spark's workers run
    except ImportError as error:
        raise ImportError(
            f"{error}: Spark's workers run {sys.executable}, where it is not installed. Three ways to bring it: "
            "asyncudf.ship(spark, 'my_module') before the query; an environment that has it, with --archives or "
            f"spark.archives; or to install it there. On one machine, before the Spark session starts: export "
            f"PYSPARK_PYTHON={driver}; python -m asyncudf doctor looks at the rest"
        ) from error
    task = kind.__new__(kind)
    vars(task).update(state)
    return task


_loaded.__module__ = "__main__"  # then it travels by value: in that worker there is nothing of ours


def _is_picklable(value: Any) -> bool:
    try:
        _dumps(value)
    except Exception:
        return False
    return True


def _culprit(function_plan: FunctionPlan) -> str:
    """What in it cannot be pickled, as its user would call it."""
    spec = function_plan.spec
    for name, value in _reachable(function_plan):
        if not _is_picklable(value):
            return f"{name} ({type(value).__name__})"
    return f"the function {spec.name}"


def _reachable(function_plan: FunctionPlan) -> Iterator[tuple[str, Any]]:
    """The things that a function takes with it, by the names that the user gave them."""
    spec, options = function_plan.spec, function_plan.options
    for name, factory in spec.resources.items():
        yield from _variables(factory, f"resource {name!r}: ")
        yield f"resource {name!r}", factory
    for option in ("on_timeout", "retry", "redact"):
        value = getattr(options, option)
        yield from _variables(value, f"{option}: ")
        yield option, value
    yield from _variables(spec.function, "")


def _variables(function: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """What a function finds outside itself, or what an object holds: a client made at import is most often there."""
    if callable(function) and inspect.isfunction(inspect.unwrap(function)):
        variables = inspect.getclosurevars(inspect.unwrap(function))
        for name, value in {**variables.nonlocals, **variables.globals}.items():
            yield f"{prefix}its variable {name!r}", value
    else:
        for name, value in getattr(function, "__dict__", {}).items():
            yield f"{prefix}its attribute {name!r}", value
