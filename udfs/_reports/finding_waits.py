"""Findings for time in which something else is waited for than calls."""

from __future__ import annotations

from .._metrics.time_account import State
from .._text.figures import count
from .finding import Finding, mostly, saves_at_most
from .reading import Reading

__all__ = ("held_back", "open_breaker", "permits", "waiting_for_input", "waiting_for_store")


def _before(reading: Reading) -> str:
    return "Spark, or the function before," if reading.plain.get("entry_point") == "operator" else "Spark upstream"


def waiting_for_input(reading: Reading) -> Finding:
    """At most the waiting is saved, never more than until the calls, all slots busy, are done."""
    gain = reading.at_most(State.INPUT)
    return Finding(
        f"slots were free and no rows came: {_before(reading)} is the limit, and more capacity changes nothing",
        f"more partitions on more cores, or less work before the calls, would {saves_at_most(gain)}",
        gain,
    )


def held_back(reading: Reading) -> Finding:
    """As for the input."""
    gain = reading.at_most(State.OUTPUT)
    behind = "Spark, or the function behind," if reading.plain.get("entry_point") == "operator" else "Spark downstream"
    return Finding(
        f"results were not taken: {behind} is the limit, and more capacity here changes nothing",
        f"a faster reader (the next function, the write), or more partitions, would {saves_at_most(gain)}",
        gain,
    )


def permits(reading: Reading) -> Finding:
    """No figure says which of several limits it was, and how much of the time calls were held back by refusals."""
    gain = reading.at_most(State.LIMIT)
    has_rate, share = bool(reading.options.get("rate_limit")), reading.options.get("job_capacity")
    asked = reading.count("throttled")
    asks = f"the service refused {count(asked)} {'call' if asked == 1 else 'calls'}"
    if asked and not has_rate and not share:
        return Finding(
            f"calls were held back because {asks}: it allows fewer than were made, and capacity changes nothing",
            "a rate_limit just below what it allows would spare the calls that it refuses",
        )
    waits = {"rate_limit": "a permit"} if has_rate or not share else {}
    if share:
        waits["job_capacity"] = f"a share of job_capacity={share}"
    waited = " or ".join(waits.values()) + (f", and {asks}" if asked else "")
    return Finding(
        f"calls waited for {waited}: what you allow is the limit, and capacity changes nothing",
        f"a higher {' or '.join(waits)}, if the service allows it, would {saves_at_most(gain)}",
        gain,
        is_sure=not asked and len(waits) == 1,
    )


def open_breaker(reading: Reading) -> Finding:
    gain = reading.at_most(State.BREAKER)
    return Finding(
        f"the circuit breaker was open: the service failed too often{mostly(reading.errors)}, and no option mends that",
        f"a service that is well would {saves_at_most(gain)}",
        gain,
    )


def waiting_for_store(reading: Reading) -> Finding:
    gain = reading.at_most(State.STORE)
    hits, misses = reading.count("store_hits"), reading.count("store_misses")
    asked = f"{count(hits)} of {count(hits + misses)} rows were found there"
    if hits < 0.05 * (hits + misses):
        change = f"without store=, if rows do not come again, it would {saves_at_most(gain)}"
    else:
        change = f"a faster store, such as ResultStore.disk on a local disk, would {saves_at_most(gain)}"
    return Finding(f"rows waited for stored results: the store is the limit ({asked})", change, gain)
