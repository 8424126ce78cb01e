"""What a process reads of a journal: each wave once, whatever another process was doing when it was read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncudf import AsyncUDFError
from asyncudf._batches import journal_files
from asyncudf._batches.files import HadoopFiles
from asyncudf._batches.journal import Event, SubmissionProgress
from asyncudf._batches.journal_files import CHECKPOINT_AFTER, JournalFiles
from asyncudf._version import VERSION

# The journal of a submission of 0.3.0, which knew neither `apart`, `unsettled` nor "counted".
OF_0_3_0 = (
    '{"at": 1.0, "owner": "a", "kind": "claim", "text": "{}"}',
    '{"at": 2.0, "owner": "a", "kind": "submitted", "text": "{\\"asyncudf\\": \\"0.3.0\\"}"}',
    (
        '{"at": 3.0, "owner": "a", "kind": "planned", "attempt": 1, "part": "00000-00000", "requests": 2,'
        ' "costs": [20.0]}'
        '\t{"at": 3.0, "owner": "a", "kind": "formed", "attempt": 1}'
    ),
    '{"at": 4.0, "owner": "a", "kind": "intent", "attempt": 1, "part": "00000-00000"}',
    '{"at": 5.0, "owner": "a", "kind": "sent", "attempt": 1, "part": "00000-00000", "job": "job-7"}',
    '{"at": 6.0, "owner": "a", "kind": "release"}',
)


class LocalFiles:
    """Files of this machine; `reads` are the waves whose files were read."""

    reads: Counter[str] = Counter()

    @classmethod
    def of(cls, session: Any, path: str) -> LocalFiles:
        return cls()

    def names(self, folder: str) -> list[str]:
        return os.listdir(folder) if os.path.isdir(folder) else []

    def read(self, path: str) -> str | None:
        if not os.path.exists(path):
            return None
        self.reads[Path(path).parent.name] += 1
        return Path(path).read_text()

    def write(self, folder: str, name: str, content: str) -> None:
        os.makedirs(folder, exist_ok=True)
        Path(folder, name).write_text(content)

    def delete(self, path: str) -> None:
        os.unlink(path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    monkeypatch.setattr(journal_files, "HadoopFiles", LocalFiles)
    monkeypatch.setattr(LocalFiles, "reads", Counter())
    return LocalFiles.reads


def process(state: Path) -> JournalFiles:
    """The journal as a new process has it."""
    return JournalFiles(None, str(state))  # type: ignore[arg-type]


def wave(state: Path, name: str, *lines: str, files: Sequence[str] = ("line.txt",)) -> None:
    folder = state / "journal" / f"wave={name}"
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).write_text("\n".join(lines))


def looks(state: Path, number: int) -> None:
    """What so many looks of a sensor add."""
    for i in range(number):
        journal = process(state)
        journal.add([Event(float(i), f"look {i}", "claim", text="{}")])
        journal.add([Event(float(i), f"look {i}", "release")])


def shown(events: Sequence[Event]) -> list[str]:
    return sorted(event.to_json() for event in events)


def test_a_look_reads_what_is_new(tmp_path: Path, reads: Counter[str]) -> None:
    """Each look read all files: 13 s at 2,000 of them."""
    looks(tmp_path, CHECKPOINT_AFTER)
    first = process(tmp_path)
    assert len(first.events(is_there=True)) == 2 * CHECKPOINT_AFTER == reads.total()
    first.checkpoint()
    reads.clear()
    looks(tmp_path, 3)
    assert len(first.events(is_there=True)) == 2 * CHECKPOINT_AFTER + 6
    assert reads.total() == 6
    reads.clear()
    another = process(tmp_path)
    assert len(another.events(is_there=True)) == 6, "claims that were released say nothing any more"
    assert (reads.pop("checkpoints"), reads.total()) == (1, 6)
    another.checkpoint()
    assert len(os.listdir(tmp_path / "checkpoints")) == 1, "few new waves are no reason for another one"


def test_what_is_on_a_disk_of_this_machine_is_read_without_a_call_of_the_jvm(tmp_path: Path) -> None:
    """A first look at 2,000 waves made 25,000 calls."""
    io = SimpleNamespace(IOUtils=SimpleNamespace(toByteArray=None))
    disk = SimpleNamespace(getUri=lambda: SimpleNamespace(toString=lambda: "file:///"))
    fs = SimpleNamespace(Path=lambda path: SimpleNamespace(getFileSystem=lambda configuration: disk))
    apache = SimpleNamespace(commons=SimpleNamespace(io=io), hadoop=SimpleNamespace(fs=fs))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=apache))
    folder = tmp_path / "a, b%20c"
    wave(folder, "1", OF_0_3_0[0], files=["line.txt", ".line.txt.crc"])
    for path in (str(folder), f"file:{folder}", f"file://{folder}"):
        files = HadoopFiles(jvm, None, path)
        assert files.names(f"{path}/journal/wave=1") == ["line.txt"]
        assert files.read(f"{path}/journal/wave=1/line.txt") == OF_0_3_0[0]


def test_a_checkpoint_repeats_what_the_waves_have(tmp_path: Path, reads: Counter[str]) -> None:
    wave(tmp_path, "0", *OF_0_3_0[:1])
    for number, line in enumerate(OF_0_3_0[1:-1]):
        wave(tmp_path, f"1-{number}", line)
    before = process(tmp_path).events(is_there=True)
    for _ in range(2):
        looks(tmp_path, CHECKPOINT_AFTER)
        journal = process(tmp_path)
        journal.events(is_there=True)
        journal.checkpoint()
    (name,) = os.listdir(tmp_path / "checkpoints")
    assert shown(process(tmp_path).events(is_there=True)) == shown(before), "the claim that is alive too"
    place = tmp_path / "checkpoints" / name
    whole = place.read_text()
    for damaged in ("{", whole[:-9], whole.rpartition("\n")[0], whole.partition("\n")[0], ""):
        place.write_text(damaged)
        assert len(process(tmp_path).events(is_there=True)) == len(before) + 4 * CHECKPOINT_AFTER, "the waves have all"


def test_a_checkpoint_that_a_slow_process_writes_late_hides_nothing(tmp_path: Path, reads: Counter[str]) -> None:
    looks(tmp_path, CHECKPOINT_AFTER)
    slow = process(tmp_path)
    slow.events(is_there=True)
    for line in OF_0_3_0[1:-1]:
        looks(tmp_path, CHECKPOINT_AFTER)
        process(tmp_path).add([Event.from_json(text) for text in line.split("\t")])
        journal = process(tmp_path)
        journal.events(is_there=True)
        journal.checkpoint()
    slow.checkpoint()
    for _ in range(2):
        journal = process(tmp_path)
        progress = SubmissionProgress(journal.events(is_there=True), can_find=True)
        assert [(part.state, part.job) for part in progress.parts] == [("sent", "job-7")]
        journal.checkpoint()
    assert [progress.attempt, len(os.listdir(tmp_path / "checkpoints"))] == [1, 1]


def test_two_threads_that_look_at_once_take_each_wave_once(
    tmp_path: Path, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` beside `wait` of one object: an intent that counted twice was a job that may be there twice."""
    for number, line in enumerate(OF_0_3_0):
        wave(tmp_path, str(number), line)
    journal, read, others = process(tmp_path), LocalFiles.read, [1]

    def interrupted(files: LocalFiles, path: str) -> str | None:
        found = read(files, path)
        if "wave=3" in path and others:  # the intent
            others.pop()
            journal.events(is_there=True)
        return found

    monkeypatch.setattr(LocalFiles, "read", interrupted)
    for _ in range(2):
        progress = SubmissionProgress(journal.events(is_there=True), can_find=False)
        assert [(part.state, part.unknown_jobs) for part in progress.parts] == [("sent", 0)]


