"""A submission goes on until each request has a result or is a dead letter, whatever the service does."""

from __future__ import annotations

import asyncio
import math
from decimal import Decimal
from typing import Any

import pytest

from asyncudf import AsyncUDFError, Budget, FatalError, ResultError, ResultStore, batch_function, http
from asyncudf._batches import writer as writers
from asyncudf._batches.journal import Event
from asyncudf.batches import JobStatus, NotAnsweredError
from tests.batches.submissions import Finding, Process, Service, disk_of, double, errors, values
from tests.kit.batch_folders import DriverKilled, MemoryFolder

NUMBERS = range(10)
DOUBLED = {n: 2 * n for n in NUMBERS}


def told(service: Service) -> dict[int, list[str]]:
    """Why each number was asked: the last errors, in the order of attempts."""
    found: dict[int, list[str]] = {}
    for _, requests in service.jobs.values():
        for request in requests:
            found.setdefault(request.body["n"], []).append(request.body["why"])
    return found


def test_equal_rows_are_one_request_and_each_job_is_fetched_once() -> None:
    service, disk = Service(), disk_of([*NUMBERS, *NUMBERS])
    assert Process(disk, service).rounds().is_done
    assert values(disk) == DOUBLED
    assert (set(service.billed.values()), len(service.jobs)) == ({1}, 4)
    assert set(service.fetched.values()) == {1}


