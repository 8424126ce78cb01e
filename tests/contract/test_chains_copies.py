"""What an operator edits in place is seen by no other."""

from __future__ import annotations

from typing import Any

import pytest

from asyncudf import AsyncStream
from asyncudf.testing import run_stream
from tests.kit.chains import first, numbers, second


class TestCopies:
    SCHEMA = "n int, xs array<int>, m map<string, array<int>>"

    def rows(self) -> list[dict[str, Any]]:
        return [{"n": n, "xs": [n], "m": {"k": [n]}} for n in range(3)]

    def spoil(self, row: dict[str, Any]) -> bool:
        row["n"] = -1
        row["xs"].append(99)
        row["m"]["k"].append(99)
        row["m"]["new"] = [0]
        return True

    def test_an_edit_is_never_seen_by_those_after_and_beside(self) -> None:
        seen: list[Any] = []

        async def edits(xs: list[int], m: dict[str, Any]) -> list[int]:
            xs.append(7)
            m["k"].append(7)
            return xs

        def chain(s: AsyncStream) -> dict[str, AsyncStream]:
            shared = s.ordered_wait(edits, returnType="array<int>")
            return {
                "beside": shared.filter(lambda row: seen.append(str(row)) or True),  # type: ignore[func-returns-value]
                "spoiled": shared.filter(self.spoil).filter(self.spoil),
                "whole": shared,
            }

        got = run_stream(chain, self.rows(), self.SCHEMA)
        whole = [{**row, "edits": [n, 7]} for n, row in enumerate(self.rows())]
        assert got == {"beside": whole, "spoiled": whole, "whole": whole}
        assert seen == [str(row) for row in whole]

    def test_with_object_reuse_nothing_is_copied(self) -> None:
        seen: list[Any] = []

        async def made(n: int) -> list[int]:
            return [n]

        def edit(row: dict[str, Any]) -> bool:
            row["made"].append(99)
            return True

        def look(row: dict[str, Any]) -> bool:
            seen.append(row["made"])
            return True

        for reuse, expected in ((False, [0]), (True, [0, 99])):
            seen.clear()
            run_stream(
                lambda s: s.ordered_wait(made, returnType="array<int>").filter(edit).filter(look),
                numbers(1),
                "n int",
                object_reuse=reuse,
            )
            assert seen == [expected]

    def test_rows_of_plain_values_are_not_copied_for_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("copy.deepcopy", lambda value: pytest.fail("a copy of what nobody can edit"))
        assert len(run_stream(lambda s: s.ordered_wait(first).ordered_wait(second), numbers(3), "n int")) == 3
