"""The process that goes on with a submission: it sends parts, polls their jobs, settles them, and plans attempts."""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from .._errors.bodies import USED_UP
from .._errors.exceptions import AsyncUDFError, FatalError
from .._errors.figures import amount_, count, things
from .._stores.base import ResultStore
from .journal import REUSED, Event, Part, SubmissionProgress
from .owner import Owner
from .service import JobState
from .state import PARTS_AT_ONCE, StateFolder, counted_events
from .tasks import (
    BROKEN,
    NO_STATES,
    UNKNOWN,
    Ask,
    FormTask,
    LookupTask,
    PollTask,
    ReparseTask,
    SendTask,
    SettleTask,
)
from .work import OverJob, Work

logger = logging.getLogger("asyncudf")

GONE = "gone"  # the kind of the event that a job is not known, of a submission that is cancelled
TRIES = 4  # to send, find or fetch a job, by any number of processes, before there is an error
MOST_UNREAD = 20  # answers that `parse` could not read, and none that it could: then it is not the answers' fault
FEW_REQUESTS = 20  # of a submission: if all their jobs fail, each of them may be invalid
MOST_PIECES = 1_000  # of a submission; after that all requests of a job that fails are dead letters
QUIET = 10.0  # seconds after which nobody sends a job any more for a process that has died
LONGEST_SILENCE = 60.0  # seconds, after a service did not answer

PartId = tuple[int, str]


@dataclasses.dataclass(frozen=True)
class Submitted:
    """What was submitted; `requests`: about how many distinct requests it has."""

    folder: StateFolder
    work: Work
    declared: tuple[Any, ...]
    requests: int

    def progress(self, events: Sequence[Event] | None = None) -> SubmissionProgress:
        """How far it is, by these events or by the journal."""
        return SubmissionProgress(
            self.folder.events() if events is None else events, can_find=self.work.service.can_find
        )

    def told(self, parts: Sequence[Part], ask: Ask = Ask.STATE) -> dict[PartId, Any]:
        """What the service says about the jobs of parts."""
        jobs = [part.job if ask is not Ask.FIND else self.work.job_key(*part.id, part.turn) for part in parts]
        answers = self.folder.poll(PollTask(self.work, self.declared, ask=ask, jobs=jobs)) if parts else []
        return {parts[row["number"]].id: row for row in answers}


