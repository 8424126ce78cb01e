"""The figures in the documentation were measured, the verdicts follow from them, and peers are measured as ours is."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import heapq
import importlib
import json
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

import benchmarks.cases
from asyncudf._operators.outputs import OUTPUT_BYTES
from benchmarks import _machine
from benchmarks.__main__ import main
from benchmarks._docs import PAGES, filled
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
from benchmarks._machine import commit
from benchmarks._peers import WARM_UP, peer_systems, rows_within
from benchmarks._plots import draw
from benchmarks._report import beside, caption, spread, verdict_rows
from benchmarks._spark import sized
from benchmarks._store import LATEST, load, require_a_commit, require_one_commit, save
from benchmarks._work import instant, lognormal, mix, rates
from benchmarks.account import programs, taken
from benchmarks.cases import CASES, mixes, p3_p4_latency, p5_http
from benchmarks.cases.p9_suspended import bare_seconds
from benchmarks.cases.payload import HELD, HELD_ROWS, HELD_SIZE, LIMITS
from benchmarks.peers import PEERS, Measurement, PeerUnavailable, Workload
from benchmarks.peers._run import start

BY_ID = {case.id: case for case in CASES}
FASTER = Target("calls/s", "ours", 0.98, against=BEST_PEER)


def nothing_to_open(*_: object) -> NoReturn:
    raise NotImplementedError


def kind(peer: str) -> Kind:
    return "peer at its best" if peer.endswith("-best") else "peer"


CASE = Case("A", "", nothing_to_open, (FASTER,), repetitions=3)
ALL = dict.fromkeys(PEERS, 100.0)  # calls/s


def outcome(peers: Mapping[str, float] | None = None, ours: float = 99.0, **given: object) -> Outcome:
    """Of `CASE`, with the calls/s of ours and of these peers; those that could not be measured were asked for too."""
    rates = {"ours": ours, **(peers or {})}
    figures = tuple(
        Figure(name, "calls/s", (rate,) * 3, "ours" if name == "ours" else kind(name)) for name, rate in rates.items()
    )
    asked = (*(peers or {}), *given.get("unavailable", ()))  # type: ignore[misc]
    made = Outcome("A", "", 1.0, 3, figures, commit="1234567", peers=asked)
    return dataclasses.replace(made, **given)  # type: ignore[arg-type]


def page(block: str, *found: Outcome, cases: Mapping[str, Case] | None = None) -> str:
    """What stands on a page in place of a block."""
    return filled(f"<!-- {block} -->\n<!-- end -->", found, cases or {"A": CASE})


# Every case is listed, measures, and writes its figures.


def test_every_case_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each `Case` of a module of benchmarks/cases, that is."""
    made = {
        value.id
        for module in pkgutil.iter_modules(benchmarks.cases.__path__, "benchmarks.cases.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, Case)
    }
    main(["--list"])
    listed = capsys.readouterr().out
    assert {name for name in made if f"\n{name} " not in f"\n{listed}"} == set()
    assert made == BY_ID.keys()


def test_a_case_measures_and_writes_its_figures(tmp_path: Path) -> None:
    """As a user starts it, in a process of its own."""
    found = tmp_path / "found.json"
    command = ["-m", "benchmarks", "--only", "P1", "--scale", "0.005", "--repetitions", "1", "--json", str(found)]
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=_machine.ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "| P1 " in ran.stdout
    (measured,) = json.loads(found.read_text())["cases"].values()
    assert {figure["system"] for figure in measured["figures"]} == {"ordered", "unordered", "gather"}
    assert min(figure["median"] for figure in measured["figures"]) > 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--docs"], "--docs"), (["--peers", "dafd"], "'dafd'"), (["--load", "nowhere.json"], "nowhere.json")],
)
def test_a_mistake_on_the_command_line_ends_the_program_before_anything_runs(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as mistake:
        main(arguments)
    assert told in f"{mistake.value} {capsys.readouterr().err}"


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(SystemExit, match=r"uvloop.*pip install -e '\.\[benchmarks\]'"):
        importlib.import_module("benchmarks.__main__")


# The figures in the documentation come from the stored results.


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_figures_of_a_page_are_those_of_the_results_file(path: Path) -> None:
    text = path.read_text()
    assert "<!-- figures P3:" in text
    assert text == filled(text, load(LATEST), BY_ID)


def test_an_edited_figure_is_replaced_and_nothing_else() -> None:
    outcomes = load(LATEST)
    edited = "x\n<!-- figures P2: us/row; column -->\n| column | 0.001 |\n<!-- end -->\ny"
    made = filled(edited, outcomes, BY_ID)
    assert "0.001" not in made
    assert filled(made, outcomes, BY_ID) == made
    assert made.startswith("x\n")
    assert made.endswith("\ny")


def test_an_unknown_figure_is_an_error_and_not_an_empty_cell() -> None:
    with pytest.raises(KeyError, match="nobody"):
        page("figures P2: us/row; nobody", *load(LATEST), cases=BY_ID)


def test_the_results_have_every_quantity_that_a_target_or_a_plot_names() -> None:
    found = {each.id: each.figures for each in load(LATEST)}
    targets = {(case.id, target.quantity, target.ours) for case in CASES for target in case.targets}
    assert targets <= {(name, figure.quantity, figure.label) for name in found for figure in found[name]}
    plots = {(case.id, quantity) for case in CASES for quantity in case.plots}
    assert plots <= {(name, figure.quantity) for name in found for figure in found[name]}


def test_docs_are_written_from_the_file_that_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = tmp_path / "page.md", tmp_path / "found.json"
    path.write_text("<!-- figures P1: us/row -->\n<!-- end -->")
    save(found, outcome(id="P1", figures=(Figure("ordered", "us/row", (12.5,)),)), BY_ID)
    monkeypatch.setattr("benchmarks._docs.PAGES", (path,))
    main(["--load", str(found), "--docs"])
    assert "12.5" in path.read_text()


def test_cases_with_bars_or_lines_are_drawn_and_those_without_plots_are_not(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = {"bars": ("", ("x",)), "lines": ("rows", ("x",)), "none": ("", ())}
    for name, (axis, plots) in drawn.items():
        at = (100.0, 10_000.0) if axis else (None,)
        figures = tuple(Figure("ours", "x", (1.0, 2.0), at=place) for place in at)
        case = dataclasses.replace(CASE, id=name, axis=axis, plots=plots)
        draw(outcome(id=name, title="a title", figures=figures), case, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"bars.svg", "lines.svg"}


# A figure's origin: one commit, one machine, all rounds; what is missing is said.


def test_a_results_file_has_figures_of_one_commit(tmp_path: Path) -> None:
    found, cases = tmp_path / "found.json", {"A": CASE, "B": CASE}
    for name in cases:
        save(found, outcome(id=name, commit="old"), cases)
    assert [each.commit for each in load(found)] == ["old", "old"]
    with pytest.raises(SystemExit, match=r"old.*new.*\bA\b"):
        require_one_commit(found, "new", ["B"])
    require_one_commit(found, "new", ["A", "B"])
    require_one_commit(found, "old", ["B"])
    save(found, outcome(id="B", commit="new"), cases)
    assert [(each.id, each.commit) for each in load(found)] == [("B", "new")]


def test_a_results_file_has_figures_of_one_machine_and_of_the_same_versions(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    save(found, outcome(machine={"cpu": "fast"}, versions={"pyarrow": "1"}), {"A": CASE})
    require_one_commit(found, "1234567", ["B"], {"cpu": "fast", "pyarrow": "1", "uvloop": "2"})
    for facts, known in (({"cpu": "slow"}, "fast"), ({"cpu": "fast", "pyarrow": "2"}, "1")):
        with pytest.raises(SystemExit, match=rf"\b{known}\b.*\bA\b"):
            require_one_commit(found, "1234567", ["B"], facts)
        require_one_commit(found, "1234567", ["A"], facts)


@pytest.mark.parametrize("measured", ["unknown", "1234567 with changes"])
def test_uncommitted_code_does_not_write_the_figures_of_the_pages(measured: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=measured):
        require_a_commit(LATEST, measured)
    require_a_commit(LATEST, "1234567")
    require_a_commit(tmp_path / "latest.json", measured)


@pytest.mark.skipif(shutil.which("git") is None, reason="makes commits, and there is no git")
def test_the_commit_is_that_of_what_is_measured_and_says_whether_it_was_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *named, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def write(*names: str) -> None:
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("x")
        git("add", *names)

    assert commit(tmp_path) == "unknown"
    git("init")
    write("udfs/a.py")
    git("commit", "-m", "a")
    first = commit(tmp_path)
    write("benchmarks/results/latest.json", "README.md")
    assert commit(tmp_path) == first
    git("commit", "-m", "figures")
    assert commit(tmp_path) == first
    write("queues/b.py")
    assert commit(tmp_path) == f"{first} with changes"


def test_a_page_names_the_commit_of_its_figures_and_tells_whether_it_is_older_than_the_code() -> None:
    age = "<!-- age -->\n\nas before\n\n<!-- end -->"
    assert filled(age, [outcome()], {"A": CASE}) == age
    same, later = (filled(age, [outcome()], {"A": CASE}, now) for now in ("1234567", "7654321"))
    assert "1234567" in same
    assert "changed" not in same
    assert "1234567" in later
    assert "changed since" in later
    assert "7654321" in later
    assert "not recorded" in filled(age, [outcome(commit="")], {"A": CASE}, "7654321")


def test_fewer_rounds_than_declared_are_marked_in_every_table() -> None:
    few = outcome(repetitions=2)
    for block in ("figures A: calls/s", "targets", "runs"):
        assert "2 of 3" in page(block, few)
        assert "2 of 3" not in page(block, outcome())


def test_a_case_that_is_not_in_the_run_leaves_no_old_figures_on_the_page() -> None:
    cases = {"A": CASE, "B": dataclasses.replace(CASE, id="B")}
    old = "<!-- figures B: calls/s -->\nan old table\n<!-- end -->"
    assert "an old table" not in filled(old, [outcome()], cases)
    assert "not in this run" in filled(old, [outcome()], cases).lower()
    (told,) = [line for line in page("runs", outcome(), cases=cases).splitlines() if "not in this run" in line]
    assert "B" in told


@pytest.mark.parametrize(
    ("values", "text"),
    [((5147.0,), "5,147"), ((5147.1, 5147.2), "5,147"), ((1.0, 2.0, 4.0), "2 (1 .. 4)")],
    ids=["one", "alike", "different"],
)
def test_a_figure_is_the_median_with_the_range_of_the_rounds(values: tuple[float, ...], text: str) -> None:
    assert spread(Figure("ours", "calls/s", values)) == text


def test_a_java_home_without_java_ends_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Java than the one that runs Spark would be named on the page."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="JAVA_HOME"):
        _machine._java()


# A verdict follows from the figures.


def figures(**of: float) -> list[Figure]:
    return [Figure(name, "calls/s", (rate,), "ours" if name == "ours" else kind(name)) for name, rate in of.items()]


def test_the_best_peer_is_the_best_of_all_set_ups() -> None:
    verdict = FASTER.judge(figures(**{"ours": 99.0, "a": 100.0, "a-best": 90.0}), {})
    assert (verdict.met, verdict.best_peer, verdict.ratio) == (True, "a", 0.99)
    verdict = FASTER.judge(figures(**{"ours": 99.0, "a": 90.0, "a-best": 110.0}), {})
    assert (verdict.met, verdict.best_peer, verdict.ratio) == (False, "a-best", 0.9)


def test_there_is_a_verdict_on_the_best_peer_only_if_all_peers_at_their_best_were_measured() -> None:
    def verdict(found: Outcome) -> tuple[bool | None, float | None, str]:
        (judged,) = found.verdicts(CASE)
        return judged.met, judged.ratio, judged.why

    few = {name: rate for name, rate in ALL.items() if name != "daft-best"}
    assert verdict(outcome(ALL)) == (True, 0.99, "")
    for met, ratio, why in (
        verdict(outcome(few)),
        verdict(outcome(few, unavailable={"daft-best": "it fell (in round 2)"})),
    ):
        assert (met, ratio) == (None, None)
        assert "daft-best" in why
    assert verdict(outcome({"daft": 1.0}))[:2] == (None, None)


def test_a_bound_on_each_round_is_judged_by_the_worst() -> None:
    found = [Figure("ours", "calls", (1.0, 2.0, 9.0))]
    assert Target("calls", "ours", 5.0).judge(found, {}).met
    verdict = Target("calls", "ours", 5.0, worst=True).judge(found, {})
    assert (verdict.met, verdict.ours) == (False, 9.0)


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds_which_stand_beside_it() -> None:
    found = outcome(figures=(Figure("ours", "us/row", (1.0, 2.0, 9.0)), Figure("gather", "us/row", (10.0, 10.0, 10.0))))
    judged = dataclasses.replace(CASE, targets=(Target("us/row", "ours", 0.5, against="gather"),))
    _, row = verdict_rows([found], {"A": judged})
    assert {"0.2x (0.1 .. 0.9)", "yes"} <= set(row)


@pytest.mark.parametrize(
    ("value", "bound", "text"),
    [(0.9796, 0.98, "0.9796"), (0.98, 0.98, "0.98"), (1.234, 1.1, "1.23"), (1.1000001, 1.1, "1.1000001")],
)
def test_a_ratio_has_as_many_digits_as_show_on_which_side_of_its_bound_it_is(
    value: float, bound: float, text: str
) -> None:
    assert beside(value, bound) == text


def test_missed_targets_and_those_that_were_not_judged_stand_on_the_page() -> None:
    cases = {"A": CASE, "B": dataclasses.replace(CASE, id="B")}

    def lines(block: str, found: Outcome) -> list[str]:
        return page(block, found, cases=cases).splitlines()[2:-2]

    missed, not_judged = lines("missed", outcome(ALL, ours=97.996))
    assert "A is missed" in missed
    assert "0.97996x" in missed
    assert not_judged.endswith(": B.")
    assert [line for line in lines("missed", outcome(ALL)) if "is missed" in line and " A " in line] == []
    assert lines("missed", outcome())[-1].endswith(f": A beside {BEST_PEER}, B.")


def test_a_claim_names_the_ratio_and_the_peer_or_that_there_is_none() -> None:
    assert "0.99x the calls/s of flink-java" in page("claims", outcome(ALL))
    assert "not judged" in page("claims", outcome())


def test_the_memory_to_plan_with_is_more_than_any_peak_of_a_worker() -> None:
    """The rule of thumb in docs/performance.md, held against the measured peaks."""
    [found] = [each for each in load(LATEST) if each.id == HELD.id]
    batch_rows, capacity = 1_000, 100
    waiting = {name: HELD_ROWS * HELD_SIZE if limit is None else limit for name, limit in LIMITS.items()}
    for figure in found.figures:
        if figure.quantity == "peak MB":
            held = capacity * HELD_SIZE + waiting[figure.system] + OUTPUT_BYTES + 2 * batch_rows * HELD_SIZE
            assert max(figure.values) * 1e6 <= 2 * held + 200 * 2**20


# Peers and ours are measured alike.


def test_the_garbage_collector_leaves_the_objects_of_the_benchmark_alone_whatever_is_measured() -> None:
    measured: list[Callable[[], float]] = [
        lambda: engine_seconds(instant, 100, "ordered"),
        lambda: gather_seconds(instant, 100),
        lambda: bare_seconds(100, asyncio.new_event_loop),
    ]
    try:
        for seconds in measured:
            gc.unfreeze()
            seconds()
            assert gc.get_freeze_count() > len(gc.get_objects())
    finally:
        gc.unfreeze()


def test_ours_is_judged_by_the_plain_program_on_its_own_loop() -> None:
    plain = {target.against for case in CASES for target in case.targets if target.against.startswith("bare")}
    assert plain == {"bare asyncio on uvloop"}


def test_each_peer_is_there_as_documented_and_at_its_best() -> None:
    documented = {name for name in PEERS if not name.endswith("-best")}
    assert {name.removesuffix("-best") for name in PEERS if name.endswith("-best")} == documented
    assert {"flink-java", "pyflink", "pathway", "daft", "ray-data", "spark-jvm"} <= documented


def test_a_table_names_the_peers_that_were_asked_for_and_those_that_failed() -> None:
    assert f"all {len(PEERS)}" in caption(outcome(ALL), CASE)
    assert "daft" in caption(outcome({"daft": 1.0}), CASE)
    assert "daft" not in caption(outcome(), CASE)
    assert "could not be measured: daft" in caption(outcome(unavailable={"daft": "it fell"}), CASE)


def test_notes_of_peers_and_why_one_is_missing_stand_on_the_page() -> None:
    both = outcome(notes={"flink": "capacity=100"}, unavailable={"ray": "no ray"})
    one = dataclasses.replace(both, id="B", notes={**both.notes, "daft": "in B"})
    told = page("notes A B C", both, one).splitlines()[2:-2]
    assert len(told) == 3
    for line, facts in zip(told, (("daft", "(B)", "in B"), ("flink", "capacity=100"), ("ray", "no ray")), strict=True):
        assert all(fact in line for fact in facts)


def test_a_peer_that_fails_in_a_later_round_has_no_figure_and_is_named_with_the_round() -> None:
    samples = iter([Sample({"calls/s": 1.0}), Sample({"calls/s": 1.0})])

    def measure() -> Sample:
        for sample in samples:
            return sample
        raise UnavailableError("it fell")

    kept, unavailable = interleaved([System("daft-best", measure, "peer at its best")], 3, lambda _: None)
    assert kept == {}
    assert "it fell" in unavailable["daft-best"]
    assert "round 2" in unavailable["daft-best"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('hello')", "daft said 'hello'"),
        ("print('{\"rows\": 1}')", "daft said '{\"rows\": 1}'"),
        (
            "import sys; sys.exit('no module in /usr/lib/x/y.py, line 3')",
            "daft ended with 1: no module in y.py, line 3",
        ),
        ("raise SystemExit(3)", "daft ended with 3"),
    ],
    ids=["no JSON", "another JSON", "its last words", "silent"],
)
def test_a_peer_that_fails_says_why_in_one_line_without_folders(
    program: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.peers._run.arguments", lambda *_: [sys.executable, "-IS", "-c", program])
    with pytest.raises(PeerUnavailable) as failed:
        start("daft", Workload([0.0]), 60.0)
    assert reason in str(failed.value)
    assert "\n" not in str(failed.value)


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
def test_a_peer_as_fast_as_100_callers_makes_as_many_calls_as_ours(latencies: list[float]) -> None:
    few = latencies[: len(latencies) // WARM_UP]
    seconds = seconds_of_callers(few, 100) + 0.5  # half a second of a cold start
    assert rows_within(few, seconds, len(latencies)) == len(latencies)


def seconds_of_callers(latencies: Sequence[float], callers: int) -> float:
    """How long so many callers take, who are never idle."""
    free = [0.0] * callers
    for latency in latencies:
        heapq.heapreplace(free, free[0] + latency)
    return max(free)


def test_every_round_gives_a_peer_the_same_calls_and_the_same_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Workload] = []

    def run(_: str, workload: Workload) -> Measurement:
        given.append(workload)
        return Measurement(len(workload.latencies) * 0.01, len(workload.latencies), "1", "a note")

    monkeypatch.setattr("benchmarks._peers.run", run)
    [system] = peer_systems(Settings(peers=("daft-best",)), [0.0] * 10_000, "ordered", rates, room=500)
    notes = [system.measure().note for _ in range(3)]
    assert [len(workload.latencies) for workload in given] == [500, 501, 501]
    assert {workload.room for workload in given} == {500}
    assert all("501 rows" in note for note in notes[1:])


def test_batches_of_another_size_than_the_table_says_are_an_error() -> None:
    assert [len(batch) for batch in sized([[0] * 3, [0] * 3, [0]], 3)] == [3, 3, 1]
    for wrong in ([[0] * 4], [[0] * 2, [0] * 3]):
        with pytest.raises(AssertionError, match="rows, not of 3"):
            list(sized(wrong, 3))


def test_the_account_counts_the_calls_of_each_function() -> None:
    """A call that suspends begins once and goes on once, in ours as in the plain program."""
    rows = 50
    found = {name: asyncio.run(taken(program, rows)) for name, program in programs().items()}
    assert {name: account.calls["suspends_once"] for name, account in found.items()} == dict.fromkeys(found, 2 * rows)
