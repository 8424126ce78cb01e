"""FunctionSpec: what kind of function a user declares, which columns it takes, and what it returns.

Its parameters are found behind decorators too.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter
from typing import Any

from .._errors.checks import is_async_def
from .._errors.exceptions import FunctionError, OptionError
from .._errors.safe import safe_repr
from .._limits.keys import key_parameters
from .annotations import (
    Answers,
    UnknownTypeError,
    Vector,
    answers_of,
    from_annotation,
    function_hints,
    vector_of,
    vectors_of,
    without_exceptions,
    without_none,
)
from .async_function import AsyncFunction, RuntimeContext
from .options import DEFAULT_BATCH_SIZE, Options, OutputMode

BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
MOST_COLUMNS = 100  # that anybody writes parameters for


def behind_decorators(function: Any) -> Any:
    """The function whose parameters and annotations count.

    A decorator's wrapper with `functools.wraps` and `*args, **kwargs` passes its arguments on, so the function that it
    decorates counts. A wrapper with parameters of its own counts itself.
    """
    if isinstance(function, functools.partial):
        return functools.partial(behind_decorators(function.func), *function.args, **function.keywords)
    if inspect.ismethod(function):
        return types.MethodType(behind_decorators(function.__func__), function.__self__)
    return behind_decorators(function.__wrapped__) if _passes_on(function) else function


def _passes_on(function: Any) -> bool:
    """Whether a function is a decorator's wrapper that takes the parameters of the decorated function."""
    # __wrapped__ alone does not say so: decorators that add or remove an argument also use functools.wraps.
    if getattr(function, "__wrapped__", None) is None or hasattr(function, "__signature__"):
        return False
    try:
        own = _own_parameters(function)
    except ValueError:  # made in C, as by functools.cache
        return True
    stars = [p for p in own if p.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    named = [p.name for p in own if p not in stars]
    return len(stars) == 2 and named == [p.name for p in parameters_of(function.__wrapped__)][: len(named)]


def called(function: Any) -> Any:
    """The function that runs when `function` is called: of a partial, a staticmethod, a singledispatch, an object."""
    function = _unwrapped(function)
    return function if inspect.isroutine(function) else type(function).__call__


def is_coroutine_function(function: Any) -> bool:
    # An object may be marked as one itself, as an AsyncMock is.
    return any(map(is_async_def, (_unwrapped(function), called(function))))


def _unwrapped(function: Any) -> Any:
    """The function behind partials, a staticmethod or a singledispatch function."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, staticmethod):
            function = function.__func__
        elif inspect.isfunction(function) and hasattr(function, "dispatch") and hasattr(function, "registry"):
            function = function.__wrapped__  # type: ignore[attr-defined]
        else:
            return function


def parameters_of(function: Any) -> Sequence[Parameter]:
    """The parameters that count, in their order; raises like `signature_of`."""
    return _own_parameters(behind_decorators(function))


def _own_parameters(function: Any) -> list[Parameter]:
    try:
        signature = signature_of(function, follow_wrapped=False)
    except TypeError:  # an AsyncMock before Python 3.11.4: it looks like a function, and its code is a mock
        signature = signature_of(function.__call__, follow_wrapped=False)
    return list(signature.parameters.values())


def signature_of(function: Any, *, follow_wrapped: bool = True) -> inspect.Signature:
    """The signature, also if a name in an annotation has no value yet; ValueError or TypeError if it cannot be read."""
    if sys.version_info >= (3, 14):
        import annotationlib

        lenient = annotationlib.Format.FORWARDREF
        return inspect.signature(function, follow_wrapped=follow_wrapped, annotation_format=lenient)
    return inspect.signature(function, follow_wrapped=follow_wrapped)


def bound(
    function: Callable[..., Any], parameters: Sequence[Parameter], columns: Collection[str], given: Mapping[str, Any]
) -> Callable[..., Any]:
    """A function that takes the columns alone, by position; the function itself if nothing else is `given`.

    Columns fill the parameters of their names, in the order of `columns`; a call may pass fewer. `given` has values for
    other parameters, and all further parameters keep their defaults. Columns without a parameter are for `**columns`,
    and come last.
    """
    if named := [name for name in columns if name not in {p.name for p in parameters}]:
        inner = bound(function, parameters, [name for name in columns if name not in named], given)
        return lambda *row: inner(*row[: -len(named)], **dict(zip(named, row[-len(named) :], strict=True)))
    # Columns come by position. A partial can give values by keyword, or in front of all columns. Only values between
    # columns, or positional-only ones behind them, need a wrapper, which runs in each call.
    placed = [p for p in parameters if p.kind in BY_POSITION]
    # *rest takes the columns that are left once every other parameter has its own.
    may_rest = all(p.name in columns or p.name in given for p in placed)
    if not (may_rest and any(p.kind is Parameter.VAR_POSITIONAL for p in parameters)):
        while placed and placed[-1].name not in columns:
            if placed[-1].kind is Parameter.POSITIONAL_ONLY and placed[-1].name in given:
                break
            placed.pop()
    keywords = {name: value for name, value in given.items() if name not in [p.name for p in placed]}
    in_order = [(p.name in columns, given.get(p.name, p.default)) for p in placed]
    first = [value for _, value in itertools.takewhile(lambda one: not one[0], in_order)]
    if all(is_column for is_column, _ in in_order[len(first) :]):
        return functools.partial(function, *first, **keywords) if first or keywords else function

    def in_place(*row: Any, **named: Any) -> Any:
        rest = iter(row)
        values = [next(rest, value) if is_column else value for is_column, value in in_order]
        return function(*values, *rest, **keywords, **named)

    return in_place


EXAMPLE = "async def f(city: str) -> str: ..."


class FunctionKind(enum.Enum):
    """How a function gives its results."""

    COROUTINE = "async def"
    GENERATOR = "async generator"
    THREAD = "def"
    ASYNC_FUNCTION = "AsyncFunction"


@dataclasses.dataclass(frozen=True)
class FunctionSpec:
    """A declared function with its kind, columns and result. Pickled for the executors with the function itself."""

    # Read once, at the declaration: a mistake is an error at its own line, and no task reads signatures. Annotations
    # are read then too: the names in them may not exist on an executor.

    function: Any
    name: str
    kind: FunctionKind
    parameters: tuple[str, ...]  # those filled by columns, the first of them if there are fewer columns
    required: int  # how many of them have no default
    variadic: bool  # whether it has *columns
    context_parameter: str | None
    resources: Mapping[str, Callable[..., Any]]
    vectors: tuple[Vector, ...]  # one for each of `parameters`, then that of *columns; empty for a function of scalars
    returns: str | None  # DDL, as far as the annotation tells
    unread: str | None = None  # why the annotation of the result, if there is one, tells no type
    keyed_by: tuple[str, ...] = ()  # the parameters that make the keys of limits and budgets
    answers: Answers = Answers.UNSAID  # of a vectorized function
    # States of submissions have specs of earlier versions, so what was added since has a default.
    takes_named: bool = False  # whether it has **columns
    named_vectors: Vector | None = None  # that of **columns

    @property
    def full_name(self) -> str:
        """The qualified name with the module, such as `jobs.weather`; the plain name if it has no other."""
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        is_own = named is self.function or self.has_life_cycle  # not the class of a wrapper, such as partial
        return f"{named.__module__}.{named.__qualname__}" if is_own else self.name

    @property
    def vectorized(self) -> bool:
        """Whether one call takes many rows."""
        return bool(self.vectors or self.named_vectors)

    @property
    def has_life_cycle(self) -> bool:
        """Whether it is opened and closed in each task."""
        return self.kind is FunctionKind.ASYNC_FUNCTION

    @property
    def takes_mapping(self) -> bool:
        """Whether it gets a row as a dict of the named columns, not as arguments."""
        return self.kind is FunctionKind.ASYNC_FUNCTION

    @property
    def runs_in_thread(self) -> bool:
        return self.kind is FunctionKind.THREAD

    @property
    def many_results(self) -> bool:
        """Whether a row may have 0..n results."""
        return self.kind in (FunctionKind.GENERATOR, FunctionKind.ASYNC_FUNCTION)

    @property
    def fills_the_first(self) -> bool:
        """Whether columns fill the first parameters that they may fill, and leave out none between them."""
        if self.takes_mapping:
            return True
        own = {*self.resources, self.context_parameter}
        placed = [p.name for p in parameters_of(self.function) if p.kind in BY_POSITION and p.name not in own]
        return list(self.parameters) == placed[: len(self.parameters)]

    @property
    def has_context(self) -> bool:
        """Whether the function gets a `RuntimeContext`."""
        return self.has_life_cycle or self.context_parameter is not None

    def check_column_count(self, count: int) -> None:
        """Raises FunctionError unless the function can be called with `count` columns."""
        if self.takes_mapping:
            return
        self.check_takes_columns()
        if not count:
            wanted = ", ".join(self.parameters) or "..."
            raise FunctionError(
                f"{self.name} takes at least one column ({wanted}): Spark loses count of the rows else; name one, as "
                f"in {self.name}('id')"
            )
        if count < self.required or (count > len(self.parameters) and not self.variadic):
            wanted = ", ".join(self.parameters) + (", ..." if self.variadic else "")
            is_method = self.parameters[:1] == ("self",)
            hint = f"; give it the method of an object: async_pandas_udf(object.{self.name})" if is_method else ""
            raise FunctionError(f"{self.name} takes the columns ({wanted}), not {count} of them{hint}")
        self.check_keys(self.parameters[:count])

    def check_takes_columns(self) -> None:
        """Raises FunctionError for a function that no column can be given to."""
        if not (self.parameters or self.variadic or self.takes_named or self.takes_mapping):
            raise FunctionError(
                f"{self.name} has no parameter that a column could fill, and a function reads at least one column: "
                f"give it one, which it may ignore, as in async def {self.name}(id)"
            )

    def check_keys(self, filled: Sequence[str]) -> None:
        """Raises OptionError unless these parameters, which columns fill, are all that make keys."""
        for name in self.keyed_by:
            if name not in filled:
                raise OptionError(
                    f"by={name!r} needs a column: the parameters of {self.name} that columns fill are "
                    f"({', '.join(filled)})"
                )

    def with_arguments(self, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[FunctionSpec, list[Any]]:
        """The spec for these arguments alone, and the arguments in its order; FunctionError if they do not fit."""
        free = self.parameters[len(given) :]
        unknown = others = [name for name in named if name not in free]
        if self.takes_named and len(given) <= len(self.parameters):
            own = {*self.parameters, *self.resources, self.context_parameter, *Options.names()}
            unknown = [name for name in others if name in own]
        if unknown:
            options = [name for name in unknown if name in Options.names()]
            other_way = f"; options go to {self.name}.with_options({options[0]}=...)" if options else ""
            raise FunctionError(
                f"{self.name} cannot take {', '.join(unknown)} by name; its column parameters are "
                f"({', '.join(self.parameters)}), and {len(given)} of them are given by position{other_way}"
            )
        if not named:
            return self, list(given)
        by_name = [parameter for parameter in (*free, *others) if parameter in named]
        spec = self.with_columns([*self.parameters[: len(given)], *by_name])
        return spec, [*given, *(named[parameter] for parameter in by_name)]

    def with_columns(self, parameters: Sequence[str]) -> FunctionSpec:
        """The function with columns for these parameters; FunctionError if another one has no default."""
        if missing := [needed for needed in self.parameters[: self.required] if needed not in parameters]:
            wanted = ", ".join(self.parameters)
            raise FunctionError(f"{self.name} takes the columns ({wanted}); there is none for {', '.join(missing)}")
        self.check_keys(parameters)
        vectors = [v for p, v in zip(self.parameters, self.vectors, strict=False) if p in parameters]
        of_rest = self.vectors[len(self.parameters) :]
        if self.named_vectors and (others := set(parameters) - set(self.parameters)):  # then *columns has none
            of_rest = (self.named_vectors,) * len(others)
        return dataclasses.replace(
            self, parameters=tuple(parameters), required=len(parameters), vectors=(*vectors, *of_rest)
        )

    def check_column_function(self, options: Options) -> None:
        """Raises FunctionError unless the function can be a column: one result per row, in the rows' order."""
        why = None
        refuse_dead_letters(self.name, options)
        if options.output_mode is OutputMode.UNORDERED:
            why = "is UNORDERED: a column's results must come in the order of its rows"
        elif self.many_results:
            why = f"gives 0..n results per row ({self.kind.value}): a column needs exactly one"
        if why:
            raise FunctionError(
                f"{self.name} {why}. Two ways that work: unordered_wait(df, {self.name}, ...) or ordered_wait(df, "
                f"{self.name}, ...) on a DataFrame, or {self.name}.register(spark, {self.name!r}) and "
                f"SELECT * FROM {self.name}(TABLE(t), ...) in SQL"
            )


def refuse_dead_letters(name: str, options: Options) -> None:
    """Raises OptionError for rows that become dead letters, at the entry points without side outputs."""
    if options.writes_dead_letters:
        raise OptionError(
            f"the dead letters of {name} have nowhere to go here; use AsyncStream(df).ordered_wait(...), whose "
            "side_output(DEAD_LETTERS) reads them"
        )


def read_function(function: Any, options: Options) -> FunctionSpec:
    """Read a function's signature and annotations; FunctionError or OptionError for what cannot be run."""
    if inspect.isclass(function) and issubclass(function, AsyncFunction):
        function = function()
    spec = _read_async_function(function) if isinstance(function, AsyncFunction) else _read_callable(function, options)
    if not spec.vectorized:
        _refuse_options_of_batches(spec.name, options)
    spec = _with_keys(spec, options)
    check_costs(spec, options)
    for budget in options.budget:
        if budget.learns and budget.settle is None and not spec.has_context:
            raise OptionError(
                f"nothing says what a call of {spec.name} costs of its budget of {budget.unit}: give reserve= (what it "
                "costs at most), settle= (what it did cost), or a parameter of the function annotated RuntimeContext, "
                f"by which it calls context.spend(amount, {budget.unit!r})"
            )
    unit = next((limit.settle for limit in options.rate_limit if isinstance(limit.settle, str)), None)
    if unit is not None and not spec.has_context:
        raise OptionError(
            f"settle={unit!r} is what {spec.name} says by context.spend(amount, {unit!r}): give it a parameter "
            "annotated RuntimeContext, or settle= a plain function of the arguments and the result"
        )
    if spec.has_life_cycle and options.resources is not None:
        raise OptionError(f"resources go with plain functions; {spec.name} opens its own in open() and close()")
    return spec


def check_costs(spec: FunctionSpec, options: Options) -> None:
    """Raises OptionError for what tells costs and cannot take the arguments of a row, of as many columns as may be."""
    asked: list[tuple[str, Any, int]] = [("batch_weight", options.batch_weight, 0)]
    for limit in options.rate_limit:
        asked += [("cost", limit.cost, 0), ("settle", limit.settle, 1)]
    for budget in options.budget:
        asked += [("reserve", budget.reserve, 0), ("settle", budget.settle, 1)]
    least, most = spec.required, len(spec.parameters)
    if spec.takes_mapping:
        least = most = 1  # the row
    elif spec.variadic or spec.takes_named or spec.vectors == (Vector.FRAME,):
        most = MOST_COLUMNS
    for option, function, more in asked:
        if not callable(function):
            continue
        try:  # not what a decorator wraps: its wrapper may take other arguments, and is what is called
            signature = signature_of(function, follow_wrapped=False)
        except (ValueError, TypeError):  # made in C
            continue
        if not any(_takes(signature, number + more) for number in range(least, most + 1)):
            row = "the row" if spec.takes_mapping else f"the arguments of {spec.name} ({', '.join(spec.parameters)})"
            raise OptionError(
                f"{option} of {spec.name} takes {signature}, and is called with {row}"
                f"{', and then what came of it' if more else ''}"
            )


def _takes(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _refuse_options_of_batches(name: str, options: Options) -> None:
    given = {
        "batch_size": options.batch_size,
        "batch_linger": options.batch_linger,
        "max_batch_weight": options.max_batch_weight,
        "split_failed": options.split_failed or None,
    }
    for option, value in given.items():
        if value is not None:
            raise OptionError(
                f"{option}={value} is for vectorized functions; {name} takes one row a call. "
                f"Annotate its parameters with pd.Series, pd.DataFrame or pa.Array, or leave {option} out"
            )


def _with_keys(spec: FunctionSpec, options: Options) -> FunctionSpec:
    """The function with the parameters that make the keys of its limits and budgets."""
    names = key_parameters(options.counted)
    if not names:
        return spec
    if spec.vectorized:
        raise OptionError(
            f"by={names[0]!r} is for functions of one row a call; {spec.name} takes many rows, whose keys may differ. "
            "Annotate its parameters with the types of one row, or leave by out"
        )
    spec = dataclasses.replace(spec, keyed_by=names)
    if not (spec.takes_mapping or spec.takes_named):  # only the columns tell their names
        spec.check_keys(spec.parameters)
    return spec


def group_rows(spec: FunctionSpec, options: Options) -> int:
    """The largest number of rows in one call."""
    return (options.batch_size or DEFAULT_BATCH_SIZE) if spec.vectorized else 1


def _read_async_function(function: AsyncFunction) -> FunctionSpec:
    name = type(function).__name__
    for method in ("open", "async_invoke", "close"):
        if not inspect.iscoroutinefunction(getattr(function, method)):
            raise FunctionError(f"{name}.{method} must be declared async def")
    if inspect.iscoroutinefunction(function.timeout):
        raise FunctionError(f"{name}.timeout must be a plain def: it is called at the deadline and may not wait")
    return FunctionSpec(function, name, FunctionKind.ASYNC_FUNCTION, (), 0, False, None, {}, (), None)


def _read_callable(function: Any, options: Options) -> FunctionSpec:
    if inspect.isclass(function) or not callable(function):
        raise FunctionError(f"expected a function such as {EXAMPLE!r} or an AsyncFunction, not {safe_repr(function)}")
    name = getattr(function, "__name__", None) or type(getattr(function, "func", function)).__name__
    if isinstance(function, functools.partial):
        name = getattr(function.func, "__name__", name)
    if name == "<lambda>":
        name = "lambda"
    kind = _kind(function, name)
    hinted = function_hints(behind_decorators(function))
    hints = {key: without_none(hint) for key, hint in hinted.items()}
    resources = _resources(options.resources, name)
    try:
        parameters = parameters_of(function)
    except (ValueError, TypeError) as error:
        raise FunctionError(f"the parameters of {name} cannot be read; wrap it: {EXAMPLE}") from error
    context = next((p.name for p in parameters if hints.get(p.name) is RuntimeContext), None)
    filled = {*resources, context}
    for resource in resources:
        if not any(p.name == resource or p.kind is p.VAR_KEYWORD for p in parameters):
            raise FunctionError(f"{name} has no parameter called {resource!r} to take the resource of that name")
    columns = [p for p in parameters if p.name not in filled and p.kind in BY_POSITION]
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and p.name not in filled and p.default is p.empty:
            raise FunctionError(
                f"{name} has a keyword-only parameter {p.name!r} without a default, which no column and no resource "
                "fills; make it positional, give it a default or name a resource so"
            )
    kinds = [p.kind for p in parameters]
    vectors, named = vectors_of(parameters, columns, hints, name, is_generator=kind is FunctionKind.GENERATOR)
    returns, unread = _returns(hints.get("return"), kind, is_vectorized=bool(vectors or named))
    return FunctionSpec(
        function=function,
        name=name,
        kind=kind,
        parameters=tuple(p.name for p in columns),
        required=sum(p.default is p.empty for p in columns),
        variadic=Parameter.VAR_POSITIONAL in kinds,
        takes_named=Parameter.VAR_KEYWORD in kinds and (named is not None or not vectors),
        context_parameter=context,
        resources=resources,
        vectors=vectors,
        named_vectors=named,
        returns=returns,
        unread=unread,
        answers=answers_of(hinted.get("return")),
    )


def _kind(function: Any, name: str) -> FunctionKind:
    call = called(function)
    if inspect.isasyncgenfunction(call):
        return FunctionKind.GENERATOR
    if inspect.isgeneratorfunction(call):
        raise FunctionError(
            f"{name} is a plain generator (def with yield); write async def with yield for 0..n results per row, "
            "or return a list for one array"
        )
    if isinstance(call, functools._lru_cache_wrapper) and is_coroutine_function(call.__wrapped__):
        raise FunctionError(
            f"{name} is an async def behind functools.cache or lru_cache, which keeps its coroutines, and each can be "
            "awaited once only; keep what they return, as the package async-lru does"
        )
    return FunctionKind.COROUTINE if is_coroutine_function(function) else FunctionKind.THREAD


def _resources(given: Any, name: str) -> dict[str, Callable[..., Any]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        own = getattr(given, "__name__", None)
        if own is None:
            raise FunctionError(f"resources of {name}: {safe_repr(given)} has no name; use resources={{'client': ...}}")
        given = {own: given}
    for key, factory in given.items():
        if not isinstance(key, str) or not callable(factory):
            raise FunctionError(
                f"resource {key!r} of {name} must be an async context manager's function or class, called once in "
                f"each task, not {safe_repr(factory)}"
            )
        if inspect.isasyncgenfunction(factory) or inspect.isgeneratorfunction(factory):
            raise FunctionError(f"resource {key!r} of {name}: decorate it with @contextlib.asynccontextmanager")
    return dict(given)


def _returns(hint: Any, kind: FunctionKind, *, is_vectorized: bool) -> tuple[str | None, str | None]:
    """The DDL of one result, or of what a generator yields; or why the annotation does not tell it."""
    if isinstance(hint, str):  # it cannot be read
        pass
    elif kind is FunctionKind.GENERATOR:
        hint = next(iter(typing.get_args(hint)), None)
    elif is_vectorized and (typing.get_origin(hint) or hint) in (list, Sequence):
        # An answer for each row, a result or an exception.
        hint = without_exceptions(next(iter(typing.get_args(hint)), None))
    if any(hint is nothing for nothing in (None, types.NoneType, Any, object)) or vector_of(hint):
        return None, None
    try:
        return from_annotation(hint), None
    except UnknownTypeError as error:
        return None, str(error)
