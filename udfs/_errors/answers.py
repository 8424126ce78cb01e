"""The HTTP status, the refusal and the wait in an exception or a response of any client."""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from itertools import chain
from typing import Any, NamedTuple

from .bodies import (
    LEAST_ERROR,
    MOST_ERRORS,
    MOST_STATUS,
    THROTTLING,
    TRANSIENT,
    USED_UP,
    canonical,
    codes_in,
    item,
    parsed,
    status_in,
    wait_in,
)
from .broken import is_broken
from .safe import module_of, named_class, tried
from .traces import is_group, leaves, related
from .waits import LONGEST_WAIT, number_in, read_each, seconds_of

# Clients are read by the names of attributes, not by their classes: none has to be imported, and unknown ones work too.

TOO_MANY_REQUESTS, UNAVAILABLE, OVERLOADED, FORBIDDEN = 429, 503, 529, 403
# Instead of 0 seconds: a server whose clock differs seems to say "at once", and would be called without end.
SHORT_WAIT = 1.0
# Each header of a reset with the header of what is left until then.
RESETS = {
    "x-ratelimit-reset-after": "x-ratelimit-remaining",
    "x-ratelimit-reset": "x-ratelimit-remaining",
    "ratelimit-reset": "ratelimit-remaining",
    **{f"x-ratelimit-reset-{unit}": f"x-ratelimit-remaining-{unit}" for unit in ("requests", "tokens")},
    **{
        f"anthropic-ratelimit-{unit}-reset": f"anthropic-ratelimit-{unit}-remaining"
        for unit in ("requests", "tokens", "input-tokens", "output-tokens")
    },
}
MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")
NAMES = {*MILLISECONDS, *RESETS, *RESETS.values(), "retry-after", "date", "x-should-retry"}
# What aiohttp says of an answer that it does not read: the next one has the same headers.
BOUND = re.compile(
    r"[Gg]ot more than \d+ bytes|[Tt]oo many (?:headers|trailers) received"
    r"|Can not decode content-encoding: .*? Please install [\w.`-]+"
)
TOO_MANY_RESPONSES = re.compile(r"too many ([45]\d\d) error responses")  # urllib3, after its own retries
# gRPC has one code for "call less often" and for a message of this row that is too large.
TOO_LARGE = re.compile(r"larger than max|exceeds maximum size|message too large", re.IGNORECASE)
# Python's own errors have no answer of a service in them, unless somebody has put one there.
OF_PYTHON = {
    one for one in vars(builtins).values()
    if isinstance(one, type) and issubclass(one, Exception)
    # These may come of an answer that could not be read.
    and not issubclass(one, (ExceptionGroup, UnicodeError, AttributeError, AssertionError))
}  # fmt: skip
LOCKED = {"40001", "40P01", "55P03"}  # SQLSTATE: could not serialize, a deadlock, a lock that others hold
TEXTS_AND_NUMBERS = {str, bytes, int, float, type(None)}


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A service's response that it wants fewer calls."""

    wait: float | None  # seconds until it wants to be called again, above 0, at most 10^9; None if it does not say
    may_retry: bool  # False if the service says that it will refuse the same request again

    @property
    def seconds(self) -> float:
        """`wait`, or a second if the service does not say."""
        return SHORT_WAIT if self.wait is None else self.wait


class Answer(NamedTuple):
    """What a service has said in a response, or in an exception with its causes and the exceptions of its group.

    An attribute is None if the service has not said it.

    Attributes:
        status: the HTTP status. If it is no status of an error, the status of an error in the body counts, as in the
            event of a stream that had begun with a 200. A `code` counts only if it is an `http.HTTPStatus`: databases,
            mail servers and websockets have codes of their own. An exception of aiohttp for an incomplete message has
            none.
        refusal: a 429; AWS's code for it, with any status; a 503 or 529 that says when to call again; a 403 that says
            so, or with `x-ratelimit-remaining: 0`; gRPC's RESOURCE_EXHAUSTED; and what has a wait and no status. In a
            group one is enough.
        wait: the seconds that the service asks for, in the error, its headers or its body; of a refusal also those
            until a limit is reset: one with nothing left, else the longest. In a group the longest wait counts. Not
            negative nor NaN; 0 for a time in the past; `inf` is possible.
        quota: the code (of `USED_UP`) of an account that has no call accepted any more, with a status of an
            error.
        may_pass: it is no refusal, and another call may succeed whatever the status is: a code of AWS that says so, a
            lock of a database, or an answer that the client could not read.
    """

    status: int | None = None
    refusal: Refusal | None = None
    wait: float | None = None
    quota: str | None = None
    may_pass: bool = False


