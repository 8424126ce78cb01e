"""The figures in the documentation were measured, the verdicts follow from them, and peers are measured as ours is."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib
import pkgutil
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import pytest

import benchmarks.cases
from asyncudf._operators.outputs import OUTPUT_BYTES
from benchmarks import _results
from benchmarks.__main__ import main
from benchmarks._harness import Case, Figure, Outcome, Sample, Settings, System, Target, UnavailableError, measured
from benchmarks._meter import Processes
from benchmarks._pages import OVERVIEW, PAGES, filled, spread, target_rows
from benchmarks._results import LATEST, Results, commit, load, require_writable, save
from benchmarks._spark import sized
from benchmarks._work import run, seconds_at_best, settle_collector
from benchmarks.cases import CASES
from benchmarks.cases.memory import HELD, HELD_ROWS, HELD_SIZE, LIMITS
from benchmarks.counts import PROGRAMS, taken
from benchmarks.peers import PeerUnavailable, Program, Workload

BY_ID = {case.id: case for case in CASES}
FASTER = Target("calls/s", "ours", least=0.98, against="flink")
HOUR = 60.0  # minutes


def nothing_to_open(*_: object) -> NoReturn:
    raise NotImplementedError


CASE = Case("A", "a title", nothing_to_open, (FASTER,))


def outcome(ours: Sequence[float] = (99.0,) * 5, flink: Sequence[float] = (100.0,) * 5, **given: object) -> Outcome:
    """Of `CASE`, with the calls/s of ours and of a peer."""
    figures = (Figure("ours", "calls/s", tuple(ours)), Figure("flink", "calls/s", tuple(flink)))
    made = Outcome("A", "a title", 1.0, 5, figures, started="2026-01-01T00:00:00+00:00")
    return dataclasses.replace(made, **given)  # type: ignore[arg-type]


def results(*outcomes: Outcome, **given: str) -> Results:
    return Results(given.get("commit", "1234567"), {"cores": "2", **given}, {one.id: one for one in outcomes})


def page(block: str, *found: Outcome, cases: Mapping[str, Case] | None = None) -> str:
    """What stands on a page in place of a block."""
    return filled(f"<!-- {block} -->\n<!-- end -->", results(*found), cases or {"A": CASE})


# Every case is listed, measures, and writes its figures.


def test_every_case_is_listed_with_its_minutes_and_all_take_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
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
    assert 0 < float(re.search(r"^all +([\d.]+) min", listed, re.MULTILINE)[1]) <= HOUR  # type: ignore[index]


def test_a_case_measures_and_writes_its_figures(tmp_path: Path) -> None:
    """As a user starts it, in a process of its own."""
    found = tmp_path / "found.json"
    command = ["-m", "benchmarks", "--only", "P23", "--scale", "0.01", "--rounds", "1", "--json", str(found)]
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=_results.ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "| P23 " in ran.stdout
    figures = load(found).outcomes["P23"].figures
    assert {figure.system for figure in figures} == {"run_rows", "run_rows, a function without types", "gather"}
    assert min(figure.median for figure in figures) > 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--docs"], "--docs"),
        (["--peers", "dafd"], "'dafd'"),
        (["--load", "nowhere.json"], "nowhere.json"),
        (["--rounds", "7"], "--rounds"),
        (["--json", "--quick"], "latest.json"),
    ],
)
def test_a_mistake_on_the_command_line_ends_the_program_before_anything_runs(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as mistake:
        main(arguments)
    assert told in f"{mistake.value} {capsys.readouterr().err}"


def test_a_case_that_fails_keeps_no_other_from_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = [System("ours", lambda: Sample({"calls/s": 5.0}))]
    works = dataclasses.replace(CASE, id="B", systems=lambda _: nullcontext(systems))
    monkeypatch.setattr("benchmarks.__main__.CASES", (CASE, works))
    with pytest.raises(SystemExit, match=r"failed.*: A$"):
        main(["--json", str(tmp_path / "found.json")])
    assert load(tmp_path / "found.json").outcomes.keys() == {"B"}


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
    assert "<!-- end -->" in text
    assert text == filled(text, load(LATEST), BY_ID)


def test_an_edited_figure_is_replaced_and_nothing_else() -> None:
    edited = "x\n<!-- figures A: calls/s; ours -->\n| ours | 0.001 |\n<!-- end -->\ny <!-- other -->\n<!-- end -->"
    made = filled(edited, results(outcome()), {"A": CASE})
    assert "0.001" not in made
    assert "| ours   | 99 " in made
    assert filled(made, results(outcome()), {"A": CASE}) == made
    assert made.startswith("x\n<!-- figures A: calls/s; ours -->\n\n|")
    assert made.endswith("|\n\n<!-- end -->\ny <!-- other -->\n<!-- end -->")


def test_an_unknown_system_is_an_error_and_not_an_empty_cell() -> None:
    with pytest.raises(KeyError, match="nobody"):
        page("figures A: calls/s; nobody", outcome())


def test_the_page_has_a_table_of_each_case_and_names_each_system_of_the_overview() -> None:
    shown = " ".join(re.findall(r"<!-- figures ([\w ]+):", "".join(page.read_text() for page in PAGES))).split()
    assert sorted(shown) == sorted(BY_ID)
    assert [case for _, case, _, _ in OVERVIEW if case not in BY_ID] == []
    figure = Figure("ordered_wait", "calls/s", (5.0, 6.0, 7.0))
    rows = page("overview", outcome(id="P3", figures=(figure,))).splitlines()
    assert "| 6 " in rows[4]
    assert rows[4].count("| - ") == 4
    assert rows[5] == "", "what no system was measured for is left out"


def test_docs_are_written_from_the_file_that_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = tmp_path / "page.md", tmp_path / "found.json"
    path.write_text("<!-- figures P23: us/row -->\n<!-- end -->")
    save(found, results(), outcome(id="P23", figures=(Figure("gather", "us/row", (12.5,)),)), BY_ID)
    monkeypatch.setattr("benchmarks._pages.PAGES", (path,))
    main(["--load", str(found), "--docs"])
    assert "12.5" in path.read_text()


def test_a_file_of_results_gives_back_what_was_saved(tmp_path: Path) -> None:
    one = outcome(notes={"flink": "capacity=100"}, unavailable={"ray": "no ray"}, versions={"flink": "2"}, seconds=12)
    save(tmp_path / "found.json", results(), one, ["A"])
    assert load(tmp_path / "found.json") == results(one)


# A figure's origin: one commit, one machine, all rounds; what is missing is said.


def test_a_results_file_has_figures_of_one_commit_and_one_machine(tmp_path: Path) -> None:
    found, old, new = tmp_path / "found.json", results(commit="old"), results(commit="new")
    for name in ("A", "B"):
        save(found, old, outcome(id=name), ["A", "B"])
    with pytest.raises(SystemExit, match=r"old.*new.*\bA\b"):
        require_writable(found, new, ["B"])
    with pytest.raises(SystemExit, match=r"cores 2 \(this is 8\)"):
        require_writable(found, results(commit="old", cores="8"), ["B"])
    require_writable(found, old, ["B"])
    require_writable(found, new, ["A", "B"])
    save(found, new, outcome(id="B"), ["A", "B"])
    assert (load(found).commit, list(load(found).outcomes)) == ("new", ["B"])


@pytest.mark.parametrize("state", ["unknown", "1234567 with changes"])
def test_the_pages_show_no_code_that_nobody_can_get(state: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="commit"):
        require_writable(LATEST, results(commit=state), BY_ID)
    require_writable(tmp_path / "other.json", results(commit=state), BY_ID)


def test_the_commit_is_the_last_that_changed_what_is_measured(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    config = [("user.name", "a"), ("user.email", "a@b.c"), ("commit.gpgsign", "false")]

    def git(*arguments: str) -> None:
        options = [option for name, value in config for option in ("-c", f"{name}={value}")]
        subprocess.run(["git", *options, *arguments], cwd=tmp_path, check=True, capture_output=True)

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


def test_fewer_rounds_and_rows_than_a_full_run_are_marked() -> None:
    few = outcome(rounds=2, scale=0.1)
    assert "**0.1 of the rows**, **2 of 5 rounds**" in page("figures A: calls/s", few)
    assert "**" not in page("figures A: calls/s", outcome())
    told = page("runs", few)
    assert "fewer rounds than 5: A 2" in told
    assert "not at full size: A 0.1" in told
    assert "fewer" not in page("runs", outcome())


def test_a_case_that_is_not_in_the_run_leaves_no_old_figures_on_the_page() -> None:
    cases = {"A": CASE, "B": dataclasses.replace(CASE, id="B")}
    old = "<!-- figures B: calls/s -->\nan old table\n<!-- end -->"
    made = filled(old, results(outcome()), cases)
    assert "an old table" not in made
    assert "Not in this run" in made
    assert "not in this run: B" in page("runs", outcome(), cases=cases)


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
        _results._java()


# A verdict follows from the figures.


@pytest.mark.parametrize(
    ("ours", "met"),
    [
        ((98.0, 99.0, 104.0), "yes"),
        ((90.0, 97.9, 97.0), "no"),
        ((90.0, 99.0, 104.0), "open"),
        ((97.9, 99.0, 99.0), "open"),
    ],
    ids=["all on the good side", "all on the bad side", "both", "one is a near miss"],
)
def test_a_target_is_met_or_missed_only_if_all_rounds_say_so(ours: tuple[float, ...], met: str) -> None:
    verdict = FASTER.judge(outcome(ours, (100.0,) * 3).figures, {})
    assert verdict.met == met
    assert verdict.ratio is not None
    assert verdict.ratio.values == tuple(value / 100 for value in ours)


def test_a_bound_may_be_the_most_or_the_least_and_need_no_other_system() -> None:
    figures = [Figure("ours", "MB", (4.0, 5.0))]
    assert Target("MB", "ours", most=5.0).judge(figures, {}).met == "yes"
    assert Target("MB", "ours", least=5.0).judge(figures, {}).met == "open"
    assert Target("MB", "ours", most=3.0).judge(figures, {}).met == "no"


def test_a_ratio_is_that_of_two_figures_of_one_round() -> None:
    """What slows down a whole round changes no ratio."""
    verdict = FASTER.judge(outcome((99.0, 49.5), (100.0, 50.0)).figures, {})
    assert verdict.ratio is not None
    assert verdict.ratio.values == (0.99, 0.99)


@pytest.mark.parametrize("missing", ["ours", "flink"])
def test_there_is_no_verdict_on_what_was_not_measured_and_the_page_says_why(missing: str) -> None:
    made = outcome()
    left = tuple(figure for figure in made.figures if figure.system != missing)
    for unavailable, why in (({}, f"no calls/s of {missing} in this run"), ({missing: "it fell"}, "it fell")):
        found = dataclasses.replace(made, figures=left, unavailable=unavailable)
        assert FASTER.judge(found.figures, found.unavailable).met is None
        assert why in page("targets", found)


def test_the_table_of_targets_shows_on_which_side_of_the_bound_a_ratio_is() -> None:
    (_, row) = target_rows([outcome((97.96, 97.99, 97.999), (100.0,) * 3)], {"A": CASE})
    assert row == ["A", "calls/s: ours at least 0.98 x flink", "0.9799x", "0.98 .. 0.98", "**no**"]


def test_the_memory_to_plan_with_is_more_than_any_peak_of_a_worker() -> None:
    """The rule of thumb in docs/deployment.md, held against the measured peaks."""
    batch_rows, capacity = 1_000, 100
    waiting = {name: HELD_ROWS * HELD_SIZE if limit is None else limit for name, limit in LIMITS.items()}
    peaks = {each.system: each.values for each in load(LATEST).outcomes[HELD.id].figures if each.quantity == "peak MB"}
    assert peaks.keys() == LIMITS.keys()
    for name, values in peaks.items():
        held = capacity * HELD_SIZE + waiting[name] + OUTPUT_BYTES
        # In that run results on their way to Spark did not count: all of two batches could wait.
        held += 2 * batch_rows * HELD_SIZE
        assert max(values) * 1e6 <= 2 * held + 300 * 2**20


# Peers and ours are measured alike.


def test_systems_are_measured_in_turn_after_a_round_that_does_not_count_and_closed_at_the_end() -> None:
    told: list[str] = []

    def system(name: str, fails_at: int = 9) -> System:
        def measure() -> Sample:
            told.append(name)
            if told.count(name) == fails_at:
                raise UnavailableError("it fell")
            return Sample({"calls": told.count(name)})

        return System(name, measure, lambda: told.append(f"end of {name}"))

    with_two = dataclasses.replace(CASE, systems=lambda _: nullcontext([system("a"), system("b", fails_at=3)]))
    found = measured(with_two, Settings(), 3, lambda _: None)
    assert told == [*"abababa", "end of b", "end of a"]
    assert found.figures == (Figure("a", "calls", (2, 3, 4)),)
    assert found.unavailable == {"b": "it fell (in round 2)"}


def test_the_garbage_collector_leaves_the_objects_of_the_benchmark_alone() -> None:
    try:
        settle_collector()
        assert gc.get_freeze_count() > len(gc.get_objects())
    finally:
        gc.unfreeze()


def test_notes_of_peers_and_why_one_is_missing_stand_on_the_page() -> None:
    both = outcome(notes={"flink": "capacity=100"}, unavailable={"ray": "no ray"})
    one = dataclasses.replace(both, id="B", notes={**both.notes, "daft": "in B"})
    assert page("notes", both, one).splitlines()[2:-2] == [
        "- daft (B): in B",
        "- flink (A, B): capacity=100",
        "- ray (A, B): could not be measured: no ray",
    ]


PROGRAM = """
import sys
for line in sys.stdin:
    print("a library says hello")
    print('{"seconds": 1.5, "rows": %d, "version": "1"}' % min(int(line), 3), flush=True)
