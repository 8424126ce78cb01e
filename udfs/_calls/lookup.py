"""Looks whole batches of rows up in a store, before they ask for anything else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from asyncudf.queues import StreamRecord

from .._metrics.counters import TaskCounters
from .looked_up import Answered, KeyedRecord
from .stored_results import KEYS_AT_ONCE, Found, StoredResults

__all__ = ("Lookup",)


Key = bytes | BaseException


class Lookup:
    """Asks the store for the results of rows.

    Args:
        is_single: whether each row has exactly one result, as a function of its kind gives.
    """

    def __init__(self, stored: StoredResults, counters: TaskCounters, *, is_single: bool) -> None:
        self._stored = stored
        self._counters = counters
        self._is_single = is_single

    @property
    def rows_at_once(self) -> int:
        """How many rows to look up together, so that their results do not fill the memory."""
        return self._stored.rows_at_once

    async def look_up(self, elements: Sequence[Any]) -> list[Any]:
        """The elements in their order: rows with a result in runs of `Answered`, other rows with their keys.

        Raises:
            AsyncUDFError: the store has failed, and that shall end the task.
        """
        rows = [element for element in elements if type(element) is tuple or isinstance(element, StreamRecord)]
        keys = await self._keys(rows)
        found = await self._found(keys)
        misses = found.count(None)
        self._counters.totals.store_hits += len(rows) - misses
        self._counters.totals.store_misses += misses
        if self._is_single and not misses and len(rows) == len(elements) and {*map(type, found)} <= {list}:
            return [Answered(rows, [results[0] for results in found])] if rows else []  # type: ignore[index]
        return self._arranged(elements, keys, found)

    async def _keys(self, rows: Sequence[Any]) -> list[Key]:
        """The keys of rows; of one that has none the reason."""
        keys: list[Key] = []
        for start in range(0, len(rows), KEYS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            arguments = [row[0] for row in rows[start : start + KEYS_AT_ONCE]]
            try:
                keys += self._stored.keys.of_many(arguments)
            except BaseException:  # of a value that no key can be made of, or of the user's `key=`: whose is it?
                keys += [self._key(one) for one in arguments]
        return keys

    def _key(self, arguments: Any) -> Key:
        try:
            return self._stored.keys.of(arguments)
        except BaseException as error:
            return error

    async def _found(self, keys: Sequence[Key]) -> list[Found]:
        good = [key for key in keys if type(key) is bytes]
        if not good:
            return [None] * len(keys)
        found = await self._stored.look_up(good)
        if len(good) == len(keys):
            return found
        in_order = iter(found)
        return [next(in_order) if type(key) is bytes else None for key in keys]

    def _arranged(self, elements: Sequence[Any], keys: Sequence[Key], found: Sequence[Found]) -> list[Any]:
        arranged: list[Any] = []
        rows: list[Any] = []
        results: list[Any] = []
        answers, now = zip(keys, found, strict=True), self._counters.clock()
        for element in elements:
            is_row = type(element) is tuple or isinstance(element, StreamRecord)
            key, answer = next(answers) if is_row else (b"", None)
            if is_row and self._is_single and type(answer) is list:
                rows.append(element)
                results.append(answer[0])
                continue
            if rows:
                arranged.append(Answered(rows, results))
                rows, results = [], []
            arranged.append(KeyedRecord.of(element, key, answer, now) if is_row else element)
        if rows:
            arranged.append(Answered(rows, results))
        return arranged
