"""A span of OpenTelemetry for each attempt of a call, where the option asks for it."""

from __future__ import annotations

import contextlib
from typing import Any, Self

from .._errors.exceptions import AsyncUDFError
from .._errors.records import Redact, error_message
from .._functions.context import CURRENT_CALL
from .._text.safe import type_name

__all__ = ("Attempt", "Spans")


class Spans:
    """Makes the spans of one function in one task.

    Args:
        name: of the spans.
        function: the full name.

    Raises:
        AsyncUDFError: OpenTelemetry is not installed here.
    """

    def __init__(self, name: str, function: str, partition: int, redact: Redact | None) -> None:
        try:
            from opentelemetry import context, trace
        except ImportError as error:
            needs = "spans=True needs OpenTelemetry on every executor: pip install 'asyncudf[otel]'"
            raise AsyncUDFError(needs) from error
        self.context, self.trace = context, trace
        self._name = name
        self._tracer = trace.get_tracer("asyncudf")
        self._attributes: dict[str, Any] = {"code.function.name": function, "asyncudf.partition": partition}
        self._redact = redact

    def begin(self, rows: int) -> Any:
        """A span that has begun; its parent is the current one."""
        told: dict[str, Any] = {"asyncudf.call.attempt": CURRENT_CALL.get().attempt, "asyncudf.call.rows": rows}
        try:
            return self._tracer.start_span(self._name, attributes={**self._attributes, **told})
        except Exception:  # of an SDK: no row may fail of it
            return self.trace.INVALID_SPAN

    def fail(self, span: Any, error: BaseException) -> None:
        """Tell that the attempt ended with this error."""
        # Not record_exception: nothing in what that keeps is redacted.
        span.set_attribute("error.type", type_name(error))
        span.set_status(self.trace.Status(self.trace.StatusCode.ERROR, error_message(error, self._redact)))


class Attempt:
    """A context in which the span of one attempt is the current one, so that of what the function does is below it."""

    # Afterwards the context is as it was: a call that leaves something in it would cost its slot.

    __slots__ = ("_has_failed", "_rows", "_span", "_spans", "_token")

    def __init__(self, spans: Spans, rows: int) -> None:
        self._spans = spans
        self._rows = rows
        self._has_failed = False

    def __enter__(self) -> Self:
        self._span = self._spans.begin(self._rows)
        self._token = self._spans.context.attach(self._spans.trace.set_span_in_context(self._span))
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.failed(error)
        self._spans.context.detach(self._token)
        with contextlib.suppress(Exception):
            self._span.end()

    def failed(self, error: BaseException) -> None:
        """The attempt has ended with this error; the first one counts."""
        if not self._has_failed:
            self._has_failed = True
            with contextlib.suppress(Exception):
                self._spans.fail(self._span, error)