"""


def program(text: str, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setattr("benchmarks.peers._run.arguments", lambda *_: [sys.executable, "-IS", "-c", text])
    return Program("daft", Workload([0.0] * 4))


def test_a_peer_stays_for_all_rounds_takes_no_cpu_between_them_and_must_give_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = program(PROGRAM, monkeypatch)
    try:
        assert [peer.run(rows).rows for rows in (1, 3)] == [1, 3]
        state = Path(f"/proc/{peer.pid}/stat")
        if state.exists():
            wait_until_stopped(state)
        with pytest.raises(PeerUnavailable, match="gave 3 of 4 rows"):
            peer.run(4)
    finally:
        peer.close()
    assert peer._process.returncode == 0  # by itself, when its input ended


def wait_until_stopped(state: Path) -> None:
    """The kernel stops a process some moments after the signal."""
    while state.read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("input(); print('{oh')", "daft said '{oh'"),
        ("input(); print('{\"rows\": 1}')", "daft said '{\"rows\": 1}'"),
        (
            "import sys; sys.exit('no module in /usr/lib/x/y.py, line 3')",
            "daft ended with 1: no module in y.py, line 3",
        ),
        ("raise SystemExit(3)", "daft ended with 3: it said nothing"),
    ],
    ids=["no JSON", "another JSON", "its last words", "silent"],
)
def test_a_peer_that_fails_says_why_in_one_line_without_folders(
    text: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = program(text, monkeypatch)
    try:
        with pytest.raises(PeerUnavailable) as failed:
            peer.run(1)
    finally:
        peer.close()
    assert reason in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
def test_the_cpu_of_a_process_counts_its_children_also_when_they_have_ended() -> None:
    child = [sys.executable, "-IS", "-c", "for _ in range(2_000_000): pass\ninput()"]
    with subprocess.Popen(child, stdin=subprocess.PIPE) as running:
        processes = Processes(running.pid)
        while processes.cpu() < 0.02:
            time.sleep(0.001)
        assert processes.memory() > 1
        before = processes.cpu()
        running.communicate(b"\n")
    assert processes.cpu() >= before


def test_the_ideal_is_that_of_callers_who_are_never_idle() -> None:
    assert seconds_at_best([1.0] * 10, 5) == 2.0
    assert seconds_at_best([1.0, 1.0, 4.0], 2) == 5.0


def test_batches_of_another_size_than_the_table_says_are_an_error() -> None:
    assert [len(batch) for batch in sized([[0] * 3, [0] * 3, [0]], 3)] == [3, 3, 1]
    for wrong in ([[0] * 4], [[0] * 2, [0] * 3]):
        with pytest.raises(AssertionError, match="rows, not of 3"):
            list(sized(wrong, 3))


def test_the_account_counts_the_calls_of_each_function() -> None:
    """A call that suspends begins once and goes on once, in ours as in the plain program."""
    rows, names = 50, ("bare", "ordered", "unordered")
    found = {name: run(taken(PROGRAMS[name], rows), asyncio.new_event_loop) for name in names}
    assert {name: account.calls["suspends_once"] for name, account in found.items()} == dict.fromkeys(found, 2 * rows)
