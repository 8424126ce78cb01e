"""`python -m asyncudf batches STATE`: how far a submission is, as a line and as the exit status."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable

from .._errors.exceptions import AsyncUDFError
from .submission import Submission


def show_batches(state: str, wait: float | None, only_look: bool, as_json: bool, write: Callable[[str], None]) -> int:
    """Print how far it is, after up to `wait` seconds; returns 0 if it is done, 75 if it is not, and 1 for an error."""
    try:
        submission = Submission.open(state)
        status = submission.status() if only_look else submission.wait(timeout=wait or 0, progress=bool(wait))
    except AsyncUDFError as error:
        sys.stderr.write(f"python -m asyncudf batches: {error}\n")
        return 1
    told = {**dataclasses.asdict(status), "exit_code": status.exit_code}
    write(f"{json.dumps(told) if as_json else repr(status)}\n")
    return status.exit_code
