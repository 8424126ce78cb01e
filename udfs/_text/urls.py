"""Messages without the secrets of URLs: users and passwords, and keys and personal data in queries."""

from __future__ import annotations

import re

# A URL from its slashes on, or a path alone, as in urllib3's "with url: /v1?key=...", to the first character that none
# of them may hold. JSON may write a slash as `\/`. Nothing in it can match in two ways, so the time is linear.
_URL = re.compile(r"(:\\*/\\*/|(?<![^\s\"'`(\[{<>=,:|])\\*/(?:\\*/)?)([^\s\"<>]*)")
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
    """The text with `***` for the user part and for the query of each URL in it.

    >>> without_secrets("GET https://me:secret@example.com:8080/v1?key=secret, twice")
    'GET https://***@example.com:8080/v1?***, twice'
    """
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
