"""How many files this machine lets a process open: each call may need a socket."""

from __future__ import annotations

from .findings import Finding

OWN_FILES = 64  # open in a worker besides its calls: libraries, pipes, its connections to Spark


def check_open_files(limits: tuple[float, float] | None, capacity: int) -> Finding:
    """The soft and the hard limit of open files (None: no limits) against `capacity` calls of one task.

    Each task has a worker process of its own, and the limit counts for each process.
    """
    if limits is None:
        return Finding("open files", "ok", "no limit is known here")
    soft, hard = limits
    need = capacity + OWN_FILES
    if soft >= need:
        found = f"{_files(soft)} in a process; {capacity:,} calls in a task need about {need:,}"
        return Finding("open files", "ok", found)
    if hard >= need:
        # Java raises its own limit as far as it may when it starts, and Spark's workers inherit that.
        there = f"{_files(soft)} in a process, more in Spark's workers"
        found = f"{there}; without Spark {capacity:,} calls need about {need:,}"
        return Finding("open files", "warn", found, f"ulimit -n {int(min(hard, 1 << (need - 1).bit_length()))}")
    found = f"at most {_files(hard)} in a process, and {capacity:,} calls in a task need about {need:,}"
    fix = f"capacity={max(1, int(hard) - OWN_FILES)}, or let root raise the limit of {_files(hard)}"
    return Finding("open files", "fail", found, fix)


def check_worker_files(limit: float, capacity: int) -> Finding:
    """The limit of open files in a worker that Spark has started; -1: none."""
    need, found = capacity + OWN_FILES, "no limit" if limit < 0 else _files(limit)
    if limit < 0 or limit >= need:
        return Finding("workers' files", "ok", f"{found} in a worker; {capacity:,} calls in a task need about {need:,}")
    fix = (
        f"capacity={max(1, int(limit) - OWN_FILES)}, or raise the limit (ulimit -n) where Spark's executors are started"
    )
    return Finding(
        "workers' files", "fail", f"{found} in a worker, and {capacity:,} calls in a task need about {need:,}", fix
    )


def _files(limit: float) -> str:
    return "no limit" if limit == float("inf") else f"{limit:,.0f}"


def open_file_limits() -> tuple[float, float] | None:
    """The soft and the hard limit of open files in a process; None without such limits, as on Windows."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    return float("inf") if soft == endless else soft, float("inf") if hard == endless else hard
