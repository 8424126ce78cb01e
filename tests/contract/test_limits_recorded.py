"""Who calls services that are not well, and when: each call as it was recorded.

A change that moves calls on purpose writes the recordings anew, and says in its commit what the totals were and are:

    python -m tests.kit.unwell_services > tests/contract/unwell_services.txt

A line: the service, a digest of all calls and results, calls, refused ones, failed ones, rows given up, seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.kit.coordinators import start_server
from tests.kit.unwell_services import ALONE, SHARED, record_alone, record_shared

RECORDED = [line.split() for line in Path(__file__).with_name("unwell_services.txt").read_text().splitlines()]


def compare(lines: Iterable[str], *, are_shared: bool) -> None:
    expected = {line[0]: line for line in RECORDED if line[0].startswith("shared_") is are_shared}
    found = {line[0]: line for line in map(str.split, lines)}
    assert found.keys() == expected.keys()
    differ = [
        f"{' '.join(line)}, not {' '.join(expected[name])}" for name, line in found.items() if line != expected[name]
    ]
    told = f"{len(differ)} services are called otherwise: {totals(found.values())}, not {totals(expected.values())}"
    assert not differ, "\n".join([told, *differ])


def totals(lines: Iterable[list[str]]) -> str:
    columns = zip(*[line[2:] for line in lines], strict=True)
    calls, refused, failed, given_up, seconds = (sum(map(float, column)) for column in columns)
    return f"{calls:g} calls, {refused:g} refused, {failed:g} failed, {given_up:g} rows given up, {seconds:.0f} s"


def test_tasks_alone() -> None:
    compare(record_alone(ALONE), are_shared=False)


@pytest.mark.services
def test_tasks_of_a_job() -> None:
    with contextlib.closing(start_server()) as server:
        compare(record_shared(SHARED, server), are_shared=True)
