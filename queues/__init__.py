"""Bounded queues that decide in which order the results of concurrent calls may leave.

Plain data: no thread, no clock, no event loop, standard library only.

    _elements   what travels: records, watermarks, statuses, latency markers
    _queues     entries: each is the place of one element, and is completed once; StreamElementQueue: the base class
                of the queues; a queue that emits in arrival order, and one that emits in completion order between
                watermarks
"""

from ._elements import LatencyMarker, StreamElement, StreamRecord, Watermark, WatermarkStatus
from ._public import publish as _publish
from ._queues import Entry, OrderedStreamElementQueue, Output, StreamElementQueue, UnorderedStreamElementQueue

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
