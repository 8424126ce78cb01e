"""What is sent with each request of a session that is known only then: a token that is renewed, and a signature."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import inspect
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from .._errors.answers import TOO_MANY_REQUESTS, answer_of
from .._errors.checks import is_number
from .._errors.exceptions import CredentialsError, OptionError
from .._errors.safe import type_name
from .._functions.async_function import CallState

EARLY, EARLY_SHARE = 60.0, 0.1  # seconds before its end, and share of its life, at which a token is renewed
OF_CREDENTIALS = (401, 498)  # statuses
REFUSALS = (*OF_CREDENTIALS, 400, 403)  # with the last two many services and gateways answer to a token that has ended
MOST_REFUSED = 20  # answers in a row, after which it is not single rows that the service refuses
TRUSTED = 60.0  # seconds; a token that was given so shortly before has not ended yet
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


class Verdict(enum.Enum):
    """What an answer says of the token that its request had."""

    ROWS = "nothing: the answer is the row's"
    AGAIN = "the service may accept the request with a new token"
    REFUSED = "the service goes on refusing what it is given"


class _Token(str):
    """One that was given; the same text that is given again is another object."""

    __slots__ = ()


class RenewedToken:
    """The token of a session, renewed by one call at a time."""

    # _value: None: renew it before the next request
    # _is_accepted: whether the service has accepted it; _is_second: the one before was refused
    # _accepted: how many answers have accepted a token; _refused: how many in a row have refused this one
    # _longest: the most refusals in a row after which a token was accepted all the same: they were the rows'

    def __init__(self, function: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._function, self._clock = function, clock
        self._value: _Token | None = None
        self._ends = self._renewed_at = math.inf
        self._given_at = 0.0
        self._is_accepted = self._is_second = False
        self._accepted = self._refused = self._longest = 0
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
            raise CredentialsError(f"token of http.session could not be renewed: {type_name(error)}") from error
        now = self._clock()
        self._value, self._given_at, self._ends = _Token(value), now, now + life
        self._renewed_at = self._ends - min(EARLY, EARLY_SHARE * life) if life < math.inf else math.inf
        self._is_accepted = False

    def answered(self, used: str, response: Any, call: CallState | None) -> Verdict:
        """A request with this token was answered, in this call of the function."""
        status = response.status
        if status not in REFUSALS:
            if status < 500 and status != TOO_MANY_REQUESTS:  # others may come from something before the service
                self._accepted += 1
                if used is self._value:
                    self._has_accepted()
            return Verdict.ROWS
        if answer_of(response).refusal is not None:  # of GitHub: a 403 that asks for fewer calls
            return Verdict.ROWS
        if used is not self._value:  # another call has renewed it meanwhile
            return Verdict.AGAIN
        self._refused += 1
        return self._of_refusal(used, status, getattr(getattr(call, "last_error", None), "refused", None))

    def _has_accepted(self) -> None:
        self._longest = max(self._longest, self._refused)
        self._is_accepted, self._is_second, self._refused = True, False, 0

    def _of_refusal(self, used: str, status: int, before: tuple[str, int] | None) -> Verdict:
        """`before`: the token that was refused in the row's last attempt, and what was accepted until then."""
        if not self._is_accepted:
            if self._is_second:
                is_lasting = self._refused >= max(MOST_REFUSED, 10 * self._longest)
                is_first = not self._accepted and status in OF_CREDENTIALS
                return Verdict.REFUSED if is_lasting or is_first else Verdict.AGAIN
            if not self._accepted and status not in OF_CREDENTIALS:
                return Verdict.ROWS
        elif before is not None and before[0] is used:
            if self._accepted > before[1]:  # it refuses this row alone
                self._longest = max(self._longest, self._refused, 1)
                return Verdict.ROWS
        elif before is not None:
            return Verdict.AGAIN  # it has accepted others: the next attempt shows whether it still does
        elif self._may_be_rows() and self._clock() < self._given_at + TRUSTED:
            return Verdict.ROWS
        self._value, self._is_second, self._refused = None, True, 0
        return Verdict.AGAIN

    def _may_be_rows(self) -> bool:
        """Whether the service refuses single rows with such a status, and not all that it gets."""
        return self._longest > 0 and self._refused <= max(MOST_REFUSED, 2 * self._longest)

    def refusal(self, used: str) -> tuple[str, int]:
        """What the error of a refused request keeps, for the row's next attempt."""
        return used, self._accepted


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
