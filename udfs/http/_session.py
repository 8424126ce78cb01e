"""An aiohttp session as a resource: made in each task, limited by the function's options, checked on the driver."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .._errors.answers import answer_of
from .._errors.checks import Seconds, optional, positive_int, seconds, span, unknown_name
from .._errors.exceptions import AsyncUDFError, OptionError
from .._errors.safe import presentable, safe_repr
from .._functions.async_function import CURRENT_CALL
from ._errors import WRITES
from ._responses import requesting, responses
from ._tokens import RenewedToken, Request, Token, called

if TYPE_CHECKING:
    import aiohttp
    import yarl

logger = logging.getLogger("asyncudf")

Given = Callable[[], Any]  # plain or async
NOT_IDEMPOTENT = ("POST", "PATCH")
KEY = "Idempotency-Key"
# aiohttp repeats a request by itself if its connection was dropped, and has no option for it. Its own test client
# uses this attribute; tests/http/test_session.py checks that it is still there.
REPEATS = "_retry_connection"
# Where aiohttp reads ~/.netrc, with `trust_env`. What it finds there would take the place of the session's own header.
NETRC = "_get_netrc_auth"
# What all methods of a session call; without it every redirect of a POST fails, also one that the function accepts.
REQUEST = "_request"

# A NAT or a load balancer forgets a connection that is silent for some minutes, and neither end learns of it. So the
# system asks the other end for a sign of life: after so many seconds, how often, and how many times until it gives up.
SIGNS_OF_LIFE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

SET_HERE = ("timeout", "conn_timeout", "limit", "keepalive_timeout", "force_close", "ttl_dns_cache", "use_dns_cache")
NEVER = ("loop", "connector_owner")
FOR_THE_TASK = ("connector", "cookie_jar", "resolver", "auth", "proxy_auth", "cookies")  # of one loop, or secrets
SECRET_HEADER = re.compile(
    r"authorization|cookie|secret|password|api-?key|subscription-key|(auth|access|security|session)-?token",
    re.IGNORECASE,
)


def session(
    base_url: str | None = None,
    *,
    headers: Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]] | None = None,
    token: Callable[[], Token | Awaitable[Token]] | None = None,
    token_env: str | None = None,
    sign: Callable[[Request], Mapping[str, str] | Awaitable[Mapping[str, str]]] | None = None,
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

    The function's options are the limits: `capacity` bounds the calls, `timeout` and `attempt_timeout` end them. So by
    default the session has no limit of connections, and no time limit except for connecting. (aiohttp's default of 100
    connections would silently hold back a function with `capacity=200`, and its 300 seconds would end longer calls.)
    Cookies of a response are not kept: they would be sent with the calls of other rows.

    Each request is an attempt of the function: aiohttp's own second request, after a connection that the service has
    dropped, is switched off. Give `retry=` with `retry_on=http.is_retryable`, or a `keep_alive` that is shorter than
    the service's.

    The values that the functions `token`, `headers` and `on_executor` return are not in Spark's plan. The functions are
    called at the start of each task and may be `async def`. If one fails, the task fails, and Spark's retry calls it
    again.

    A token is renewed before it ends, and once when the service refuses with a 401, 403, 400 or 498 one that it had
    accepted: by one call of `token` at a time in a task, which may take 30 seconds. `http.raise_for_status` makes a
    `RetryableError` of such an answer, so with `retry=` the request is made again, as the next attempt, with the new
    token. If the service goes on refusing all that it is given, or `token` fails, the task fails once a row has no
    attempt left. A 400 or 403 of some rows, while others are answered, is theirs.

    A POST that a 301 or 302 would make a GET of, and a write that is redirected to no address, raise a
    `PermanentError`; `allow_redirects=True` or `False` in the request accepts them, as aiohttp treats them. What
    aiohttp does not read, such as headers that are too long, is an `OptionError` that names the option. An answer of
    2xx that `response.json()` or `response.text()` cannot decode, and an empty one of 200 for `json()`, is a
    `RetryableError`; one that is whole JSON, of another content type or encoding, is a `PermanentError`.

    Args:
        base_url: the address of the service; requests are relative to it. `session.get("users")` of
            "https://example.com/v1" requests /v1/users, and `session.get("/users")` requests /users.
        headers: of all requests, or a function that returns them, for secrets such as {"X-Api-Key": ...}.
        token: a function that returns a token, sent as `Authorization: Bearer <token>`; or the token and when it ends:
            a number of seconds or a timedelta from now, or a datetime with a time zone.
        token_env: the environment variable of the executors that has the token.
        sign: a function of each request (an `http.Request`) that returns more headers for it, such as those of SigV4.
        connections: the most at once in each task; further calls wait in aiohttp, which counts against their deadlines.
        total_timeout: seconds of a request, from its beginning to the end of the response's body; None: no limit.
        connect_timeout: seconds for making a connection, with TLS; waiting for a free one is not counted.
        read_timeout: seconds without any data; for responses that come in parts, with a long `attempt_timeout`.
        keep_alive: seconds for which an idle connection is kept; 0: each request has a connection of its own.
        dns_cache: seconds for which the addresses of a host are remembered; 0: not at all. When a request does not get
            through, or is not answered in time, the next connection looks them up again (once a second at most), as
            the service may have moved. Connections that are open are used until they fail, or `keep_alive` ends them.
        on_executor: a function that returns more options, for what cannot be pickled or is a secret: `connector`,
            `cookie_jar`, `auth`, an SSL context for `ssl`, ... A `connector` has limits of its own: `connections`,
            `keep_alive` and `dns_cache` do not count then.
        **options: anything else that `aiohttp.ClientSession` or `aiohttp.TCPConnector` takes, such as
            `raise_for_status=http.raise_for_status`, `trust_env=True`, `limit_per_host=10`, `max_field_size=65536`.

    The secrets of `token`, `token_env`, `sign` and the function `headers` are sent to the origin of `base_url` alone
    (so they need a `base_url`), also if the function requests another address, or is redirected to one. There they go
    before what ~/.netrc says, which aiohttp reads with `trust_env=True`. With a `base_url` the `cookies` of
    `on_executor` go there alone too.

    Returns:
        a factory for `resources=`; `resources=http.session(...)` is for a parameter called `session`.

    Raises:
        OptionError: a value that cannot work, an option that aiohttp does not have, or a secret that would be in the
            plan.

    A task fails at its beginning with an AsyncUDFError if its environment has no variable `token_env`. Closing waits
    until the connections are closed.

    >>> from asyncudf import async_pandas_udf, http
    >>> @async_pandas_udf("string", capacity=200, resources=http.session("https://example.com", token_env="API_TOKEN"))
    ... async def title(key: str, session: "aiohttp.ClientSession") -> str:
    ...     async with session.get("/titles", params={"key": key}) as response:
    ...         await http.raise_for_status(response)
    ...         return await response.text()
    """
    import aiohttp

    _check_options(options)
    limit = optional(seconds)
    timeout = aiohttp.ClientTimeout(
        total=limit(total_timeout, "total_timeout"),
        sock_connect=limit(connect_timeout, "connect_timeout"),
        sock_read=limit(read_timeout, "read_timeout"),
    )
    kept, remembered = span(keep_alive, "keep_alive"), span(dns_cache, "dns_cache")
    ours = {
        "timeout": timeout,
        "limit": optional(positive_int)(connections, "connections") or 0,  # 0: no limit
        "socket_factory": _socket,
        **({"keepalive_timeout": kept} if kept else {"force_close": True}),
        "use_dns_cache": False,  # `_addresses` is one
    }
    found = SessionFactory(
        base_url=_checked_url(base_url),
        headers=_checked_headers(headers),
        token=_checked_function(token, "token"),
        token_env=_checked_variable(token_env),
        sign=_checked_function(sign, "sign", takes="one argument, an http.Request"),
        on_executor=_checked_function(on_executor, "on_executor"),
        dns_cache=remembered,
        options={**ours, **options},
    )
    if token is not None and token_env is not None:
        raise OptionError("token and token_env are two ways to the same header; give one of them")
    secrets = (token, token_env, sign, headers if callable(headers) else None)
    if base_url is None and any(secret is not None for secret in secrets):
        raise OptionError(
            "token, token_env, sign and a function for headers need base_url: secrets are sent to that service alone, "
            "as in http.session('https://example.com', token_env='API_TOKEN')"
        )
    return found


