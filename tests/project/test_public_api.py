"""The public names, their signatures and defaults are those of `public_api.txt`: nobody changes them by accident.

To change them on purpose, write the file anew, look at the difference, and add a line to CHANGELOG.md:

    .venv/bin/python -m tests.project.test_public_api
"""

from __future__ import annotations

import difflib
import enum
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from asyncudf._functions.options import FunctionOptions, Options

FROZEN = Path(__file__).with_name("public_api.txt")
# Members of public classes, and constructors, that only asyncudf itself calls: no promise to users.
OURS = re.compile(
    "all_of|asking|asks|asks_again|at|beginnings|by_chance|checks_results|cost_of|counted|doubts|gates|interval|is_dead|"
    "is_of_job|is_settled|label|learns|named|next_delay|of|opens|outcome_of|period|saved|seconds_for|singles_out|times"
)
MADE_BY_US = re.compile(
    "AsyncUDF|BatchFunction|DryRun|ProcessContext|ResultFuture|Run|RuntimeContext|SessionFactory|SinkError|SinkReport|Submission|SubmissionStatus|WatermarkStrategy"
)
PACKAGES = ("asyncudf", "asyncudf.batches", "asyncudf.http", "asyncudf.queues", "asyncudf.testing")


def public_api() -> str:
    """A line for each public name, and for each method, attribute and option."""
    lines: list[str] = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            lines += described(f"{package}.{name}", getattr(module, name))
    defaults = Options()
    lines += [f"option {name} = {shown(getattr(defaults, name))}" for name in sorted(FunctionOptions.__annotations__)]
    return "\n".join(lines) + "\n"


def described(name: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        lines = [f"class {name}({bases})"]
        if issubclass(value, enum.Enum):
            return [*lines, *(f"    {member.name} = {member.value!r}" for member in value)]
        is_made_by_users = not MADE_BY_US.fullmatch(value.__name__) and not inspect.isabstract(value)
        if is_made_by_users and ("__init__" in vars(value) or "__new__" in vars(value)):
            lines.append(f"    __init__{signature(value)}")
        for attribute, member in sorted(vars(value).items()):
            if attribute.startswith("_") or OURS.fullmatch(attribute):
                continue
            if isinstance(member, property):
                lines.append(f"    {attribute}: property")
            elif callable(getattr(value, attribute)):
                lines.append(f"    {attribute}{signature(getattr(value, attribute))}")
        return lines
    if callable(value):
        return [f"{name}{signature(value)}"]
    return [f"{name}: {type(value).__name__}"]


def signature(function: Any) -> str:
    """Names, kinds and defaults of the parameters; annotations may become more exact without a change for users."""
    found = inspect.signature(function)
    parameters = [
        one.replace(
            annotation=inspect.Parameter.empty,
            default=one.default if one.default is inspect.Parameter.empty else Shown(one.default),
        )
        for one in found.parameters.values()
    ]
    return str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


class Shown:
    """A default whose `repr` is the same in each process."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return shown(self.value)


def shown(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return repr(value.value)
    return getattr(value, "__qualname__", None) or repr(value)


def test_public_names_signatures_and_defaults_are_as_frozen() -> None:
    frozen, current = FROZEN.read_text("utf-8").splitlines(), public_api().splitlines()
    assert not (changes := list(difflib.unified_diff(frozen, current, "frozen", "current", lineterm="", n=0))), (
        "The public API has changed. If that is on purpose: .venv/bin/python -m tests.project.test_public_api, and a "
        "line in CHANGELOG.md.\n" + "\n".join(changes)
    )


if __name__ == "__main__":
    FROZEN.write_text(public_api(), "utf-8")