def test_a_look_counts_no_results_that_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look of a sensor counted all results anew; those that a killed process has left have to be."""
    recounts: list[int] = []
    recount = MemoryFolder.recount

    def noted(folder: MemoryFolder) -> list[Event]:
        recounts.append(len(folder.disk.results))
        return recount(folder)

    monkeypatch.setattr(MemoryFolder, "recount", noted)
    service, disk = Service(), disk_of(NUMBERS)
    service.ends = lambda job: "ended" if job == "job-0" else "working"
    for _ in range(3):
        Process(disk, service).rounds(2)
    assert (len(values(disk)), recounts) == (3, [])

    def killed(step: str) -> None:
        if step == "settle task written":
            raise DriverKilled

    service.ends = lambda job: "ended" if job in ("job-0", "job-1") else "working"
    with pytest.raises(DriverKilled):
        Process(disk, service, killed).rounds(2)
    for _ in range(3):
        Process(disk, service).rounds(2)
    assert recounts == [6], "once, and what was counted then is known to the next process"
    assert (service.fetched["job-1"], len(values(disk))) == (1, 6)
    service.ends = lambda job: "ended"
    assert Process(disk, service).rounds().is_done


@pytest.mark.parametrize("state", ["expired", "cancelled"])
def test_what_has_no_answer_is_asked_again_and_told_why(state: str) -> None:
    service, disk = Service(), disk_of(NUMBERS)
    service.ends = lambda job: state if job in ("job-0", "job-1") else "ended"
    progress = Process(disk, service).rounds()
    assert (progress.attempt, values(disk)) == (2, DOUBLED)
    again = {n: whys[1] for n, whys in told(service).items() if len(whys) == 2}
    assert len(again) == (2 if state == "expired" else 6)
    word = {"expired": "its job expired before", "cancelled": "it was cancelled"}[state]
    assert set(again.values()) == {f"the request has no answer: {word}"}
    assert set(service.billed.values()) == {1}


def test_an_answer_that_does_not_fit_is_asked_again_with_what_was_wrong() -> None:
    service, disk = Service(), disk_of(NUMBERS)
    service.answer = lambda body: {"value": 2 * body["n"]} if body["why"] or body["n"] % 2 else {"value": "much"}
    assert Process(disk, service).rounds().attempt == 2
    assert values(disk) == DOUBLED
    assert {whys[1] for whys in told(service).values() if len(whys) == 2} == {
        "double returned 'much' (str): declared int64"
    }


def test_errors_of_the_service_are_asked_again_and_those_of_the_request_are_not() -> None:
    service, disk = Service(), disk_of(range(5))
    service.answer = lambda body: {
        1: http.error_for(400, body="no"), 2: http.error_for(503) if body["attempt"] < 3 else {"value": 4},
        3: http.error_for(429), 4: NotAnsweredError("late"),
    }.get(body["n"], {"value": 0})  # fmt: skip
    Process(disk, service, attempts=3).rounds()
    assert values(disk) == {0: 0, 2: 4}
    ends = {n: (error["type"], error["status"], error["attempts"]) for n, error in errors(disk).items()}
    assert ends == {1: ("PermanentError", 400, 1), 3: ("ThrottledError", 429, 3), 4: ("NotAnsweredError", None, 3)}
    assert {error["function"] for error in errors(disk).values()} == {"double"}


def test_a_parse_that_reads_nothing_asks_nothing_again_and_is_mended_for_nothing() -> None:
    service, disk = Service(10), disk_of(range(25))
    broken = batch_function(double.spec.function, "bigint", parse=lambda answer: answer["valeu"])
    with pytest.raises(
        AsyncUDFError, match=r"could read none of 25 answers, for example KeyError: 'valeu'\. Nothing is"
    ):
        Process(disk, service, function=broken).rounds()
    assert Process(disk, service, reparses=True).rounds().is_done
    assert len(values(disk)) == 25
    assert sum(service.billed.values()) == 25
    assert len(service.jobs) == 3


def test_what_a_mended_parse_has_read_counts_though_the_process_was_killed() -> None:
    """Nothing was left to be read again, so nobody counted the results: each wait said that parse reads nothing."""
    service, disk = Service(10), disk_of(range(25))
    broken = batch_function(double.spec.function, "bigint", parse=lambda answer: answer["valeu"])
    with pytest.raises(AsyncUDFError, match="could read none of 25 answers"):
        Process(disk, service, function=broken).rounds()

    def killed(step: str) -> None:
        if step == "reparse written":
            raise DriverKilled

    with pytest.raises(DriverKilled):
        Process(disk, service, killed, reparses=True).rounds()
    progress = Process(disk, service, function=broken).rounds()
    assert (progress.is_done, sum(part.outcome.ok for part in progress.parts), len(service.jobs)) == (True, 25, 3)


def test_dead_letters_are_read_again_too_by_a_parse_that_was_mended() -> None:
    service, disk = Service(10), disk_of(range(25))
    partly = batch_function(double.spec.function, "bigint", parse=lambda a: a["value"] or a["no"])
    Process(disk, service, function=partly, attempts=2).rounds()
    assert errors(disk)[0]["type"] == "KeyError"
    progress = Process(disk, service, attempts=2, reparses=True).rounds()
    assert (len(values(disk)), progress.is_done, sum(part.outcome.failed for part in progress.parts)) == (25, True, 0)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (math.nan, "gave a request that is no JSON: ValueError: Out of range float values"),
        ("\ud800", "gave a request that is no JSON: UnicodeEncodeError"),
        (None, "returned None, and no request"),
    ],
)
def test_what_no_file_of_requests_can_have_is_a_dead_letter_and_not_the_end_of_its_job(
    request_: Any, text: str
) -> None:
    service, disk = Service(), disk_of(range(3))
    service.answer = lambda body: {"value": 1}
    function = batch_function(lambda n: request_ if n == 1 else {"n": n}, "bigint", parse=double.parse)
    Process(disk, service, function=function).rounds()
    assert values(disk) == {0: 1, 2: 1}
    assert text in errors(disk)[1]["message"]


def test_half_a_file_is_fetched_again_and_what_stays_away_is_asked_again() -> None:
    service, disk = Service(5), disk_of(NUMBERS)
    service.lines = lambda job, lines: lines[: 2 if service.fetched[job] < 3 else None]
    assert Process(disk, service).rounds().attempt == 1
    assert values(disk) == DOUBLED
    assert set(service.fetched.values()) == {3}

    service, disk = Service(5), disk_of(NUMBERS)
    service.lines = lambda job, lines: lines[: 2 if job == "job-0" else None]
    assert Process(disk, service).rounds().attempt == 2
    assert values(disk) == DOUBLED
    assert sum(service.billed.values()) == 13, "of three nobody has the answers"


def test_what_stays_away_is_asked_again_too_where_each_look_is_a_process_of_its_own() -> None:
    """As with a sensor that runs the command line."""
    service, disk = Service(5), disk_of(NUMBERS)
    service.lines = lambda job, lines: lines[: 2 if job == "job-0" else None]
    looks = [Process(disk, service).rounds(1).is_done for _ in range(6)]
    assert (looks[-1], values(disk), service.fetched["job-0"]) == (True, DOUBLED, 4)


def test_a_refusal_to_give_a_file_is_waited_for() -> None:
    service, disk = Service(5), disk_of(NUMBERS)
    service.step = _raising("fetch before", lambda: http.error_for(429))
    assert not Process(disk, service).rounds(10).is_done
    service.step = lambda name: None
    assert Process(disk, service).rounds().attempt == 1
    assert values(disk) == DOUBLED


def test_answers_that_come_twice_in_any_order_and_of_others_count_once() -> None:
    service, disk = Service(5), disk_of(NUMBERS)
    service.lines = lambda job, lines: [
        *reversed(lines),
        ("f" * 32, {"value": 1}),
        *((k, {"value": -1}) for k, _ in lines),
    ]
    Process(disk, service).rounds()
    assert values(disk) == DOUBLED


def test_a_file_that_cannot_be_read_ends_it_with_the_error_and_nothing_is_lost() -> None:
    service, disk = Service(5), disk_of(NUMBERS)

    def lines(job: str, found: list[Any]) -> list[Any]:
        raise ValueError("half a line")

    service.lines = lines
    text = r"part 00000-0000\d of attempt 1 of double cannot be fetched: ValueError: half a line"
    with pytest.raises(AsyncUDFError, match=text):
        Process(disk, service).rounds()
    for _ in range(3):
        assert not Process(disk, service).rounds(1).is_done
    with pytest.raises(AsyncUDFError, match=text):
        Process(disk, service).rounds(1)
    service.lines = lambda job, found: found
    assert Process(disk, service).rounds().is_done
    assert set(service.billed.values()) == {1}


def test_a_refusal_costs_no_attempt_and_a_queue_that_is_full_later_neither() -> None:
    service, disk = Service(2), disk_of(NUMBERS)
    refusals = iter([http.error_for(429, retry_after=9.0), None, http.error_for(503, retry_after=9.0)])
    service.step = _raising("submit before", lambda: next(refusals, None))
    service.ends = lambda job: "refused" if job in ("job-0", "job-2") else "ended"
    progress = Process(disk, service).rounds()
    assert (progress.attempt, progress.may_be_twice, values(disk)) == (1, 0, DOUBLED)
    assert set(service.billed.values()) == {1}
    assert len({key for key, _ in service.jobs.values()}) == len(service.jobs) == 7


def _raising(name: str, error: Any) -> Any:
    def step(now: str) -> None:
        if now == name and (found := error()) is not None:
            raise found

    return step


@pytest.mark.parametrize(
    ("kind", "twice"), [(Finding, 0), (Service, 1)], ids=["a service that can tell", "one that cannot"]
)
def test_a_job_that_was_taken_without_an_answer_is_looked_for_or_sent_once_more(kind: Any, twice: int) -> None:
    service, disk = kind(5), disk_of(NUMBERS)
    lost = iter([TimeoutError("no answer")])
    service.step = _raising("submit after", lambda: next(lost, None))
    progress = Process(disk, service).rounds()
    assert (service.twice, progress.may_be_twice, values(disk)) == (twice, twice, DOUBLED)


def test_an_error_that_no_time_mends_ends_it_and_it_goes_on_later() -> None:
    service, disk = Service(5), disk_of(NUMBERS)
    service.step = _raising("submit before", lambda: http.error_for(401))
    with pytest.raises(AsyncUDFError, match=r"has not taken job id-1-00000-0000\d-0: PermanentError: 401"):
        Process(disk, service).rounds()
    quota = '{"error": {"code": "insufficient_quota"}}'
    service.step = _raising("submit before", lambda: http.error_for(429, body=quota))
    with pytest.raises(AsyncUDFError, match="a quota of the service is used up"):
        Process(disk, service).rounds()
    service.step = _raising("poll", lambda: http.error_for(403))
    with pytest.raises(AsyncUDFError, match=r"the service says nothing about job job-\d: PermanentError: 403"):
        Process(disk, service).rounds()
    service.step = lambda name: None
    assert Process(disk, service).rounds().is_done
    assert (service.twice, set(service.billed.values())) == (0, {1})


CREDIT = {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low to go on."}}


@pytest.mark.parametrize("status", [400, 429])
def test_requests_of_a_job_during_which_the_quota_was_used_up_are_kept(status: int) -> None:
    """With a status other than 429 they were dead letters for good: thousands, where the credit ended within a job."""
    service, disk = Service(5), disk_of(NUMBERS)
    used_up = http.error_for(status, body=CREDIT)
    service.answer = lambda body: {"value": 2 * body["n"]} if body["n"] < 7 else used_up
    service.step = _raising("submit before", lambda: used_up if len(service.jobs) == 3 else None)
    with pytest.raises(AsyncUDFError, match="a quota of the service is used up"):
        Process(disk, service).rounds()
    assert errors(disk) == {}
    service.answer, service.step = Service().answer, lambda name: None
    assert Process(disk, service).rounds().is_done
    assert (values(disk), sum(service.billed.values())) == (DOUBLED, len(NUMBERS))


def test_what_a_service_says_of_a_job_at_work_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    service, disk = Service(5), disk_of(NUMBERS)
    poll, said = service.poll, ["its status 'paused' is not known"]
    service.poll = lambda job: JobStatus("working", error=said.pop()) if said else poll(job)  # type: ignore[method-assign]
    assert Process(disk, service).rounds().is_done
    assert "is working, and the service says: its status 'paused' is not known" in caplog.text


def test_a_service_that_does_not_answer_now_is_asked_again() -> None:
    service, disk = Service(5), disk_of(NUMBERS)
    down = iter([ConnectionResetError(), http.error_for(503), TimeoutError()])
    service.step = _raising("poll", lambda: next(down, None))
    assert Process(disk, service).rounds().is_done
    assert values(disk) == DOUBLED


def test_a_job_that_the_service_does_not_know_yet_is_looked_for_again() -> None:
    """Anthropic has answered with a 404 for minutes after it had taken a job: `submit` failed, and was billed."""
    service, disk = Service(len(NUMBERS)), disk_of(NUMBERS)
    unknown = [http.error_for(404)] * 3
    service.step = _raising("poll", lambda: unknown.pop() if unknown else None)
    assert Process(disk, service).rounds().is_done
    assert (values(disk), service.twice, unknown) == (DOUBLED, 0, [])


@pytest.mark.parametrize("attempts", [1, 3])
def test_such_a_job_has_all_its_tries_to_be_fetched(attempts: int) -> None:
    """The first file of results was taken for all that there is: answers were lost, or paid for twice."""
    service, disk = Service(len(NUMBERS)), disk_of(NUMBERS)
    unknown, is_cut = [http.error_for(404)] * 3, iter([True])
    service.step = _raising("poll", lambda: unknown.pop() if unknown else None)
    service.lines = lambda job, lines: lines[:-2] if next(is_cut, False) else lines
    assert Process(disk, service, attempts=attempts).rounds().is_done
    assert (values(disk), service.twice, len(service.jobs)) == (DOUBLED, 0, 1)


def test_jobs_that_the_service_does_not_know_keep_no_others_waiting() -> None:
    """With four such jobs most looks ended with an error, and jobs that were over were fetched at the tenth."""
    service, disk = Service(1), disk_of(NUMBERS)
    lost = {f"job-{number}" for number in range(4)}
    known = service.poll

    def poll(job: str) -> JobStatus:
        if job in lost:
            raise http.error_for(404)
        return known(job)

    service.poll = poll  # type: ignore[method-assign]
    ends = []
    for _ in range(6):  # the first sends
        with Process(disk, service).writer() as writer:
            try:
                writer.round()
                ends.append(len(writer.unheard))
            except AsyncUDFError:
                ends.append(-1)
        if len(ends) == 2:
            assert len(values(disk)) == 6
    assert ends == [0, 4, 4, 4, -1, 4]
    lost.clear()
    assert Process(disk, service).rounds().is_done
    assert (values(disk), service.twice) == (DOUBLED, 0)


def test_a_job_that_was_not_known_at_first_is_fetched_after_a_cancel() -> None:
    """Three early 404s and one behind the cancel ended it without its answers."""
    service, disk = Service(len(NUMBERS)), disk_of(NUMBERS)
    unknown, is_over = [http.error_for(404)] * 3, False
    service.ends = lambda job: "ended" if is_over else "working"
    service.step = _raising("poll", lambda: unknown.pop() if unknown else None)
    process = Process(disk, service)
    process.rounds(5)
    with process.writer() as writer:
        writer.cancel()
    service.states.clear()
    unknown, is_over = [http.error_for(404)], True
    assert process.rounds().is_done
    assert values(disk) == DOUBLED


def test_a_round_says_whether_it_has_sent_a_job_of_which_there_is_more_to_hear() -> None:
    """`submit` asked for the state of each job twice in every turn, and its tries were used up in half of the time."""
    service, disk = Service(3), disk_of(NUMBERS)
    service.ends = lambda job: "working"
    with Process(disk, service).writer() as writer:
        assert [writer.round() for _ in range(3)] == [True, False, False]


def test_a_refusal_that_is_a_404_is_waited_for_as_any_other() -> None:
    service, disk = Service(len(NUMBERS)), disk_of(NUMBERS)
    refusals = [http.error_for(404, body='{"code": "ThrottlingException"}')] * 9
    service.step = _raising("poll", lambda: refusals.pop() if refusals else None)
    assert Process(disk, service).rounds(20).is_done
    assert (values(disk), refusals) == (DOUBLED, [])


def test_a_find_that_gives_no_text_is_named() -> None:
    service, disk = Finding(10), disk_of(NUMBERS)
    with pytest.raises(DriverKilled):
        Process(disk, service, _raising("send task done", DriverKilled)).rounds()
    service.find = lambda key: 7  # type: ignore[assignment, method-assign, return-value]
    must = "find of Finding must return the id of the job, a text, or None, not 7"
    with Process(disk, service).writer() as writer, pytest.raises(AsyncUDFError, match=must):
        writer.cancel()
    with pytest.raises(AsyncUDFError, match=must):
        Process(disk, service).rounds()


def test_cancelling_ends_a_job_that_is_deleted_at_the_service() -> None:
    service, disk = Service(4), disk_of(NUMBERS)
    known = service.poll

    def poll(job: str) -> JobStatus:
        if job == "job-1":
            raise http.error_for(404)
        return known(job)

    service.poll = poll  # type: ignore[method-assign]
    process = Process(disk, service)
    with pytest.raises(AsyncUDFError, match=r"is job job-1.* If it is deleted there, cancel ends the submission"):
        process.rounds()
    with process.writer() as writer:
        writer.cancel()
    assert process.rounds().is_done
    assert (len(values(disk)), len(errors(disk))) == (8, 2)
    assert {error["message"] for error in errors(disk).values()} == {"the request has no answer: it was cancelled"}


def test_a_job_that_the_service_goes_on_not_knowing_is_an_error_in_any_process() -> None:
    service, disk = Service(len(NUMBERS)), disk_of(NUMBERS)
    service.step = _raising("poll", lambda: http.error_for(404))
    ends = []
    for _ in range(9):  # the first sends
        with Process(disk, service).writer() as writer:
            try:
                writer.round()
                ends.append("")
            except AsyncUDFError as error:
                ends.append(str(error))
    assert [place for place, end in enumerate(ends) if end] == [4, 8]
    assert "is job job-0, which the service does not know: PermanentError: 404" in ends[4]


def test_a_job_counts_as_taken_once_the_service_has_accepted_it() -> None:
    service, disk = Service(5), disk_of(NUMBERS)
    states = {"job-0": ["queued", "queued", "working"], "job-1": ["queued", "refused"], "job-2": ["working"]}
    poll = service.poll
    service.poll = lambda job: JobStatus(states[job].pop(0)) if states[job] else poll(job)  # type: ignore[method-assign]
    with Process(disk, service).writer() as writer:
        accepted = []
        for _ in range(4):
            writer._send_at = 0.0
            writer.round()
            accepted.append(writer.is_accepted)
    assert accepted == [False, False, False, True]
    assert len(service.jobs) == 3


def test_the_weight_in_the_queue_stays_within_its_bound() -> None:
    service, disk = Service(3, max_queued=5.0), disk_of(range(20))
    most = [0]

    def ends(job: str) -> str:
        at_work = sum(len(requests) for name, (_, requests) in service.jobs.items() if name not in service.states)
        most[0] = max(most[0], at_work)
        return "ended"

    service.ends = ends
    Process(disk, service).rounds()
    assert len(values(disk)) == 20
    assert most[0] <= 5


def test_a_part_that_was_made_for_a_larger_queue_goes_alone() -> None:
    service, disk = Service(10, max_queued=8.0), disk_of(range(20))
    service.ends = lambda job: "working"
    assert not Process(disk, service).rounds(1).is_done
    service.max_queued = 3.0
    assert not Process(disk, service).rounds(2).is_done
    assert len(service.jobs) == 1
    service.ends = lambda job: "ended"
    assert Process(disk, service).rounds().is_done


@pytest.mark.parametrize(("answers", "text"), [("10", "not '10'"), (-1, "not -1"), (math.nan, "not nan")])
def test_a_count_of_answers_that_is_none_names_the_service(answers: Any, text: str) -> None:
    service, disk = Service(), disk_of(NUMBERS)
    service.poll = lambda job: JobStatus("working", answers)  # type: ignore[method-assign]
    with pytest.raises(AsyncUDFError, match=rf"job job-\d: OptionError: answers of a job must be a number .*{text}"):
        Process(disk, service).rounds()
    assert JobStatus("failed", 3.0, ValueError("why")) == JobStatus("failed", 3, "why")  # type: ignore[arg-type]


def test_a_budget_holds_by_reservations_and_goes_on_with_what_answers_did_cost() -> None:
    def budget(amount: float) -> Budget:
        return Budget(amount, "tokens", reserve=10, settle=lambda n, answer: 3)

    service, disk = Service(10), disk_of(range(60))
    with pytest.raises(
        FatalError, match=r"double has spent 9\d of its budget of 100 tokens, and the next job may cost 10"
    ):
        Process(disk, service, budgets=[budget(100)]).rounds()
    assert 30 <= sum(service.billed.values()) <= 33
    progress = Process(disk, service, budgets=[budget(200)]).rounds()
    assert (progress.spent(1), set(service.billed.values())) == ([180.0], {1})


@pytest.mark.parametrize(
    ("budget", "spent"),
    [
        (Budget(99, "USD", reserve=lambda n: n), 9 + 8 + 7 + 6 + 4 + 3 + 2 + 1 + 0),  # 5 was not answered
        (Budget(99, "USD", reserve=1.0, settle=lambda n, answer: answer["no"]), 9.0),  # it raises for all
        (Budget(99, "USD", reserve=lambda n: n, settle=lambda n, answer: 1 / (n % 2)), 5 + 0 + 2 + 4 + 6 + 8 - 1),
        (Budget(99, "calls"), 9.0),
        (Budget(99, "USD", reserve=9, settle=lambda n, answer: 0.5), 4.5),
    ],
)
def test_costs_are_those_that_answers_tell_else_those_that_were_reserved(budget: Budget, spent: float) -> None:
    service, disk = Service(10), disk_of(NUMBERS)
    service.answer = lambda body: None if body["n"] == 5 else {"value": 1}
    assert Process(disk, service, budgets=[budget], attempts=1).rounds().spent(1) == [spent]


def test_cancelling_keeps_what_was_answered_and_sends_nothing_more() -> None:
    service, disk = Service(3, max_queued=6.0), disk_of(NUMBERS)
    service.ends = lambda job: "ended" if job == "job-0" else "working"
    process = Process(disk, service)
    process.rounds(2)
    with process.writer() as writer:
        writer.cancel()
    progress = process.rounds()
    assert (progress.is_done, progress.attempt, len(values(disk))) == (True, 1, 3)
    assert {error["message"] for error in errors(disk).values()} == {
        "the request has no answer: it was cancelled",
        "the request has no answer: the submission was cancelled before it was sent",
    }
    jobs = len(service.jobs)
    assert Process(disk, service).rounds().is_done
    assert len(service.jobs) == jobs


def test_cancelling_asks_again_for_a_job_that_the_service_may_have() -> None:
    """The text of its error was taken for the id of the job, which nobody could fetch then."""
    service, disk = Finding(10), disk_of(NUMBERS)
    service.ends = lambda job: "working"
    with pytest.raises(DriverKilled):
        Process(disk, service, _raising("send task done", DriverKilled)).rounds()
    process = Process(disk, service)
    service.step = _raising("find", lambda: ConnectionResetError("away"))
    with (
        process.writer() as writer,
        pytest.raises(AsyncUDFError, match=r"has a job .*: ConnectionResetError"),
    ):
        writer.cancel()
    service.step = lambda name: None
    with process.writer() as writer:
        writer.cancel()
    assert process.rounds().is_done
    assert (len(errors(disk)), service.states, service.twice) == (10, {"job-0": "cancelled"}, 0)


def test_a_store_answers_without_a_request_and_gets_what_was_answered(tmp_path: Any) -> None:
    store = ResultStore.disk(tmp_path / "store")
    service, disk = Service(), disk_of(range(5))
    Process(disk, service, store=store).rounds()
    disk = disk_of(NUMBERS)
    progress = Process(disk, service, store=store).rounds()
    assert (values(disk), sum(service.billed.values()), progress.parts[0].outcome.ok) == (DOUBLED, 10, 5)


def test_a_process_that_takes_over_waits_until_nobody_sends_for_the_one_that_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker of a driver that was killed may send its job a moment later, when the service was asked for it."""
    service, disk = Finding(5), disk_of(NUMBERS)

    def step(name: str) -> None:
        if name == "send task before":
            raise DriverKilled

    with pytest.raises(DriverKilled):
        Process(disk, service, step).rounds()
    with Process(disk, service).writer() as writer:
        writer.round()
        assert (len(service.jobs), [part.state for part in writer.progress.parts]) == (0, ["intent"] * 2)
    monkeypatch.setattr(writers, "QUIET", 0.0)
    with Process(disk, service).writer() as writer:
        writer.round()
        assert len(service.jobs) == 2


