"""What a case is, how it is measured, and what its targets say about the figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Literal

__all__ = (
    "ROUNDS",
    "Case",
    "Figure",
    "Outcome",
    "Sample",
    "Settings",
    "System",
    "Target",
    "UnavailableError",
    "Verdict",
    "measured",
)

ROUNDS = 5  # of every case; the interval of five rounds has the true median with a probability of 94%
Tell = Callable[[str], None]
Answer = Literal["yes", "no", "open"]


class UnavailableError(Exception):
    """A system cannot be measured here; says why."""


@dataclass(frozen=True)
class Settings:
    """What the command line asked for. `peers`: the names of those that take part."""

    scale: float = 1.0
    peers: tuple[str, ...] = ()

    def rows(self, full: int) -> int:
        """How many of the rows of a full run."""
        return max(1, round(full * self.scale))


@dataclass(frozen=True)
class Sample:
    """One measurement: a value for each quantity, which is named by its unit ("us/row")."""

    values: Mapping[str, float]
    version: str = ""
    note: str = ""


@dataclass(frozen=True)
class System:
    """Something to measure."""

    name: str
    measure: Callable[[], Sample]
    close: Callable[[], object] = lambda: None  # when the case is done


@dataclass(frozen=True)
class Figure:
    """What was measured of one quantity of one system, a value for each round."""

    system: str
    quantity: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def ratio_to(self, other: Figure) -> Figure:
        """The ratio of each round: what slows down a whole round does not count."""
        ratios = tuple(a / b for a, b in zip(self.values, other.values, strict=True))
        return Figure(self.system, self.quantity, ratios)


@dataclass(frozen=True)
class Verdict:
    """Whether a target is met: "open" if the rounds lie on both sides of the bound. None: `why` says why not judged."""

    ours: Figure | None = None
    ratio: Figure | None = None
    met: Answer | None = None
    why: str = ""


@dataclass(frozen=True)
class Target:
    """A bound on a quantity of ours, or with `against` on its ratio to another system's.

    Args:
        most: it must not be more. Either this or `least` is given.
        least: it must not be less.
        id: what the target is called, if not as its case.
    """

    quantity: str
    ours: str
    most: float | None = None
    least: float | None = None
    against: str = ""
    id: str = ""

    @property
    def bound(self) -> float:
        bound = self.least if self.most is None else self.most
        assert bound is not None
        return bound

    def __str__(self) -> str:
        to = f" x {self.against}" if self.against else ""
        return f"{self.quantity}: {self.ours} at {'least' if self.most is None else 'most'} {self.bound:g}{to}"

    def judge(self, figures: Sequence[Figure], unavailable: Mapping[str, str]) -> Verdict:
        found = {figure.system: figure for figure in figures if figure.quantity == self.quantity}
        for name in filter(None, (self.ours, self.against)):
            if name not in found:
                return Verdict(why=unavailable.get(name, f"no {self.quantity} of {name} in this run"))
        ours = found[self.ours]
        ratio = ours.ratio_to(found[self.against]) if self.against else None
        return Verdict(ours, ratio, self._answer((ratio or ours).values))

    def _answer(self, values: Sequence[float]) -> Answer:
        """Only if the whole interval lies on one side of the bound it is met or missed."""
        good = [value >= self.bound if self.most is None else value <= self.bound for value in values]
        return "yes" if all(good) else "open" if any(good) else "no"


@dataclass(frozen=True)
class Case:
    """A question with an answer in figures.

    Args:
        systems: opens what the case needs (a server, a Spark session) for as long as its systems are measured.
        minutes: that a full run takes on two cores, about.
        how: what a reader must know of the figures.
        peers: those that can take part.
        is_cold: whether every measurement is the first of a process, so that no round goes before.
        is_of_others: whether nothing of this project runs, so that its figures are those of any commit.
    """

    id: str
    title: str
    systems: Callable[[Settings], AbstractContextManager[list[System]]]
    targets: tuple[Target, ...] = ()
    minutes: float = 1.0
    how: str = ""
    peers: tuple[str, ...] = ()
    is_cold: bool = False
    is_of_others: bool = False


@dataclass(frozen=True)
class Outcome:
    """The figures of a case, with all that is needed to read them later."""

    id: str
    title: str
    scale: float
    rounds: int
    figures: tuple[Figure, ...]
    started: str = ""
    seconds: float = 0.0
    how: str = ""
    unavailable: Mapping[str, str] = field(default_factory=dict)  # system -> reason
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def verdicts(self, case: Case) -> list[Verdict]:
        return [target.judge(self.figures, self.unavailable) for target in case.targets]


def measured(case: Case, settings: Settings, rounds: int, tell: Tell) -> Outcome:
    """Run a case: its systems in turn (A B A B), after a round that does not count."""
    with case.systems(settings) as systems, ExitStack() as stack:
        for system in systems:
            stack.callback(system.close)
        samples: dict[str, list[Sample]] = {system.name: [] for system in systems}
        unavailable: dict[str, str] = {}
        for number in range(1 if case.is_cold else 0, rounds + 1):
            for system in systems:
                if system.name in unavailable:
                    continue
                tell(f"{f'round {number} of {rounds}' if number else 'warm-up'}: {system.name}")
                try:
                    sample = system.measure()
                except UnavailableError as reason:
                    unavailable[system.name] = f"{reason} (in round {number})" if number else str(reason)
                    continue
                if number:
                    samples[system.name].append(sample)
    samples = {name: taken for name, taken in samples.items() if name not in unavailable}
    return Outcome(
        case.id,
        case.title,
        settings.scale,
        rounds,
        tuple(figure for name, taken in samples.items() for figure in _figures(name, taken)),
        how=case.how,
        unavailable=unavailable,
        versions={name: taken[-1].version for name, taken in samples.items() if taken[-1].version},
        notes={name: taken[-1].note for name, taken in samples.items() if taken[-1].note},
    )


def _figures(system: str, samples: Sequence[Sample]) -> Iterator[Figure]:
    for quantity in samples[0].values:
        yield Figure(system, quantity, tuple(sample.values[quantity] for sample in samples))
