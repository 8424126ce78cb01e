"""Outcomes as SVG files: bars for systems side by side, lines for growth. The same figures give the same bytes."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._harness import Case, Figure, Outcome

__all__ = ("draw", "require_matplotlib")

COLORS = {"ours": "#1b6ca8", "reference": "#9aa5b1", "peer": "#ecc999", "peer at its best": "#c9771e"}
LINES = ("-o", "--s", ":D", "-.^")
WIDE = 30  # largest over smallest, from which on a linear scale shows nothing
STYLE = {
    "svg.fonttype": "none",  # text stays text, which is small
    "svg.hashsalt": "asyncudf",  # or ids would be random
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def require_matplotlib() -> None:
    """Say so before the cases run, not after.

    Raises:
        SystemExit: it is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("--plot needs matplotlib: pip install -e '.[benchmarks]'")


def draw(outcome: Outcome, case: Case, folder: Path) -> None:
    """Write `<id>.svg`, with a panel for each quantity that the case shows and has; nothing if there is none."""
    of_each = [[each for each in outcome.figures if each.quantity == quantity] for quantity in case.plots]
    shown = [figures for figures in of_each if figures]
    if not shown:
        return
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        page = figures.Figure(figsize=(7, _height(case, shown)), layout="constrained")
        page.suptitle(outcome.title, fontsize=10)
        for panel, of_one in zip(page.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            (_lines if case.axis else _bars)(panel, of_one, case)
        page.savefig(folder / f"{outcome.id.lower()}.svg", format="svg", metadata={"Date": None})


def _height(case: Case, shown: Sequence[Sequence[Figure]]) -> float:
    return 3.0 if case.axis else 0.9 + 0.3 * max(map(len, shown))


def _bars(panel: Any, figures: Sequence[Figure], case: Case) -> None:
    for place, figure in enumerate(figures):
        error = [[figure.median - min(figure.values)], [max(figure.values) - figure.median]]
        panel.barh(place, figure.median, xerr=error, color=COLORS[figure.kind], ecolor="#444444", height=0.7)
    panel.set_yticks(range(len(figures)), [figure.label for figure in figures])
    panel.invert_yaxis()
    panel.set_xlabel(figures[0].quantity)


def _lines(panel: Any, figures: Sequence[Figure], case: Case) -> None:
    for system, line in zip(dict.fromkeys(figure.system for figure in figures), itertools.cycle(LINES), strict=False):
        points = [figure for figure in figures if figure.system == system]
        low = [point.median - min(point.values) for point in points]
        high = [max(point.values) - point.median for point in points]
        look = {"fmt": line, "color": COLORS[points[0].kind], "markersize": 4, "capsize": 2, "label": system}
        panel.errorbar([p.at for p in points], [p.median for p in points], yerr=[low, high], **look)
    panel.set_xscale("log")
    panel.set_xlabel(case.axis)
    panel.set_ylabel(figures[0].quantity)
    _scale_y(panel, [figure.median for figure in figures])
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.legend(frameon=False)


def _scale_y(panel: Any, values: Sequence[float]) -> None:
    if max(values) > WIDE * min(values) > 0:
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:,.0f}")
    else:
        panel.set_ylim(0, 1.2 * max(values))
