"""How far a submission is follows from its events, in whatever order clocks and hosts have put them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from asyncudf import Budget
from asyncudf._batches.journal import REUSED, UNMADE, Event, Part, SubmissionProgress
from asyncudf._functions.options import Options
from asyncudf._functions.signature import FunctionSpec


def planned(part: str = "a", attempt: int = 1, requests: int = 10, **more: object) -> Event:
    return Event(0.0, "me", "planned", attempt, part, requests=requests, **more)  # type: ignore[arg-type]


def about(kind: str, part: str = "a", turn: int = 0, attempt: int = 1, at: float = 1.0, **more: object) -> Event:
    return Event(at, "me", kind, attempt, part, turn, **more)  # type: ignore[arg-type]


def only(*events: Event, can_find: bool = False) -> Part:
    (part,) = SubmissionProgress([planned(), *events], can_find=can_find).parts
    return part


FORMED = Event(0.0, "me", "formed", 1)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_part_that_was_sent_is_sent_whatever_the_clocks_say(order: tuple[int, ...]) -> None:
    """A part whose id was there, and whose intent had the later time, was sent once more."""
    events = [about("intent", at=5.0), about("sent", job="7", at=4.0), planned()]
    progress = SubmissionProgress([events[place] for place in order], can_find=False)
    assert [(part.state, part.job) for part in progress.parts] == [("sent", "7")]


def test_a_refusal_begins_a_new_turn_which_has_a_key_of_its_own() -> None:
    refused = only(about("intent"), about("sent", job="7"), about("refused"))
    assert (refused.state, refused.turn, refused.job) == ("planned", 1, "")
    again = only(about("intent"), about("refused"), about("intent", turn=1))
    assert (again.state, again.turn) == ("intent", 1)
    assert only(about("refused"), about("intent", turn=1), about("sent", turn=1, job="8")).job == "8"


def test_each_intent_without_an_end_may_be_a_job_that_nobody_knows() -> None:
    assert only(about("intent")).unknown_jobs == 0
    assert only(about("intent"), about("intent"), about("sent", job="7")).unknown_jobs == 1
    assert only(about("intent"), about("sent", job="7", reruns=1)).unknown_jobs == 1
    assert only(about("intent"), about("refused"), about("intent", turn=1)).unknown_jobs == 0
    events = [planned(), about("intent"), about("intent")]
    assert [SubmissionProgress(events, can_find=can).may_be_twice for can in (False, True)] == [1, 0]


def test_a_job_that_may_be_there_twice_may_be_charged_twice() -> None:
    events = [planned(costs=[2.0]), about("intent"), about("intent"), about("sent", job="7")]
    assert SubmissionProgress(events, can_find=False).committed(1) == [4.0]
    assert SubmissionProgress(events, can_find=True).committed(1) == [2.0]
    settled = about("settled", costs=[1.5], ok=10)
    assert SubmissionProgress([*events, settled], can_find=False).spent(1) == [3.5]
    assert SubmissionProgress([*events, settled], can_find=True).spent(1) == [1.5]


def test_an_attempt_is_there_once_it_is_planned_as_a_whole() -> None:
    assert SubmissionProgress([planned()], can_find=False).attempt == 0
    progress = SubmissionProgress([planned(), FORMED], can_find=False)
    assert (progress.attempt, progress.is_attempt_over, progress.is_done) == (1, False, False)
    assert SubmissionProgress([FORMED], can_find=False).is_done, "no rows, or all from a store"


def test_it_is_done_when_no_request_is_to_be_asked_again() -> None:
    events = [planned(), FORMED, about("settled", ok=9, again=1)]
    progress = SubmissionProgress(events, can_find=False)
    assert (progress.is_attempt_over, progress.to_ask_again, progress.is_done) == (True, 1, False)
    second = [planned(attempt=2, requests=1), Event(2.0, "me", "formed", 2), about("settled", attempt=2, failed=1)]
    assert SubmissionProgress([*events, *second], can_find=False).is_done


def test_answers_that_were_read_again_replace_what_was_settled() -> None:
    first, later = about("settled", failed=10, at=9.0), about("settled", ok=10, at=3.0)
    assert only(first, later).outcome.ok == only(later, first).outcome.ok == 10


def test_parts_without_a_job_weigh_nothing_in_the_queue() -> None:
    events = [planned(UNMADE, weight=5.0), planned(REUSED, attempt=0), planned(weight=3.0), about("intent")]
    progress = SubmissionProgress(events, can_find=False)
    assert progress.queued == 3.0
    assert [part.has_job for part in progress.parts] == [False, True, False]


def test_requests_of_a_job_that_failed_are_not_done_before_their_pieces_are() -> None:
    """A process may die between the two events: the rows would be in no result and no dead letter."""
    events = [planned(), FORMED, about("settled", apart=9, failed=1)]
    progress = SubmissionProgress(events, can_find=False)
    assert (progress.is_attempt_over, progress.is_done, progress.parts[0].is_to_divide) == (False, False, True)
    events += [about("apart"), planned("ar", requests=9)]
    progress = SubmissionProgress(events, can_find=False)
    assert (progress.is_done, progress.parts[0].is_to_divide, progress.parts[1].is_piece) == (False, False, True)
    assert SubmissionProgress([*events, about("settled", "ar", ok=9)], can_find=False).is_done


@pytest.mark.parametrize(
    ("kept", "first"),
    [
        (
            FunctionSpec,
            "function name kind parameters required variadic context_parameter resources vectors returns",
        ),
        (Options, ""),
        (Budget, "amount"),
        (Event, "at owner kind"),
    ],
)
def test_what_states_have_of_earlier_versions_can_be_read(kept: Any, first: str) -> None:
    """What is added to it has a default, also as an attribute of the class, which an object without it then has."""
    without = [one.name for one in dataclasses.fields(kept) if not hasattr(kept, one.name)]
    assert without == first.split()
