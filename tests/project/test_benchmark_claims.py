"""What a sceptic tried on the benchmarks: each way to a figure that flatters is closed, and stays so."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import heapq
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from asyncudf._operators.writer import OUTPUT_BYTES
from benchmarks import _machine
from benchmarks.__main__ import main
from benchmarks._docs import filled
from benchmarks._engine import engine_seconds, gather_seconds
from benchmarks._harness import (
    BEST_PEER,
    Case,
    Figure,
    Kind,
    Outcome,
    Sample,
    Settings,
    System,
    Target,
    UnavailableError,
    interleaved,
)
from benchmarks._peers import WARM_UP, peer_systems, rows_within
from benchmarks._plots import draw
from benchmarks._report import beside, caption, verdict_rows
from benchmarks._store import LATEST, load, require_a_commit, require_one_commit, save
from benchmarks._work import instant, lognormal, mix, rates
from benchmarks.cases import CASES, mixes, p3_p4_latency, p5_http
from benchmarks.cases.p9_suspended import bare_seconds
from benchmarks.cases.payload import HELD, HELD_ROWS, HELD_SIZE, LIMITS
from benchmarks.peers import PEERS, Measurement, PeerUnavailable, Workload
from benchmarks.peers._run import start

ROOT = Path(__file__).parent.parent.parent
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
    assert (verdict.met, verdict.ratio, verdict.why) == (None, None, "not asked for: daft-best")
    [verdict] = outcome(few, {"daft-best": "it fell (in round 2)"}).verdicts(CASE)
    assert (verdict.met, verdict.why) == (None, "could not be measured: daft-best")


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
    [([0.02] * 100, 0.05, 30_000), ([0.02] * 99 + [5.0], 5.03, 30_000), ([0.02] * 100, 2.02, 1 + 5 * 50)],
    ids=["fast", "fast, with a slow call", "slow"],
)
def test_a_peer_gets_as_many_rows_as_a_round_has_time_for(latencies: list[float], seconds: float, rows: int) -> None:
    assert rows_within(latencies, seconds, 30_000) == rows


@pytest.mark.parametrize(
    "latencies",
    [
        lognormal(p3_p4_latency.CALLS),
        mix(mixes.CALLS, mixes.USUAL, 0.01, 1.0),
        mix(mixes.CALLS, mixes.USUAL, 0.001, 5.0),
        [0.02] * p5_http.REQUESTS,
    ],
    ids=["P3 and P4", "P3b", "P3c", "P5"],
)
def test_a_good_peer_makes_as_many_calls_as_ours(latencies: list[float]) -> None:
    few = latencies[: len(latencies) // WARM_UP]
    seconds = seconds_of_callers(few, 100) + 0.5  # half a second of a cold start
    assert rows_within(few, seconds, len(latencies)) == len(latencies)


def seconds_of_callers(latencies: Sequence[float], callers: int) -> float:
    """How long so many callers take, who are never idle."""
    free = [0.0] * callers
    for latency in latencies:
        heapq.heapreplace(free, free[0] + latency)
    return max(free)


def test_the_memory_to_plan_with_is_more_than_any_peak_of_a_worker() -> None:
    [found] = [outcome for outcome in load(LATEST) if outcome.id == HELD.id]
    batch_rows, capacity = 1_000, 100
    waiting = {name: HELD_ROWS * HELD_SIZE if limit is None else limit for name, limit in LIMITS.items()}
    for figure in found.figures:
        if figure.quantity == "peak MB":
            held = capacity * HELD_SIZE + waiting[figure.system] + OUTPUT_BYTES + 2 * batch_rows * HELD_SIZE
            assert max(figure.values) * 1e6 <= 2 * held + 200 * 2**20


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_case_can_be_drawn(case: Case, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    at = (100.0, 10_000.0) if case.axis else (None,)
    figures = [Figure("ours", quantity, (1.0, 2.0), "ours", place) for quantity in case.plots for place in at]
    draw(Outcome(case.id, "a title", 1.0, 2, (*figures, Figure("ours", "no plot", (1.0,)))), case, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == ({f"{case.id.lower()}.svg"} if case.plots else set())


def test_a_results_file_has_figures_of_one_machine_and_of_the_same_versions(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    save(found, dataclasses.replace(outcome({}), machine={"cpu": "fast"}, versions={"pyarrow": "1"}), {"A": CASE})
    require_one_commit(found, "1234567", ["B"], {"cpu": "fast", "pyarrow": "1", "uvloop": "2"})
    for facts in ({"cpu": "slow"}, {"cpu": "fast", "pyarrow": "2"}):
        with pytest.raises(SystemExit, match=r"figures of \w+ \w+ \(this is \w+\) for A: run this case too"):
            require_one_commit(found, "1234567", ["B"], facts)
        require_one_commit(found, "1234567", ["A"], facts)


@pytest.mark.parametrize("commit", ["unknown", "1234567 with changes"])
def test_what_the_pages_show_is_not_written_from_code_that_nobody_can_get(commit: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="give another file to --json"):
        require_a_commit(LATEST, commit)
    require_a_commit(LATEST, "1234567")
    require_a_commit(tmp_path / "latest.json", commit)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--docs"], "--docs writes what a file holds"),
        (["--peers", "dafd"], "invalid choice: 'dafd'"),
        (["--load", "nowhere.json"], "there is no file nowhere.json"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_before_anything_runs(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as mistake:
        main(arguments)
    assert said in f"{mistake.value} {capsys.readouterr().err}"


def test_docs_are_written_from_the_file_that_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, found = tmp_path / "page.md", tmp_path / "found.json"
    page.write_text("<!-- figures P1: us/row -->\n<!-- end -->")
    ours = dataclasses.replace(outcome({}), id="P1", figures=(Figure("ordered", "us/row", (12.5,)),))
    save(found, ours, {case.id: case for case in CASES})
    monkeypatch.setattr("benchmarks._docs.PAGES", (page,))
    main(["--load", str(found), "--docs"])
    assert "12.5" in page.read_text()


def test_a_java_home_without_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="which has no bin/java: correct it, or unset it"):
        _machine._java()


AGE = "<!-- age -->\n\nas before\n\n<!-- end -->"


def test_a_page_says_when_the_code_has_changed_since_it_was_measured() -> None:
    measured = [outcome({})]
    assert filled(AGE, measured, {"A": CASE}) == AGE
    assert "Measured at commit 1234567. `git log 1234567.. -- udfs" in filled(AGE, measured, {"A": CASE}, "1234567")
    assert "**the code has changed since** (it is 765 now)" in filled(AGE, measured, {"A": CASE}, "765")
    assert "was not recorded" in filled(AGE, [dataclasses.replace(outcome({}), commit="")], {"A": CASE}, "765")


def test_missed_targets_and_those_that_were_not_judged_stand_on_the_page() -> None:
    cases = {"A": CASE, "B": dataclasses.replace(CASE, id="B")}

    def page(block: str, found: Outcome) -> str:
        return filled(f"<!-- {block} -->\n<!-- end -->", [found], cases)

    missed = "- **A is missed** (calls/s: at least 0.98 x the best peer at its best): ours 0.97996x."
    assert missed in page("missed", outcome(ALL, ours=97.996))
    assert "No target that was judged in this run is missed.\n- Not judged in this run: B." in page(
        "missed", outcome(ALL)
    )
    assert "Not judged in this run: A beside the best peer at its best, B." in page("missed", outcome({}))
    assert "- A, ours: 0.99x the calls/s of flink-java (more is better)" in page("claims", outcome(ALL))
    assert "- A, ours: not judged: the best peer at its best is not part of this run" in page("claims", outcome({}))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('hello')", "daft said 'hello' and not what it measured"),
        ("print('{\"rows\": 1}')", "and not what it measured"),
        (
            "import sys; sys.exit('no module in /usr/lib/x/y.py, line 3')",
            "daft ended with 1: no module in y.py, line 3",
        ),
        ("raise SystemExit(3)", "daft ended with 3: it said nothing"),
    ],
    ids=["no JSON", "another JSON", "its last words", "silent"],
)
def test_a_peer_that_fails_says_why_in_one_line_without_folders(
    program: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.peers._run.arguments", lambda *_: [sys.executable, "-c", program])
    with pytest.raises(PeerUnavailable) as failed:
        start("daft", Workload([0.0]), 60.0)
    assert str(failed.value).endswith(reason)


def test_every_round_gives_a_peer_the_same_calls_and_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Workload] = []

    def run(_: str, workload: Workload) -> Measurement:
        given.append(workload)
        return Measurement(len(workload.latencies) * 0.01, len(workload.latencies), "1", "a note")

    monkeypatch.setattr("benchmarks._peers.run", run)
    [system] = peer_systems(Settings(peers=("daft-best",)), [0.0] * 10_000, "ordered", rates, room=500)
    notes = [system.measure().note for _ in range(3)]
    assert [len(workload.latencies) for workload in given] == [500, 501, 501]
    assert {workload.room for workload in given} == {500}
    assert notes[1:] == ["a note; 501 rows, as many as a round has time for"] * 2


def test_without_what_the_benchmarks_need_they_say_how_to_install_it() -> None:
    program = "import runpy, sys; sys.modules['uvloop'] = None; runpy.run_module('benchmarks', run_name='__main__')"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert ran.returncode == 1
    assert ran.stderr == "uvloop is not installed: pip install -e '.[benchmarks]'\n"
