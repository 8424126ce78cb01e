"""One process at a time goes on with a submission; the error of another one says which it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from asyncudf import AsyncUDFError
from asyncudf._batches import owner as owners
from asyncudf._batches.journal import Event
from asyncudf._batches.owner import CLAIM_LASTS, Owner, living


class Notes:
    """A journal in memory."""

    path = "/state"

    def __init__(self) -> None:
        self.written: list[Event] = []

    def events(self) -> list[Event]:
        return list(self.written)

    def add(self, events: Sequence[Event]) -> None:
        self.written += events


def claim(at: float, **changed: object) -> Event:
    """The claim of another process."""
    return Event(at, "other", "claim", text=json.dumps({**owners._this_process(), "user": "ada", **changed}))


def test_the_second_process_gets_an_error_that_names_the_first_and_goes_on_after_it() -> None:
    journal, now = Notes(), [1000.0]
    with Owner(journal, lambda: now[0]):
        now[0] += 60
        with (
            pytest.raises(AsyncUDFError, match=rf"/state: process {os.getpid()} of .* since 1970-01-01 00:16:40 UTC"),
            Owner(journal, lambda: now[0]),
        ):
            pass
    with Owner(journal, lambda: now[0]):
        pass
    assert living(journal.events(), now[0]) == []


def test_a_claim_ends_with_its_process() -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    assert living([claim(0.0, pid=int(ended.stdout))], 1.0) == []
    assert living([claim(0.0, process="an earlier one with this id")], 1.0) == [], "ids of processes return"
    assert len(living([claim(0.0, pid=1)], 1.0)) == 1


def test_on_another_machine_it_ends_with_its_lease() -> None:
    far = claim(0.0, machine="elsewhere", pid=999_999)
    assert len(living([far], CLAIM_LASTS - 1)) == 1
    assert living([far], CLAIM_LASTS + 1) == []
    beat = Event(CLAIM_LASTS / 2, "other", "beat")
    assert len(living([far, beat], CLAIM_LASTS + 1)) == 1
    assert living([far, beat, Event(CLAIM_LASTS / 2, "other", "release")], CLAIM_LASTS / 2) == []


def test_of_many_that_begin_at_once_one_goes_on() -> None:
    """Each writes before it looks, so of two that go on one would have seen the other."""
    journal, inside, most, entered = Notes(), [0], [0], [0]
    ready, lock = threading.Barrier(8), threading.Lock()

    def begin() -> None:
        ready.wait()
        try:
            with Owner(journal):
                with lock:
                    inside[0] += 1
                    entered[0] += 1
                    most[0] = max(most[0], inside[0])
                with lock:
                    inside[0] -= 1
        except AsyncUDFError:
            pass

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1
    assert entered[0] >= 1


def test_an_error_inside_ends_the_claim_and_so_does_a_journal_that_is_gone() -> None:
    journal = Notes()
    with pytest.raises(KeyError), Owner(journal):
        raise KeyError
    assert living(journal.events(), journal.written[0].at) == []
    with Owner(journal):
        journal.add = lambda events: 1 / 0  # type: ignore[assignment,method-assign,return-value]


@pytest.mark.parametrize("error", [KeyboardInterrupt, AsyncUDFError])
def test_an_error_while_it_claims_takes_the_claim_back(error: type[BaseException]) -> None:
    """In a notebook the process lives on: it would keep itself out."""
    journal = Notes()

    def events() -> list[Event]:
        raise error

    journal.events = events  # type: ignore[method-assign]
    with pytest.raises(error), Owner(journal):
        pass
    assert living(journal.written, journal.written[0].at) == []
