"""Pickling of functions for the executors: what in a function cannot be pickled, and what a worker cannot import."""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pyspark import cloudpickle

from .._chain.function_plan import FunctionPlan
from .._errors.exceptions import FunctionError
from .._version import VERSION

_dumps: Callable[[Any], bytes] = cloudpickle.dumps


def check_picklable(function_plan: FunctionPlan) -> None:
    """Raises FunctionError with the name of what cannot be pickled."""
    # Spark pickles with the first action, and its error names a class and no variable.
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
    """The result of a task's `__reduce__`: a worker that lacks a module, or has another version, says what to do.

    The standard library's pickle can pickle it too. Spark uses that for the planning of a table function.
    """
    return pickle.loads, (_dumps(_Loading(_dumps((type(task), vars(task))))),)


class _Loading:
    """Pickles as a call of `_loaded`."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> Any:
        return _loaded, (self._pickled, sys.executable, VERSION)


def _loaded(pickled: bytes, driver: str, version: str) -> Any:
    import importlib
    import pickle
    import sys

    try:
        module = importlib.import_module("asyncudf._version")
        if version != module.VERSION:
            raise ImportError(f"asyncudf is {module.VERSION} in {module.__file__} and {version} on the driver")
        kind, state = pickle.loads(pickled)  # sent by the driver, like everything that Spark's workers run
    except (ImportError, AttributeError) as error:  # a module is missing, or is another version of the driver's
        raise ImportError(
            f"{error} (in Spark's workers, which run {sys.executable}). Three ways to bring what they need: "
            "asyncudf.ship(spark, 'my_module') before the query; an environment that has it, with --archives or "
            "spark.archives; or to install it there, which is the only way for streaming queries over Spark Connect. "
            f"On one machine, before the Spark session starts: export PYSPARK_PYTHON={driver}; python -m asyncudf "
            "doctor looks at the rest"
        ) from error
    task = kind.__new__(kind)
    vars(task).update(state)
    return task


_loaded.__module__ = "__main__"  # so it travels by value: that worker cannot import this module


def _is_picklable(value: Any) -> bool:
    try:
        _dumps(value)
    except Exception:
        return False
    return True


def _culprit(function_plan: FunctionPlan) -> str:
    """The part that cannot be pickled, by the user's name for it."""
    spec = function_plan.spec
    for name, value in _reachable(function_plan):
        if not _is_picklable(value):
            return f"{name} ({type(value).__name__})"
    return f"the function {spec.name}"


def _reachable(function_plan: FunctionPlan) -> Iterator[tuple[str, Any]]:
    """The objects that travel with a function, by the user's names."""
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
    """The variables that a function reads from outside, or the attributes of an object."""
    if callable(function) and inspect.isfunction(inspect.unwrap(function)):
        variables = inspect.getclosurevars(inspect.unwrap(function))
        for name, value in {**variables.nonlocals, **variables.globals}.items():
            yield f"{prefix}its variable {name!r}", value
    else:
        for name, value in getattr(function, "__dict__", {}).items():
            yield f"{prefix}its attribute {name!r}", value
