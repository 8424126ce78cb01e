"""What a package asks for, as its metadata say it. Of the standard library alone, since `packaging` may be missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

__all__ = ("Requirement", "fits", "missing_for", "read_requirement", "requirements_of", "version_of")

COMPARISONS: dict[str, Callable[[int], bool]] = {
    ">=": lambda order: order >= 0,
    "<=": lambda order: order <= 0,
    "==": lambda order: order == 0,
    "!=": lambda order: order != 0,
    ">": lambda order: order > 0,
    "<": lambda order: order < 0,
}


@dataclass(frozen=True)
class Requirement:
    """One line of a package's requirements.

    Attributes:
        name: of the package that is required.
        extras: those of its extras that are required with it.
        bounds: as ">=2.2,<3".
        extra: the extra of the requiring package that this line belongs to; empty if it is always required.
        is_for_here: the line counts on this platform.
    """

    name: str
    extras: tuple[str, ...] = ()
    bounds: str = ""
    extra: str = ""
    is_for_here: bool = True

    def __str__(self) -> str:
        return f"{self.name}{'[' + ','.join(self.extras) + ']' if self.extras else ''}{self.bounds}"


def read_requirement(line: str) -> Requirement:
    """A requirement from its line, as in `pandas<3,>=2.2; extra == "x"`."""
    required, _, marker = line.partition(";")
    found = re.match(r"\s*([\w.-]+)\s*(?:\[([^]]*)\])?\s*\(?([^)]*)\)?", required)
    assert found, line
    extras = tuple(extra.strip() for extra in (found[2] or "").split(",") if extra.strip())
    extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
    # The bound from below first, as people say it; metadata have them in the order of the alphabet.
    bounds = ",".join(sorted((bound.strip() for bound in found[3].split(",") if bound.strip()), reverse=True))
    return Requirement(found[1], extras, bounds, extra[1] if extra else "", _is_for_here(marker))


def _is_for_here(marker: str) -> bool:
    """A requirement counts on this system, as far as its marker is one of the usual ones."""
    if " or " in marker:
        return True
    here = {
        "os_name": os.name,
        "sys_platform": sys.platform,
        "platform_system": platform.system(),
        "platform_python_implementation": platform.python_implementation(),
    }
    for name, comparison, value in re.findall(r"(\w+)\s*([<>=!]=|[<>])\s*['\"]([^'\"]+)['\"]", marker):
        if name in here and comparison in ("==", "!=") and (here[name] == value) != (comparison == "=="):
            return False
        if name == "python_version" and not fits(".".join(map(str, sys.version_info[:2])), comparison + value):
            return False
    return True


def fits(version: str, bounds: str) -> bool:
    """A version is within bounds. An early one, as 3.0rc1, counts as 3.0: it brings what 3.0 will."""
    return all(_is_within(version, bound.strip()) for bound in bounds.split(",") if bound.strip())


def _is_within(version: str, bound: str) -> bool:
    found = re.match(r"(>=|<=|==|!=|>|<)\s*(\S+)", bound)
    if not found:
        return True  # a rare one, as ~= or ===: pip has looked at it, and a doctor must not raise a false alarm
    own, other = _numbers(version), _numbers(found[2])
    if found[2].endswith(".*"):
        own = own[: len(other)]
    pairs = zip_longest(own, other, fillvalue=0)
    order = next((1 if one > two else -1 for one, two in pairs if one != two), 0)
    return COMPARISONS[found[1]](order)


def _numbers(version: str) -> list[int]:
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return [int(number) for number in found[1].split(".")] if found else []


def version_of(package: str) -> str:
    """The installed version of a package; empty if it is not installed."""
    try:
        return importlib.metadata.version(package) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def requirements_of(package: str) -> list[Requirement]:
    """All requirements of an installed package, those of its extras too; none if it is not installed."""
    try:
        return [read_requirement(line) for line in importlib.metadata.requires(package) or []]
    except importlib.metadata.PackageNotFoundError:
        return []


def missing_for(
    package: str,
    extra: str,
    required: Callable[[str], list[Requirement]] = requirements_of,
    installed: Callable[[str], str] = version_of,
) -> list[str]:
    """What an extra of a package asks for and is not there, through the extras that it asks for in turn."""
    return sorted(set(_missing(package, extra, required, installed, set())))


def _missing(
    package: str,
    extra: str,
    required: Callable[[str], list[Requirement]],
    installed: Callable[[str], str],
    seen: set[tuple[str, str]],
) -> Iterator[str]:
    if (package, extra) in seen:
        return
    seen.add((package, extra))
    for one in required(package):
        if one.extra != extra or not one.is_for_here:
            continue
        version = installed(one.name)
        if not version or not fits(version, one.bounds):
            yield str(one)
        for inner in one.extras:
            yield from _missing(one.name, inner, required, installed, seen)
