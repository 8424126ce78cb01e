"""The page of a run says what its metrics say, to people, and does nothing else."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from asyncudf import OptionError
from asyncudf._errors import figures
from asyncudf._observe.reports.run_report import run_report
from tests.kit.colours import closest
from tests.kit.pages import Element, figures_in, read_page, value_at
from tests.kit.plain_figures import STATES
from tests.kit.sample_runs import SAMPLES, metrics_of, plain_run, strange_run, troubled_run

FORMS = ("bytes_", "count", "number", "rate", "seconds", "share")


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    return {name: sample() for name, sample in SAMPLES.items()}


@pytest.fixture(scope="module", params=SAMPLES)
def sample(
    request: pytest.FixtureRequest, runs: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Element]:
    """The metrics of a run, and its page."""
    metrics = runs[request.param]
    return metrics, page_of(metrics, tmp_path_factory.mktemp("page"))


def page_of(metrics: dict[str, Any], folder: Path) -> Element:
    run_report(metrics, folder / "run.html")
    return read_page(folder / "run.html")


def style_of(page: Element) -> str:
    (style,) = page.all("style")
    return style.text


class TestFigures:
    def test_each_is_that_of_the_metrics(self, sample: tuple[Any, Element]) -> None:
        """To the last digit in the page, and as short as people like it to the eye."""
        metrics, page = sample
        shown = figures_in(page)
        assert "seconds" in shown
        for name, (value, texts) in shown.items():
            assert value == value_at(metrics, name), name
            forms = {getattr(figures, form)(value) for form in FORMS}
            assert texts <= forms, f"{name} reads {texts}"

    def test_those_that_matter_are_there(self, sample: tuple[Any, Element]) -> None:
        """Of each function what it did, how long it took, and where the time went."""
        metrics, page = sample
        shown = figures_in(page).keys()
        for number, function in enumerate(metrics["functions"]):
            wanted = ["rows", "latency.p50", "latency.p95", "latency.p99", "in_flight.mean"]
            wanted += [f"time.{state}" for state in STATES if function["time"][state]]
            wanted += [
                name for name in ("failures", "retries", "timeouts", "dead_letters", "store_hits") if function[name]
            ]
            wanted += [f"errors.{kind}" for kind in function["errors"]]
            wanted += [f"tasks.{status}" for status, count in function["tasks"].items() if count]
            wanted += ["failed_attempts.calls"] if function["failed_attempts"]["calls"] else []
            assert {f"functions.{number}.{name}" for name in wanted} <= shown

    def test_what_is_reckoned_is_reckoned_right(self, sample: tuple[Any, Element]) -> None:
        metrics, page = sample
        for name, (value, texts) in figures_in(page, "derived").items():
            number, what, *more = (part.replace("~1", ".").replace("~0", "~") for part in name.split("."))
            function = metrics["functions"][int(number)]
            wall = function["ended"] - function["began"]
            if what == "rows_per_second":
                wanted = function["rows"] / wall if wall else None
            elif what == "share":
                wanted = function["time"][more[0]] / function["seconds"]
            else:
                assert what == "error_share"
                wanted = function["errors"][more[0]] / function["attempts"]
            assert value == pytest.approx(wanted), name
            assert texts == {(figures.rate if what == "rows_per_second" else figures.share)(wanted)}


def test_bars_are_as_long_as_the_time_in_each_state(sample: tuple[Any, Element]) -> None:
    """The bar of all tasks together is full, and each colour has its share of it."""
    metrics, page = sample
    bars = [bar for bar in page.all("div") if "whole" in (bar.attributes.get("class") or "")]
    with_time = [function for function in metrics["functions"] if function["seconds"]]
    for bar, function in zip(bars, with_time, strict=True):
        widths = {
            part.attributes["class"]: float(re.sub("[^0-9.]", "", part.attributes["style"] or ""))
            for part in bar.all("i")
        }
        shares = {f"s-{name}": 100 * part / function["seconds"] for name, part in function["time"].items() if part}
        assert widths == pytest.approx(shares, abs=0.01)


def test_the_histogram_has_every_call(sample: tuple[Any, Element]) -> None:
    metrics, page = sample
    counts = [
        sum(int(bar.attributes["data-calls"] or 0) for bar in figure.all("rect"))
        for figure in page.all("div", class_="histogram")
    ]
    assert counts == [f["latency"]["count"] for f in metrics["functions"] if f["latency"]["count"]]


def test_of_many_tasks_the_longest_twelve_are_drawn(runs: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """The page says so, shows the account of time of 24, and stays small."""
    page = page_of(runs["many_tasks"], tmp_path)
    (courses,) = page.all("ul", class_="multiples")
    assert len([*courses.all("li")]) == 12
    (bars,) = page.all("ul", class_="tasks")
    assert len([*bars.all("li")]) == 24
    assert "The 12 longest of 240 tasks" in " ".join(page.text.split())
    assert "And 216 tasks that were shorter" in " ".join(page.text.split())
    assert (tmp_path / "run.html").stat().st_size < 500_000


class TestPage:
    def test_it_is_well_formed(self, sample: tuple[Any, Element]) -> None:
        _, page = sample
        ids = Counter(element.attributes["id"] for element in page.all() if "id" in element.attributes)
        assert not [name for name, count in ids.items() if count > 1]
        for link in page.all("a"):
            assert (link.attributes["href"] or "").removeprefix("#") in ids

    def test_it_can_be_read_aloud(self, sample: tuple[Any, Element]) -> None:
        """A language, headings in their order, charts that have a name, tables whose headers say what they head."""
        _, page = sample
        (html,) = page.all("html")
        assert html.attributes["lang"] == "en"
        levels = [int(element.tag[1]) for element in page.all() if re.fullmatch(r"h[1-6]", element.tag)]
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        for svg in page.all("svg"):
            first = next((child for child in svg.children if isinstance(child, Element)), None)
            named = svg.attributes.get("role") == "img" and first is not None and first.tag == "title" and first.text
            assert named or svg.attributes.get("aria-hidden") == "true"
        assert all(header.attributes.get("scope") in ("col", "row") for header in page.all("th"))

    def test_it_needs_nothing_else(self, sample: tuple[Any, Element]) -> None:
        _, page = sample
        tags = {element.tag for element in page.all()}
        assert not tags & {"script", "img", "iframe", "object", "embed", "image", "use"}
        assert not re.search(r"url\(|@import|@font-face", style_of(page))
        for element in page.all():
            for name in ("src", "href", "srcset", "action"):
                assert (element.attributes.get(name) or "#").startswith(("#", "data:,"))
            assert not [name for name in element.attributes if name.startswith("on")]


class TestTexts:
    def test_markup_is_shown_and_not_obeyed(self, tmp_path: Path) -> None:
        metrics = strange_run()
        page = page_of(metrics, tmp_path)
        function = metrics["functions"][0]
        for text in (*function["examples"].values(), *function["errors"], function["verdict"]["text"]):
            assert text in page.text
        assert function["function"] in page.text
        assert function["options"]["note"] in page.text
        assert not {"script", "img"} & {element.tag for element in page.all()}
        assert not [bold for bold in page.all("b") if not bold.text.endswith(" ms")]  # a quantile's, and none of a name

    def test_options_in_a_verdict_look_like_code(self, tmp_path: Path) -> None:
        metrics = plain_run(1, 20)
        metrics["functions"][0]["verdict"]["text"] = 'capacity=40, or output_mode="<b>un</b>ordered" & timeout=1.5.'
        (verdict,) = page_of(metrics, tmp_path).all("div", class_="verdict")
        codes = [code.text for code in verdict.all("code")]
        assert codes == ["capacity=40", 'output_mode="<b>un</b>ordered"', "timeout=1.5"]
        assert metrics["functions"][0]["verdict"]["text"] in verdict.text

    @pytest.mark.parametrize("hidden", ["\x00", "\x1b[31m", "\x9b", "\u202e", "\r"])
    def test_characters_that_act_unseen_are_told(self, hidden: str, tmp_path: Path) -> None:
        """A page with a NUL is no page, and a bare mark of direction turns about what follows it."""
        metrics = plain_run(2, 20)
        function, text = metrics["functions"][0], f"a{hidden}b"
        function.update(function=text, errors={text: 1}, examples={text: text}, options={text: text, "capacity": 3})
        function["verdict"]["text"] = text
        for task in function["per_task"]:
            task["host"] = text
        metrics["functions"].append({**function, "failed_attempts": {**function["failed_attempts"], "calls": 1}})
        page = page_of(metrics, tmp_path)
        raw = (tmp_path / "run.html").read_bytes().decode()
        assert hidden[0] not in raw
        assert f"a{ascii(hidden)[1:-1]}b" in page.text

    def test_odd_messages_and_names_stay_readable(self, tmp_path: Path) -> None:
        """A path in the metrics is told with points too; a half emoji is JSON, but no UTF-8; a long message is cut."""
        metrics = plain_run(1, 20)
        name = "\u0645\u0631\u062d\u0628\u0627 #2"
        examples = {"E": "two\n\tlines", "Odd\ud83d": "half \ud83d of it", "Long": "word " * 40_000, "a.b~c.Error": ""}
        metrics["functions"][0].update(function=name, errors=dict.fromkeys(examples, 3), examples=examples)
        page = page_of(metrics, tmp_path)
        for text in ("two\n\tlines", r"half \ud83d of it", "(200,000 characters)"):
            assert text in page.text
        assert (tmp_path / "run.html").stat().st_size < 100_000
        (heading,) = page.all("h2")
        assert [span.text for span in heading.all("span", dir="auto")] == [name]  # with a direction of its own
        assert figures_in(page)["functions.0.errors.a~1b~0c~1Error"][0] == 3


class TestCases:
    """What is not there is said in words, or left out."""

    def test_what_is_not_there_is_said_or_left_out(self, tmp_path: Path) -> None:
        """A run without functions, one that goes on, a single function, no verdict, and options that are not known."""
        assert "No asynchronous function ran" in page_of(metrics_of([]), tmp_path).text
        assert "still running" in page_of(strange_run(), tmp_path).text
        assert len([*page_of(troubled_run(2, 40), tmp_path).all("ul", class_="overview")]) == 1
        metrics = plain_run(1, 20)
        page = page_of(metrics, tmp_path)
        assert "Configuration" in page.text
        assert "still running" not in page.text
        assert not [*page.all("ul", class_="overview")]
        assert [*page.all("div", class_="verdict")]
        del metrics["functions"][0]["verdict"]
        metrics["functions"][0]["options"] = {}
        page = page_of(metrics, tmp_path)
        assert not [*page.all("div", class_="verdict")]
        assert "Configuration" not in page.text

    def test_one_is_not_many(self, tmp_path: Path) -> None:
        """1 call, 1 row, 1 task, 1 retry."""
        metrics = plain_run(1, 20)
        metrics["functions"] *= 2
        metrics["functions"][0].update(
            rows=1, calls=1, attempts=1, retries=1, failures=1, errors={"E": 1}, per_task_left_out=1
        )
        latency = metrics["functions"][0]["latency"]
        latency.update(count=1, histogram=latency["histogram"][:1])
        latency["histogram"][0][1] = 1
        metrics["functions"][0]["per_task"] *= 2
        text = " ".join(page_of(metrics, tmp_path).text.split())
        assert re.findall(r"(?<![\d.,])1 (?:calls|rows|tasks|attempts|slots|retries)\b", text) == []
        assert "1 attempt was a retry; 1 row failed" in text
        assert "And 1 task that was shorter" in text


def test_without_jinja2_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(OptionError, match=re.escape('a report needs Jinja2: pip install "asyncudf[report]"')):
        run_report(plain_run(1, 20), tmp_path / "run.html")
    assert not [*tmp_path.iterdir()]


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run_report(plain_run(1, 20), "~/run.html")
    assert [*tmp_path.iterdir()] == [tmp_path / "run.html"]


@pytest.mark.parametrize("name", ["", "no/such/folder/run.html", "a\0b", "\ud800"])
def test_a_path_that_cannot_be_written_is_told(name: str, tmp_path: Path) -> None:
    """A folder, a file in a folder that is not there, and what no file can be called."""
    reasons = "Is a directory|No such file|embedded null|.* codec can't encode"
    with pytest.raises(OptionError, match=rf"the report cannot be written to .*: ({reasons})"):
        run_report(plain_run(1, 20), tmp_path / name)


def themes(page: Element) -> Iterator[dict[str, str]]:
    """The colours of each theme, by their names."""
    for block in re.findall(r":root \{(.*?)\}", style_of(page), flags=re.DOTALL):
        colours = dict(re.findall(r"--(\w+): (#\w+)", block))
        if "calls_busy" in colours:
            yield colours


def test_nine_colours_can_be_told_apart_by_all(tmp_path: Path) -> None:
    """Light and dark, with any of the three kinds of colour blindness; 10 is clearly another colour side by side."""
    both = [*themes(page_of(metrics_of([]), tmp_path))]
    assert len(both) == 2
    for colours in both:
        distance, pair = closest({state: colours[state] for state in STATES})
        assert distance > 14, pair
