"""What is sent with each request of a session that is known only then: a token that is renewed, and a signature."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from .._errors.checks import is_number
from .._errors.exceptions import AsyncUDFError, OptionError
from .._errors.safe import type_name
from ._limits import tell_limits

EARLY, EARLY_SHARE = 60.0, 0.1  # seconds before its end, and share of its life, at which a token is renewed
Token = str | tuple[str, "float | timedelta | datetime"]


@dataclasses.dataclass(frozen=True)
class Request:
    """A request that is going to be sent, as `sign` gets it.

    Attributes:
        method: such as "POST".
        url: with its query.
        headers: so far; names may be in any case.
        body: None if it is not known before it is sent, such as that of a stream.
    """

    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None

    @classmethod
    def of(cls, request: Any) -> Request:
        body = request.body
        if not isinstance(body, bytes):  # a payload, which has the bytes or only a way to get them
            value = getattr(body, "_value", None)
            body = bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else None if body else b""
        return cls(request.method, str(request.url), dict(request.headers), body)


class RenewedToken:
    """The token of a session, renewed by one call at a time."""

    # _value: None: renew it before the next request
    # _is_accepted: whether the service has accepted it; _is_second: the one before was refused

    def __init__(self, function: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._function, self._clock = function, clock
        self._value: str | None = None
        self._ends = self._renewed_at = math.inf
        self._is_accepted = self._is_second = False
        self._renewing = asyncio.Lock()

    async def current(self) -> str:
        """The token, a new one if it is time for that."""
        if self._value is None or self._clock() >= self._renewed_at:
            async with self._renewing:
                if self._value is None or self._clock() >= self._renewed_at:
                    await self._renew()
        assert self._value is not None
        return self._value

    async def _renew(self) -> None:
        try:
            value, life = _checked(await called(self._function))
        except Exception as error:
            now = self._clock()
            if self._value is not None and now < self._ends:  # it is still good; the next time is later
                self._renewed_at = now + (self._ends - now) / 2
                return
            if isinstance(error, OptionError):
                raise
            raise AsyncUDFError(f"token of http.session could not be renewed: {type_name(error)}") from error
        now = self._clock()
        self._value, self._ends = value, now + life
        self._renewed_at = self._ends - min(EARLY, EARLY_SHARE * life) if life < math.inf else math.inf
        self._is_accepted = False

    def answered(self, used: str, status: int) -> bool:
        """A request with this token was answered; returns whether a new token may mend a 401."""
        if status != 401:
            if used == self._value:
                self._is_accepted, self._is_second = True, False
            return False
        if used != self._value:  # another call has renewed it meanwhile
            return True
        if self._is_second and not self._is_accepted:
            return False
        self._value, self._is_second = None, True
        return True


def responses(of: type[Any]) -> type[Any]:
    """The class of responses that tell the function's limits, and the token of their request, what was answered."""

    class OwnResponse(of):  # type: ignore[misc]
        token: RenewedToken | None = None
        used_token = ""
        may_renew = False  # whether it is a 401 that a new token may mend

        async def start(self, connection: Any) -> Any:
            started = await super().start(connection)
            tell_limits(self.headers)
            if self.token is not None:
                self.may_renew = self.token.answered(self.used_token, self.status)
            return started

    return OwnResponse


async def called(function: Any, *arguments: Any) -> Any:
    """What a function returns that may be `async def`."""
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result


def _checked(given: Any) -> tuple[str, float]:
    """A token, and the seconds for which it is good."""
    value, ends = given if isinstance(given, tuple) and len(given) == 2 else (given, math.inf)
    if not isinstance(value, str) or not value.strip():  # no message shows it
        raise OptionError(f"token must return a text that is not empty, not an empty {type(value).__name__}")
    if isinstance(ends, datetime):
        if ends.tzinfo is None:
            raise OptionError("token must return a datetime with a time zone for when the token ends, not a naive one")
        ends = ends - datetime.now(UTC)
    life = ends.total_seconds() if isinstance(ends, timedelta) else ends
    if not (life == math.inf or is_number(life)) or life <= 0:
        raise OptionError(
            "token must return the seconds from now for which the token is good, more than 0, or a timedelta, or a "
            f"datetime with a time zone, not {type(ends).__name__}"
        )
    return value.strip(), float(life)
