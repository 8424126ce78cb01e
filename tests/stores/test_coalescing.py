"""Equal calls share one, and one write: a call at a time for each key, no row lost, no failure handed on."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncudf import async_pandas_udf
from asyncudf._engine.stored.coalescing import SingleFlight
from asyncudf._engine.stored.stored_results import StoredResults, StoreWriter
from asyncudf.queues._queues import RecordEntry
from tests.kit.engines import Engine
from tests.kit.stores import Counting, LeasedStore, SlowStore
from tests.kit.thorough import examples

KEYS = st.sampled_from([b"a", b"b", b"c"])


class FlightsAsLists(RuleBasedStateMachine):
    """Against a model: for each key a list of calls, of which the first leads."""

    def __init__(self) -> None:
        super().__init__()
        self.flights: SingleFlight[int] = SingleFlight()
        self.model: dict[bytes, list[int]] = {}
        self.gone: list[tuple[bytes, int]] = []
        self.number = 0

    @rule(key=KEYS)
    def join(self, key: bytes) -> None:
        """The first of a key leads, others follow."""
        self.number += 1
        assert self.flights.join(key, self.number) == (key not in self.model)
        self.model.setdefault(key, []).append(self.number)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leader_lands(self, data: st.DataObject) -> None:
        """All that follow have the result, in their order."""
        key = data.draw(st.sampled_from(sorted(self.model)))
        leader, *followers = self.model.pop(key)
        assert list(self.flights.land(key, leader)) == followers
        self.gone.append((key, leader))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def anyone_leaves(self, data: st.DataObject) -> None:
        """Whoever leaves, the rest stays in its order; a new leader is told once."""
        key = data.draw(st.sampled_from(sorted(self.model)))
        calls = self.model[key]
        call = data.draw(st.sampled_from(calls))
        led = calls[0] == call
        calls.remove(call)
        assert self.flights.leave(key, call) == (calls[0] if led and calls else None)
        if not calls:
            del self.model[key]
        self.gone.append((key, call))

    @precondition(lambda self: any(len(calls) > 1 for calls in self.model.values()))
    @rule(data=st.data())
    def a_follower_has_its_own_result(self, data: st.DataObject) -> None:
        """One that was called all the same is out, and nobody else is done by it."""
        key = data.draw(st.sampled_from(sorted(key for key, calls in self.model.items() if len(calls) > 1)))
        call = data.draw(st.sampled_from(self.model[key][1:]))
        assert list(self.flights.land(key, call)) == []
        self.model[key].remove(call)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def too_late(self, data: st.DataObject) -> None:
        """One that is out already changes nothing."""
        key, call = data.draw(st.sampled_from(self.gone))
        assert self.flights.leave(key, call) is None
        assert list(self.flights.land(key, call)) == []

    @invariant()
    def the_first_leads(self) -> None:
        """One of each key leads, and the others wait."""
        for key, calls in self.model.items():
            assert [self.flights.leads(key, call) for call in calls] == [True] + [False] * (len(calls) - 1)
        assert self.flights.following == sum(len(calls) - 1 for calls in self.model.values())


FlightsAsLists.TestCase.settings = settings(max_examples=examples(2))
TestFlights = FlightsAsLists.TestCase


def test_what_others_call_leaves_a_large_batch_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row was compared with all that leave: a batch of 20,000 rows held up the loop for seconds."""
    compared = 0

    def equals(one: object, other: object) -> bool:
        nonlocal compared
        compared += 1
        return one is other

    monkeypatch.setattr(RecordEntry, "__eq__", equals)
    monkeypatch.setattr(RecordEntry, "__hash__", object.__hash__)

    async def same(numbers: pd.Series) -> pd.Series:
        await asyncio.sleep(1)
        return numbers

    rows = [*range(300)]
    options = {"store": LeasedStore(), "returnType": "bigint", "version": "1", "batch_size": 300, "capacity": 2}
    first = Engine(same, **options)
    second = Engine(same, loop=first.loop, **options)
    for engine in (first, second):
        engine.feed(rows)
        engine.end()
    first.run(second)
    assert first.output == second.output == rows
    assert compared < 10 * len(rows)


@pytest.mark.parametrize("ttls", [*itertools.permutations((None, 1.0, 60.0, 0.5), 2)], ids=str)
def test_of_one_batch_the_last_write_of_a_key_counts(ttls: tuple[float | None, float | None]) -> None:
    """An error and a result that came after it have a ttl each, and are written one after the other."""

    async def main() -> bytes | None:
        store = SlowStore()
        options = async_pandas_udf(Counting().function, store=store).options
        stored = StoredResults("f", store, None, None, options, lambda: 0.0)  # type: ignore[arg-type]
        await stored._open()
        ended = lambda *_: None  # noqa: E731
        loop = asyncio.get_running_loop()
        operator = SimpleNamespace(loop=loop, has_finished=False, push=ended, fail=ended)
        writer = StoreWriter(operator, stored, lambda: False)  # type: ignore[arg-type]
        for value, ttl in zip((b"old", b"new"), ttls, strict=True):
            writer.put(b"key", value, ttl, ended)
        await writer.close()
        return store.entries.get(b"key")

    assert asyncio.run(main()) == b"new"
