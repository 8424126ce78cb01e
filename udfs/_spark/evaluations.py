"""Which results of a chain are evaluated together, and which evaluations are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .._chain.plan import StreamNode
from .._errors.exceptions import FunctionError, OptionError
from .._errors.records import Redact
from .._functions.side_outputs import ANY_TAG, DEAD_LETTERS, LATENCIES, OutputTag
from .._policies.checks import Seconds, redaction, seconds
from .._text.safe import safe_repr
from .map_in_arrow import evaluate
from .results import Read, result_frame, unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = (
    "ResultRef",
    "StreamSource",
    "frame_of",
    "frames_of",
)


STREAMING = (
    "several results of a streaming DataFrame cannot be kept, and side outputs are such; use "
    "writeStream.foreachBatch(f) with AsyncStream(batch) inside f"
)
Evaluated = tuple["DataFrame", Mapping[Read, int]]


class PersistedResults:
    """The evaluations that are kept until they are closed; shared by all streams of one beginning."""

    def __init__(self) -> None:
        self._frames: list[DataFrame] = []
        self.by_place: dict[tuple[StreamSource, StreamNode], Evaluated] = {}
        self.beginnings: dict[ResultRef, tuple[StreamSource, StreamNode]] = {}  # of the chains behind side outputs

    def keep(self, frame: DataFrame) -> DataFrame:
        """Ask Spark to keep a DataFrame from its first action on."""
        self._frames.append(frame.persist())
        return frame

    def close(self) -> None:
        """Release everything."""
        self.by_place.clear()
        while self._frames:
            self._frames.pop().unpersist()


@dataclasses.dataclass(frozen=True, eq=False)
class StreamSource:
    """Where a chain begins: a DataFrame, or a side output of another chain."""

    source: DataFrame | ResultRef
    object_reuse: bool
    latency_interval: float | None
    redact: Redact | None  # of all operators that say nothing of their own
    kept: PersistedResults

    @classmethod
    def of(cls, df: DataFrame, object_reuse: bool, latency_interval: Seconds | None, redact: Any) -> StreamSource:
        """The arguments of an `AsyncStream`, checked.

        Raises:
            OptionError: not a DataFrame, or a value that cannot work.
        """
        if not hasattr(type(df), "mapInArrow"):
            raise OptionError(f"AsyncStream takes a DataFrame, not {safe_repr(df)}")
        if not isinstance(object_reuse, bool):
            raise OptionError(f"object_reuse must be True or False, not {safe_repr(object_reuse)}")
        interval = None if latency_interval is None else seconds(latency_interval, "latency_interval")
        return cls(df, object_reuse, interval, redaction(redact, "redact"), PersistedResults())

    def evaluate(self, df: DataFrame, reads: list[Read], *, keep: bool) -> Evaluated:
        """One stage over `df`."""
        if df.isStreaming and (keep or reads[0].tag is not None):
            raise FunctionError(STREAMING)
        frame, numbers = evaluate(df, reads, object_reuse=self.object_reuse, latency_interval=self.latency_interval)
        return (self.kept.keep(frame) if keep else frame), numbers

    def may_write(self, node: StreamNode, tag: OutputTag) -> bool:
        """Whether an operator on the way to a stream may write to a side output."""
        if tag == LATENCIES:
            return self.latency_interval is not None
        return any(one.factory is not None and one.factory.may_write(tag) for one in node.path())


@dataclasses.dataclass(frozen=True)
class ResultRef:
    """Something that can be read: a stream, or a side output on the way to it."""

    beginning: StreamSource
    read: Read


def frame_of(place: ResultRef, *, alone: bool = False) -> DataFrame:
    """What is read at a place; with the side outputs that may be read later, unless `alone`."""
    beginning, node, kept = place.beginning, place.read.node, place.beginning.kept
    source = beginning.source
    df = frame_of(source) if isinstance(source, ResultRef) else source
    if df.isStreaming and (place.read.tag is not None or beginning.may_write(node, DEAD_LETTERS)):
        raise FunctionError(STREAMING)
    reads = [Read(node), *_side_reads(beginning, node)]
    if alone or df.isStreaming or len(reads) == 1:
        return beginning.evaluate(df, [place.read], keep=False)[0]
    if (beginning, node) not in kept.by_place:
        kept.by_place[beginning, node] = beginning.evaluate(df, reads, keep=True)
    envelope, numbers = kept.by_place[beginning, node]
    if place.read in numbers:
        return result_frame(envelope, numbers, place.read)
    assert place.read.tag is not None
    return unpacked(envelope, numbers, Read(node, undeclared=True), place.read.tag)


def _side_reads(beginning: StreamSource, node: StreamNode) -> Iterable[Read]:
    for tag in (DEAD_LETTERS, LATENCIES):
        if beginning.may_write(node, tag):
            yield Read(node, tag)
    if beginning.may_write(node, ANY_TAG):
        yield Read(node, undeclared=True)


def frames_of(places: Mapping[str, ResultRef]) -> dict[str, DataFrame]:
    """What is read at several places, from one evaluation for each beginning."""
    reads: dict[StreamSource, dict[Read, None]] = {}

    def need(place: ResultRef) -> None:
        reads.setdefault(place.beginning, {})[place.read] = None
        if isinstance(place.beginning.source, ResultRef):
            need(place.beginning.source)

    done: dict[StreamSource, Evaluated] = {}

    def frame(place: ResultRef) -> Any:
        beginning = place.beginning
        if beginning not in done:
            source = beginning.source
            df = frame(source) if isinstance(source, ResultRef) else source
            done[beginning] = beginning.evaluate(df, list(reads[beginning]), keep=len(places) > 1)
        evaluated, numbers = done[beginning]
        return evaluated if len(numbers) == 1 else result_frame(evaluated, numbers, place.read)

    for place in places.values():
        need(place)
    return {name: frame(place) for name, place in places.items()}
