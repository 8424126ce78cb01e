"""What a session checks of its responses: writes that were redirected, bounds of aiohttp, and broken answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from .._errors.answers import bound_of_aiohttp
from .._errors.exceptions import OptionError
from .._functions.async_function import CURRENT_CALL
from ._errors import BECAME_GET, MOVED, WRITES, PermanentError, broken, redirected
from ._limits import tell_limits
from ._tokens import RenewedToken

if TYPE_CHECKING:
    import yarl

SEE_OTHER = 303  # the service has done the request, and says where to look for the answer
REDIRECTS = (*MOVED, SEE_OTHER, 307, 308)  # which aiohttp follows; the last two with method and body
OK, NO_CONTENT = 200, (204, 205)
# What the function has given as `allow_redirects=`, and so knows of redirects; of others than writes if it is False.
DECIDED: ContextVar[bool] = ContextVar("asyncudf_redirects_decided")


def responses(of: type[Any], hidden: set[str]) -> type[Any]:
    """The class of a session's responses; `hidden` has the names of the headers that no message shows.

    They tell the function's limits, and the token of their request, what was answered; and they raise an error for a
    write that was redirected, for what aiohttp does not read, and for JSON or text that cannot be decoded.
    """
    import aiohttp

    class OwnResponse(of):  # type: ignore[misc]
        knows_redirects, hidden_headers = True, hidden
        sent: Any = None  # the body of the request, until the response begins
        token: RenewedToken | None = None
        used_token = 0  # its number
        refused: int | None = None  # that number, if it is because of the token

        async def start(self, connection: Any) -> Any:
            try:
                started = await super().start(connection)
            except aiohttp.ClientResponseError as error:
                if (bound := bound_of_aiohttp(error)) is None:
                    raise
                raise OptionError(_too_much(bound)) from None  # aiohttp's own shows what it has read, such as a cookie
            sent, self.sent = self.sent, None
            tell_limits(self.headers)
            if self.token is not None and not _goes_on_here(self):
                self.refused = self.token.answered(self.used_token, self, CURRENT_CALL.get(None))
            if self.status in REDIRECTS and self.method in WRITES and (follow := DECIDED.get(None)) is not False:
                _check_redirect(self, sent, is_accepted=follow is True)
            return started

        async def json(self, **options: Any) -> Any:
            try:
                answer = await super().json(**options)
            except (aiohttp.ContentTypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
                body = await self.read()
                if (why := _why_for_good(self, body, error)) is not None:
                    raise broken(self, body, why, lasts=True) from None
                raise broken(self, body, _why(error)) from error
            if answer is None and self.status == OK and not (body := await self.read()).strip():
                why = _why_for_good(self, body)
                raise broken(self, body, why or "the body is empty, which is no JSON", lasts=why is not None)
            return answer

        async def text(self, *encoding: Any, **options: Any) -> str:
            try:
                return await super().text(*encoding, **options)  # type: ignore[no-any-return]
            except UnicodeDecodeError as error:
                raise broken(self, await self.read(), _why(error)) from error

    return OwnResponse


def requesting(
    sent: Callable[..., Awaitable[Any]], lost: Callable[[str | None], None]
) -> Callable[..., Awaitable[Any]]:
    """A session's `_request` that notes whether the function decides about redirects, and names the end of a loop.

    It calls `lost` when a request did not get through, or had no answer in its time: with the host, or with None if it
    is not known, as that of a proxy or behind a redirect.
    """
    import aiohttp

    async def request(method: str, url: Any, **options: Any) -> Any:
        follows = bool(options.get("allow_redirects", True))
        decides = not follows or ("allow_redirects" in options and method.upper() in WRITES)
        before = DECIDED.set(follows) if decides else None
        try:
            return await sent(method, url, **options)
        except aiohttp.TooManyRedirects as error:
            raise _of_a_loop(error.history) from error
        except (aiohttp.ClientConnectionError, TimeoutError, asyncio.CancelledError) as error:
            lost(getattr(error, "host", None))
            raise
        finally:
            if before is not None:
                with contextlib.suppress(ValueError):  # it was not awaited to its end, and is collected elsewhere
                    DECIDED.reset(before)

    return request


def _goes_on_here(response: Any) -> bool:
    """Whether a redirect is followed to the same service: it may come before anybody looks at the token."""
    if response.status not in REDIRECTS or DECIDED.get(None) is False:
        return False
    here, there = response.url, _target(response)
    return (there.scheme, there.host, there.port) == (here.scheme, here.host, here.port)


def _target(response: Any) -> yarl.URL:
    """Where a redirect leads to; an empty URL if that is no address."""
    import yarl

    try:
        location = _location(response)
        return yarl.URL() if location is None else response.url.join(yarl.URL(location))
    except ValueError:
        return yarl.URL()


def _location(response: Any) -> str | None:
    return response.headers.get("Location") or response.headers.get("URI")  # type: ignore[no-any-return]


def _check_redirect(response: Any, sent: Any, is_accepted: bool) -> None:
    """Raise an error for a write that aiohttp would not send to where it is redirected to.

    If the function accepts redirects, then only for one whose body would be missing there.
    """
    target = _target(response)
    is_address = target.scheme in ("http", "https") and bool(target.host)
    becomes_get = response.status == SEE_OTHER or (response.status in MOVED and response.method == "POST")
    if is_address and not becomes_get and _is_sent_once(sent):
        raise redirected(
            response,
            "it was redirected{}, and its body, of a generator or a stream, cannot be sent again; send bytes, or send "
            "it to that address",
            target,
        )
    if is_accepted:
        return
    if not is_address:
        raise redirected(
            response,
            "it was redirected{}, which is no address of HTTP, and nothing was written; to look at such a response "
            "yourself, give the request allow_redirects=False",
            _location(response) or "nowhere",
        )
    if becomes_get and response.status != SEE_OTHER:  # others are sent again as they were
        raise redirected(
            response, f"{BECAME_GET} accept such redirects with allow_redirects=True in the request", target
        )


def _is_sent_once(body: Any) -> bool:
    from aiohttp.payload import AsyncIterablePayload

    # Without `consumed`, older aiohttps send an empty body the second time.
    return isinstance(body, AsyncIterablePayload) or getattr(body, "consumed", False) is True


def _of_a_loop(history: Any) -> PermanentError:
    last = history[-1]
    return redirected(
        last,
        f"{len(history)} redirects have not ended, the last one{{}}, and another attempt would not either; request the "
        "address that has the answer, or allow more with max_redirects= in the request",
        last.headers.get("Location"),
    )


def _too_much(bound: str) -> str:
    if "install" in bound:
        return (
            f"the service has answered, but aiohttp does not read the answer: {bound} where the tasks run, or leave "
            "this encoding out of the request's Accept-Encoding"
        )
    return (
        f"the service has answered, but aiohttp does not read the answer: {bound}; allow more, as in "
        "http.session(URL, max_line_size=65536, max_field_size=65536) for its status line and its headers, and "
        "max_headers=1000 for their number"
    )


def _why_for_good(response: Any, body: bytes, error: Exception | None = None) -> str | None:
    """Why another attempt would get the same: it is JSON all the same, or has no body; None if it may get another.

    A service has done its work, and been paid, before it answers so.
    """
    if not body.strip():
        is_bodiless = response.method == "HEAD" or response.status in NO_CONTENT
        return "it has no body; look at response.status before response.json()" if is_bodiless else None
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return None
    is_read = isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
    return "it is JSON, but not so encoded; json.loads(await response.read()) reads it" if is_read else _why(error)


def _why(error: Any) -> str:
    import aiohttp

    if isinstance(error, aiohttp.ContentTypeError):
        found = None if error.headers is None else error.headers.get("Content-Type")
        return f"its content type is {found or 'missing'}, not JSON; response.json(content_type=None) reads it anyhow"
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON: {error.msg}"
    return f"it cannot be decoded: {error}"
