"""What a sceptic tried on the benchmarks: each way to a figure that flatters is closed, and stays so."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
from collections.abc import Callable, Mapping
from functools import partial

import pytest

from benchmarks._engine import engine_seconds, gather_seconds
from benchmarks._harness import (
    BEST_PEER,
    Case,
    Figure,
    Kind,
    Outcome,
    Sample,
    System,
    Target,
    UnavailableError,
    interleaved,
)
from benchmarks._peers import PEER_BUDGET, rows_within
from benchmarks._report import beside, caption, verdict_rows
from benchmarks._work import instant
from benchmarks.cases.p9_suspended import bare_seconds
from benchmarks.peers import PEERS

ROWS = 100


@pytest.mark.parametrize(
    "seconds",
    [
        partial(engine_seconds, instant, ROWS, "ordered"),
        partial(gather_seconds, instant, ROWS),
        partial(bare_seconds, ROWS, asyncio.new_event_loop),
    ],
    ids=["engine", "gather", "bare"],
)
def test_objects_of_the_benchmark_are_nobodys_work_for_the_garbage_collector(seconds: Callable[[], float]) -> None:
    gc.unfreeze()
    try:
        seconds()
        assert gc.get_freeze_count() > len(gc.get_objects())
    finally:
        gc.unfreeze()


ALL = dict.fromkeys(PEERS, 100.0)
FASTER = Target("calls/s", "ours", 0.98, against=BEST_PEER)
CASE = Case("A", "", lambda _: contextlib.nullcontext([]), (FASTER,), repetitions=1)


def outcome(peers: Mapping[str, float], unavailable: Mapping[str, str] | None = None, ours: float = 99.0) -> Outcome:
    """Peers by their calls/s; those that could not be measured were asked for too."""
    figures = [
        Figure("ours", "calls/s", (ours,)),
        *(Figure(name, "calls/s", (rate,), kind(name)) for name, rate in peers.items()),
    ]
    asked = (*peers, *(unavailable or {}))
    return Outcome("A", "", 1.0, 1, tuple(figures), unavailable or {}, commit="1234567", peers=asked)


def kind(peer: str) -> Kind:
    return "peer at its best" if peer.endswith("-best") else "peer"


def test_the_best_peer_is_found_only_among_all_peers_at_their_best() -> None:
    [verdict] = outcome(ALL).verdicts(CASE)
    assert (verdict.met, verdict.why) == (True, "")
    few = {name: rate for name, rate in ALL.items() if name != "daft-best"}
    [verdict] = outcome(few).verdicts(CASE)
    assert (verdict.met, verdict.ratio, verdict.why) == (None, None, "daft-best was not asked for")
    [verdict] = outcome(few, {"daft-best": "it fell (in round 2)"}).verdicts(CASE)
    assert (verdict.met, verdict.why) == (None, "daft-best could not be measured")


def test_a_table_names_the_peers_that_were_asked_for_and_those_that_failed() -> None:
    assert caption(outcome(ALL), CASE).endswith("commit 1234567; peers asked for: all 18 set-ups")
    assert caption(outcome({"daft": 1.0}), CASE).endswith("; peers asked for: daft")
    assert caption(outcome({}), CASE).endswith("; peers asked for: none")
    assert caption(outcome({}, {"daft": "it fell"}), CASE).endswith(": daft; **could not be measured: daft**")


def test_a_peer_that_fails_in_a_later_round_is_told_with_its_round() -> None:
    samples = iter([Sample({"calls/s": 1.0}), Sample({"calls/s": 1.0})])

    def measure() -> Sample:
        for sample in samples:
            return sample
        raise UnavailableError("it fell")

    kept, unavailable = interleaved([System("daft-best", measure, "peer at its best")], 3, lambda _: None)
    assert (kept, unavailable) == ({}, {"daft-best": "it fell (in round 2)"})


@pytest.mark.parametrize(
    ("value", "bound", "text"),
    [(0.9796, 0.98, "0.9796"), (0.98, 0.98, "0.98"), (1.234, 1.1, "1.23"), (1.1000001, 1.1, "1.1000001")],
)
def test_a_ratio_has_as_many_digits_as_show_on_which_side_of_its_bound_it_is(
    value: float, bound: float, text: str
) -> None:
    assert beside(value, bound) == text


def test_the_ratios_of_the_rounds_stand_beside_their_median() -> None:
    found = [Figure("ours", "us/row", (1.0, 2.0, 9.0)), Figure("gather", "us/row", (10.0, 10.0, 10.0))]
    judged = dataclasses.replace(CASE, targets=(Target("us/row", "ours", 0.5, against="gather"),))
    rows = verdict_rows([dataclasses.replace(outcome({}), figures=tuple(found))], {"A": judged})
    assert rows[1][3:5] == ["0.2x (0.1 .. 0.9)", "yes"]


def test_a_bound_on_each_round_is_judged_by_the_worst() -> None:
    found = [Figure("ours", "calls", (1.0, 2.0, 9.0))]
    assert Target("calls", "ours", 5.0).judge(found, {}).met
    verdict = Target("calls", "ours", 5.0, worst=True).judge(found, {})
    assert (verdict.met, verdict.ours) == (False, 9.0)


@pytest.mark.parametrize(
    ("latencies", "seconds", "rows"),
    [([0.02] * 100, 0.05, 30_000), ([0.02] * 99 + [5.0], 5.03, 30_000), ([0.02] * 100, 2.02, 1 + 20 * 50)],
    ids=["fast", "fast, with a slow call", "slow"],
)
def test_a_peer_gets_as_many_rows_as_a_round_has_time_for(latencies: list[float], seconds: float, rows: int) -> None:
    assert rows_within(PEER_BUDGET, latencies, seconds, 30_000) == rows
