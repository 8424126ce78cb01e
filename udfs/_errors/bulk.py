"""The one exception that the bulk helpers of Elasticsearch and OpenSearch raise for many documents."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .bodies import excerpt, item
from .safe import one_line, tried, type_name

SHOWN = 3  # kinds of what is wrong
WAY_OUT = "it fails all rows of its call, also those that were written; the client's bulk() has an answer for each"


def is_of_bulk(error: BaseException) -> bool:
    return type_name(error) == "BulkIndexError"


def said_of_bulk(error: BaseException, *, redacted: bool = False) -> str:
    """What a `BulkIndexError` says of its documents; empty for any other error.

    The text of Elasticsearch's has only their number, and that of OpenSearch's all documents: each dead letter of a
    call would have all rows of the call.
    """
    answers = tried(lambda: error.errors) if is_of_bulk(error) else None  # type: ignore[attr-defined]
    if type(answers) is not list or not answers:
        return ""
    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for answer in answers:
        said: Any = next(iter(answer.values()), None) if type(answer) is dict else None
        wrong = item(said, "error")
        kind = one_line(f"{item(said, 'status') or ''} {item(wrong, 'type') or ''}".strip() or "no reason")
        kinds[kind] += 1
        examples.setdefault(kind, str(item(wrong, "reason") or (wrong if type(wrong) is str else "")))
    shown = [
        f"{number} x {kind}{f' ({excerpt(examples[kind])})' if examples[kind] and not redacted else ''}"
        for kind, number in kinds.most_common(SHOWN)
    ]
    return f"{len(answers)} failed: {', '.join([*shown, *(['...'] if len(kinds) > SHOWN else [])])}; {WAY_OUT}"