@dataclasses.dataclass(frozen=True, repr=False)
class SessionFactory:
    """Makes a session in each task; `session` returns one. It can be pickled, and holds no secret."""

    asks = True  # the session reads the number of the attempt
    __name__ = "session"  # the parameter that gets it, if `resources=` names none

    base_url: str | None
    headers: Mapping[str, str] | Given | None
    token: Given | None
    token_env: str | None
    sign: Callable[[Request], Any] | None
    on_executor: Given | None
    dns_cache: float
    options: Mapping[str, Any]  # of aiohttp's session and of its connector

    def __repr__(self) -> str:
        return f"http.session({safe_repr(self.base_url) if self.base_url else ''})"

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[aiohttp.ClientSession]:
        """The open session, on the running loop."""
        token = None if self.token is None else RenewedToken(self.token)
        try:
            async with self._opened(token) as client:
                yield client
        finally:
            if token is not None:
                await token.close()

    @contextlib.asynccontextmanager
    async def _opened(self, token: RenewedToken | None) -> AsyncIterator[aiohttp.ClientSession]:
        import aiohttp
        import yarl

        from ._addresses import Addresses

        if token is not None:
            await token.current()
        secrets = await self._secret_headers()  # first, for it may fail, and then a late connector would stay open
        late = {} if self.on_executor is None else await called(self.on_executor)
        options = {**self.options, **late}
        connecting = {name: options.pop(name) for name in _names(aiohttp.TCPConnector) & options.keys()}
        if "cookie_jar" not in options:
            options["cookie_jar"] = jar = aiohttp.DummyCookieJar()  # which keeps none of a response
            if cookies := options.pop("cookies", None):
                given = aiohttp.CookieJar()
                given.update_cookies(cookies)
                ours = None if self.base_url is None else _origin(yarl.URL(self.base_url))
                own, none = given.filter_cookies, jar.filter_cookies
                sent: Any = lambda url: (own if ours in (None, _origin(url)) else none)(url)  # noqa: E731
                jar.filter_cookies = sent  # type: ignore[method-assign]
        made_of = options.get("request_class", aiohttp.ClientRequest)
        hidden: set[str] = set()
        options["request_class"] = _requests(made_of, self.base_url, secrets, token, self.sign, hidden)
        options["response_class"] = responses(options.get("response_class", aiohttp.ClientResponse), hidden)
        if not callable(self.headers):
            options.setdefault("headers", self.headers)
        addresses = Addresses(connecting.pop("resolver", None), self.dns_cache)
        try:
            connector = options.pop("connector", None) or aiohttp.TCPConnector(resolver=addresses, **connecting)
            try:
                client = aiohttp.ClientSession(self.base_url, connector=connector, **options)
            except BaseException:
                await connector.close()
                raise
            if hasattr(client, REQUEST):
                object.__setattr__(client, REQUEST, requesting(client._request, addresses.forget))
            self._adapt(client, has_authorization=_has_authorization(secrets, token))
            async with client:
                yield client
        finally:
            await addresses.close()

    def _adapt(self, client: aiohttp.ClientSession, *, has_authorization: bool) -> None:
        """Set what aiohttp has no options for."""
        import yarl

        if hasattr(client, REPEATS):
            setattr(client, REPEATS, False)
        else:
            logger.warning(
                "this aiohttp may repeat requests whose connection was dropped: they are not counted as attempts"
            )
        if self.base_url is not None and has_authorization and hasattr(client, NETRC):
            host = yarl.URL(self.base_url).host
            object.__setattr__(client, NETRC, partial(_elsewhere, host, client._get_netrc_auth))

    async def _secret_headers(self) -> dict[str, str]:
        """The headers of the functions and the environment; no message shows them."""
        found = {**await called(self.headers)} if callable(self.headers) else {}
        if self.token_env is not None:
            if not os.environ.get(self.token_env, "").strip():
                raise AsyncUDFError(
                    f"the environment variable {self.token_env} is not set in Spark's Python worker: on a cluster set "
                    f"it for the executors, as with spark.executorEnv.{self.token_env} or a secret of Kubernetes; with "
                    "a local master before the first Spark session of the program starts"
                )
            found["Authorization"] = f"Bearer {os.environ[self.token_env].strip()}"  # without a file's line end
        return found