def answer_of(outcome: Any) -> Answer:
    """Everything that an exception or a response says, read in one go."""
    if _has_no_answer(outcome):
        return Answer()
    # Each exception with its response, if it has one, the headers of both, and what was read of its body.
    outcomes = _outcomes(outcome)
    said = [
        (one, response := _attribute(one, "response"), [*_headers(one, response)], _bodies(one, response))
        for one in outcomes
    ]
    status, codes = _status(said), _codes(said)
    asked = _asked(said, status)
    refusal, wait = _refusal(said, status, codes, asked), asked
    if is_group(outcome):
        inside = [*map(answer_of, leaves(outcome))]
        refusal = _refusal_inside(inside) or refusal
        wait = max((one.wait for one in inside if one.wait is not None), default=asked)
    if wait is None and refusal is not None:
        wait = refusal.wait
    is_error = status is not None and status >= LEAST_ERROR
    quota = next((code for code in codes if code in USED_UP), None) if is_error else None
    passes = not TRANSIENT.isdisjoint(codes) or any(_is_locked(one) or is_broken(one) for one in outcomes)
    return Answer(status, refusal, wait, quota, passes and refusal is None)


def body_may_ask(status: int | None) -> bool:
    """Whether a wait in a body counts: not in an error about the row."""
    return status is None or status in (TOO_MANY_REQUESTS, FORBIDDEN) or status >= 500


def is_of_a_broken_message(error: Any) -> bool:
    """Whether an HTTP message could not be read: it broke off, or is none."""
    return module_of(type(error)) == "aiohttp.http_exceptions"


def bound_of_aiohttp(error: BaseException) -> str | None:
    """The bound of aiohttp that an answer is beyond, which is not read then; None if it failed for another reason."""
    texts = (str(tried(one.__str__)) for one in related(error) if is_of_a_broken_message(one))
    return next((found[0] for text in texts if (found := BOUND.search(text))), None)


def headers_of(error: BaseException) -> list[Any]:
    """The headers of all answers in an exception, its causes, and the exceptions of its group."""
    found = [] if _has_no_answer(error) else [*_all_headers(error)]
    return [*found, *(headers for leaf in leaves(error) for headers in headers_of(leaf))] if is_group(error) else found


def _all_headers(error: BaseException) -> Iterator[Any]:
    for one in _outcomes(error):
        for holder in (one, _attribute(one, "response")):
            yield from (headers for headers in _all_of(holder) if hasattr(headers, "items"))


def limit_headers(response: Any) -> dict[str, str]:
    """The headers of a response that tell its limits, or when to call again, and no others, such as cookies."""
    return next(_headers(response, _attribute(response, "response")), {})


# An exception, its response, the headers of both, and what was read of the body.
Said = Sequence[tuple[Any, Any, Sequence[Mapping[str, Any]], Sequence[Any]]]


def _status(said: Said) -> int | None:
    for one, *_ in said:
        if is_of_a_broken_message(one):
            return None
    holders = [holder for one, response, *_ in said for holder in (one, response) if holder is not None]
    found = next((status for status in map(_status_in, holders) if status is not None), None)
    if found is None or found < LEAST_ERROR:
        told = (status_in(body) for *_, bodies in said for body in bodies)
        return next((status for status in told if status is not None), found)
    return found


def _codes(said: Said) -> list[str]:
    """The codes and types of the exceptions, and of the errors that the bodies describe."""
    found = []
    for one, _, _, bodies in said:
        own = [_code(one), *_attributes(one, "type", "error_code", "reason")]
        found += [*(canonical(code) for code in own if type(code) is str), *chain(*map(codes_in, bodies))]
    return found


