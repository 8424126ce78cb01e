"""What is sent with each request of a session that is known only then: a token that is renewed, and a signature."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from .._errors.answers import TOO_MANY_REQUESTS, answer_of
from .._errors.checks import is_number
from .._errors.exceptions import CredentialsError, OptionError
from .._errors.safe import type_name
from .._functions.async_function import AttemptState

EARLY, EARLY_SHARE = 60.0, 0.1  # seconds before its end, and share of its life, at which a token is renewed
OF_CREDENTIALS = (401, 498)  # statuses
REFUSALS = (*OF_CREDENTIALS, 400, 403)  # the last two are of rows too, and of many gateways for a token that has ended
# If the service has refused a token for so many rows in turn, it is not because of them. It may refuse many rows with
# a 400 or 403 that says nothing of the token, such as all of a customer.
SOME_ROWS, MANY_ROWS = 10, 100
OF_TOKENS = re.compile(r"token|credential|expired|api.?key", re.IGNORECASE)
LONGEST, CLOSING = 30.0, 1.0  # seconds for a renewal, and for one to end that is cancelled
TRUSTED = 60.0  # seconds; a token that was given so shortly before has not ended yet
Token = str | tuple[str, "float | timedelta | datetime"]


@dataclasses.dataclass(frozen=True)
class Request:
    """A request that is going to be sent, as `sign` gets it.

    Attributes:
        method: such as "POST".
        url: the URL with its query.
        headers: the headers so far; names may be in any case.
        body: the body; None if it is not known before it is sent, as for a stream.
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
    # number: of this one, 1 for the first; what a row and its errors have instead of the token
    # _is_accepted: the service has accepted this one; _has_accepted: or one before it
    # _refused: of how many rows in turn this one was refused
    # _longest: the most such rows after which a token was accepted all the same: the refusals were theirs

    def __init__(self, function: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._function, self._clock = function, clock
        self._value: str | None = None
        self._ends = self._renewed_at = math.inf
        self._given_at = 0.0
        self._is_accepted = self._has_accepted = False
        self.number = self._refused = self._longest = 0
        self._renewal: asyncio.Task[BaseException | None] | None = None

    async def current(self) -> str:
        """The token, a new one if it is time for that."""
        if self._value is None or self._clock() >= self._renewed_at:
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.create_task(self._renew())
            # A call that is cancelled leaves it to the others: if a renewal takes longer than an attempt may, no
            # attempt would get a token.
            failure = await asyncio.shield(self._renewal)
            if failure is not None:
                raise _not_renewed(failure) from failure
        assert self._value is not None
        return self._value

    async def close(self) -> None:
        """Ends a renewal that still runs."""
        if self._renewal is not None and not self._renewal.done():
            self._renewal.cancel()
            await asyncio.wait([self._renewal], timeout=CLOSING)

    async def _renew(self) -> BaseException | None:
        """Why there is no new token, if there is none and the old one is not good any more."""
        try:
            async with asyncio.timeout(None if self.number == 0 else LONGEST):  # the first one is in `open_timeout`
                value, life = _checked(await called(self._function))
        except BaseException as error:  # in a task of its own a SystemExit would end the loop
            now = self._clock()
            if self._value is not None and now < self._ends:  # it is still good; the next time is later
                self._renewed_at = now + (self._ends - now) / 2
                return None
            return error
        now = self._clock()
        self._value, self._given_at, self._ends = value, now, now + life
        self._renewed_at = self._ends - min(EARLY, EARLY_SHARE * life) if life < math.inf else math.inf
        self.number, self._is_accepted, self._refused = self.number + 1, False, 0
        return None

    def answered(self, used: int, response: Any, call: AttemptState | None) -> int | None:
        """A request with the token of this number was answered, in this call of the function.

        Returns:
            the number, for a request that the service may accept in another attempt, with a new token or later; that
            attempt finds it in the error of this one.
        """
        is_current = used == self.number and self._value is not None  # no other call has renewed it meanwhile
        status = response.status
        if status not in REFUSALS:
            if status < 500 and status != TOO_MANY_REQUESTS:  # others may come from something before the service
                self._accepts(is_current)
            return None
        if answer_of(response).refusal is not None:  # of GitHub: a 403 that asks for fewer calls
            return None
        if not is_current:
            return used
        is_again = getattr(getattr(call, "last_error", None), "refused", None) == used
        self._refused += not is_again
        return used if self._may_mend(status, is_again) else None

    def _accepts(self, is_current: bool) -> None:
        self._has_accepted = True
        if is_current:
            self._longest = max(self._longest, self._refused)
            self._is_accepted, self._refused = True, 0

    def _may_mend(self, status: int, is_again: bool) -> bool:
        """Whether another attempt may mend a refusal of the token; if a new one is needed for that, it is renewed."""
        if not self._is_accepted:
            if self.number > 1:
                return True  # a service may accept a new token late
            if status not in OF_CREDENTIALS:
                return False
        elif self._clock() < self._given_at + TRUSTED:
            if self._refused <= self._longest:
                return False  # it refuses single rows with such a status
            if self.number > 1 and not is_again and self._refused < SOME_ROWS:
                return True  # until the next attempt others show whether it is still accepted
        self._value = None
        return True

    def refuses_all(self, status: int, said: str) -> bool:
        """Whether the service refuses whatever it is given; `said` is the body of its answer."""
        if self._is_accepted or self.number == 1:
            return False
        if not self._has_accepted:
            return status in OF_CREDENTIALS
        is_clear = status in OF_CREDENTIALS or OF_TOKENS.search(said) is not None
        return self._refused >= max(SOME_ROWS if is_clear else MANY_ROWS, 10 * self._longest)


def _not_renewed(error: BaseException) -> CredentialsError:
    why = str(error) if isinstance(error, OptionError) else type_name(error)  # others may show a secret
    return CredentialsError(f"token of http.session could not be renewed: {why}")


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