def test_a_release_whose_claim_is_read_later_stays_in_the_checkpoint(tmp_path: Path, reads: Counter[str]) -> None:
    """A listing may have the later of two waves only."""
    looks(tmp_path, CHECKPOINT_AFTER)
    wave(tmp_path, "2", OF_0_3_0[-1])
    journal = process(tmp_path)
    journal.events(is_there=True)
    journal.checkpoint()
    wave(tmp_path, "1", OF_0_3_0[0])
    assert {event.kind for event in process(tmp_path).events(is_there=True)} == {"claim", "release"}


def test_what_a_task_writes_late_is_seen(tmp_path: Path, reads: Counter[str]) -> None:
    """The tasks of a killed driver end after it. A job whose event was missed would be sent and paid for twice."""
    looks(tmp_path, CHECKPOINT_AFTER)
    wave(tmp_path, "sent", OF_0_3_0[4], files=["part-00000.txt"])
    journal = process(tmp_path)
    journal.events(is_there=True)
    journal.checkpoint()
    wave(tmp_path, "sent", OF_0_3_0[4].replace("00000-00000", "00001-00000"), files=["part-00001.txt"])
    for one in (journal, process(tmp_path)):
        assert {event.part for event in one.events(is_there=True) if event.kind == "sent"} == {
            "00000-00000", "00001-00000",
        }  # fmt: skip
    wave(tmp_path, "sent", "", files=["_SUCCESS"])
    journal.events(is_there=True)
    reads.clear()
    assert len([event for event in journal.events(is_there=True) if event.kind == "sent"]) == 2
    assert not reads, "a wave whose tasks have all ended is read once"


def test_a_line_that_is_not_there_yet_is_seen_later(tmp_path: Path, reads: Counter[str]) -> None:
    wave(tmp_path, "1", OF_0_3_0[0], files=["_line.txt"])
    journal = process(tmp_path)
    assert journal.events(is_there=True) == []
    os.rename(tmp_path / "journal/wave=1/_line.txt", tmp_path / "journal/wave=1/line.txt")
    assert [event.kind for event in journal.events(is_there=True)] == ["claim"]


def test_the_journal_of_an_earlier_version_is_read(tmp_path: Path, reads: Counter[str]) -> None:
    for number, line in enumerate(OF_0_3_0):
        wave(tmp_path, str(number), line)
    progress = SubmissionProgress(process(tmp_path).events(is_there=True), can_find=True)
    assert [(part.state, part.job, part.planned_costs) for part in progress.parts] == [("sent", "job-7", [20.0])]
    assert (progress.counted, progress.is_done) == (set(), False)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"at": 1.0, "owner": "a", "kind": "sent", "shard": 3}', "unexpected keyword argument 'shard'"),
        ('{"at": 1.0, "owner": "a", "kind": "moved"}', "unknown kind 'moved'"),
        ('{"at": 1.0, "ow', "JSONDecodeError"),
    ],
)
def test_what_this_version_cannot_read_is_an_error_that_names_it(
    tmp_path: Path, reads: Counter[str], line: str, why: str
) -> None:
    """It was a TypeError of `Event`; a kind of event that is not known was left out."""
    wave(tmp_path, "1", *OF_0_3_0[:2])
    wave(tmp_path, "2", line)
    with pytest.raises(AsyncUDFError, match=rf"/wave=2 has an event that asyncudf {VERSION} .*{why}.*newer version"):
        process(tmp_path).events(is_there=True)