def _requests(
    of: type[Any],
    base_url: str | None,
    secrets: Mapping[str, str],
    token: RenewedToken | None = None,
    sign: Any = None,
    hidden: set[str] | None = None,
) -> type[aiohttp.ClientRequest]:
    """The class of a session's requests: those to the origin of `base_url` have the headers `secrets`, and more.

    `hidden` gets the names of these headers, in lower case: no message shows what is in them.
    It warns once of a request in a later attempt that may do its work a second time.
    """
    # The headers of a session are sent to every host, and all but `Authorization` with each redirect. A redirect is
    # another object of this class, made from headers without these. `trace_configs` could do both, but then aiohttp
    # calls thirty functions more for each request.
    import yarl

    origin = _origin(yarl.URL(str(base_url))) if secrets or token or sign else None
    has_authorization = _has_authorization(secrets, token)
    names = set() if hidden is None else hidden
    names.update(map(str.lower, secrets))
    warned = False

    class OwnRequest(of):  # type: ignore[misc]
        def __init__(self, method: str, url: yarl.URL, *, headers: Any, **options: Any) -> None:
            nonlocal warned
            if secrets and _origin(url) == origin:
                headers = headers.copy()
                for name, value in secrets.items():
                    headers.setdefault(name, value)
            if has_authorization and options.get("trust_env") and _origin(url) == origin:
                options["trust_env"] = False  # older aiohttps read ~/.netrc here, and nothing else
            super().__init__(method, url, headers=headers, **options)
            call = CURRENT_CALL.get(None)
            if call is None or call.attempt == 1 or call.sends_keys or warned:
                return
            if method not in NOT_IDEMPOTENT or KEY in headers:
                return
            if isinstance(call.last_error, BaseException) and answer_of(call.last_error).refusal is not None:
                return  # the service has done nothing
            warned = True
            logger.warning(
                "%s %s is sent again, in attempt %d, without an %s: if the service has done the first one and only the "
                "answer was lost, the work is done twice; send RuntimeContext.%s, or leave such errors out of "
                "retry_on=",
                method, presentable(str(url.with_query(None))), call.attempt, KEY,
                "idempotency_keys, one for each row" if call.is_of_many else "idempotency_key as that header",
            )  # fmt: skip

        async def send(self, conn: Any) -> Any:
            is_ours, used = _origin(self.url) == origin, None
            if is_ours and token is not None and "Authorization" not in self.headers:
                self.headers["Authorization"] = f"Bearer {await token.current()}"
                used = token.number
            if is_ours and sign is not None:
                signed = await called(sign, Request.of(self))
                self.headers.update(signed)
                names.update(map(str.lower, signed))
            response = await super().send(conn)
            if self.method in WRITES:
                response.sent = self.body
            if used is not None:
                response.token, response.used_token = token, used
            return response

    return OwnRequest