@pytest.mark.parametrize(
    ("kind", "sends_one_by_one", "most"), [(Finding, False, 4), (Service, False, 3), (Finding, True, 1)]
)
def test_a_wave_has_the_jobs_that_may_be_lost_together(kind: Any, sends_one_by_one: bool, most: int) -> None:
    """Spark may run a task a second time beside the first, but not that of a job with one task."""
    service, disk, waves = kind(3), disk_of(NUMBERS), list[int]()
    process = Process(disk, service)
    process.folder.sends_one_by_one = sends_one_by_one
    send = process.folder.send
    process.folder.send = lambda parts, task: waves.append(len(parts)) or send(parts, task)  # type: ignore[method-assign,func-returns-value]
    process.rounds()
    assert (max(waves), sum(waves), values(disk)) == (most, 4, DOUBLED)


def _priced(settle: Any, **more: Any) -> Budget:
    return Budget(999, "USD", reserve=1.0, settle=settle, **more)


def test_settle_that_raises_is_told_with_its_error_and_how_often() -> None:
    """`spent` was the reservation, ten times the truth, and nobody was told."""
    service, disk = Service(10), disk_of(NUMBERS)
    budget = _priced(lambda n, answer: answer["usage"] if n % 2 else 0.5)
    progress = Process(disk, service, budgets=[budget]).rounds()
    assert (progress.unsettled, progress.spent(1)) == ({"KeyError: 'usage'": 5}, [5 * 1.0 + 5 * 0.5])
    assert Process(disk, service, budgets=[budget]).submitted.progress().unsettled == {"KeyError: 'usage'": 5}


