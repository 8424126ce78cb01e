"""The failed rows of all tasks together, against the budget of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from .._policies.error_budget import ErrorBudget, Failures
from .beat import Beat
from .client import Coordinator
from .scripts import TALLY

__all__ = ("SharedFailures",)


BEAT = 0.5  # seconds between two exchanges, where nothing has failed
REFRESH = 60.0  # seconds after which the counts are asked for, lest they are forgotten while nothing is to be told
LONGEST = 200  # characters of an example: each micro-batch of a stream leaves some, for a while


class SharedFailures:
    """Counts the rows of this task into those of the job; of one event loop.

    Args:
        spent: called with the counts of the job when the budget is spent.
        fail: called with the error when the coordinator does not answer.
    """

    # _own: not told yet, or it is not certain that it was heard; as what is added up looks at the answer, the one who
    # tells last sees the counts of all
    # _refreshed: when something was told last

    def __init__(
        self,
        coordinator: Coordinator,
        name: str,
        budget: ErrorBudget,
        spent: Callable[[Failures], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._coordinator, self._budget, self._spent = coordinator, budget, spent
        self._keys = [coordinator.key("failures", name), coordinator.key("examples", name)]
        self._own = Failures()
        self._refreshed = coordinator.clock()
        self._beat = Beat(self._exchange, fail)

    def add(self, rows: int, types: Mapping[str, int] | None = None, examples: Iterable[str] = ()) -> None:
        """Count rows that are done; of these as many have failed as there are errors in `types`."""
        self._own.add(rows, types, [_shortened(example) for example in examples])
        if types:
            self._beat.poke()

    async def close(self) -> None:
        """Tell the last of them."""
        await self._beat.close()
        if not self._beat.has_failed:  # else the task has been told, and nobody would hear them
            await self._exchange()

    async def _exchange(self) -> float:
        now = self._coordinator.clock()
        if self._own.rows or now >= self._refreshed + REFRESH:
            own = self._own.taken()
            types = [part for pair in own.types.items() for part in pair]
            try:
                counts, examples = await self._coordinator.run(
                    TALLY, self._keys, own.rows, len(own.types), *types, *own.examples
                )
            except BaseException:
                self._own.merge(own)  # counted twice rather than never
                raise
            self._refreshed = now
            job = _failures(counts, examples)
            if self._budget.is_spent(job):
                self._spent(job)
        return BEAT


def _shortened(example: str) -> str:
    return example if len(example) <= LONGEST else f"{example[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def _failures(counts: list[str], examples: list[str]) -> Failures:
    found = {name: int(count) for name, count in zip(counts[::2], counts[1::2], strict=True)}
    rows = found.pop("rows", 0)
    types = Counter({name.removeprefix("type:"): count for name, count in found.items()})
    return Failures(rows, types.total(), types, examples)
