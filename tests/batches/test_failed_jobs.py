"""A job that fails as a whole: its requests are divided until those to blame are alone, or it is no request's fault."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asyncudf import AsyncUDFError, Budget, http
from asyncudf._batches import writer as writers
from asyncudf.batches import BatchRequest, JobState, JobStatus, NotAnsweredError
from tests.batches.submissions import Finding, Process, Service, disk_of, errors, values
from tests.kit.batch_folders import DriverKilled


class Strict(Finding):
    """Fails each job with a request that is `bad`; with `names` it says which of them, at most so many at once."""

    def __init__(self, bad: Callable[[int], bool], max_requests: int = 100, *, names: int = 0, **bounds: Any) -> None:
        super().__init__(max_requests, **bounds)
        self.bad, self.names, self.error = bad, names, "a bad request"
        self.ends = lambda job: "failed" if self.wrong(job) else "ended"
        self.whole: set[str] = set()

    def wrong(self, job: str) -> list[str]:
        return [request.key for request in self.jobs[job][1] if self.bad(request.body["n"])]

    def poll(self, job: str) -> JobStatus:
        status = super().poll(job)
        return JobStatus(status.state, status.answers, self.error if status.state is JobState.FAILED else "")

    def fetch(self, job: str) -> Iterator[tuple[str, Any]]:
        yield from super().fetch(job)
        if self.states[job] == "failed":
            for key in self.wrong(job)[: self.names]:
                yield key, http.error_for(400, body="this is the one")

    @property
    def tries(self) -> Counter[int]:
        """In how many jobs each number was."""
        return Counter(request.body["n"] for _, requests in self.jobs.values() for request in requests)


@pytest.mark.parametrize("names", [0, 1, 2, 100])
@pytest.mark.parametrize("bad", [{7}, {0, 99}, {3, 4, 5, 50}, set(range(0, 100, 9))])
def test_requests_that_make_a_job_fail_are_dead_letters_and_cost_no_attempt_of_the_others(
    bad: set[int], names: int
) -> None:
    """The same job was sent once in each attempt, and then all of its rows were given up."""
    service, disk = Strict(bad.__contains__, names=names), disk_of(range(100))
    progress = Process(disk, service, attempts=1).rounds()
    assert (progress.is_done, progress.attempt) == (True, 1)
    assert values(disk) == {n: 2 * n for n in range(100) if n not in bad}
    assert errors(disk).keys() == bad
    assert set(service.billed.values()) == {1}
    assert {json.loads(body)["attempt"] for body in service.billed} == {1}
    most = {0: 1 + 2 * 7 * len(bad), 1: 1 + 2 * 7 * len(bad), 2: 1 + len(bad) * 7, 100: 2}[names]
    assert len(service.jobs) <= most
    if names == 100:
        assert {(one["type"], one["status"], one["attempts"]) for one in errors(disk).values()} == {
            ("PermanentError", 400, 1)
        }
    if names == 0:
        assert {one["message"] for one in errors(disk).values()} == {
            "the request has no answer: its job has failed: a bad request"
        }


def test_named_requests_that_never_end_are_found_by_halves() -> None:
    """A service that names one request in each answer would be sent a job for each of them."""
    service, disk = Strict(lambda n: n < 60, names=1), disk_of(range(200))
    assert Process(disk, service).rounds().is_done
    assert (len(values(disk)), len(errors(disk))) == (140, 60)
    assert max(service.tries.values()) <= 8 + 2 + 8, "rests, then halves, then rests of them"


def test_a_job_that_fails_once_is_sent_again_in_halves() -> None:
    service, disk = Service(100), disk_of(range(100))
    service.ends = lambda job: "failed" if job == "job-0" else "ended"
    progress = Process(disk, service, attempts=1).rounds()
    assert (progress.attempt, len(values(disk)), len(service.jobs)) == (1, 100, 3)


def test_a_job_of_one_request_that_fails_is_an_attempt_of_it() -> None:
    service, disk = Strict(lambda n: n == 1, max_requests=1), disk_of(range(3))
    Process(disk, service, attempts=3).rounds()
    assert (values(disk), service.tries[1], errors(disk)[1]["attempts"]) == ({0: 0, 2: 4}, 3, 3)


def test_half_of_a_job_that_was_answered_before_it_failed_counts() -> None:
    """And is paid for once."""
    service, disk = Service(10), disk_of(range(10))
    submit = service.submit
    sizes = list[int]()

    def noted(requests: Any, key: str) -> str:
        sizes.append(len(requests))
        return submit(requests, key)

    def end(job: str, state: str) -> None:
        Service._end(service, job, "ended")
        if job == "job-0":
            service.states[job] = "failed"
            kept = list(service.answers[job].items())[:4]
            service.billed = Counter({json.dumps(r.body, sort_keys=True): 1 for r in service.jobs[job][1][:4]})
            service.answers[job] = dict(kept)

    service.submit, service._end = noted, end  # type: ignore[method-assign]
    assert Process(disk, service, attempts=1).rounds().is_done
    assert (len(values(disk)), sizes, set(service.billed.values())) == (10, [10, 6], {1})


def test_a_failed_job_costs_nothing_and_its_pieces_are_reserved() -> None:
    budget = Budget(1000, "tokens", reserve=3, settle=lambda n, answer: 1)
    without = Budget(1000, "USD", reserve=3)
    service, disk = Strict(lambda n: n == 5, names=1), disk_of(range(30))
    progress = Process(disk, service, budgets=[budget, without]).rounds()
    assert progress.spent(2) == [29.0, 29 * 3.0]


def test_a_budget_that_does_not_reach_for_the_pieces_ends_it_as_ever() -> None:
    service, disk = Strict(lambda n: n == 5), disk_of(range(30))
    budget = Budget(20, "USD", reserve=1)
    for _ in range(2):
        with pytest.raises(AsyncUDFError, match="of its budget of 20 USD"):
            Process(disk, service, budgets=[budget]).rounds()
    assert Process(disk, service, budgets=[Budget(40, "USD", reserve=1)]).rounds().is_done
    assert len(values(disk)) == 29


@pytest.mark.parametrize("jobs", [1, 10])
def test_an_account_whose_jobs_all_fail_ends_it_after_some_jobs_and_no_request_is_lost(jobs: int) -> None:
    service, disk = Strict(lambda n: True, max_requests=1000 // jobs), disk_of(range(1000))
    service.error = "no such model"
    with pytest.raises(AsyncUDFError, match=r"all jobs of double have failed, also job-\d+ with 1 request: no such"):
        Process(disk, service).rounds()
    assert len(service.jobs) <= jobs * 2 + 2 * 10
    assert (values(disk), errors(disk)) == ({}, {})
    for _ in range(3):  # each process tries the last ones once more
        before = len(service.jobs)
        with pytest.raises(AsyncUDFError, match="all jobs of double have failed"):
            Process(disk, service).rounds()
        assert len(service.jobs) - before in (1, 2)
    service.bad = lambda n: n == 77
    assert Process(disk, service).rounds().is_done
    assert (len(values(disk)), errors(disk).keys()) == (999, {77})
    assert set(service.billed.values()) == {1}


def test_an_account_whose_jobs_all_fail_can_be_cancelled() -> None:
    service, disk = Strict(lambda n: True), disk_of(range(100))
    with pytest.raises(AsyncUDFError, match="all jobs of double have failed"):
        Process(disk, service).rounds()
    with Process(disk, service).writer() as writer:
        writer.cancel()
    assert Process(disk, service).rounds().is_done
    assert len(errors(disk)) == 100


def test_requests_are_not_to_blame_before_another_job_has_worked() -> None:
    """The others may be at work for a day: meanwhile the one that failed alone waits, and submit has returned."""
    service, disk = Strict(lambda n: n == 5), disk_of(range(64))
    service.ends = lambda job: "failed" if service.wrong(job) else "working"
    with Process(disk, service).writer() as writer:
        for _ in range(30):
            writer._send_at = 0.0
            writer.round()
        assert (len(service.jobs), errors(disk), writer.is_accepted) == (1 + 2 * 6, {}, True)
    service.ends = lambda job: "failed" if service.wrong(job) else "ended"
    assert Process(disk, service).rounds().is_done
    assert (len(values(disk)), errors(disk).keys()) == (63, {5})


def test_a_quota_that_is_used_up_is_no_requests_fault() -> None:
    service, disk = Strict(lambda n: True), disk_of(range(100))
    service.error = "billing_hard_limit_reached: You have reached your limit"
    for jobs in (1, 2):
        with pytest.raises(AsyncUDFError, match=r"a quota of the service is used up: billing_hard_limit_reached: You"):
            Process(disk, service).rounds()
        assert len(service.jobs) == jobs
    service.bad = lambda n: False
    progress = Process(disk, service, attempts=1).rounds()
    assert (progress.is_done, len(values(disk)), len(service.jobs)) == (True, 100, 3)


def test_the_number_of_jobs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "MOST_PIECES", 20)
    service, disk = Strict(lambda n: n % 2 == 1, max_requests=50), disk_of(range(200))
    service.bad = lambda n: n >= 100 and n % 2 == 1
    assert Process(disk, service).rounds().is_done
    pieces = [requests for key, requests in service.jobs.values() if key.rstrip("-0")[-1] in "abr"]
    assert len(pieces) < 40, "20, and those that were planned together"
    assert values(disk).keys() | errors(disk).keys() == set(range(200))
    assert any("requests has failed: a bad request" in one["message"] for one in errors(disk).values())


@pytest.mark.parametrize("error", [NotAnsweredError("no"), http.error_for(500), http.error_for(429)])
def test_an_error_of_this_moment_for_a_request_of_a_failed_job_blames_nobody(error: Exception) -> None:
    service, disk = Service(100), disk_of(range(40))
    service.ends = lambda job: "failed" if job == "job-0" else "ended"
    service.lines = lambda job, lines: (
        [(request.key, error) for request in service.jobs[job][1]] if job == "job-0" else lines
    )
    assert Process(disk, service, attempts=1).rounds().is_done
    assert (len(values(disk)), len(service.jobs)) == (40, 3)


def test_a_job_key_has_64_characters_at_most_however_deep_a_piece_is() -> None:
    service, disk = Strict(lambda n: n < 30, names=1), disk_of(range(1000))
    process = Process(disk, service)
    process.rounds()
    longest = max(len(part.name) for part in process.submitted.progress().parts)
    assert len("0123456789ab-99--99") + longest + 8 <= 64


@pytest.mark.parametrize("names", [0, 1])
def test_wherever_the_driver_dies_the_next_one_goes_on(names: int) -> None:
    """One kill at each step in turn."""
    for number in range(400):
        service, disk = Strict(lambda n: n in (3, 11), names=names), disk_of(range(25))
        left = iter(range(number))

        def step(name: str, left: Any = left) -> None:
            if next(left, None) is None:
                raise DriverKilled(name)

        try:
            Process(disk, service, step, attempts=1).rounds()
            break
        except DriverKilled:
            pass
        assert Process(disk, service, attempts=1).rounds().is_done
        assert values(disk) == {n: 2 * n for n in range(25) if n not in (3, 11)}
        assert errors(disk).keys() == {3, 11}
        assert (service.twice, set(service.billed.values())) == (0, {1})
    assert number > 40, "it was killed often"


def test_rows_of_a_failed_job_can_be_read_by_their_requests() -> None:
    """Each piece has the requests of its job and no others."""
    service, disk = Strict(lambda n: n == 5), disk_of(range(16))
    Process(disk, service).rounds()
    sizes = sorted(len(requests) for _, requests in service.jobs.values())
    assert sizes == [1, 1, 2, 2, 4, 4, 8, 8, 16]
    assert all(isinstance(request, BatchRequest) for _, requests in service.jobs.values() for request in requests)