def test_settle_that_raises_is_told_after_a_kill_too() -> None:
    service, disk = Service(10), disk_of(NUMBERS)
    budget = _priced(lambda n, answer: answer["usage"])

    def step(name: str) -> None:
        if name == "settle task written":
            raise DriverKilled

    with pytest.raises(DriverKilled):
        Process(disk, service, step, budgets=[budget]).rounds()
    assert Process(disk, service, budgets=[budget]).rounds().unsettled == {"KeyError: 'usage'": 10}
    assert service.fetched == {"job-0": 1}


def test_settle_that_raises_for_an_error_of_the_service_costs_nothing_and_is_not_told() -> None:
    service, disk = Service(10), disk_of(NUMBERS)
    service.answer = lambda body: http.error_for(400)
    progress = Process(disk, service, budgets=[_priced(lambda n, answer: answer["usage"])]).rounds()
    assert (progress.unsettled, progress.spent(1)) == ({}, [0.0])


def test_what_settle_raises_is_one_short_line_and_hides_what_redact_hides() -> None:
    def settle(n: int, answer: Any) -> float:
        error = ResultError("secret\n" + "x" * 10_000)
        error.without_value = "hidden"
        raise error

    for redact, text in ((None, "ResultError: secret x"), (True, "ResultError: hidden")):
        function = batch_function(double.spec.function, parse=double.parse, returnType="bigint", redact=redact)
        progress = Process(disk_of(NUMBERS), Service(10), function=function, budgets=[_priced(settle)]).rounds()
        (told,) = progress.unsettled
        assert told.startswith(text)
        assert len(told) < 500


