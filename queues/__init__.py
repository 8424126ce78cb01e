"""Bounded queues that decide in which order the results of concurrent calls may leave.

Plain data: no thread, no clock, no event loop, standard library only.

    _elements   what travels: records, watermarks, statuses, latency markers
    _entries    an element's place in a queue, completed once
    _base       StreamElementQueue, the protocol
    _ordered    emission in arrival order
    _unordered  emission in completion order between watermarks
"""

from ._base import StreamElementQueue
from ._elements import LatencyMarker, StreamElement, StreamRecord, Watermark, WatermarkStatus
from ._entries import Entry, Output
from ._ordered import OrderedStreamElementQueue
from ._public import publish as _publish
from ._unordered import UnorderedStreamElementQueue

__all__ = (
    "Entry",
    "LatencyMarker",
    "OrderedStreamElementQueue",
    "Output",
    "StreamElement",
    "StreamElementQueue",
    "StreamRecord",
    "UnorderedStreamElementQueue",
    "Watermark",
    "WatermarkStatus",
)

_publish(__name__, [globals()[name] for name in __all__])