def _has_authorization(secrets: Mapping[str, str], token: RenewedToken | None) -> bool:
    return token is not None or any(name.lower() == "authorization" for name in secrets)


def _elsewhere(own: str | None, found: Callable[[str], Any], host: str) -> Any:
    """What is found for a host that is not the session's own."""
    return None if host == own else found(host)


def _origin(url: yarl.URL) -> tuple[Any, ...]:
    return url.scheme, url.host, url.port  # of two equal origins yarl's own differ if one URL has its default port


# aiohttp checks what it is given, in the task. What is checked here, on the driver: the names of options, and whatever
# would be in Spark's plan, which others can read.


def _checked_url(value: Any) -> str | None:
    if value is None:
        return None
    import yarl  # aiohttp's own

    try:
        url = yarl.URL(value)
    except (TypeError, ValueError):
        url = yarl.URL()
    if url.scheme not in ("http", "https") or not url.host or url.query_string or url.fragment:
        raise OptionError(
            f"base_url must be the address of a service, as 'https://example.com/v1', not {safe_repr(value)}; give "
            "params= with each request"
        )
    if url.user is not None or url.password is not None:
        raise OptionError(
            f"base_url must not have a user or a password, which all who see Spark's plan could read "
            f"({safe_repr(value)}); give token_env='NAME', or headers=<function> with the Authorization it wants"
        )
    # Without the slash aiohttp refuses the path, or leaves its last part out of the requests.
    return str(url if url.path.endswith("/") else url.with_path(f"{url.raw_path}/", encoded=True))