@pytest.mark.parametrize(
    ("cost", "shown"),
    [(math.nan, "nan"), (-1, "-1"), (math.inf, "inf"), (None, "None"), (True, "True"), ("1", "'1'"), ([1], r"\[1\]")],
)
@pytest.mark.parametrize("answer", [{"value": 1}, http.error_for(400)], ids=["an answer", "an error"])
def test_settle_that_gives_no_cost_ends_it_with_the_functions_name_and_goes_on_when_mended(
    cost: Any, shown: str, answer: Any
) -> None:
    """NaN was swallowed too."""
    service, disk = Service(10), disk_of(NUMBERS)
    service.answer = lambda body: answer if body["n"] == 7 else {"value": 1}
    wrong = _priced(lambda n, answer: cost if n == 7 else 0.5)
    text = rf"a budget of double in USD: settle must give a number of 0 or more, not {shown}"
    for _ in range(2):
        with pytest.raises(FatalError, match=text):
            Process(disk, service, budgets=[wrong]).rounds()
    progress = Process(disk, service, budgets=[_priced(lambda n, answer: 0.5)]).rounds()
    assert (progress.is_done, progress.spent(1), len(service.jobs)) == (True, [5.0], 1)


@pytest.mark.parametrize("error", [FatalError("no more"), SystemExit(3), KeyboardInterrupt()])
def test_settle_may_end_it(error: BaseException) -> None:
    def settle(n: int, answer: Any) -> float:
        raise error

    with pytest.raises(AsyncUDFError, match="settle of double has failed"):
        Process(disk_of(NUMBERS), Service(10), budgets=[_priced(settle)]).rounds()


