"""What columns and workers cost beside a peer in the same run, where counts do not show it (test_cost.py).

A change that makes one dearer or cheaper writes the new ratio here, and says why in its commit.
"""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import pytest

from benchmarks import _results
from benchmarks._harness import Outcome
from tests.kit.java import needs_jvm

pytestmark = [pytest.mark.spark, pytest.mark.figures]


class Ratio(NamedTuple):
    """The best that was reached of ours to a peer's, in a case of the benchmarks, and how many times it may be."""

    case: str
    quantity: str
    ours: str
    peer: str
    best: float
    most: float = 1.1


BUSY = 1.7  # times the best: the CPU time of a few rounds, on a machine with other work
RATIOS = [
    Ratio("P22", "CPU us/row", "column of texts", "plain Arrow UDF of texts", 4.0, BUSY),
    Ratio("P22", "CPU us/row", "column of bytes", "plain Arrow UDF of bytes", 3.6, BUSY),
    Ratio("P27", "MB", "operator", "plain mapInArrow", 1.2),
]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """In a process of its own: these cases have a Spark of their own, too."""
    needs_jvm()
    found = tmp_path_factory.mktemp("figures") / "found.json"
    cases = sorted({ratio.case for ratio in RATIOS})
    options = ["--scale", "0.2", "--rounds", "5", "--json", str(found)]
    command = [sys.executable, "-m", "benchmarks", "--only", *cases, *options]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=_results.ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return dict(_results.load(found).outcomes)


@pytest.mark.parametrize("ratio", RATIOS, ids=lambda ratio: f"{ratio.case} {ratio.ours}")
def test_beside_a_peer_it_costs_what_it_did(measured: dict[str, Outcome], ratio: Ratio) -> None:
    """The lowest of the rounds, of each: what else runs only adds to a round."""
    figures = [figure for figure in measured[ratio.case].figures if figure.quantity == ratio.quantity]
    lowest = {figure.system: min(figure.values) for figure in figures}
    spent = lowest[ratio.ours] / lowest[ratio.peer]
    assert spent <= ratio.most * ratio.best, f"{ratio.ours} has {spent:.2f} times the {ratio.quantity} of {ratio.peer}"
