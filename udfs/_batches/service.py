"""`BatchService`: the interface of a service that takes a job of many requests and has the answers later."""

from __future__ import annotations

import dataclasses
import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .._errors.checks import is_number
from .._errors.exceptions import AsyncUDFError, OptionError
from .._errors.safe import safe_repr, type_name


class NotAnsweredError(AsyncUDFError):
    """A request without an answer: its job expired, was cancelled or failed, or the service has left it out.

    `fetch` gives this error for a request that the service reports as not answered. It is submitted again.
    """

    is_damaged: bool = False  # there is an answer, which cannot be read: it may be whole when it is fetched once more


class JobState(enum.Enum):
    """How far a job is.

    QUEUED: sent, and not accepted yet. WORKING: accepted. ENDED, EXPIRED, CANCELLED: over; what was answered can be
    fetched. FAILED: over as a whole, because of some of its requests, or too many; the others are sent again in smaller
    jobs. REFUSED: not accepted, as the queue of the account is full: the requests are sent again later.
    """

    QUEUED = "queued"
    WORKING = "working"
    ENDED = "ended"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REFUSED = "refused"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be answered."""
        return self not in (JobState.QUEUED, JobState.WORKING, JobState.REFUSED)


@dataclasses.dataclass(frozen=True)
class JobStatus:
    """What a service says about a job.

    Args:
        state: a `JobState`, or its value, such as "working".
        answers: how many requests have an answer or an error by now; None if the service does not say. A `fetch` that
            gives fewer is repeated.
        error: why the job has failed or was refused; of a job at work, a warning for the log.

    >>> JobStatus("working", answers=10).state
    <JobState.WORKING: 'working'>
    """

    state: JobState | str
    answers: int | None = None
    error: str = ""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "state", JobState(self.state))
        except ValueError:
            known = ", ".join(repr(one.value) for one in JobState)
            raise OptionError(f"the state of a job must be one of {known}, not {safe_repr(self.state)}") from None
        if self.answers is not None:
            if not is_number(self.answers) or self.answers < 0:
                raise OptionError(f"answers of a job must be a number of 0 or more, not {safe_repr(self.answers)}")
            object.__setattr__(self, "answers", int(self.answers))
        object.__setattr__(self, "error", str(self.error or ""))  # clients have objects here


class BatchRequest(NamedTuple):
    """A request in a job.

    Attributes:
        key: the key of the request, 32 hexadecimal digits; `fetch` gives the answer under it.
        body: what `request` of the function has returned.
    """

    key: str
    body: Any


class BatchService(ABC):
    """A service that takes a job of many requests, and has the answers minutes to days later.

    Subclass it. All methods are plain, run on the executors one at a time, and may raise what their client raises: a
    refusal (429, or 503 with a wait) or a failed connection is tried again later, and so is a 404 of `poll`, three
    times for a job, as a service may not know yet what it has taken. Anything else ends `submit`, `wait` or `collect`
    with an error and leaves the state as it is.

    The object is pickled into the state: so read keys and passwords from the environment, where you connect, and
    connect in the methods.

    Attributes:
        max_requests: the most requests in one job.
        max_bytes: the most bytes of all bodies of a job, as JSON in UTF-8; None: no bound.
        max_queued: the most weight of all jobs in progress, such as tokens; None: no bound.
        poll_every: seconds between two looks at the jobs.

    >>> class Uppercase(BatchService):
    ...     done = {}
    ...     def submit(self, requests, key):
    ...         self.done[key] = [(request.key, request.body.upper()) for request in requests]
    ...         return key
    ...     def poll(self, job):
    ...         return JobStatus("ended")
    ...     def fetch(self, job):
    ...         return self.done[job]
    ...     def cancel(self, job):
    ...         pass
    >>> service = Uppercase()
    >>> service.fetch(service.submit([BatchRequest("1", "oslo")], "a"))
    [('1', 'OSLO')]
    """

    max_requests: int = 10_000
    max_bytes: int | None = None
    max_queued: float | None = None
    poll_every: float = 60.0

    @abstractmethod
    def submit(self, requests: Sequence[BatchRequest], key: str) -> str:
        """Send a job, and return its id.

        Args:
            requests: the requests of the job.
            key: the key of the job, at most 64 letters, digits and `-`. No other job has this key. Store it
                with the job where the service has a place for it (metadata, an idempotency key), so that `find` can
                tell whether it is there.
        """

    @abstractmethod
    def poll(self, job: str) -> JobStatus:
        """How far a job is."""

    @abstractmethod
    def fetch(self, job: str) -> Iterable[tuple[str, Any]]:
        """The key of each request with its answer, or with an exception, in any order; called when the job is over.

        Answers are what JSON has: dicts, lists, texts, numbers, None. A key that the job does not have is ignored. Of
        two pairs with the same key the first answer counts, and an exception only if there is no answer. If `fetch`
        raises, it is called again, and the pairs that it gave before do not count.

        For a job that has failed as a whole, an exception such as `http.error_for(400)` says that this request is
        invalid: it becomes a dead letter, and the other requests are sent again without it.
        """

    @abstractmethod
    def cancel(self, job: str) -> None:
        """Ask the service to end a job; it may take a while, and what was answered is fetched."""

    def find(self, key: str) -> str | None:
        """The id of the job that was sent with this key; None if the service has none.

        Asked if a process died after it may have sent a job. A service that cannot tell leaves it out: such a job is
        sent again.
        """
        raise NotImplementedError

    def weight(self, body: Any) -> float:
        """What a request counts in `max_queued`, such as its tokens."""
        return 1.0

    @property
    def can_find(self) -> bool:
        """Whether the service can tell if it has a job."""
        return type(self).find is not BatchService.find


def check_service(service: Any) -> BatchService:
    """Raises OptionError for an object that is no service, and for bounds that cannot work."""
    if not isinstance(service, BatchService):
        raise OptionError(f"service must be a BatchService, such as OpenAIBatches(), not {safe_repr(service)}")
    for name in ("max_requests", "max_bytes", "max_queued", "poll_every"):
        value = getattr(service, name)
        is_left_out = value is None and name in ("max_bytes", "max_queued")
        if not is_left_out and (value is None or not is_number(value) or value <= 0):
            raise OptionError(f"{name} of {type_name(service)} must be a number of more than 0, not {safe_repr(value)}")
    return service
