"""The failed rows of all tasks together, against the budget of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from .._policies.error_budget import ErrorBudget, Failures
from .client import Coordinator
from .periodic import PeriodicTask
from .scripts import TALLY

__all__ = ("SharedFailures",)


BEAT = 0.5  # seconds between two exchanges, where nothing has failed
REFRESH = 60.0  # seconds after which the counts are asked for, lest they are forgotten while nothing is to be told
LONGEST = 200  # characters of an example: each micro-batch of a stream leaves some, for a while


class SharedFailures(PeriodicTask):
    """Counts the rows of this task into those of the job; of one event loop.

    Rows that Spark has run before, in an attempt that failed, count once.

    Args:
        part: the rows that this task works on.
        spent: called with the counts of the job when the budget is spent.
        fail: called with the error when the coordinator does not answer.
    """

    # Counts are told in all: what is told again, because nobody knows whether it was heard, counts once. As what is
    # added up looks at the answer, the task that tells last sees the counts of all.
    #
    # _own: of this task since it began, with the examples that were not told yet
    # _told: the rows that were told
    # _refreshed: when something was told last

    def __init__(
        self,
        coordinator: Coordinator,
        name: str,
        part: str,
        budget: ErrorBudget,
        spent: Callable[[Failures], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(coordinator, [coordinator.key(kind, name) for kind in ("failures", "examples", "parts")], fail)
        self._part, self._budget, self._spent = part, budget, spent
        self._own, self._told = Failures(), 0
        self._refreshed = coordinator.clock()

    def add(self, rows: int, types: Mapping[str, int] | None = None, examples: Iterable[str] = ()) -> None:
        """Count rows that are done; of these as many have failed as there are errors in `types`."""
        self._own.add(rows, types, [_shortened(example) for example in examples])
        if types:
            self._poke()

    async def close(self) -> None:
        """Tell the last of them."""
        await super().close()
        if not self._has_failed:  # else the task has been told, and nobody would hear them
            await self._exchange()

    async def _exchange(self) -> float:
        own, now = self._own, self._clock()
        if own.rows > self._told or now >= self._refreshed + REFRESH:
            rows, examples = own.rows, [*own.examples]
            counts = {
                "rows": rows,
                "failed": own.failed,
                **{f"type:{name}": count for name, count in own.types.items()},
            }
            told = [part for pair in counts.items() for part in pair]
            answer = await self._ask(TALLY, self._part, len(counts), *told, *examples)
            self._told, self._refreshed = rows, now
            del own.examples[: len(examples)]
            job = _failures(*answer)
            if self._budget.is_spent(job):
                self._spent(job)
        return BEAT


def _shortened(example: str) -> str:
    return example if len(example) <= LONGEST else f"{example[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"


def _failures(counts: list[str], examples: list[str]) -> Failures:
    found = {name: int(count) for name, count in zip(counts[::2], counts[1::2], strict=True)}
    rows, failed = found.pop("rows", 0), found.pop("failed", 0)
    return Failures(
        rows, failed, Counter({name.removeprefix("type:"): count for name, count in found.items()}), examples
    )
