"""The files of a journal: events are added in waves, and each wave is read once.

    journal/wave=.../    events, lines of JSON
    checkpoints/         a file with the events of all waves that were read when it was written

A checkpoint saves the next process the files of these waves. It only repeats what is in them, and they stay: a
checkpoint may be lost, and a process that reads the journal meanwhile misses nothing.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from .._errors.exceptions import AsyncUDFError
from .._errors.records import error_text
from .._errors.safe import safe_repr
from .._spark.result_table import read_files, wave_name
from .._version import VERSION
from .files import HadoopFiles, naming
from .journal import OF_OWNERS, Event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("asyncudf")

BETWEEN = "\t"  # events that were written together; no JSON has one
LINE, DONE = "line.txt", "_SUCCESS"  # a wave is complete when it has one of them
CHECKPOINT_AFTER = 50  # waves that are in no checkpoint


class JournalFiles:
    """Reads and adds events of the state at a path."""

    # `_events` has complete waves only, which never change, and the checkpoint that was read. Several threads may look
    # at once: each of them puts the same there.

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session, self._path = session, path
        self._journal, self._checkpoints = f"{path.rstrip('/')}/journal", f"{path.rstrip('/')}/checkpoints"
        self._events: dict[str, Sequence[Event]] = {}  # by the name of the wave or the checkpoint
        self._in_checkpoint = 0

    @property
    def _files(self) -> HadoopFiles | None:
        return HadoopFiles.of(self._session, self._path)

    def events(self, *, is_there: bool) -> list[Event]:
        """The journal; empty if it is not there.

        Raises:
            AsyncUDFError: the storage cannot be read, or another version of asyncudf has written the events.
        """
        with naming(self._path, "read"):
            files = self._files
            if files is None:
                return self._parsed(self._by_spark(self._journal), self._journal) if is_there else []
            if not self._events:
                self._events = self._read_checkpoint(files)
            waves = [name for name in files.names(self._journal) if name.startswith("wave=")]
            found = {wave: self._wave(files, wave) for wave in waves if wave not in self._events}
            return list(itertools.chain.from_iterable((found | self._events).values()))

    def _wave(self, files: HadoopFiles, wave: str) -> Sequence[Event]:
        """The events of a wave; a complete wave is never read again."""
        folder = f"{self._journal}/{wave}"
        if (line := files.read(f"{folder}/{LINE}")) is not None:
            lines, is_complete = [line], True
        else:
            lines, is_complete = self._by_tasks(files, folder)
        events = self._parsed(lines, folder)
        if is_complete and events:
            self._events.setdefault(wave, events)
        return events

    def _by_tasks(self, files: HadoopFiles, folder: str) -> tuple[list[str], bool]:
        """The lines that Spark's tasks have written, and whether all of these tasks have ended."""
        is_complete = DONE in files.names(folder)
        names = [name for name in files.names(folder) if not name.startswith(("_", "."))]  # those before DONE are there
        if not all(name.endswith(".txt") for name in names):  # a session may be set to compress them
            return self._by_spark(folder), is_complete
        texts = [files.read(f"{folder}/{name}") or "" for name in names]
        return [line for text in texts for line in text.splitlines()], is_complete

    def _by_spark(self, place: str) -> list[str]:
        return [row["value"] for row in read_files(self._session, place, "text").collect()]

    def read_wave(self, wave: str) -> list[Event]:
        """What tasks have written in a wave."""
        folder = f"{self._journal}/wave={wave}"
        return self._parsed(self._by_spark(folder), folder)

    def add(self, events: Sequence[Event]) -> None:
        """Add events, all or none."""
        line, place = BETWEEN.join(event.to_json() for event in events), self.place(wave_name())
        with naming(self._path, "written"):
            # A Spark job would wait for a slot while others have them all: signs of life may not.
            if files := self._files:
                files.write(place, LINE, line)
            else:
                self._session.range(0, 1, 1, 1).select(sf.lit(line).alias("value")).write.text(place)

    def place(self, wave: str) -> str:
        return f"{self._journal}/wave={wave}"

    # Checkpoints.

    def checkpoint(self) -> None:
        """Write a checkpoint if many waves are in no checkpoint. Released claims are left out."""
        files, waves = self._files, sorted(name for name in self._events if name.startswith("wave="))
        if files is None or len(waves) - self._in_checkpoint < CHECKPOINT_AFTER:
            return
        lines = [event.to_json() for event in _without_released(itertools.chain.from_iterable(self._events.values()))]
        first = json.dumps({"asyncudf": VERSION, "waves": waves, "events": len(lines)})
        try:
            before = files.names(self._checkpoints)
            files.write(self._checkpoints, f"{wave_name()}.json", "\n".join([first, *lines]))
            for name in before:
                files.delete(f"{self._checkpoints}/{name}")
        except Exception as error:  # the waves have all of it
            logger.warning("no checkpoint of the journal of %s could be written: %s", self._path, error_text(error))
        else:
            self._in_checkpoint = len(waves)

    def _read_checkpoint(self, files: HadoopFiles) -> dict[str, Sequence[Event]]:
        """The events of the latest checkpoint that can be used, and the waves that it repeats."""
        for name in sorted(files.names(self._checkpoints), reverse=True):
            if name.startswith(("_", ".")):
                continue
            try:
                first, *lines = (files.read(f"{self._checkpoints}/{name}") or "").splitlines()
                said = json.loads(first)
                if len(lines) != said["events"]:
                    raise ValueError(f"it has {len(lines):,} of {said['events']:,} events")
                events = self._parsed(lines, f"{self._checkpoints}/{name}")
                waves: dict[str, Sequence[Event]] = dict.fromkeys(said["waves"], ())
            except Exception as error:  # another process has replaced it, or it is damaged; the waves have all of it
                logger.info("the checkpoint %s of %s is not used: %s", name, self._path, error_text(error))
                continue
            self._in_checkpoint = len(waves)
            return {name: events, **waves}
        return {}

    def _parsed(self, lines: Iterable[str], place: str) -> list[Event]:
        """Raises AsyncUDFError for what this version cannot read."""
        texts, events = [text for line in lines for text in line.split(BETWEEN)], list[Event]()
        for text in texts:
            try:
                events.append(Event.from_json(text))
            except Exception as error:
                raise AsyncUDFError(
                    f"{place} has an event that asyncudf {VERSION} cannot read ({error_text(error)}): "
                    f"{safe_repr(text)}. A newer version may have written it: open the state with the version that "
                    "went on with it last. If the file is damaged, restore it from a backup: without the event, jobs "
                    "may be sent and paid for twice"
                ) from error
        return events


def _without_released(events: Iterable[Event]) -> list[Event]:
    events = list(events)
    released = {event.owner for event in events if event.kind == "release"}
    released &= {event.owner for event in events if event.kind == "claim"}  # one that was not seen yet is alive else
    return [event for event in events if not (event.kind in OF_OWNERS and event.owner in released)]