def _refusal(said: Said, status: int | None, codes: Sequence[str], asked: float | None) -> Refusal | None:
    if not THROTTLING.isdisjoint(codes) or any(_is_exhausted(one) for one, *_ in said):
        status = TOO_MANY_REQUESTS
    if status not in (None, TOO_MANY_REQUESTS, UNAVAILABLE, OVERLOADED, FORBIDDEN):
        return None
    headers, wait = [found for _, _, both, _ in said for found in both], asked
    if wait is None and status is not None:
        # Many gateways send these headers with each response: a 503 is a refusal only if one says that nothing is left.
        resets = (_reset(found, may_have_left=status == TOO_MANY_REQUESTS) for found in headers)
        wait = next((reset for reset in resets if reset is not None), None)
    if status == FORBIDDEN:
        is_refusal = asked is not None or any(_left(found, "x-ratelimit-remaining") == 0 for found in headers)
    else:
        is_refusal = status == TOO_MANY_REQUESTS or wait is not None
    if not is_refusal:
        return None
    may_retry = not any(str(found.get("x-should-retry")).strip().lower() == "false" for found in headers)
    return Refusal(None if wait is None else min(wait, LONGEST_WAIT) or SHORT_WAIT, may_retry)


def _refusal_inside(group: Sequence[Answer]) -> Refusal | None:
    """The refusal of a group of exceptions, if there is one in it."""
    if not (found := [one.refusal for one in group if one.refusal is not None]):
        return None
    waits = [refusal.wait for refusal in found if refusal.wait is not None]
    return Refusal(max(waits, default=None), all(refusal.may_retry for refusal in found))


def _bodies(outcome: Any, response: Any) -> list[Any]:
    """The body of the response of an exception, as far as a client has read it: JSON, or what it has made of it."""
    found = [_attribute(outcome, "body"), response, *_details(outcome)]
    if response is not None:
        found.append(_attribute(response, "_content"))  # of httpx and requests: their `content` may read, and wait
    return [body for body in map(parsed, found) if type(body) in (dict, list)]


def _details(outcome: Any) -> Iterator[list[Any]]:
    """What is a body: clients of Google have one in `details`, and other exceptions what is wrong with a row."""
    if (details := _attribute(outcome, "details")) is None:  # most exceptions have none
        return
    each = details if type(details) is list else [details]
    yield [one for one in each[:MOST_ERRORS] if type(one) is not dict or item(one, "error", "Error") is not None]


def _outcomes(outcome: Any) -> list[Any]:
    return [*related(outcome)] if issubclass(type(outcome), BaseException) else [outcome]


def _has_no_answer(outcome: Any) -> bool:
    """Whether the rest need not look, which takes hundreds of calls of functions."""
    if type(outcome) not in OF_PYTHON:
        return False
    return _is_pythons(outcome) if outcome.__cause__ is None else all(map(_is_pythons, _outcomes(outcome)))


def _is_pythons(error: Any) -> bool:
    return type(error) in OF_PYTHON and not error.__dict__ and TEXTS_AND_NUMBERS.issuperset(map(type, error.args))


def _asked(said: Said, status: int | None) -> float | None:
    for one, _, headers, bodies in said:
        for wait in _waits(one, headers, bodies if body_may_ask(status) else ()):
            if wait is not None:
                return max(0.0, wait)
    return None


def _status_in(holder: Any) -> int | None:
    for value in _statuses(holder):
        if value is not None and issubclass(type(value), int) and 100 <= (status := int.__int__(value)) <= MOST_STATUS:
            return status
    return None


def _statuses(holder: Any) -> Iterator[Any]:
    yield from _attributes(holder, "status", "status_code")
    if issubclass(type(holder), BaseException):
        yield code if type(code := _code(holder)) is HTTPStatus else None
    else:
        yield _attribute(holder, "code")
    yield _metadata(holder).get("HTTPStatusCode")
    # requests wraps urllib3's error for a request that has used up its retries; that error has no response.
    for error in (holder, tried(lambda: holder.args[0])):
        said = TOO_MANY_RESPONSES.fullmatch(tried(lambda: str(error.reason)) or "")  # noqa: B023 - called here
        yield None if said is None else int(said[1])


