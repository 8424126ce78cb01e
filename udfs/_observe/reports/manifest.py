"""A run in plain values, for an orchestrator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from ..._version import VERSION
from .function_figures import paid

OF_LIMITS = ("budget", "max_calls", "max_failures", "breaker", "quota")  # a run that these have ended may go on
FAILED, TRY_AGAIN = 1, 75  # exit codes; 75 is EX_TEMPFAIL of sysexits.h


def manifest(metrics: Mapping[str, Any], error: str) -> dict[str, Any]:
    """A run as an orchestrator wants to know it: what was done, what it cost, and whether rows are left.

    `error` is the type of the error that has ended the block; empty if none has.
    """
    functions = [_function(one) for one in metrics["functions"]]
    reasons = [one["reason"] for one in functions if one["reason"]]
    reason = next((one for one in reasons if one in OF_LIMITS), None) or next(iter(reasons), None) or error or None
    if reason is None and not metrics["is_over"]:
        reason = "running"
    return {
        "asyncudf": VERSION,
        "began": datetime.fromtimestamp(metrics["began"], UTC).isoformat(timespec="milliseconds"),
        "seconds": round(metrics["seconds"], 3),
        "complete": reason is None,
        "reason": reason,
        "exit_code": 0 if reason is None else TRY_AGAIN if reason in OF_LIMITS else FAILED,
        **{name: sum(one[name] for one in functions) for name in ("rows", "failures", "unpaid", "calls", "attempts")},
        "spent": _together(one["spent"] for one in functions),
        "unsettled": sum(one["unsettled"] for one in functions),
        "functions": functions,
    }


def _function(figures: Mapping[str, Any]) -> dict[str, Any]:
    in_vain, unsettled = figures["failed_attempts"], paid(figures, "unsettled")
    return {
        "function": figures["function"],
        "name": figures["name"],
        "reason": _reason(figures),
        **{name: figures[name] for name in ("rows", "failures", "unpaid")},
        **{name: figures[name] + in_vain[name] for name in ("calls", "attempts")},
        "spent": _together([paid(figures, "spent")]),
        "unsettled": sum(unsettled.values()),
        "settle_errors": unsettled,
    }


def _reason(figures: Mapping[str, Any]) -> str | None:
    """Why rows of the function are left; None if none are."""
    if figures["given_up"]:
        ends = figures["failed_attempts"]["ended_by"]
        return max(ends, key=lambda end: ends[end]) if ends else "an error outside of the calls"
    if figures["unpaid"]:
        return "budget"
    return "running" if figures["tasks"]["running"] else None


def _together(spent: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for one in spent:
        total.update(one)
    return {unit: float(f"{amount:.12g}") for unit, amount in total.items()}  # no 2.0000000000000004 USD
