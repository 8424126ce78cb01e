"""The plan of a function, or of a sink's, which travels to the executors: function, options, type of the results."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from .._arrow.result_codec import StoredResultCodec, type_text
from .._arrow.rows import capture_type
from .._arrow.sizes import estimated_size, fixed_size, size_estimate
from .._arrow.validation import validator
from .._arrow.vectors import SinkCodec, VectorCodec
from .._engine.calls.arguments import with_own_arguments
from .._errors.safe import safe_repr
from .._errors.type_mismatch import check_awaited, listed
from .._functions.key_names import check_key_name, defaults_of, key_name
from .._functions.options import OnError, Options, OutputMode
from .._functions.side_outputs import SideRecord
from .._functions.signature import FunctionSpec, group_rows
from .._limits.coordinator.names import CoordinatorConfig
from .._stores.keys import ResultKeys

logger = logging.getLogger("asyncudf")


@dataclasses.dataclass(frozen=True)
class FunctionPlan:
    """A function that is to be called, as it travels to the executors."""

    spec: FunctionSpec
    options: Options
    declared: Any  # the Arrow type of one result; None if it is not declared
    coordinator: CoordinatorConfig | None = None  # of limits of the whole job; None where there are none

    # Made and checked on the driver, so a type that Arrow does not know is an error of the query and not of a row.
    # The declared type travels as Arrow's: on an executor there is no session that could read DDL.

    @property
    def captures(self) -> bool:
        return self.options.on_error is OnError.CAPTURE

    @property
    def keeps_rows(self) -> bool:
        """Whether each row leaves in its place, if its function gives one result for it."""
        return self.options.output_mode is OutputMode.ORDERED and not self.options.writes_dead_letters

    @property
    def written(self) -> Any:
        """The Arrow type of one result as it is written."""
        return capture_type(self.declared) if self.captures else self.declared

    @property
    def weigh(self) -> Callable[[Any], int] | None:
        """Estimates the bytes of a result; None where they are few, or the same for all."""
        spec = self.spec
        if self.declared is None or spec.many_results or spec.context_parameter is not None:
            return estimated_size
        weigh = size_estimate(self.declared)
        # Error records, dead letters and objects that are not converted are not of the declared type.
        has_others = self.captures or self.options.writes_dead_letters or not self.converts
        return estimated_size if has_others and weigh is not None else weigh

    def size_in_queue(self) -> tuple[int, Callable[[Any], int] | None]:
        """The bytes that all results have in a queue, and what estimates the rest of one, if there is a rest."""
        if (weigh := self.weigh) is not None:
            return 0, weigh
        if self.captures:
            without_error = pa.struct([("value", self.declared), ("error", pa.null())])
            return fixed_size(without_error) or 0, _size_of_error
        letters = _size_of_letter if self.options.writes_dead_letters else None
        return fixed_size(self.declared) or 0, letters

    def public_options(self) -> dict[str, Any]:
        """The options as people are shown them, with the kind of the function, and what a call has by default."""
        options = {"kind": self.spec.kind.value, **self.options.to_plain()}
        return {**options, "batch_size": group_rows(self.spec, self.options)} if self.spec.vectorized else options

    @property
    def converts(self) -> bool:
        """Whether a result becomes a value that Arrow takes; else it stays the object that the function returned."""
        return self.declared is not None

    def result_validator(self) -> Callable[[Any], Any]:
        """Validates a result against the declared type, and wraps it if errors are captured."""
        return _captured(self._validator()) if self.captures else self._validator()

    def _validator(self) -> Callable[[Any], Any]:
        if self.declared is None:
            return partial(check_awaited, self.spec.name)
        dropped = FieldsDropped(self.spec.name, redacted=self.options.redacted)
        return self.validator_telling(dropped)

    def validator_telling(self, dropped: FieldsDropped) -> Callable[[Any], Any]:
        """Validates a result against the declared type."""
        return validator(self.spec.name, self.declared, extra_fields=self.options.extra_fields, dropped=dropped)

    def result_keys(self) -> ResultKeys:
        """Makes the keys of the results, for a store and for `RuntimeContext.idempotency_key`."""
        return self._keys_of_type(type_text(self.declared))

    def _keys_of_type(self, declared: str) -> ResultKeys:
        options = self.options
        key = None if options.store is None or options.store.key is None else with_own_arguments(options.store.key)
        function, version = self.spec.function, options.version or "1"
        names = () if self.spec.fills_the_first else self.spec.parameters
        return ResultKeys(key_name(function), version, declared, key, defaults_of(function), names)

    def vector_codec(self, names: Sequence[str], arrow_types: Sequence[Any]) -> VectorCodec:
        return VectorCodec(self.spec.name, self.spec.vectors, names, arrow_types, self.declared)

    def check_stored(self) -> None:
        """Check that results can be stored, and not be taken for another function's; or raise what says why."""
        if self.options.store is not None:
            if self.options.version is None:
                check_key_name(self.spec.name, self.spec.function)
            self.result_codec()

    def result_codec(self) -> StoredResultCodec:
        spec, store = self.spec, self.options.store
        ages: dict[str, Any] = {} if store is None else {"ttl": store.ttl, "error_ttl": store.error_ttl}
        return StoredResultCodec(
            spec.name, self.declared, self._validator(), captures=self.captures, many=spec.many_results, **ages
        )


