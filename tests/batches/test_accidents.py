"""Whatever is killed: each request has one end, and nothing is billed twice where the service can be asked."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from asyncudf import AsyncUDFError, Budget, http
from asyncudf.batches import NotAnsweredError
from tests.batches.submissions import Finding, Process, Service, disk_of, errors, values
from tests.kit.batch_folders import DriverKilled, WorkerKilled
from tests.kit.thorough import times


class Program:
    """A submission of some rows, a service with some manners, and some accidents, by chance."""

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        kind = rng.choice([Service, Finding])
        bounds: dict[str, Any] = {"max_queued": rng.choice([5.0, 9.0])} if rng.random() < 0.3 else {}
        self.service: Service = kind(rng.randint(1, 4), **bounds)
        self.numbers = [rng.randrange(12) for _ in range(rng.randint(0, 20))]
        self.attempts = rng.randint(1, 4)
        self.budgets = [Budget(1e6, "tokens", reserve=5, settle=lambda n, answer: 2)] if rng.random() < 0.5 else []
        self.disk = disk_of(self.numbers)
        self.disk.random.seed(seed)
        self.kills = rng.choice([0, 0.02, 0.08, 0.2])
        self.left = 40  # accidents; then all goes well
        self.bad = {n: rng.random() for n in range(12)}
        # Requests that make each job fail that they are in; the service may say which.
        self.poison = {n for n in range(12) if rng.random() < 0.15} if rng.random() < 0.4 else set()
        self.names = rng.choice([0, 1, 9])
        self.service.answer, self.service.ends, self.service.lines = self.answer, self.ends, self.lines
        self.service.step = self.asked
        self.writers_that_died = 0
        self.cancels, self.is_cancelled = rng.random() < 0.2, False
        self.asked_of: Counter[tuple[int, int]] = Counter()

    def accident(self, share: float) -> bool:
        happens = self.left > 0 and self.random.random() < share
        self.left -= happens
        return happens

    def step(self, name: str) -> None:
        """Of the driver."""
        if self.accident(self.kills):
            self.writers_that_died += name == "send task done"
            raise DriverKilled(name)

    def asked(self, name: str) -> None:
        """Of the service, in a worker."""
        if self.accident(self.kills):
            self.writers_that_died += name == "submit after"
            raise WorkerKilled(name) if self.random.random() < 0.6 else DriverKilled(name)
        if self.accident(0.03):
            self.writers_that_died += name == "submit after"
            raise self.random.choice([http.error_for(503), ConnectionResetError(), TimeoutError()])
        if name == "submit before" and self.accident(0.05):
            raise http.error_for(429, retry_after=1.0)

    def answer(self, body: Any) -> Any:
        self.asked_of[body["n"], body["attempt"]] += 1
        chance = (self.bad[body["n"]] * 7 + body["attempt"] * 0.37) % 1
        ends = [(0.05, None), (0.1, {"value": "x"}), (0.15, http.error_for(400)), (0.2, http.error_for(500))]
        ends += [(0.22, NotAnsweredError("late")), (0.24, {"no": 1})]
        return next((end for share, end in ends if chance < share), {"value": 2 * body["n"]})

    def poisoned(self, job: str) -> list[str]:
        return [request.key for request in self.service.jobs[job][1] if request.body["n"] in self.poison]

    def ends(self, job: str) -> str:
        if self.poisoned(job):
            return "failed"
        if not self.accident(0.5):
            return "ended"
        return self.random.choice(["working", "working", "expired", "cancelled", "failed", "refused"])

    def lines(self, job: str, found: list[Any]) -> list[Any]:
        self.random.shuffle(found)
        found += [(key, http.error_for(400)) for key in self.poisoned(job)[: self.names]]
        if self.accident(0.1):
            return found[: len(found) // 2]
        if self.accident(0.1) and found:
            damaged = NotAnsweredError("a line that nobody can read")
            damaged.is_damaged = True
            found[0] = (found[0][0], damaged)
        if self.random.random() < 0.2:  # an answer counts, whatever else is said about its request
            found = [*((key, NotAnsweredError("not yet")) for key, _ in found[:2]), *found]
        if self.accident(0.1):
            return [*found[:1], self.random.choice([(None, 1), ([], 1), (7, 1)]), *found[1:]]
        return [*found, *found[:2], ("0" * 32, {"value": 7})] if self.random.random() < 0.3 else found

    def play(self) -> None:
        """Processes go on with it, one after the other, until it is done."""
        for _ in range(60):
            process = Process(self.disk, self.service, self.step, budgets=self.budgets, attempts=self.attempts)
            try:
                if self.cancels and self.random.random() < 0.3:
                    self.is_cancelled = True
                    with process.writer() as writer:
                        writer.cancel()
                if process.rounds().is_done:
                    return
            except (DriverKilled, AsyncUDFError):
                continue
        raise AssertionError("it goes on for ever")

    def check(self) -> None:
        progress, service, numbers = self.progress(), self.service, set(self.numbers)
        good, bad = values(self.disk), errors(self.disk)
        assert good.keys() | bad.keys() == numbers
        assert not good.keys() & bad.keys()
        assert good == {n: 2 * n for n in good}
        assert progress.is_done
        if type(service) is Finding:
            assert (service.twice, progress.may_be_twice) == (0, 0)
        assert service.twice <= self.writers_that_died, "at most one job for each"
        assert max((body for _, body in self.asked_of), default=1) <= self.attempts
        assert len(service.jobs) <= 60 + 20 * self.attempts, "no job is divided for ever"
        keys = {key for key, _ in service.jobs.values()}
        assert len(keys) + service.twice == len(service.jobs)
        if self.budgets and not progress.may_be_twice:
            billed = sum(service.billed.values())
            assert progress.spent(1)[0] <= 2 * billed + 5 * sum(self.asked_of.values())
        # A row is dead only after all its attempts, or for an error that lasts, or because it could not be asked.
        # Requests that make a job fail have no result, and the others have what they would have without them.
        assert not self.poison & good.keys()
        for n, error in bad.items():
            lasts = error["status"] == 400 or "its job has failed" in error["message"]
            assert lasts or self.is_cancelled or error["attempts"] == self.attempts, (n, error)

    def progress(self) -> Any:
        return Process(self.disk, self.service, attempts=self.attempts, budgets=self.budgets).submitted.progress()


@pytest.mark.parametrize("seed", times(60, 5_000))
def test_any_accident(seed: int) -> None:
    program = Program(seed)
    program.play()
    program.check()