def _checked_headers(value: Any) -> Any:
    if value is None or callable(value):
        return value
    if not isinstance(value, Mapping):
        shown = safe_repr(value)
        if SECRET_HEADER.search(shown):
            shown = f"a {type(value).__name__}"
        raise OptionError(f"headers must be a dict of texts, or a function that returns one, not {shown}")
    for name in value:
        if SECRET_HEADER.search(str(name)):
            raise OptionError(
                f"headers must not hold {name}, which all who see Spark's plan could read; give token_env='NAME' or "
                f"token=<function>, or a function: headers=lambda: {{{name!r}: os.environ['NAME']}}"
            )
    return dict(value)


def _checked_function(value: Any, name: str, takes: str = "no arguments") -> Any:
    if value is not None and not callable(value):  # the message does not show it: it may be the token itself
        raise OptionError(
            f"{name} must be a function of {takes}, not a {type(value).__name__}, which all who see Spark's plan could "
            "read; token_env='NAME' reads a token from an environment variable of the executors"
        )
    return value


def _checked_variable(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value.isidentifier()):
        # The message does not show it: most often it is the token itself.
        raise OptionError("token_env must be the name of an environment variable, as 'API_TOKEN', not its value")
    return value


def _check_options(given: Mapping[str, Any]) -> None:
    """Raises OptionError unless aiohttp takes all of these options, and they may be in Spark's plan."""
    import aiohttp

    own = inspect.signature(session).parameters.keys() - {"options"}
    known = own | (_names(aiohttp.ClientSession) | _names(aiohttp.TCPConnector)).difference(NEVER, SET_HERE)
    for name, value in given.items():
        if name not in known:
            raise OptionError(unknown_name("option of http.session or aiohttp", name, sorted(known)))
        if name in FOR_THE_TASK or (name == "proxy" and "@" in str(value)):
            raise OptionError(
                f"{name} is a secret, which all who see Spark's plan could read, or belongs to one event loop; make it "
                f"in the task: on_executor=lambda: {{{name!r}: ...}}"
            )


def _names(made: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(made).parameters)


def _socket(address: Any) -> socket.socket:
    """A socket for a connection that may be silent for long, while the service works."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in SIGNS_OF_LIFE.items():
        if hasattr(socket, name):  # not on each system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