class FieldsDropped:
    """Logs the fields that are left out of results, for each struct once in a task.

    `any`: whether there were some since it was last set to False.
    """

    def __init__(self, function: str, *, redacted: bool) -> None:
        self._function, self._redacted = function, redacted
        self._told = set[str]()
        self.any: bool = False

    def __call__(self, path: str, names: Collection[Any]) -> None:
        self.any = True
        if path in self._told:
            return
        self._told.add(path)
        fields = f"further fields ({len(names)})" if self._redacted else listed(sorted(names, key=safe_repr))
        where = f" of {path!r}" if path else ""
        logger.warning(
            "%s returned %s%s that its type does not declare: left out, here and in later rows. Declare what you need; "
            "extra_fields='error' makes such a result an error", self._function, fields, where,
        )  # fmt: skip


def _size_of_error(captured: Any) -> int:
    if type(captured) is SideRecord:  # no budget was left
        return estimated_size(captured)
    return 0 if captured["error"] is None else estimated_size(captured["error"])


def _size_of_letter(result: Any) -> int:
    return estimated_size(result) if type(result) is SideRecord else 0


def _captured(validate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: {"value": validate(value), "error": None}


ACKNOWLEDGED = pa.bool_()  # the type of what stands for a row that the function has written: True


def no_micro_batch() -> str:
    """For a sink over a whole DataFrame."""
    return ""


@dataclasses.dataclass(frozen=True)
class SinkPlan(FunctionPlan):
    """The plan of a sink's function: it writes rows, and its results are dropped."""

    # Names the stream and its micro-batch, in the task; empty where there is none. Equal rows of two micro-batches are
    # two writes, and a micro-batch that runs again has the keys that it had.
    micro_batch: Callable[[], str] = no_micro_batch

    def _validator(self) -> Callable[[Any], Any]:
        return partial(_acknowledged, self.spec.name)

    def result_keys(self) -> ResultKeys:
        # The declared type is a part of each key: an acknowledgement is never taken for a column's result.
        return self._keys_of_type(f"sink {self.micro_batch()}".rstrip())

    def vector_codec(self, names: Sequence[str], arrow_types: Sequence[Any]) -> VectorCodec:
        return SinkCodec(self.spec.answers, self.spec.name, self.spec.vectors, names, arrow_types, None)


def _acknowledged(function: str, result: Any) -> bool:
    """What is kept of a result. Raises ResultError for a coroutine that was not awaited, and for an exception."""
    check_awaited(function, result)
    return True
