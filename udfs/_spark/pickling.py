"""Pickling of functions for the executors: what in a function cannot be pickled, and what a worker cannot import."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark import cloudpickle

from .._chain.function_plan import FunctionPlan
from .._errors.exceptions import FunctionError
from .._version import VERSION

Named = tuple[str, Any]  # an object, and the user's name for it
MOST_LAYERS = 9  # of decorators; an object of the user's may have any attribute, without end

dumps: Callable[[Any], bytes] = cloudpickle.dumps


def check_picklable(function_plan: FunctionPlan) -> None:
    """Raises FunctionError with the name of what cannot be pickled."""
    name, parts = function_plan.spec.name, _parts(function_plan)
    where = "with resources=..., or in AsyncFunction.open()"
    if hasattr(function_plan.spec.function, "__wrapped__"):
        where += "; a decorator that keeps one, inside the function (retries need none: retry=...)"
    _check(name, function_plan, parts, where)


def check_function_picklable(name: str, function: Any) -> None:
    """Raises FunctionError if a plain function of a chain cannot be pickled."""
    _check(name, function, [("", function)], "in ProcessFunction.open()")


class Travelling:
    """A task for Spark's workers: one that lacks a module, or has another version, says what to do.

    The standard library's pickle can pickle it too. Spark uses that for the planning of a table function.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (dumps(_Loading(dumps((type(self), vars(self))))),)


class _Loading:
    """Pickles as a call of `_loaded`."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> Any:
        return _loaded, (self._pickled, sys.executable, VERSION)


def _loaded(pickled: bytes, driver: str, version: str) -> Any:
    import gc
    import importlib
    import pickle
    import sys

    collects = gc.isenabled()
    gc.disable()  # it would look at all modules more than once while they load, and find nothing
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
    finally:
        if collects:
            gc.enable()
    task = kind.__new__(kind)
    vars(task).update(state)
    return task


_loaded.__module__ = "__main__"  # so it travels by value: that worker cannot import this module


def _check(name: str, sent: Any, parts: Iterable[Named], where: str) -> None:
    # Spark pickles with the first action, and its error names a class and no variable.
    try:
        dumps(sent)
    except Exception as error:
        raise FunctionError(
            f"{name} cannot be sent to the executors: {_culprit(parts)} cannot be pickled ({type(error).__name__}: "
            f"{error}). Make such an object on the executor: {where}"
        ) from error


def _culprit(parts: Iterable[Named]) -> str:
    """The first of these parts that cannot be pickled, and the variable in it, by the user's names."""
    # A variable is looked at only then: a function that is pickled by reference may have any.
    part, value = _first_unpicklable(parts)
    variable, value = _first_unpicklable(_variables(value), value)
    culprit = ": ".join(filter(None, [part, variable]))
    return f"{culprit} ({type(value).__name__})" if culprit else "it"


def _first_unpicklable(named: Iterable[Named], other: Any = None) -> Named:
    for name, value in named:
        try:
            dumps(value)
        except Exception:
            return name, value
    return "", other


def _parts(function_plan: FunctionPlan) -> Iterator[Named]:
    """What travels with a function, by the user's names."""
    for name, factory in function_plan.spec.resources.items():
        yield f"resource {name!r}", factory
    for option in dataclasses.fields(function_plan.options):
        value = getattr(function_plan.options, option.name)
        for one in value if isinstance(value, tuple) else [value]:
            yield option.name, one
    yield "", function_plan.spec.function


def _variables(function: Any) -> Iterator[Named]:
    """What a function and its decorators read from outside, arguments of a partial, and attributes."""
    layers = [function]
    while len(layers) < MOST_LAYERS and (inner := _inner(layers[-1])) is not None:
        layers.append(inner)
    for one in reversed(layers):
        whose = "its decorator's" if hasattr(one, "__wrapped__") else "its"
        if isinstance(one, functools.partial):
            for name, value in (*enumerate(one.args), *one.keywords.items()):
                yield f"its argument {name!r}", value
        for name, value in getattr(one, "__dict__", {}).items():
            if name != "__wrapped__":
                yield f"{whose} attribute {name!r}", value
        if inspect.isfunction(one):
            variables = inspect.getclosurevars(one)
            for name, value in {**variables.nonlocals, **variables.globals}.items():
                yield f"{whose} variable {name!r}", value


def _inner(function: Any) -> Any:
    """What a partial, a method or a decorated function calls, or None."""
    if isinstance(function, functools.partial):
        return function.func
    return function.__self__ if inspect.ismethod(function) else getattr(function, "__wrapped__", None)
