"""Services for `submit`, which take a job of many requests and have the answers later.

- `OpenAIBatches` and `AnthropicBatches` are the batch interfaces of these providers, by their official clients.
- `BatchService` is for a service of your own: subclass it.
"""

from asyncudf.queues._public import publish as _publish

from .._batches.service import BatchRequest, BatchService, JobState, JobStatus, NotAnsweredError
from ._anthropic import AnthropicBatches
from ._openai import OpenAIBatches

__all__ = (
    "AnthropicBatches",
    "BatchRequest",
    "BatchService",
    "JobState",
    "JobStatus",
    "NotAnsweredError",
    "OpenAIBatches",
)

_publish(__name__, [globals()[name] for name in __all__])
