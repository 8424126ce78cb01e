"""A figure: how it adds up over tasks, and where people see it."""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .latency_sketch import LatencySketch
from .time_account import State

KINDS_APART = 50  # of errors, that are counted apart; a program may make a class for each error
OTHERS = "others"


class Kind(NamedTuple):
    """How the values of a figure add up.

    Attributes:
        new: the value at the start.
        add: what two tasks have together; it may change the first value, and not the second.
        to_plain, from_plain: for JSON; None if the value is plain.
    """

    new: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    to_plain: Callable[[Any], Any] | None = None
    from_plain: Callable[[Any], Any] | None = None


def counted_as(kind: str, counted: Mapping[str, Any]) -> str:
    """What a kind of error is counted as."""
    return kind if kind in counted or len(counted) < KINDS_APART else OTHERS


def _add_counts(mine: Counter[str], more: Mapping[str, int]) -> Counter[str]:
    for kind, count in more.items():
        mine[counted_as(kind, mine)] += count
    return mine


def _add_examples(mine: dict[str, str], more: Mapping[str, str]) -> dict[str, str]:
    for kind, message in more.items():
        mine.setdefault(counted_as(kind, mine), message)
    return mine


def _add_amounts(mine: dict[Any, float], more: Mapping[Any, float]) -> dict[Any, float]:
    for key, amount in more.items():
        mine[key] = mine.get(key, 0.0) + amount
    return mine


SUM = Kind(int, operator.add)
PEAK = Kind(int, max)
COUNTS = Kind(Counter, _add_counts, dict, Counter)  # by the kind of an error
EXAMPLES = Kind(dict, _add_examples, dict, dict)  # by the same kinds
AMOUNTS = Kind(dict, _add_amounts, dict, dict)
LAST = Kind(lambda: None, lambda mine, more: more or mine, None, lambda plain: plain and tuple(plain))
SKETCH = Kind(LatencySketch, LatencySketch.merge, LatencySketch.to_plain, LatencySketch.from_plain)
TIME = Kind(
    lambda: dict.fromkeys(State, 0.0),
    _add_amounts,
    lambda time: {state.name.lower(): seconds for state, seconds in time.items()},
    lambda plain: {State[name.upper()]: seconds for name, seconds in plain.items()},
)


@dataclasses.dataclass(eq=False)
class Figure:
    """A figure of a function, as an attribute of its metrics."""

    text: str  # what it is, in a sentence
    kind: Kind | None  # how it adds up; None if it follows from others
    _: dataclasses.KW_ONLY
    follows: Callable[[Any], float] | None = None  # gives its value then
    unit: str = ""  # of one, for OpenTelemetry; "s" if it is seconds
    noun: tuple[str, ...] = ()  # what people read after the number: its singular, and its plural if that is irregular
    is_shown: bool = True  # in `run.metrics`
    in_frame: bool = False  # is a column of `run.to_df()`
    in_log: bool = False  # where a view leaves out what is 0: in the line about a task
    in_summary: int = 0  # the place there; 0: not at all
    on_page: int = 0  # the same, in the report
    is_bad: bool = False  # is marked there
    export: str = ""  # its name in OpenTelemetry, without "asyncudf."
    outcome: str = ""  # there, of the lookup in a store that it counts

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, metrics: Any, owner: type) -> Any:
        """What follows from other figures."""
        return self if self.follows is None or metrics is None else self.follows(metrics)

    @property
    def phrase(self) -> str:
        """The text as part of a sentence."""
        return self.text[0].lower() + self.text[1:-1]
