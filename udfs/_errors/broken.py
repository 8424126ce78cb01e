"""Answers that a client could not read, though their status was good: half a JSON, nothing, or the page of a proxy."""

from __future__ import annotations

import inspect
import json
import sys
from types import FrameType
from typing import Any

from .bodies import body_text, excerpt
from .safe import tried, type_name
from .traces import frames_of, related

# An answer is broken if one of these has read it. What the function itself reads, such as the JSON of a row or the text
# of a model, is its own; also if a client's helper reads it, such as `openai.lib` the arguments of a tool.
CLIENTS = (
    "aiohttp.", "httpx.", "httpx2.", "requests.", "urllib3.", "openai._", "anthropic._", "google.genai.",
    "google.api_core.", "google.auth.", "google.cloud.", "botocore.", "aiobotocore.", "elastic_transport.",
)  # fmt: skip
GIVE_PAGES = {"openai", "anthropic"}  # they return the text of an answer that says it is no JSON
EVENTS = ("anthropic.lib.streaming.",)
OURS = ("asyncudf.", "asyncio.", "concurrent.")
DECODERS = ("json.", "simplejson.", "codecs.", "encodings.")
UNREADABLE = ("ContentTypeError", "DecodingError", "ContentDecodingError", "DecodeError", "ResponseParserError")
LEAST_ERROR = 400  # status; such an answer is what its status says


def is_broken(error: BaseException) -> bool:
    """Whether an answer came that is none."""
    return _broken(error) is not None


def said_of_broken(error: BaseException) -> str:
    """What to say of a broken answer in an error or its causes, with its beginning; empty if there is none."""
    bodies = (_broken(one) for one in related(error))
    body = next((body for body in bodies if body is not None), None)
    if body is None:
        return ""
    shown = excerpt(body_text(body))
    return f"the answer cannot be read, and begins with: {shown}" if shown else "the answer is empty, or cannot be read"


def _broken(error: BaseException) -> str | bytes | None:
    """The body that could not be read, empty where it is not known; None for any other error."""
    kind: Any = type(error)
    if issubclass(kind, AttributeError):
        text = tried(lambda: error.obj)  # type: ignore[attr-defined]
        is_given = type(text) is str and _is_page(text) and not GIVE_PAGES.isdisjoint(sys.modules)
        return text if is_given and not _is_of_the_row(text, error) else None
    if not (
        issubclass(kind, (json.JSONDecodeError, UnicodeDecodeError, AssertionError)) or type_name(error) in UNREADABLE
    ):
        return None
    readers = [frame for frame in reversed(frames_of(error)) if not _is_of(frame, DECODERS)]
    if issubclass(kind, UnicodeDecodeError) and readers and readers[0].f_code.co_name == "text":
        del readers[0]  # the function may have asked for a page that is written otherwise
    if issubclass(kind, AssertionError):  # a stream without a single event
        return "" if readers and _is_of(readers[0], EVENTS) else None
    if not readers or not _is_of(reader := readers[0], CLIENTS):
        return None
    response = reader.f_locals.get("self")
    for holder in (error, response):
        status = tried(lambda: getattr(holder, "status_code", None) or holder.status)  # type: ignore[union-attr] # noqa: B023
        if type(status) is int and status >= LEAST_ERROR:
            return None
    known = (tried(lambda: error.doc), tried(lambda: error.object), tried(lambda: response._body))  # type: ignore[attr-defined, union-attr]
    return next((body for body in known if type(body) in (str, bytes)), "")


def _is_of_the_row(text: str, error: BaseException) -> bool:
    """Whether the user's function was given this very object, rather than a client's answer."""
    function = next((frame for frame in frames_of(error) if not _is_of(frame, OURS)), None)
    if function is None:
        return False
    code, given = function.f_code, list[Any]()
    has_more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + has_more]:
        value: Any = function.f_locals.get(name)
        given += value.values() if type(value) is dict else value if type(value) in (tuple, list) else [value]
    return any(one is text for one in given)


def _is_of(frame: FrameType, packages: tuple[str, ...]) -> bool:
    return f"{frame.f_globals.get('__name__')}.".startswith(packages)


def _is_page(text: str) -> bool:
    return text[:1000].lstrip()[:9].lower().startswith(("<!doctype", "<html"))
