"""Resources are opened once per task, passed by name, and closed after the last call, in reverse."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncudf import AsyncUDFError
from asyncudf.testing import run_rows


class TestResources:
    def test_one_is_opened_per_task_passed_by_name_and_closed(self) -> None:
        events: list[str] = []

        @contextlib.asynccontextmanager
        async def client() -> AsyncIterator[str]:
            events.append("open")
            yield "the client"
            events.append("close")

        async def call(x: int, client: str) -> str:
            events.append(f"{x} {client}")
            return client

        assert run_rows(call, [1, 2], resources=client) == ["the client"] * 2
        assert events == ["open", "1 the client", "2 the client", "close"]

    def test_several_by_name_close_in_reverse_also_after_a_failure(self) -> None:
        events: list[str] = []

        def resource(name: str) -> Any:
            class Manager:
                async def __aenter__(self) -> str:
                    events.append(f"open {name}")
                    return name

                async def __aexit__(self, *exception: object) -> None:
                    events.append(f"close {name}")

            return Manager

        async def call(x: int, a: str, b: str) -> str:
            raise ValueError(a + b)

        with pytest.raises(AsyncUDFError, match="ValueError: ab"):
            run_rows(call, [1], resources={"a": resource("a"), "b": resource("b")})
        assert events == ["open a", "open b", "close b", "close a"]

    def test_an_error_of_opening_names_the_resource_and_closes_the_others(self) -> None:
        events: list[str] = []

        class Good:
            async def __aenter__(self) -> None: ...

            async def __aexit__(self, *exception: object) -> None:
                events.append("closed")

        class Bad:
            async def __aenter__(self) -> None:
                raise OSError("no route")

            async def __aexit__(self, *exception: object) -> None: ...

        async def call(x: int, good: Any, bad: Any) -> int:
            return x

        with pytest.raises(AsyncUDFError, match=r"resource 'bad' of call could not be opened: OSError: no route"):
            run_rows(call, [1], resources={"good": Good, "bad": Bad})
        assert events == ["closed"]

    def test_a_task_group_waits_for_work_beside_the_calls_and_tells_its_errors(self) -> None:
        written: list[int] = []

        @contextlib.asynccontextmanager
        async def beside() -> AsyncIterator[asyncio.TaskGroup]:
            async with asyncio.TaskGroup() as group:
                yield group

        async def write(x: int) -> None:
            await asyncio.sleep(10)
            written.append(1 // x)

        async def call(x: int, group: asyncio.TaskGroup) -> int:
            group.create_task(write(x))
            return x

        assert run_rows(call, [1, 2], resources={"group": beside}) == [1, 2]
        assert written == [1, 0]
        with pytest.raises(AsyncUDFError, match=r"resource 'group' of call could not be closed: .*: ZeroDivisionError"):
            run_rows(call, [1, 0], resources={"group": beside}, on_error="null")
