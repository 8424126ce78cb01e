"""`batch_function`: makes the request of a row, and reads its answer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from asyncudf.queues._public import public

from .._errors.checks import is_plain, optional, redaction, text
from .._errors.exceptions import FunctionError, OptionError
from .._errors.safe import safe_repr
from .._functions.annotations import UnknownTypeError, from_annotation, function_hints, without_none
from .._functions.options import Options
from .._functions.signature import FunctionSpec, read_function
from .._spark.api.decorator import checked_type, is_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


@public("asyncudf")
class BatchFunction:
    """A function for `submit`, made by `batch_function`; called, it makes the request of a row."""

    __name__: str

    def __init__(self, spec: FunctionSpec, parse: Callable[[Any], Any] | None, returns: Any, options: Options) -> None:
        self.spec: FunctionSpec = spec
        self.options: Options = options
        self.returns: Any = returns
        self._parse = parse
        functools.update_wrapper(self, spec.function, updated=())
        self.__name__ = spec.name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The request for these arguments, for tests."""
        return self.spec.function(*arguments, **named)

    def parse(self, answer: Any) -> Any:
        """The result that an answer stands for."""
        return answer if self._parse is None else self._parse(answer)

    def with_version(self, version: str | None) -> BatchFunction:
        """A copy with another version; the function itself if none is given."""
        if version is None:
            return self
        options = self.options.replace({"version": version})
        return BatchFunction(self.spec, self._parse, self.returns, options)

    def __repr__(self) -> str:
        return f"<batch_function {self.spec.name}>"


@overload
def batch_function(
    f: str | DataType | type[Any] | None = None,
    returnType: None = None,  # noqa: N803 - as in async_pandas_udf
    *,
    parse: Callable[[Any], Any] | None = None,
    version: str | None = None,
    redact: bool | None = None,
) -> Callable[[Callable[..., Any]], BatchFunction]: ...
@overload
def batch_function(
    f: Callable[..., Any],
    returnType: str | DataType | type[Any] | None = None,  # noqa: N803
    *,
    parse: Callable[[Any], Any] | None = None,
    version: str | None = None,
    redact: bool | None = None,
) -> BatchFunction: ...
@public("asyncudf")
def batch_function(
    f: Any = None,
    returnType: str | DataType | type[Any] | None = None,  # noqa: N803 - as in async_pandas_udf
    *,
    parse: Callable[[Any], Any] | None = None,
    version: str | None = None,
    redact: bool | None = None,
) -> BatchFunction | Callable[[Callable[..., Any]], BatchFunction]:
    """Make a function for `submit` from a function that makes a request and a function that reads the answer.

    Both are plain functions and make no calls. The request is what the `service` takes for a row, made of dicts, lists,
    texts and numbers.

    Args:
        f: the function that makes the request of the row's arguments; None when used with parentheses. A parameter
            annotated `RuntimeContext` tells `last_error`, what was wrong with the answer before, and `attempt_number`.
        returnType: the type of a result, as in `async_pandas_udf`; unless given, the annotation of `parse` says it.
        parse: a function from an answer to the result. If it raises, or the result does not fit the type, the row is
            submitted again. Without it the answer is the result.
        version: change it when the function changes; "1" unless given.
        redact: True keeps results that do not fit, and so what a model has said, out of messages.

    Raises:
        OptionError: a value that cannot work.
        FunctionError: a function that cannot be run.

    >>> def read(answer: dict) -> str:
    ...     return answer["choices"][0]["message"]["content"]
    >>> @batch_function(parse=read)
    ... def ask(text: str) -> dict:
    ...     return {"model": "a-model", "messages": [{"role": "user", "content": text}]}
    >>> ask("Oslo")["model"], ask.parse({"choices": [{"message": {"content": "Norway"}}]})
    ('a-model', 'Norway')
    """
    if is_type(f) or (f is not None and not callable(f)):
        if returnType is not None:
            raise OptionError(f"two return types: {safe_repr(f)} and {safe_repr(returnType)}")
        return batch_function(None, f, parse=parse, version=version, redact=redact)
    if parse is not None and not is_plain(parse):
        raise OptionError(f"parse must be a plain function of an answer, not {safe_repr(parse)}")
    options = Options.of({"version": optional(text)(version, "version"), "redact": redaction(redact, "redact")})
    returns = checked_type(returnType)

    def made(function: Any) -> BatchFunction:
        if not is_plain(function):
            raise FunctionError(
                f"batch_function takes a plain function that returns the request of a row, not {safe_repr(function)}: "
                "neither it nor parse calls the service"
            )
        spec = read_function(function, options)
        if spec.vectorized:
            raise FunctionError(f"{spec.name} makes the request of one row: its parameters are values, not vectors")
        return BatchFunction(_with_results_of(spec, parse), parse, returns, options)

    return made if f is None else made(f)


def _with_results_of(spec: FunctionSpec, parse: Any) -> FunctionSpec:
    """The function with the type that `parse` declares, as the function itself returns the request."""
    hint = None if parse is None else without_none(function_hints(parse).get("return"))
    returns = unread = None
    if hint is not None and hint is not Any:
        try:
            returns = from_annotation(hint)
        except UnknownTypeError as error:
            unread = str(error)
    return dataclasses.replace(spec, returns=returns, unread=unread)


def check_function(function: Any) -> BatchFunction:
    """Raises OptionError unless `batch_function` has made the function."""
    if not isinstance(function, BatchFunction):
        raise OptionError(
            "submit takes a function made by batch_function, which says what is asked for a row and what an answer "
            f"means, not {safe_repr(function)}"
        )
    return function
