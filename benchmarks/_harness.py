"""What a case is, how it is measured, and what its targets say about the figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Literal

from .peers import PEERS as SET_UPS

__all__ = (
    "AT_ITS_BEST",
    "BEST_PEER",
    "PEERS",
    "Case",
    "Figure",
    "Kind",
    "Outcome",
    "Sample",
    "Settings",
    "System",
    "Target",
    "UnavailableError",
    "Verdict",
    "higher_is_better",
    "measured",
)

Kind = Literal["ours", "reference", "peer", "peer at its best"]
Tell = Callable[[str], None]
BEST_PEER = "the best peer at its best"
PEERS: tuple[Kind, ...] = ("peer", "peer at its best")
AT_ITS_BEST = "-best"  # ends the names of such peers


class UnavailableError(Exception):
    """A system cannot be measured here; says why."""


@dataclass(frozen=True)
class Settings:
    """What the command line asked for. `peers`: None for no peers, empty for all."""

    scale: float = 1.0
    repetitions: int | None = None
    peers: tuple[str, ...] | None = None

    def rows(self, full: int) -> int:
        """How many of the rows of a full run."""
        return max(1, round(full * self.scale))

    def sizes(self, full: Sequence[int]) -> list[int]:
        """Those sizes of a growth case that are not too large."""
        largest = self.rows(max(full))
        return [size for size in full if size <= largest] or [largest]


@dataclass(frozen=True)
class Sample:
    """One measurement: a value for each quantity, which is named by its unit ("us/row")."""

    values: Mapping[str, float]
    version: str = ""
    note: str = ""


@dataclass(frozen=True)
class System:
    """Something to measure. `at` is its place on the axis of a growth case."""

    name: str
    measure: Callable[[], Sample]
    kind: Kind = "ours"
    at: float | None = None

    @property
    def label(self) -> str:
        return labelled(self.name, self.at)


@dataclass(frozen=True)
class Figure:
    """What was measured of one quantity of one system, a value for each round."""

    system: str
    quantity: str
    values: tuple[float, ...]
    kind: Kind = "ours"
    at: float | None = None

    @property
    def label(self) -> str:
        return labelled(self.system, self.at)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def worst(self) -> float:
        """The value of the worst round."""
        return min(self.values) if higher_is_better(self.quantity) else max(self.values)

    def ratio_to(self, other: Figure) -> Figure:
        """The ratio of each round, as a figure, whose median counts: what slows down a whole round does not."""
        ratios = tuple(a / b for a, b in zip(self.values, other.values, strict=True))
        return Figure(self.system, self.quantity, ratios)


@dataclass(frozen=True)
class Verdict:
    """How a target was met. None: not measured, or nothing to compare with; `why` then says so."""

    target: str
    quantity: str
    ours: float | None = None
    ratio: float | None = None
    met: bool | None = None
    why: str = ""
    best_peer: str = ""
    ratio_to_peer: float | None = None
    ratios: tuple[float, ...] = ()  # of the rounds


@dataclass(frozen=True)
class Target:
    """A bound on a quantity of ours, or with `against` on its ratio to another system's. No bound: only compare.

    `against` may be BEST_PEER: whichever peer does best in a run that has peers at their best. `id` is what the target
    is called, if not as its case. `worst`: the worst round is judged, not the median.
    """

    quantity: str
    ours: str
    bound: float | None = None
    against: str = ""
    id: str = ""
    worst: bool = False

    def __str__(self) -> str:
        if self.bound is None:
            return f"{self.quantity}: {self.ours} beside {self.against} (no target)"
        least = "at least" if higher_is_better(self.quantity) else "at most"
        to = f" x {self.against}" if self.against else ""
        return f"{self.quantity}: {self.ours} {least} {self.bound:g}{to}{' in each round' if self.worst else ''}"

    def judge(
        self, figures: Sequence[Figure], unavailable: Mapping[str, str], not_asked: Sequence[str] = ()
    ) -> Verdict:
        """`not_asked`: the peers, and their set-ups, that the run was told to leave out."""
        found = {figure.label: figure for figure in figures if figure.quantity == self.quantity}
        ours, best = found.get(self.ours), self._best_peer(list(found.values()))
        gap = _missing_peers(figures, unavailable, not_asked) if self.against == BEST_PEER else ""
        other = found.get(self.against) if self.against != BEST_PEER else None if gap else best
        if ours is None:
            return Verdict(str(self), self.quantity, why=f"{self.ours} is not part of this run")
        value = self._judged(ours)
        verdict = Verdict(str(self), self.quantity, value)
        if best is not None:
            verdict = replace(verdict, best_peer=best.label, ratio_to_peer=ours.ratio_to(best).median)
        if self.against and other is None:
            why = gap or unavailable.get(self.against, f"{self.against} is not part of this run")
            return replace(verdict, why=why)
        if other is None:
            return replace(verdict, met=self._is_met(value))
        ratios = ours.ratio_to(other)
        ratio = self._judged(ratios)
        return replace(verdict, ratio=ratio, ratios=ratios.values, met=self._is_met(ratio))

    def _judged(self, figure: Figure) -> float:
        return figure.worst if self.worst else figure.median

    def _is_met(self, value: float) -> bool | None:
        if self.bound is None:
            return None
        return value >= self.bound if higher_is_better(self.quantity) else value <= self.bound

    def _best_peer(self, figures: list[Figure]) -> Figure | None:
        peers = [figure for figure in figures if figure.kind in PEERS]
        choose = max if higher_is_better(self.quantity) else min
        return choose(peers, key=lambda figure: figure.median, default=None)


def _missing_peers(figures: Sequence[Figure], unavailable: Mapping[str, str], not_asked: Sequence[str]) -> str:
    """Why the winner is not the best peer: one that might have been better was not there. Nothing if all were."""
    if all(figure.kind != "peer at its best" for figure in figures):
        return f"{BEST_PEER} is not part of this run"
    gaps = {"not asked for": not_asked, "could not be measured": unavailable}
    missing = {gap: [name for name in names if name.endswith(AT_ITS_BEST)] for gap, names in gaps.items()}
    return "; ".join(f"{gap}: {', '.join(names)}" for gap, names in missing.items() if names)


@dataclass(frozen=True)
class Case:
    """A question with an answer in figures.

    Args:
        systems: opens what the case needs (a server, a Spark session) for as long as its systems are measured.
        axis: what `at` of its systems counts, for a growth case.
        plots: the quantities to draw, one panel for each.
        loop: which event loop the calls run on.
        is_warm: whether `systems` leaves everything warm, so that no round is needed for that.
    """

    id: str
    title: str
    systems: Callable[[Settings], AbstractContextManager[list[System]]]
    targets: tuple[Target, ...] = ()
    repetitions: int = 5
    axis: str = ""
    plots: tuple[str, ...] = ()
    loop: str = "ours on uvloop"
    is_warm: bool = False

    @property
    def has_peers(self) -> bool:
        """Whether it can be run beside them."""
        return any(target.against == BEST_PEER for target in self.targets)


@dataclass(frozen=True)
class Outcome:
    """The figures of a case, with all that is needed to read them later."""

    id: str
    title: str
    scale: float
    repetitions: int
    figures: tuple[Figure, ...]
    unavailable: Mapping[str, str] = field(default_factory=dict)  # system -> reason
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    started: str = ""
    commit: str = ""  # nothing: it was not recorded
    peers: tuple[str, ...] = ()  # that were asked for

    @property
    def not_asked(self) -> list[str]:
        """The set-ups of peers that the run was told to leave out."""
        return [name for name in SET_UPS if name not in self.peers]

    def verdicts(self, case: Case) -> list[Verdict]:
        return [target.judge(self.figures, self.unavailable, self.not_asked) for target in case.targets]


def measured(case: Case, settings: Settings, tell: Tell) -> Outcome:
    """Run a case."""
    repetitions = settings.repetitions or case.repetitions
    with case.systems(settings) as systems:
        peers = tuple(system.name for system in systems if system.kind in PEERS)
        samples, unavailable = interleaved(systems, repetitions, tell, is_warm=case.is_warm)
    figures = tuple(figure for system, taken in samples.items() for figure in figures_of(system, taken))
    versions = {system.name: taken[-1].version for system, taken in samples.items() if taken[-1].version}
    notes = {system.name: taken[-1].note for system, taken in samples.items() if taken[-1].note}
    return Outcome(case.id, case.title, settings.scale, repetitions, figures, unavailable, versions, notes, peers=peers)


def interleaved(
    systems: Sequence[System], repetitions: int, tell: Tell, *, is_warm: bool = False
) -> tuple[dict[System, list[Sample]], dict[str, str]]:
    """Each system's samples, measured A B A B ... after a round of warm-up; and why some could not be measured."""
    samples: dict[System, list[Sample]] = {system: [] for system in systems}
    unavailable: dict[str, str] = {}
    for repetition in range(1 if is_warm else 0, repetitions + 1):
        for system in list(samples):
            tell(f"{f'round {repetition} of {repetitions}' if repetition else 'warm-up'}: {system.label}")
            try:
                sample = system.measure()
            except UnavailableError as reason:
                unavailable[system.label] = f"{reason} (in round {repetition})" if repetition else str(reason)
                del samples[system]
                continue
            if repetition:
                samples[system].append(sample)
    return samples, unavailable


def figures_of(system: System, samples: Sequence[Sample]) -> Iterator[Figure]:
    for quantity in samples[0].values:
        values = tuple(sample.values[quantity] for sample in samples)
        yield Figure(system.name, quantity, values, system.kind, system.at)


def labelled(name: str, at: float | None) -> str:
    return name if at is None else f"{name} at {at:,.0f}"


def higher_is_better(quantity: str) -> bool:
    """Rates and shares; all else is a cost."""
    return quantity.endswith("/s") or quantity.startswith("%")
