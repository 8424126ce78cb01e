"""A session of aiohttp as a resource: made in each task, with limits that leave it to the function's options."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from .._errors.exceptions import AsyncUDFError, OptionError
from .._functions.context import CURRENT_CALL
from .._policies.checks import Seconds, optional, positive_int, seconds, span
from .._text.safe import printable, safe_repr
from ._options import (
    check_names,
    check_options,
    checked_function,
    checked_headers,
    checked_url,
    checked_variable,
    connector_names,
    header_text,
)

if TYPE_CHECKING:
    import aiohttp

__all__ = ("SessionFactory", "session")


logger = logging.getLogger("asyncudf")

Given = Callable[[], Any]  # plain or async
# aiohttp makes a request of its own accord again where a kept connection was dropped, and has no option for it. Its own
# test client uses this attribute; tests/http/test_session.py tells whether it is still there.
NOT_IDEMPOTENT = ("POST", "PATCH")
KEY = "Idempotency-Key"
REPEATS = "_retry_connection"


def session(
    base_url: str | None = None,
    *,
    headers: Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]] | None = None,
    token: Callable[[], str | Awaitable[str]] | None = None,
    token_env: str | None = None,
    connections: int | None = None,
    total_timeout: Seconds | None = None,
    connect_timeout: Seconds | None = 10.0,
    read_timeout: Seconds | None = None,
    keep_alive: Seconds = 15.0,
    dns_cache: Seconds = 60.0,
    on_executor: Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any]]] | None = None,
    **options: Any,
) -> SessionFactory:
    """A resource that is an `aiohttp.ClientSession`: opened once in each task, on the loop of the calls, and closed.

    The limits are the function's: `capacity` bounds the calls, `timeout` and `attempt_timeout` end them. So by default
    the session has no limit of connections and no time limit but that of connecting. (aiohttp's own 100 connections
    would hold back a function with `capacity=200` without a word, and its 300 seconds end a call that has more.)
    Cookies of an answer are forgotten: they would go along with the calls of other rows.

    Each request is an attempt that the function has made: aiohttp's own second request, after a connection that the
    service has dropped, is switched off. Give `retry=` with `retry_on=http.is_retryable`, or a `keep_alive` that is
    shorter than the service's.

    What the functions `token`, `headers` and `on_executor` return is not in Spark's plan. They are called once in each
    task, may be `async def`, and are tried again with the task if they fail.

    Args:
        base_url: the address of the service; requests are relative to it. `session.get("users")` of
            "https://example.com/v1" asks for /v1/users, and `session.get("/users")` for /users.
        headers: for all requests, or a function that returns them, for secrets such as {"X-Api-Key": ...}.
        token: a function that returns a token, sent as `Authorization: Bearer <token>`.
        token_env: the environment variable of the executors that has the token.
        connections: at once in each task; a call above it waits inside, which counts against its deadlines.
        total_timeout: seconds of a request, from its begin to the end of its body; None: no limit.
        connect_timeout: seconds for making a connection, with TLS; waiting for a free one is not counted.
        read_timeout: seconds in which nothing comes; give it where answers come in parts and `attempt_timeout` is long.
        keep_alive: seconds for which a connection without calls is kept; 0: each request has one of its own.
        dns_cache: seconds for which the addresses of a host are remembered; 0: not at all.
        on_executor: a function that returns more options, for what cannot be pickled or is a secret: `connector`,
            `cookie_jar`, `auth`, an SSL context for `ssl`, ...
        **options: anything else that `aiohttp.ClientSession` or `aiohttp.TCPConnector` takes, such as
            `raise_for_status=http.raise_for_status`, `trust_env=True`, `limit_per_host=10`.

    What comes from `token`, `token_env` and the function `headers` goes to the origin of `base_url` alone (which they
    need), also where the function asks another address, or is redirected to one.

    Returns:
        what `resources=` takes; for a parameter called `session` without a name: `resources=http.session(...)`.

    Raises:
        OptionError: a value that cannot work, an option that aiohttp does not have, or a secret that would be in the
            plan.

    When a task begins, it fails with an AsyncUDFError where the environment has no such variable. Closing waits until
    the connections are closed.

    >>> from asyncudf import async_pandas_udf, http
    >>> @async_pandas_udf("string", capacity=200, resources=http.session("https://example.com", token_env="API_TOKEN"))
    ... async def title(key: str, session: "aiohttp.ClientSession") -> str:
    ...     async with session.get("/titles", params={"key": key}) as response:
    ...         await http.raise_for_status(response)
    ...         return await response.text()
    """
    limit = optional(seconds)
    check_options(options)
    found = SessionFactory(
        base_url=checked_url(base_url),
        headers=checked_headers(headers),
        token=checked_function(token, "token"),
        token_env=checked_variable(token_env),
        connections=optional(positive_int)(connections, "connections"),
        total_timeout=limit(total_timeout, "total_timeout"),
        connect_timeout=limit(connect_timeout, "connect_timeout"),
        read_timeout=limit(read_timeout, "read_timeout"),
        keep_alive=span(keep_alive, "keep_alive"),
        dns_cache=span(dns_cache, "dns_cache"),
        on_executor=checked_function(on_executor, "on_executor"),
        options=options,
    )
    if token is not None and token_env is not None:
        raise OptionError("token and token_env are two ways to the same header; give one of them")
    if base_url is None and (token is not None or token_env is not None or callable(headers)):
        raise OptionError(
            "token, token_env and a function for headers need base_url: secrets are sent to that service alone, "
            "as in http.session('https://example.com', token_env='API_TOKEN')"
        )
    return found


@dataclasses.dataclass(frozen=True, repr=False)
class SessionFactory:
    """Makes a session in each task; what `session` returns. It can be pickled, and holds no secret."""

    asks = True  # in which attempt it is used
    __name__ = "session"  # the parameter that it is for, where `resources=` does not name one

    base_url: str | None
    headers: Mapping[str, str] | Given | None
    token: Given | None
    token_env: str | None
    connections: int | None
    total_timeout: float | None
    connect_timeout: float | None
    read_timeout: float | None
    keep_alive: float
    dns_cache: float
    on_executor: Given | None
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"http.session({safe_repr(self.base_url) if self.base_url else ''})"

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[aiohttp.ClientSession]:
        """The open session, on the running loop."""
        import aiohttp

        late = {} if self.on_executor is None else await _called(self.on_executor)
        check_names(late)
        options = {**self.options, **late}
        secrets = await self._secret_headers()
        own = {name: options.pop(name) for name in connector_names() & options.keys()}
        if "cookies" not in options and "cookie_jar" not in options:
            options["cookie_jar"] = aiohttp.DummyCookieJar()
        own_traces = [_for_one_origin(str(self.base_url), secrets)] if secrets else []
        options["trace_configs"] = [*own_traces, _warning_of_repeats(), *(options.get("trace_configs") or ())]
        connector = options.pop("connector", None) or self._connector(own)
        try:
            client = aiohttp.ClientSession(
                self.base_url,
                connector=connector,
                headers=None if callable(self.headers) else self.headers,
                timeout=aiohttp.ClientTimeout(
                    total=self.total_timeout, sock_connect=self.connect_timeout, sock_read=self.read_timeout
                ),
                **options,
            )
        except BaseException:
            await connector.close()
            raise
        if hasattr(client, REPEATS):
            setattr(client, REPEATS, False)
        else:
            logger.warning(
                "this aiohttp may repeat requests whose connection was dropped: they are not counted as attempts"
            )
        async with client:
            yield client

    def _connector(self, own: Mapping[str, Any]) -> aiohttp.TCPConnector:
        import aiohttp

        keep: dict[str, Any] = {"keepalive_timeout": self.keep_alive} if self.keep_alive else {"force_close": True}
        dns: dict[str, Any] = {"ttl_dns_cache": self.dns_cache} if self.dns_cache else {"use_dns_cache": False}
        return aiohttp.TCPConnector(limit=self.connections or 0, **keep, **dns, **own)  # 0: no limit

    async def _secret_headers(self) -> dict[str, str]:
        """What the functions and the environment give, checked; no message shows it."""
        found: dict[str, str] = {}
        if callable(self.headers):
            given = await _called(self.headers)
            if not isinstance(given, Mapping):
                raise OptionError(f"headers of {self!r} returned a {type(given).__name__}, not a dict of texts")
            found = {str(name): header_text(value, f"headers[{name!r}]") for name, value in given.items()}
        if self.token_env is not None:
            if not os.environ.get(self.token_env, "").strip():
                raise AsyncUDFError(
                    f"the environment variable {self.token_env} is not set in Spark's Python worker: on a cluster set "
                    f"it for the executors, as with spark.executorEnv.{self.token_env} or a secret of Kubernetes; with "
                    "a local master before the first Spark session of the program starts"
                )
            found["Authorization"] = _bearer(os.environ[self.token_env], f"the environment variable {self.token_env}")
        if self.token is not None:
            found["Authorization"] = _bearer(await _called(self.token), "what token returns")
        return found


def _bearer(token: Any, name: str) -> str:
    token = header_text(token.strip() if isinstance(token, str) else token, name)  # a file's line end is none of it
    if not token:
        raise OptionError(f"{name} is empty; it must be the token")
    return f"Bearer {token}"


async def _called(function: Any) -> Any:
    result = function()
    return await result if inspect.isawaitable(result) else result


def _warning_of_repeats() -> aiohttp.TraceConfig:
    """Warns once of a request in a later attempt that may do its work a second time."""
    import aiohttp

    warned = False

    async def start(session: Any, context: Any, request: aiohttp.TraceRequestStartParams) -> None:
        nonlocal warned
        call = CURRENT_CALL.get(None)
        if (
            warned
            or call is None
            or call.attempt == 1
            or request.method not in NOT_IDEMPOTENT
            or KEY in request.headers
        ):
            return
        warned = True
        logger.warning(
            "%s %s is sent again, in attempt %d, without an %s: if the service has done the first one and only the "
            "answer was lost, the work is done twice; send RuntimeContext.idempotency_key as that header, or leave "
            "such errors out of retry_on=",
            request.method, printable(str(request.url.with_query(None))), call.attempt, KEY,
        )  # fmt: skip

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(start)
    return trace


def _for_one_origin(base_url: str, secrets: Mapping[str, str]) -> aiohttp.TraceConfig:
    """Adds headers to the requests for one origin, and takes them away from those that lead to another one."""
    # Headers of a session would go to every host that it asks, and all but `Authorization` with each redirect.
    import aiohttp
    import yarl

    origin = yarl.URL(base_url).origin()

    async def start(session: Any, context: Any, request: aiohttp.TraceRequestStartParams) -> None:
        if request.url.origin() == origin:
            for name, value in secrets.items():
                request.headers.setdefault(name, value)

    async def redirect(session: Any, context: Any, request: aiohttp.TraceRequestRedirectParams) -> None:
        target = request.response.headers.get("Location") or request.response.headers.get("URI") or ""
        try:
            stays = request.url.join(yarl.URL(target)).origin() == origin
        except ValueError:
            stays = False
        for name in () if stays else secrets:
            request.headers.popall(name, None)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(start)
    trace.on_request_redirect.append(redirect)
    return trace