def test_settle_may_take_decimals_and_change_what_it_is_given() -> None:
    def settle(n: int, answer: Any) -> Any:
        answer.clear()
        return Decimal("0.25")

    progress = Process(disk := disk_of(NUMBERS), Service(10), budgets=[_priced(settle)]).rounds()
    assert (progress.spent(1), values(disk)) == ([2.5], DOUBLED)


class Late:
    """An object whose pickle cannot be read."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def _deep() -> Any:
    value: Any = []
    for _ in range(50_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda: (n for n in ()), "gave an answer that is no JSON: TypeError"),
        (Late, "gave an answer that is no JSON: ValueError"),
        (_deep, "gave an answer that is no JSON: RecursionError"),
        (lambda: None, "NoneType"),
        (lambda: ValueError, "not subscriptable"),
    ],
)
def test_an_answer_that_nobody_can_keep_is_its_requests_failure(answer: Any, text: str) -> None:
    """Nothing of the job could be fetched."""
    service, disk = Service(10), disk_of(NUMBERS)
    service.lines = lambda job, lines: [
        (key, answer() if number == 0 and len(lines) == 10 else found) for number, (key, found) in enumerate(lines)
    ]
    progress = Process(disk, service, attempts=1, budgets=[_priced(lambda n, answer: 0.5)]).rounds()
    (error,) = errors(disk).values()
    assert (progress.is_done, len(values(disk))) == (True, 9)
    assert text in error["message"]


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        (lambda found: None, "must give pairs of a request's key and its answer, not None"),
        (lambda found: 7, "not 7"),
        (lambda found: _async_pairs(found), "it is a plain function or generator"),
        (lambda found: _coroutine(found), "it is a plain function or generator"),
        (lambda found: [*found, None], "and gave None"),
        (lambda found: [*found, ("a", "b", "c")], r"and gave \('a', 'b', 'c'\)"),
        (dict, r"and gave '[0-9a-f]{32}'"),
        (
            lambda found: [(f"row-{key}", answer) for key, answer in found],
            "under keys that the job job-0 does",
        ),
        (lambda found: [(int(key, 16), answer) for key, answer in found], "none under those of its requests"),
    ],
)
def test_a_fetch_that_gives_no_pairs_is_named_and_nothing_is_lost_or_sent_again(pairs: Any, text: str) -> None:
    service, disk = Service(10), disk_of(NUMBERS)
    fetch = service.fetch
    service.fetch = lambda job: pairs(list(fetch(job)))  # type: ignore[method-assign]
    service.poll = _without_count(service)  # type: ignore[method-assign]
    with pytest.raises(AsyncUDFError, match=text):
        Process(disk, service).rounds()
    service.fetch = fetch  # type: ignore[method-assign]
    assert Process(disk, service).rounds().is_done
    assert (values(disk), len(service.jobs)) == (DOUBLED, 1)


async def _async_pairs(found: list[Any]) -> Any:
    for pair in found:
        yield pair


async def _coroutine(found: list[Any]) -> list[Any]:
    return found


def _without_count(service: Service) -> Any:
    poll = service.poll
    return lambda job: JobStatus(poll(job).state)


def test_a_fetch_that_fails_half_way_doubles_nothing() -> None:
    service, disk = Service(10), disk_of(NUMBERS)
    left = iter([3, 7])

    def fetch(job: str) -> Any:
        number = next(left, 99)
        for place, pair in enumerate(service.answers[job].items()):
            if place == number:
                raise ValueError("half a line")
            yield pair

    service.fetch = fetch  # type: ignore[method-assign]
    progress = Process(disk, service, budgets=[_priced(lambda n, answer: 0.5)]).rounds()
    assert (values(disk), progress.spent(1), progress.attempt, len(service.jobs)) == (DOUBLED, [5.0], 1, 1)


@pytest.mark.parametrize("turned", [False, True])
def test_an_answer_counts_before_an_error_for_the_same_request(turned: bool) -> None:
    """As when a request is in the file of answers and in that of errors."""
    service, disk = Service(10), disk_of(NUMBERS)

    def lines(job: str, found: list[Any]) -> list[Any]:
        errors = [(key, http.error_for(400)) for key, _ in found]
        return [*errors, *found] if turned else [*found, *errors]

    service.lines = lines
    Process(disk, service).rounds()
    assert (values(disk), len(service.jobs)) == (DOUBLED, 1)


def test_a_damaged_line_is_fetched_again_and_then_its_request_is_sent_again() -> None:
    service, disk = Service(10), disk_of(NUMBERS)

    def lines(job: str, found: list[Any]) -> list[Any]:
        damaged = NotAnsweredError("damaged")
        damaged.is_damaged = True
        return [(found[0][0], damaged), *found[1:]] if job == "job-0" else found

    service.lines = lines
    progress = Process(disk, service).rounds()
    assert (progress.attempt, values(disk), service.fetched["job-0"]) == (2, DOUBLED, 4)
    assert [whys[1] for whys in told(service).values() if len(whys) == 2] == ["damaged"]

    service, disk = Service(10), disk_of(NUMBERS)
    service.lines = lambda job, found: lines(job, found) if service.fetched[job] < 2 else found
    assert Process(disk, service).rounds().attempt == 1
    assert (values(disk), len(service.jobs)) == (DOUBLED, 1)


def test_a_state_that_no_job_has_ends_it_with_the_states_that_there_are() -> None:
    service, disk = Service(10), disk_of(NUMBERS)
    service.poll = lambda job: JobStatus("paused")  # type: ignore[method-assign]
    with pytest.raises(AsyncUDFError, match=r"the state of a job must be one of 'queued', .*not 'paused'"):
        Process(disk, service).rounds()


@pytest.mark.parametrize("error", [StopIteration(1), RecursionError(), asyncio.CancelledError(), StopAsyncIteration()])
@pytest.mark.parametrize("where", ["request", "parse"])
def test_what_request_and_parse_raise_is_one_rows_fault(where: str, error: BaseException) -> None:
    def request(n: int) -> Any:
        if where == "request" and n == 3:
            raise error
        return {"n": n, "attempt": 1}

    def parse(answer: Any) -> int:
        if where == "parse" and answer["value"] == 6:
            raise error
        return double.parse(answer)  # type: ignore[no-any-return]

    service, disk = Service(10), disk_of(NUMBERS)
    function = batch_function(request, "bigint", parse=parse)
    assert Process(disk, service, function=function, attempts=2).rounds().is_done
    assert errors(disk).keys() == {3}
    assert errors(disk)[3]["type"] == type(error).__name__
    assert len(values(disk)) == 9


@pytest.mark.parametrize("where", ["request", "parse"])
@pytest.mark.parametrize("error", [SystemExit(1), FatalError("no"), GeneratorExit()])
def test_what_ends_a_process_ends_the_task_and_the_state_goes_on(where: str, error: BaseException) -> None:
    def fails(value: Any) -> Any:
        raise error

    service, disk = Service(10), disk_of(NUMBERS)
    request = fails if where == "request" else lambda n: {"n": n, "attempt": 1}
    function = batch_function(request, "bigint", parse=fails)
    with pytest.raises(AsyncUDFError):
        Process(disk, service, function=function).rounds()
    assert Process(disk, service).rounds().is_done
    assert values(disk) == DOUBLED
