"""Side outputs: the tags that name them, the user's and the library's, and the records on their way to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._errors.checks import several
from .._errors.exceptions import FatalError, OptionError
from .._errors.records import LETTER_FIELDS
from .._errors.safe import safe_repr


@dataclasses.dataclass(frozen=True)
class OutputTag:
    """Names a side output and the schema of its rows. Tags of the same name mean the same output.

    Args:
        name: of the side output; no other side output has it.
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

    @classmethod
    def all_of(cls, value: Any, name: str) -> tuple[OutputTag, ...]:
        """What the option `output_tags=` accepts: None, one tag or several, none of them the library's."""
        given = several(value, name, cls, "an OutputTag")
        for one in given:
            if one in (DEAD_LETTERS, LATENCIES):
                raise OptionError(
                    f"the side output {one.name!r} is filled by the library; make an OutputTag of your own"
                )
        return given


DEAD_LETTERS = OutputTag(
    "dead_letters", f"error struct<{', '.join(f'{name}: {ddl}' for name, ddl in LETTER_FIELDS.items())}>"
)
# The library's side outputs have tags like the user's: so a chain is read by a stream or by a tag, and nothing else.
# latency: seconds from when a marker was due until it left the operator, all waiting included
LATENCIES = OutputTag("latencies", "operator string, partition int, latency double")


class SideRecord(NamedTuple):
    """A value on its way to a side output; it travels among a row's results, and so keeps the row's place."""

    tag: OutputTag
    value: Any


SideTypes = Mapping[OutputTag, Callable[[Any], Any] | None]  # the checks of values by tag; None: the tag is not read


def check_of(tag: OutputTag, declared: SideTypes, function: str) -> Callable[[Any], Any] | None:
    """The check of a value that a function writes to a side output; None if it is not read.

    Raises:
        OptionError: not a tag.
        FatalError: the function has not declared it; the row could be read by nobody.
    """
    if not isinstance(tag, OutputTag):
        raise OptionError(f"output takes an OutputTag and a value, not {safe_repr(tag)}")
    if tag not in declared:
        raise FatalError(
            f"{function} writes to the side output {tag.name!r} and does not declare it: give output_tags=[...] with "
            "this OutputTag where the operator is made, or to async_pandas_udf"
        )
    return declared[tag]
