"""A dry run's report says how many calls, why, how long and what they cost; each line fits a terminal."""

import dataclasses
from typing import Any, get_args

from asyncudf import DryRun
from asyncudf._policies.planned_calls import Bounds, Reason
from asyncudf._reports.dry_run import WHY, Mention

MENTION = Mention(
    function="weather",
    entry_point="column",
    columns=("city",),
    rows=Bounds(100, 100),
    evaluations=Bounds(1, 1),
    calls=Bounds(100, 100),
    distinct=None,
    has_store=False,
    rows_per_call=1,
    capacity=10,
    tasks=2,
    waves=Bounds(5.0, 5.0),
    seconds=None,
    cost=None,
    reasons=(),
)


def run(*mentions: Mention, **changes: Any) -> DryRun:
    plain = DryRun(mentions, latency=None, price=None, counting="exact", ambiguous=(), is_hidden=False)
    return dataclasses.replace(plain, **changes)


def mention(**changes: Any) -> Mention:
    return dataclasses.replace(MENTION, **changes)


def test_a_query_without_functions() -> None:
    assert str(run()) == "0 calls, in 0 mentions of async functions; nothing was called"
    assert run().calls == Bounds(0, 0)


def test_a_mention_in_words() -> None:
    sorted_twice = mention(evaluations=Bounds(2, 2), calls=Bounds(200, 200), distinct=7, reasons=("sorted",))
    assert str(run(sorted_twice)).splitlines() == [
        "200 calls, in 1 mention of async functions; nothing was called",
        "",
        "weather(city), column: 200 calls",
        "  rows      100, evaluated 2 times",
        "  arguments 7 distinct: a store would save about 193 of the calls",
        "  time      5 x the latency of a call (2 tasks at a time, 10 calls in flight in each); latency=",
        "            gives seconds",
        "  why       what is below a sort is evaluated twice, as Spark samples it first to find the ranges,",
        "            and partitions far larger than the mean a third time; persist() before the sort, or a",
        "            store, makes it once",
    ]


def test_bounds_add_up_and_what_is_not_known_stays_so() -> None:
    bounded = mention(calls=Bounds(0, 100))
    assert run(MENTION, bounded).calls == Bounds(100, 200)
    assert "100 to 200 calls" in str(run(MENTION, bounded))
    unknown = mention(calls=Bounds(10, None), waves=Bounds(1.0, None))
    assert run(MENTION, unknown).calls == Bounds(110, None)
    assert str(run(MENTION, unknown)).startswith("at least 110 calls")
    assert run(MENTION, is_hidden=True).calls == Bounds(100, None)
    assert "an unknown number of calls" in str(run(mention(calls=Bounds(0, None), waves=Bounds(0.0, None))))


def test_the_whole_takes_as_long_as_the_slowest_at_least_and_as_all_together_at_most() -> None:
    slow, quick = mention(seconds=Bounds(5.0, 9.0)), mention(seconds=Bounds(1.0, 2.0))
    assert run(slow, quick, latency=1.0).seconds == Bounds(5.0, 11.0)
    assert run(slow, mention(seconds=None), latency=1.0).seconds is None
    assert "5 s to 11 s at 1 s a call" in str(run(slow, quick, latency=1.0))


def test_money() -> None:
    assert run(MENTION, price=0.25).cost == Bounds(25.0, 25.0)
    assert "costs 25.00" in str(run(MENTION, price=0.25))
    assert "costs 0.0003" in str(run(MENTION, price=0.000003))
    assert "costs 0.00" in str(run(MENTION, price=0))


def test_every_reason_has_its_words_and_every_line_fits() -> None:
    text = str(run(mention(reasons=get_args(Reason), function="f" * 90), is_hidden=True))
    assert text.count("  why ") == len(WHY) == len(get_args(Reason))
    assert max(map(len, text.splitlines())) <= 100


def test_names_cannot_break_lines() -> None:
    assert "\n\n\n" not in str(run(mention(function="a\n\n\nb", columns=("c\n\n\nd",)), ambiguous=("x\n\n\ny",)))


def test_a_function_that_cannot_be_read_and_one_that_is_named_twice() -> None:
    unread = mention(entry_point="unknown", capacity=None, waves=None, columns=())
    assert "could not be unpickled" in str(run(unread))
    assert "Several functions are called f" in str(run(MENTION, ambiguous=("f",)))
    assert "Spark's estimate" in str(run(MENTION, counting="estimate"))
    assert "about 7 distinct" in str(run(mention(distinct=7), counting="approximate"))
