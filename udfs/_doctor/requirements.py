"""What a package asks for, as its metadata say it and pip reads it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported late: where it is missing the doctor says so, and looks at all else
    from packaging.requirements import Requirement

__all__ = ("as_line", "bounds_of", "fits", "missing_for", "required_of", "version_of")


def required_of(package: str, extra: str = "") -> list[Requirement]:
    """What an installed package asks for on this platform: always, or what one of its extras adds to that."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [required for required in map(Requirement, lines) if _counts(required, extra)]


def _counts(required: Requirement, extra: str) -> bool:
    always = required.marker is None or required.marker.evaluate({"extra": ""})
    if not extra or required.marker is None:
        return always and not extra
    return not always and required.marker.evaluate({"extra": extra})


def bounds_of(required: Requirement) -> str:
    """As ">=2.2,<3": the bound from below first, as people say it."""
    return ",".join(sorted(map(str, required.specifier), reverse=True))


def as_line(required: Requirement) -> str:
    """For pip, without what it depends on."""
    extras = f"[{','.join(sorted(required.extras))}]" if required.extras else ""
    return f"{required.name}{extras}{bounds_of(required)}"


def fits(version: str, bounds: str) -> bool:
    """A version is within bounds. An early one, as 3.0rc1, counts as 3.0: it brings what 3.0 will."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(bounds).contains(Version(version).base_version)
    except InvalidVersion:
        return False


def version_of(package: str) -> str:
    """The installed version of a package; empty if it is not installed."""
    try:
        return importlib.metadata.version(package) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def missing_for(
    package: str,
    extra: str,
    required: Callable[[str, str], list[Requirement]] = required_of,
    installed: Callable[[str], str] = version_of,
) -> list[str]:
    """What an extra of a package asks for and is not there, through the extras that it asks for in turn."""
    seen: set[tuple[str, str]] = set()

    def missing(package: str, extra: str) -> Iterator[str]:
        if (package, extra) in seen:
            return
        seen.add((package, extra))
        for one in required(package, extra):
            version = installed(one.name)
            if not version or not fits(version, str(one.specifier)):
                yield as_line(one)
            for inner in one.extras:
                yield from missing(one.name, inner)

    return sorted(set(missing(package, extra)))
