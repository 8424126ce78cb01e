"""Tells the limits of a function what the service says of them in the headers of its answers."""

from __future__ import annotations

from typing import Any

from .._functions.async_function import CURRENT_CALL, TELL_LIMITS
from .._limits.rates.dialects import lowered


def tell_limits(headers: Any) -> None:
    """Tell the headers of an answer to the limits of the function that are `RateLimit.from_headers`.

    Use it in a call, at any depth, or as a hook of the call's client. It does nothing outside of a call, and where no
    limit is learned. An `http.session` tells its answers by itself, and so does an exception that ends the call.

    Args:
        headers: the headers of the answer, or a response with the attribute `headers`.

    Raises:
        TypeError: it is neither headers nor a response.

    >>> from asyncudf import RateLimit, http
    >>> from asyncudf.testing import run_rows
    >>> async def ask(text: str) -> str:
    ...     http.tell_limits({"x-ratelimit-limit-requests": "600", "x-ratelimit-remaining-requests": "599"})
    ...     return text.upper()
    >>> run_rows(ask, ["a", "b"], rate_limit=RateLimit.from_headers("openai", start=60, at_most=5_000))
    ['A', 'B']
    """
    tell, call = TELL_LIMITS.get(None), CURRENT_CALL.get(None)
    if tell is not None and call is not None:
        tell(lowered(headers), call.started)
