"""Checks of what `http.session` is given: on the driver, before anything is sent to Spark."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any

from .._errors.exceptions import OptionError
from .._functions.parameters import signature_of
from .._policies.checks import unknown_name
from .._text.safe import safe_repr

__all__ = (
    "check_names",
    "check_options",
    "checked_function",
    "checked_headers",
    "checked_url",
    "checked_variable",
    "connector_names",
    "header_text",
)


OWN_NAMES = {  # aiohttp's names for what has a plainer one here, or one that goes for all of a session
    "timeout": "total_timeout=, connect_timeout= and read_timeout=",
    "conn_timeout": "connect_timeout=",
    "limit": "connections=",
    "keepalive_timeout": "keep_alive=",
    "force_close": "keep_alive=0",
    "ttl_dns_cache": "dns_cache=",
    "use_dns_cache": "dns_cache=0",
}
FOR_THE_LOOP = ("connector", "cookie_jar", "resolver")
SECRETS = ("auth", "proxy_auth", "cookies")
SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie")
NEVER = ("self", "base_url", "headers", "loop", "connector_owner")
NO_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def checked_url(value: Any) -> str | None:
    """The address of a service, with a slash behind its path."""
    if value is None:
        return None
    import yarl  # aiohttp's own

    try:
        url = yarl.URL(str(value)) if isinstance(value, (str, yarl.URL)) else None
        is_web = url is not None and url.absolute and url.scheme in ("http", "https") and bool(url.host)
    except ValueError:
        url, is_web = None, False
    if url is None or not is_web:
        raise OptionError(
            f"base_url must be the address of a service, as 'https://example.com', not {safe_repr(value)}"
        )
    if url.user is not None or url.password is not None:
        raise OptionError(
            f"base_url must not have a user or a password, which all who see Spark's plan could read "
            f"({safe_repr(value)}); give token_env='NAME', or headers=<function> with the Authorization it wants"
        )
    if url.query_string or url.fragment:
        raise OptionError(
            f"base_url must end with its path, or what is behind it would be lost ({safe_repr(value)}); "
            "give params= with each request"
        )
    # Without it aiohttp refuses the path, or the last part of it would be left out of what is asked.
    return str(url if url.path.endswith("/") else url.with_path(f"{url.raw_path}/", encoded=True))


def checked_headers(value: Any) -> Any:
    """Headers for all requests: a mapping of texts, or a function that gives one."""
    if value is None or callable(value):
        return checked_function(value, "headers")
    if not isinstance(value, Mapping):
        raise OptionError(f"headers must be a dict of texts, or a function that returns one, not {safe_repr(value)}")
    for name, text in value.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise OptionError(f"headers has a name that no header can have: {safe_repr(name)}")
        header_text(text, f"headers[{name!r}]")
        if name.lower() in SECRET_HEADERS:
            raise OptionError(
                f"headers must not hold {name}, which all who see Spark's plan could read; give token_env='NAME' or "
                f"token=<function>, or a function: headers=lambda: {{{name!r}: os.environ['NAME']}}"
            )
    return dict(value)


def header_text(value: Any, name: str) -> str:
    """A text that a header can hold; the message does not show it."""
    if not isinstance(value, str):
        raise OptionError(f"{name} must be a text, not {type(value).__name__}")
    if NO_HEADER.search(value):
        raise OptionError(
            f"{name} must be one line of plain characters: it has a line end or a control character in it"
        )
    return value


def checked_function(value: Any, name: str) -> Any:
    """A function of no arguments, plain or async, or None."""
    if value is None:
        return None
    if isinstance(value, str) and name == "token":
        raise OptionError(
            "token must be a function that returns it, not the token itself, which all who see Spark's plan could "
            "read; give token_env='NAME' to have it read from an environment variable of the executors"
        )
    if not callable(value):
        raise OptionError(f"{name} must be a function of no arguments, not a {type(value).__name__}")
    try:
        signature = signature_of(value)
    except (TypeError, ValueError):  # of a builtin, or one that cannot be asked
        return value
    try:
        signature.bind()
    except TypeError:
        raise OptionError(f"{name} must be a function of no arguments; {safe_repr(value)} takes some") from None
    return value


def checked_variable(value: Any) -> str | None:
    """The name of an environment variable."""
    if value is not None and not (isinstance(value, str) and VARIABLE.fullmatch(value)):
        # Not shown: most often it is the token itself.
        raise OptionError("token_env must be the name of an environment variable, as 'API_TOKEN', not its value")
    return value


def check_options(given: Mapping[str, Any]) -> None:
    """Raises OptionError unless aiohttp takes all of these, and they may travel with Spark's plan."""
    for name, value in given.items():
        if name in FOR_THE_LOOP:
            raise OptionError(f"{name} belongs to one event loop; make it there: on_executor=lambda: {{{name!r}: ...}}")
        if name in SECRETS:
            raise OptionError(
                f"{name} would be in Spark's plan, which others can read; give on_executor=lambda: {{{name!r}: ...}}"
            )
        if name == "proxy" and "@" in str(value):
            raise OptionError(
                "proxy must not have a user or a password, which all who see Spark's plan could read; "
                "give on_executor=lambda: {'proxy': ...}"
            )
    check_names(given)


def check_names(given: Any) -> None:
    """Raises OptionError unless it is a mapping whose names are aiohttp's."""
    if not isinstance(given, Mapping):
        raise OptionError(f"on_executor must return a dict of options, not {safe_repr(type(given))}")
    for name in given:
        if name in OWN_NAMES:
            raise OptionError(f"{name} is set by {OWN_NAMES[name]} of http.session")
        if name not in (known := _client_names() | connector_names()):
            raise OptionError(unknown_name("option of aiohttp", str(name), sorted(known)))


@functools.cache
def _client_names() -> frozenset[str]:
    """What `aiohttp.ClientSession` takes."""
    import aiohttp

    return frozenset(inspect.signature(aiohttp.ClientSession.__init__).parameters).difference(NEVER, OWN_NAMES)


@functools.cache
def connector_names() -> frozenset[str]:
    """What `aiohttp.TCPConnector` takes."""
    import aiohttp

    return frozenset(inspect.signature(aiohttp.TCPConnector.__init__).parameters).difference(NEVER, OWN_NAMES)
