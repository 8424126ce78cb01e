"""A row that is set aside is found at once, however many keys are at their limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from asyncudf._engine.calls.attempt import Attempt
from asyncudf._engine.calls.key_lines import KeyLines
from asyncudf._engine.calls.row import Row
from asyncudf._limits.gate import Aside
from tests.kit.costs import python_calls


def aside(keys: int) -> tuple[KeyLines, list[Row]]:
    """A row of each key."""
    operator: Any = SimpleNamespace(waiting_has_changed=lambda: None)
    lines, rows = KeyLines(operator, lambda attempt: None), list[Row]()
    for number in range(keys):
        row = Row()
        row.open()
        attempt = Attempt((row,))
        attempt.keys = (str(number),)
        lines.set_aside(attempt, Aside((0, str(number)), None))
        rows.append(row)
    return lines, rows


def test_to_take_a_row_out_costs_the_same_with_any_number_of_keys() -> None:
    """Of 100,000 keys all lines were looked through: 15 ms for each row."""
    few, many = aside(10), aside(1_000)
    few_calls, many_calls = (python_calls(lambda: lines.take_out(rows[-1])) for lines, rows in (few, many))  # noqa: B023
    assert few_calls == many_calls
    assert [len(lines.attempts) for lines, _ in (few, many)] == [9, 999]
    assert few[0].waiting((0, "9")) == 0
