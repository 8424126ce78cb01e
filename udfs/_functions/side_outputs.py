"""Side outputs: the tags that name them, the user's and the library's, and the records on their way to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from asyncudf.queues._public import public

from .._errors.exceptions import OptionError
from .._errors.records import LETTER_FIELDS
from .._errors.safe import safe_repr


@public("asyncudf")
@dataclasses.dataclass(frozen=True)
class OutputTag:
    """Names a side output and the schema of its rows. Tags of the same name mean the same output.

    Args:
        name: the name of the side output; no other side output has it.
        schema: DDL such as "city string, reason string", or a `StructType`.

    Raises:
        OptionError: the name is empty or no text, or the schema is neither DDL nor a type.

    >>> OutputTag("rejects", "city string, reason string") == OutputTag("rejects", "city string,reason string")
    True
    """

    name: str
    schema: Any = dataclasses.field(compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"an OutputTag needs a name, not {safe_repr(self.name)}")
        if not isinstance(self.schema, str) and not hasattr(self.schema, "simpleString"):
            raise OptionError(
                f"an OutputTag needs DDL such as 'city string' or a DataType, not {safe_repr(self.schema)}"
            )


DEAD_LETTERS = OutputTag(
    "dead_letters", f"error struct<{', '.join(f'{name}: {ddl}' for name, ddl in LETTER_FIELDS.items())}>"
)
# The library's side outputs have tags like the user's: so a chain is read by a stream or by a tag, and nothing else.
ANY_TAG = OutputTag("any of the user's", "void")  # stands for every tag of the user's
# latency: seconds from when a marker was due until it left the operator, all waiting included
LATENCIES = OutputTag("latencies", "operator string, partition int, latency double")


class SideRecord(NamedTuple):
    """A value on its way to a side output; it travels among a row's results, and so keeps the row's place."""

    tag: OutputTag
    value: Any


# From a tag to the check of its values; None for a tag that is not read.
SideTypes = Callable[[OutputTag], Callable[[Any], Any] | None]


def check_own_tag(tag: OutputTag) -> OutputTag:
    """The tag. Raises OptionError unless a user's function may write to it."""
    if not isinstance(tag, OutputTag):
        raise OptionError(f"output takes an OutputTag and a value, not {safe_repr(tag)}")
    if tag in (DEAD_LETTERS, LATENCIES):
        raise OptionError(f"the side output {tag.name!r} is filled by the library; make an OutputTag of your own")
    return tag