def _waits(outcome: Any, headers: Sequence[Mapping[str, Any]], bodies: Sequence[Any]) -> Iterator[float | None]:
    for asked in _attributes(outcome, "retry_after", "retry_after_s"):  # the second one is Qdrant's
        if asked is not None:
            yield tried(lambda: seconds_of(asked, {}))  # noqa: B023 - called here
    for found in headers:
        for name in MILLISECONDS:
            yield max((number / 1000 for number in read_each(found.get(name), number_in)), default=None)
        yield max(read_each(found.get("retry-after"), partial(seconds_of, headers=found)), default=None)
    yield from map(wait_in, bodies)


def _headers(outcome: Any, response: Any) -> Iterator[dict[str, Any]]:
    """The headers that say when to call again, by name in lower case, for each holder that has any."""
    for holder in (outcome, response):
        if holder is None:
            continue
        for headers in _all_of(holder):
            if headers is not None and (found := tried(lambda: _of_limits(headers))):  # noqa: B023 - called here
                yield found


def _all_of(holder: Any) -> Sequence[Any]:
    """What may be headers in an exception or a response; `meta` is Elasticsearch's."""
    in_meta = _attribute(_attribute(holder, "meta"), "headers")
    return _attribute(holder, "headers"), in_meta, _metadata(holder).get("HTTPHeaders")


def _of_limits(headers: Any) -> dict[str, Any]:
    # Not every client's headers are a Mapping (urllib has an email's), and some tell upper from lower case.
    found: dict[str, Any] = {}
    for name, value in headers.items():
        if issubclass(type(name), str) and type(value) in (str, int, float):
            lower = name.lower()
            if lower in NAMES or "ratelimit" in lower:
                found[lower] = f"{found[lower]}, {value}" if lower in found else value
    return found


def _reset(headers: Mapping[str, Any], *, may_have_left: bool) -> float | None:
    until = partial(seconds_of, headers=headers)
    waits = {name: max(0.0, *found) for name in RESETS if (found := read_each(headers.get(name), until))}
    if "x-ratelimit-reset-after" in waits:
        waits.pop("x-ratelimit-reset", None)  # the same time, by the server's clock
    left = {name: _left(headers, RESETS[name]) for name in waits}
    spent = [wait for name, wait in waits.items() if left[name] == 0]
    others = [wait for name, wait in waits.items() if may_have_left or left[name] is None]
    return max(spent or others, default=None)


def _left(headers: Mapping[str, Any], name: str) -> float | None:
    left = min(read_each(headers.get(name), number_in), default=None)
    return None if left is None else max(0.0, left)


def _attributes(holder: Any, *names: str) -> list[Any]:
    return [_attribute(holder, name) for name in names]


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except BaseException:  # a user's class may raise anything
        return None


def _code(error: Any) -> Any:
    """The `code` of an exception, unless it is a property: in aiohttp and websockets this property warns when read."""
    try:
        return inspect.getattr_static(error, "code")
    except BaseException:
        return None


def _is_locked(error: Any) -> bool:
    # Only there: to services that count their errors, 40001 is a wrong key or a field that is missing.
    return any(type(state) is str and state in LOCKED for state in _attributes(error, "sqlstate", "pgcode"))


def _is_exhausted(error: Any) -> bool:
    return grpc_code(error) == "RESOURCE_EXHAUSTED" and not TOO_LARGE.search(str(tried(lambda: error.details())))


def grpc_code(error: Any) -> Any:
    """The name of the code in an error of gRPC; None for another error."""
    kind: Any = type(error)
    return tried(lambda: error.code().name) if _is_of_grpc(kind) else None


@lru_cache(maxsize=1024)
def _is_of_grpc(kind: Any) -> bool:
    return any(named_class(one)[1] == "RpcError" for one in kind.__mro__)


def _metadata(response: Any) -> Mapping[str, Any]:
    """The part about HTTP in a response of botocore, which is a dict."""
    found = tried(lambda: response["ResponseMetadata"]) if issubclass(type(response), dict) else None
    return found if type(found) is dict else {}