class Writer:
    """Goes on with a submission, a round at a time; first it `reparses` answers that could not be read."""

    # Nobody else writes events about parts meanwhile, so the journal is read once.

    def __init__(self, submitted: Submitted, owner: Owner, store: ResultStore | None, *, reparses: bool) -> None:
        self._submitted, self._owner, self._store, self._reparses = submitted, owner, store, reparses
        self._folder, self._work = submitted.folder, submitted.work
        self._events = owner.events
        self._is_fresh = True
        self._send_at = 0.0
        self.progress = submitted.progress(self._events)
        if lost := self.progress.of("intent"):
            self._send_at = time.monotonic() + max(part.intended_at for part in lost) + QUIET - time.time()
        self.states: dict[PartId, JobState] = {}  # what the service has said last about each job at work
        self.unheard: set[PartId] = set()  # the jobs of which it has said nothing

    @property
    def pause(self) -> float:
        """Seconds until the next round has something to do."""
        wait = self._send_at - time.monotonic()
        poll_every = self._work.service.poll_every
        return min(wait, poll_every) if wait > 0 else poll_every

    @property
    def is_accepted(self) -> bool:
        """Whether the service has taken all requests of this attempt."""
        waiting = [
            part for part in self.progress.of("sent") if self.states.get(part.id, JobState.QUEUED) is JobState.QUEUED
        ]
        return not waiting and not self.progress.of("planned", "intent")

    def round(self) -> bool:
        """Do what can be done now; returns whether a job was sent.

        Raises:
            AsyncUDFError: the service does not take or give what it should, or no answer can be read.
            FatalError: a budget is spent.
        """
        if self._is_fresh:
            self._reconcile()
        if self.progress.attempt == 0:
            self._form(1)
        self._settle()
        self._divide()
        if self.progress.is_attempt_over and self.progress.to_ask_again:
            self._check_answers()
            self._form(self.progress.attempt + 1)
        has_sent = False
        while time.monotonic() >= self._send_at and (wave := self._next_wave()):
            self._send(wave)
            has_sent = True
        if self._never_sent():
            self._settle()
        return has_sent

    def cancel(self) -> None:
        """Have all jobs cancelled, and send none any more.

        Raises:
            AsyncUDFError: the service does not say whether it has a job; then none is cancelled.
        """
        lost = self.progress.of("intent") if self._work.service.can_find else []
        found = self._submitted.told(lost, Ask.FIND)
        for answer in found.values():
            if answer["state"] in NO_STATES:
                raise AsyncUDFError(
                    "nothing is cancelled, as the service does not say whether it has a job that may have been sent: "
                    f"{answer['error']}. Call cancel again"
                )
        sent = [_about(part, "sent", job=job) for part in lost if (job := found[part.id]["error"])]
        self._add([Event(0.0, "", "cancelled"), *sent])
        for (attempt, name), answer in self._submitted.told(self.progress.of("sent"), Ask.CANCEL).items():
            if answer["state"] in NO_STATES:  # it may be over already: its state says that
                logger.warning("part %s of attempt %d is not cancelled: %s", name, attempt, answer["error"])

    # Planning.

    def _form(self, attempt: int) -> None:
        submitted, events = self._submitted, list[Event]()
        number = submitted.requests if attempt == 1 else self.progress.to_ask_again
        looks_up = attempt == 1 and self._store is not None
        if looks_up:
            for reused in self._folder.look_up(LookupTask(self._work, submitted.declared, store=self._store)):
                events += [dataclasses.replace(reused, kind="planned"), reused]
            events += counted_events([REUSED])
        task = FormTask(self._work, submitted.declared, attempt=attempt)
        events += self._folder.form(task, number, but_results=attempt > 1 or looks_up)
        self._add([*events, Event(0.0, "", "formed", attempt)])

    def _check_answers(self) -> None:
        """Raise an error if no answer could be read: to ask again would cost the same once more."""
        parts = [part.outcome for part in self.progress.of("settled") if part.name != REUSED]
        unread = sum(part.unparsed for part in parts)
        if self.progress.is_cancelled or unread < MOST_UNREAD or any(part.ok for part in parts):
            return
        example, name = self._folder.example_of_unread(), self._work.name
        raise AsyncUDFError(
            f"parse of {name} could read none of {count(unread)} answers, for example {example}. Nothing is submitted "
            "again. The "
            f"answers are in the state: mend parse, and Submission.open({self._folder.path!r}, function={name}) reads "
            "them again, without a request"
        )

    # Sending.

    def _next_wave(self) -> list[Part]:
        if self.progress.is_cancelled:
            return []
        service, budgets = self._work.service, self._work.budgets
        # Without `find` each job of a wave may be sent twice if the driver is killed.
        most = 1 if self._folder.sends_one_by_one else PARTS_AT_ONCE
        if not service.can_find:
            most = min(most, self._folder.slots)
        queued, committed = self.progress.queued, self.progress.committed(len(budgets))
        wave: list[Part] = []
        unsent = [part for part in self.progress.of("planned", "intent") if part.has_job]
        for part in unsent[:most]:
            is_counted = part.state == "intent"
            queued += 0.0 if is_counted else part.weight
            # A part that was made for a larger bound goes alone.
            if service.max_queued is not None and queued > max(service.max_queued, part.weight):
                break
            if not (is_counted and service.can_find):
                committed = [have + cost for have, cost in zip(committed, part.planned_costs, strict=True)]
            over = [b for b, have in zip(budgets, committed, strict=True) if have > b.amount * (1 + 1e-9)]
            if over:
                if not wave and not self.progress.of("sent"):
                    raise self._spent_error(budgets.index(over[0]), part, sum(one.requests for one in unsent))
                break
            wave.append(part)
        return wave

    def _spent_error(self, place: int, part: Part, requests: int) -> FatalError:
        budget, spent = self._work.budgets[place], self.progress.committed(len(self._work.budgets))[place]
        error = FatalError(
            f"{self._work.name} has spent {amount_(spent)} of its budget of {amount_(budget.amount)} {budget.unit}, "
            f"and the next job may cost {amount_(part.planned_costs[place])}: {things(requests, 'request')} are not "
            f"submitted. Submission.open({self._folder.path!r}, budget=...) goes on with a larger amount"
        )
        error.option = "budget"
        return error

    def _send(self, wave: Sequence[Part]) -> None:
        turns = {part.name: (part.turn, part.state == "intent") for part in wave}
        self._add([_about(part, "intent") for part in wave])
        attempt = self.progress.attempt
        task = SendTask(self._work, self._submitted.declared, owner=self._owner.id, attempt=attempt, turns=turns)
        events = self._folder.send([part.name for part in wave], task)
        self._take(events)
        for event in events:
            id_ = (attempt, event.part)
            if event.kind == "sent":
                continue
            if not event.weight:
                key = self._work.job_key(*id_, event.turn)
                raise AsyncUDFError(f"the service has not taken job {key}: {event.text}")
            pause = event.weight
            if event.kind == "unclear":
                tries = self._trouble(id_, event.kind, f"cannot be sent: {event.text}")
                pause = min(LONGEST_SILENCE, self._work.service.poll_every, float(2**tries))
            self._send_at = max(self._send_at, time.monotonic() + pause)

    def _trouble(self, id_: PartId, kind: str, text: str) -> int:
        """Log a failed try of a part; returns its number. Raises AsyncUDFError after the last try of this kind."""
        logger.warning("part %s of attempt %d %s", id_[1], id_[0], text)
        tries = next(part.troubles(kind) for part in self.progress.parts if part.id == id_) % TRIES
        if tries == 0:
            raise AsyncUDFError(f"part {id_[1]} of attempt {id_[0]} of {self._work.name} {text}")
        return tries

    # Settling.

    def _settle(self) -> None:
        over = [self._over(part, JobState.CANCELLED) for part in self._never_sent()]
        sent, refused, failed, used_up = self.progress.of("sent"), list[Event](), list[tuple[Part, OverJob]](), ""
        told, unheard = self._submitted.told(sent), list[tuple[Part, str, str]]()
        self.states, self.unheard, is_waiting, works = {}, set(), False, self.progress.has_answers
        for part in sent:
            said, error = told[part.id]["state"], told[part.id]["error"] or ""
            if said in NO_STATES:
                unheard.append((part, said, error))
                self.unheard.add(part.id)
                is_waiting = True
                continue
            state = JobState(said)
            one = self._over(part, state, told[part.id]["answers"], error)
            if state is JobState.FAILED and not self.progress.is_cancelled and _says_used_up(error):
                used_up = f"job {part.job} has failed, as a quota of the service is used up: {error}"
                refused.append(_about(part, "refused", text=error))
            elif state is JobState.FAILED:
                failed.append((part, one))
            elif state is JobState.REFUSED:
                refused.append(_about(part, "refused", text=error))
                self._send_at = max(self._send_at, time.monotonic() + self._work.service.poll_every)
            elif state.is_over:
                over.append(one)
                works = True
            else:
                if error:
                    logger.warning("job %s is %s, and the service says: %s", part.job, state.value, error)
                self.states[part.id] = state
                is_waiting = True
        kind = GONE if self.progress.is_cancelled else UNKNOWN
        unknown = [(part, error) for part, said, error in unheard if said == UNKNOWN]
        self._add([*refused, *(_about(part, kind, text=error) for part, error in unknown)])
        gone = [part for part, _ in unknown if part.troubles(GONE) + 1 >= TRIES]
        over += [dataclasses.replace(self._over(part, JobState.CANCELLED), is_gone=True) for part in gone]
        self._fetch([*over, *self._to_divide(failed, works=works, is_waiting=is_waiting)])
        if used_up:
            raise AsyncUDFError(f"{used_up}. Its requests are kept, and sent again with the next wait")
        for part, said, error in unheard:
            if part not in gone:
                self._not_heard_of(part, kind if said == UNKNOWN else said, error)

    def _not_heard_of(self, part: Part, said: str, error: str) -> None:
        """Log that the service does not say what a job is doing; raises AsyncUDFError if waiting does not help."""
        if said in (UNKNOWN, GONE):
            self._trouble(
                part.id,
                said,
                f"is job {part.job}, which the service does not know: {error}. If it is deleted there, cancel ends the "
                "submission with all that was answered",
            )
            return
        text = f"the service says nothing about job {part.job}: {error}"
        if said == BROKEN:
            raise AsyncUDFError(text)
        logger.warning("%s", text)

    def _fetch(self, over: Sequence[OverJob]) -> None:
        """Settle the parts of jobs that are over."""
        sent = self.progress.of("sent")
        for wave in _waves(over):
            task = SettleTask(
                self._work, self._submitted.declared, over={one.part: one for one in wave}, store=self._store
            )
            events, troubles = self._folder.settle(wave[0].attempt, task)
            self._add_settled(events)
            parts = {part.name: part for part in sent if part.attempt == wave[0].attempt}
            self._add([_about(parts[name], "trouble", text=text) for name, text in troubles])
            for name, text in troubles:
                self._trouble(parts[name].id, "trouble", f"cannot be fetched: {text}")

    def _to_divide(self, failed: Sequence[tuple[Part, OverJob]], *, works: bool, is_waiting: bool) -> list[OverJob]:
        """The failed jobs to settle now: their requests are divided, or become dead letters. The other jobs wait.

        While no job `works`, the cause may be the account: then one job is divided at a time, and no request becomes a
        dead letter.
        """
        if works or self.progress.is_cancelled or self._submitted.requests < FEW_REQUESTS:
            return [one for _, one in failed]
        divided = [(part, one) for part, one in failed if one.left == "apart"]
        alone = [(part, one) for part, one in failed if one.left != "apart" and part.is_piece]
        now = [one for part, one in failed if one.left != "apart" and not part.is_piece]
        is_waiting = is_waiting or bool(self._next_wave())
        if JobState.WORKING in self.states.values():
            now += [one for _, one in divided]
        elif alone and not is_waiting:
            self._add([_about(part, "refused", text=one.error) for part, one in alone])
            part, one = alone[0]
            raise AsyncUDFError(
                f"all jobs of {self._work.name} have failed, also {part.job} with {things(part.requests, 'request')}: "
                f"{one.error or 'the service does not say why'}. So the cause is hardly a request. No more jobs are "
                "sent, and nothing is lost: wait goes on when the cause is removed, and cancel ends it"
            )
        elif divided and not is_waiting:
            now.append(min(divided, key=lambda pair: pair[0].requests)[1])
        judged = {one.part for one in now}
        self.states |= {part.id: JobState.FAILED for part, one in failed if one.part not in judged}
        return now

    def _divide(self) -> None:
        """Plan the pieces of jobs that have failed."""
        for part in self.progress.parts:
            if part.is_to_divide:
                pieces = self._folder.divide(*part.id, in_halves=part.in_halves)
                self._add([_about(part, "apart"), *pieces])

    def _never_sent(self) -> list[Part]:
        unsettled = self.progress.of("planned", "intent")
        return [part for part in unsettled if self.progress.is_cancelled or not part.has_job]

    def _over(self, part: Part, state: JobState, answers: int | None = None, error: str = "") -> OverJob:
        is_last = self.progress.is_cancelled or part.attempt >= self._work.attempts
        if part.troubles("trouble") % TRIES == TRIES - 1:  # what the service gives is all that there is
            answers = None
        left = "failed" if is_last else "again"
        if state is JobState.FAILED and not self.progress.is_cancelled:
            # It may be another request's fault, and costs no attempt; a request that is alone is the invalid one.
            if part.requests > 1 and sum(one.is_piece for one in self.progress.parts) < MOST_PIECES:
                left = "apart"
            elif part.is_piece:
                left = "failed"
        return OverJob(part.attempt, part.name, part.job, state, answers, error, is_last, left)

    def _add_settled(self, events: Sequence[Event]) -> None:
        """Add the "settled" events of parts whose requests all have an outcome, and the "counted" events."""
        requests = {part.id: part.requests for part in self.progress.parts}
        whole = [event for event in events if requests.get((event.attempt, event.part)) == event.requests]
        self._add([*whole, *(event for event in events if event.kind == "counted")])

    def _reconcile(self) -> None:
        """Take up what a killed process did last, and read answers again if `parse` was replaced."""
        self._is_fresh = False
        self._folder.checkpoint()
        if self.progress.attempt == 0:
            return
        if self._reparses:
            self._folder.reparse(ReparseTask(self._work, self._submitted.declared))
        elif self.progress.is_done:
            return
        if waves := self._folder.result_waves() - self.progress.counted:
            known = {part.id: part.outcome.ok for part in self.progress.of("settled")}
            changed = [event for event in self._folder.recount() if known.get((event.attempt, event.part)) != event.ok]
            self._add_settled([*changed, *counted_events(waves)])

    # Events.

    def _add(self, events: Sequence[Event]) -> None:
        now = time.time()
        events = [dataclasses.replace(event, at=now, owner=self._owner.id) for event in events]
        if events:
            self._folder.add(events)
            self._take(events)

    def _take(self, events: Sequence[Event]) -> None:
        self._events += events
        self.progress = self._submitted.progress(self._events)


def _about(part: Part, kind: str, **values: Any) -> Event:
    return Event(0.0, "", kind, part.attempt, part.name, part.turn, **values)


def _says_used_up(error: str) -> bool:
    """Whether it has the code of an account that pays for no further call."""
    return not USED_UP.isdisjoint(re.findall(r"\w+", error))


def _waves(over: Sequence[OverJob]) -> Iterator[list[OverJob]]:
    """The jobs of one attempt each, as many as one Spark job takes."""
    for attempt in sorted({one.attempt for one in over}):
        same = [one for one in over if one.attempt == attempt]
        yield from (same[start : start + PARTS_AT_ONCE] for start in range(0, len(same), PARTS_AT_ONCE))
