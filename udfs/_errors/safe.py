"""Users' values and exceptions as texts for messages: short, printable, without secrets. Never raises."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

MOST_SHOWN = 80


class _Short(reprlib.Repr):
    """A `repr` that shortens the values in containers too, and shows a value that cannot be printed by its class."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = MOST_SHOWN
        self.maxdict = self.maxtuple = self.maxlist = 8

    def repr1(self, x: Any, level: int) -> str:
        try:
            return super().repr1(x, level)
        except BaseException:  # a user's `__repr__` may raise anything, and no row may fail because of it
            return f"<{type_name(x)} that cannot be printed>"

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(without_secrets(x), level)

    def repr_int(self, x: int, level: int) -> str:
        # Python raises for a number of very many digits.
        return super().repr_int(x, level) if x.bit_length() < 8 * MOST_SHOWN else f"<int of {x.bit_length()} bits>"

    def repr_instance(self, x: Any, level: int) -> str:
        return shortened(repr(x))


_shortener = _Short()


def safe_repr(value: Any) -> str:
    return presentable(_shortener.repr(value))


def shortened(text: str) -> str:
    """The text, printable; of a text longer than `MOST_SHOWN` its beginning and its end."""
    text = presentable(text)
    half = (MOST_SHOWN - 3) // 2
    return text if len(text) <= MOST_SHOWN else f"{text[:half]}...{text[-half:]}"


def one_line(name: object) -> str:
    """A name on one line, short and printable; it may be any object."""
    return " ".join("".join(one if one.isprintable() else " " for one in shortened(str(name))).split())


def named_error(kind: str, status: int | None) -> str:
    """An error by its type, and by its HTTP status if it has one."""
    return one_line(kind) if status is None else f"{one_line(kind)} {status}"


def which_errors(counted: Mapping[str, int], last: tuple[str, int | None]) -> str:
    """The commonest of some errors, if it is not the last, and the last one.

    >>> which_errors({"TimeoutError": 3, "ThrottledError": 1}, ("ThrottledError", 429))
    'mostly TimeoutError, last ThrottledError 429'
    >>> which_errors({"ThrottledError": 2245}, ("ThrottledError", 429))
    'last ThrottledError 429'
    """
    most = max(counted, key=lambda kind: counted[kind], default=last[0])
    mostly = "" if most == last[0] else f"mostly {one_line(most)}, "
    return f"{mostly}last {named_error(*last)}"


def tried(read: Callable[[], Any]) -> Any:
    """What `read` returns; None if it raises: attributes of a user's class may, and no row may fail for that."""
    try:
        return read()
    except BaseException:
        return None


def safe_str(error: BaseException) -> str:
    """`str(error)`, printable, or the class of what it raises."""
    try:
        return presentable(str(error))
    except BaseException as unprintable:
        return f"<unprintable: {type_name(unprintable)}>"


def type_name(value: Any) -> str:
    # Read from `type` itself: a metaclass may have a `__name__` of its own that raises.
    return str(type.__dict__["__name__"].__get__(type(value)))


def module_of(kind: type) -> str:
    """The module of a class, read as safely."""
    return str(type.__dict__["__module__"].__get__(kind))


@lru_cache(maxsize=1024)
def named_class(kind: type) -> tuple[str, str]:
    """The package of a class and its name, for what is recognized without an import."""
    return module_of(kind).partition(".")[0], str(type.__dict__["__name__"].__get__(kind))


def presentable(text: str) -> str:
    """The text as a plain `str` that can be encoded, without secrets."""
    # JSON allows half an emoji, which cannot be encoded: Spark's worker fails to send such a message, and Spark waits
    # for it for ever.
    return without_secrets(str.encode(text, "utf-8", "backslashreplace").decode("utf-8"))


# A URL from its slashes on, or a path alone, as in urllib3's "with url: /v1?key=...", to the first character that none
# of them may hold. JSON may write a slash as `\/`. Nothing in it can match in two ways, so the time is linear.
_URL = re.compile(r"(:\\*/\\*/|(?<![^\s\"'`(\[{<>=,:|])\\*/(?:\\*/)?)([^\s\"<>]*)")
# A token in a header, and the whole value of a header that a client refuses, most often for the end of a line in it.
_TOKEN = re.compile(r"\b((?i:bearer|basic))(\s+)(?=\S*(?:[\d=]|[a-z][A-Z]))[\w.~+/=|-]{8,}")
_REFUSED = re.compile(r"(header value:? )b?('[^']*'|\"[^\"]*\")")
_HOST_END = re.compile(r"[/?#]")
_PUNCTUATION = ".,;:!?)]}'`\\"  # at the end of a URL it belongs to the sentence
_WEB = ("http", "https", "ws", "wss")


class SecretUrl(str):
    """A URL whose `repr`, also in that of a dataclass, shows no user, no password and no query.

    >>> [SecretUrl("redis://:secret@example.com")]
    ['redis://***@example.com']
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(without_secrets(str(self)))


def without_secrets(text: str) -> str:
    """The text with `***` for the user part and the query of each URL in it, tokens, and values of headers.

    >>> without_secrets("GET https://me:secret@example.com:8080/v1?key=secret, twice")
    'GET https://***@example.com:8080/v1?***, twice'
    >>> without_secrets("Illegal header value b'sk-secret', and Bearer abc.DEF-123")
    'Illegal header value ***, and Bearer ***'
    """
    text = _TOKEN.sub(r"\1\2***", _REFUSED.sub(r"\1***", text))
    return _URL.sub(_clean, text) if "/" in text else text


def _clean(url: re.Match[str]) -> str:
    start, rest = url.groups()
    is_path = start.count("/") == 1
    host = _HOST_END.split(rest, maxsplit=1)[0]
    # A user part, or a password behind the host: none of it is shown.
    if not is_path and ";" in host.rpartition("@")[0]:
        rest = f"***{rest[len(host) :]}"
    end = _query_start(rest)
    body, query = rest[:end], rest[end:]
    if not is_path:
        body = _without_user(body, is_web=url.string[max(0, url.start() - 5) : url.start()].lower().endswith(_WEB))
    secret = query[1:].rstrip(_PUNCTUATION)
    if secret:
        query = f"{query[0]}***{query[1 + len(secret) :]}"
    return f"{start}{body}{query}"


def _query_start(rest: str) -> int:
    """Where the query begins: at `?`, or at `;` (a session's id) or `#` (a token) if a value follows."""
    found = [rest.find("?"), *(at for at in map(rest.find, ";#") if "=" in rest[at:] or rest[at + 1 :] == "***")]
    return min((at for at in found if at >= 0), default=len(rest))


def _without_user(body: str, *, is_web: bool) -> str:
    # A slash or an @ may be a part of a password, though no URL may have it there: rather leave out too much.
    authority, slash, path = body.partition("/")
    _, at, host = authority.rpartition("@")
    if at:
        return f"***@{host}{slash}{path}"
    _, colon, port = authority.rpartition("]")[2].rpartition(":")
    port = port.rstrip(_PUNCTUATION)
    # The path of a web page may have an @. In other URLs the digits are the start of a password with a slash in it.
    if not colon or not port or (port.isdigit() and (is_web or "@" not in path)):
        return body
    # Not a port: the start of a password that has a slash in it, or that was cut off.
    _, at, after = body.partition("@")
    return f"***@{after}" if at else f"***{slash}{path}"
