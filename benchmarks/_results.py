"""The file of results: figures of one commit, one machine and the same versions. The pages show them."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._harness import Figure, Outcome

__all__ = (
    "CHANGES",
    "LATEST",
    "MEASURED",
    "UNKNOWN",
    "Results",
    "commit",
    "facts",
    "load",
    "of_any_commit",
    "require_writable",
    "save",
)

ROOT = Path(__file__).parent.parent
LATEST = Path(__file__).parent / "results" / "latest.json"
# What a figure depends on: a run writes tables and results, and they are no change of what it measures.
MEASURED = ("udfs", "queues", "benchmarks", ":!benchmarks/results", "pyproject.toml")
CHANGES, UNKNOWN = "with changes", "unknown"
PACKAGES = ("asyncudf", "pyspark", "pyarrow", "pandas", "aiohttp", "uvloop")


@dataclass(frozen=True)
class Results:
    """What a file holds."""

    commit: str
    facts: Mapping[str, str]
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)


def load(path: Path) -> Results:
    """What a file holds.

    Raises:
        SystemExit: There is no such file.
    """
    if not path.exists():
        raise SystemExit(f"there is no file {path}: `python -m benchmarks --json {path}` writes one")
    found = json.loads(path.read_text())
    outcomes = {name: _outcome(name, entry) for name, entry in found["cases"].items()}
    return Results(found["commit"], found["facts"], outcomes)


def of_any_commit(path: Path, now: Results) -> Results:
    """A run of which nothing depends on the code, as one of the commit whose figures the file has."""
    return dataclasses.replace(now, commit=load(path).commit) if path.exists() else now


def require_writable(path: Path, now: Results, chosen: Iterable[str]) -> None:
    """Refuse a run whose figures could not be kept; say so before the cases run.

    Raises:
        SystemExit: The pages would show code that nobody can get, or figures of two commits, machines or versions.
    """
    if path.resolve() == LATEST and (now.commit == UNKNOWN or now.commit.endswith(CHANGES)):
        raise SystemExit(
            f"{path.name} is what the pages show, and the commit is {now.commit!r}: commit what is measured "
            f"({', '.join(MEASURED)}), or give another file to --json"
        )
    if path.exists() and (others := ", ".join(load(path).outcomes.keys() - set(chosen))):
        known = load(path)
        differences = [f"commit {known.commit} (this is {now.commit})"] if known.commit != now.commit else []
        differences += [
            f"{name} {known.facts[name]} (this is {fact})"
            for name, fact in now.facts.items()
            if known.facts.get(name, fact) != fact
        ]
        if differences:
            raise SystemExit(
                f"{path.name} has figures of {', '.join(differences)} for {others}: "
                "run these cases too, or give another file to --json"
            )


def save(path: Path, now: Results, outcome: Outcome, order: Iterable[str]) -> None:
    """Write an outcome beside those of the same commit and machine."""
    known = load(path) if path.exists() else now
    is_same = known.commit == now.commit and all(
        known.facts.get(name, fact) == fact for name, fact in now.facts.items()
    )
    outcomes = {**(known.outcomes if is_same else {}), outcome.id: outcome}
    cases = {name: _entry(outcomes[name]) for name in order if name in outcomes}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"commit": now.commit, "facts": dict(now.facts), "cases": cases}, indent=1)
    path.write_text(re.sub(r"\[[^\[\]]*\]", lambda values: re.sub(r"\s+", " ", values[0]), text) + "\n")


def _entry(outcome: Outcome) -> dict[str, Any]:
    figures: dict[str, dict[str, list[float]]] = {}
    for figure in outcome.figures:
        values = [float(f"{value:.5g}") for value in figure.values]
        figures.setdefault(figure.system, {})[figure.quantity] = values
    entry = {name: value for name, value in vars(outcome).items() if value and name != "id"}
    return {**entry, "figures": figures}


def _outcome(name: str, entry: Mapping[str, Any]) -> Outcome:
    figures = tuple(
        Figure(system, quantity, tuple(values))
        for system, of_one in entry["figures"].items()
        for quantity, values in of_one.items()
    )
    return Outcome(name, **{**entry, "figures": figures})


def commit(root: Path = ROOT) -> str:
    """The last commit that changed what is measured; whether there are changes since; or `unknown`."""
    hashed = _git(root, "log", "-1", "--format=%h", "--", *MEASURED)
    if not hashed:
        return UNKNOWN
    return f"{hashed} {CHANGES}" if _git(root, "status", "--porcelain", "--", *MEASURED) else hashed


@functools.cache
def facts() -> dict[str, str]:
    """The machine, and the versions of what every case has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory / 2**30:.0f} GiB",
        "os": f"{_system()}, {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "java": _java(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def _git(root: Path, *arguments: str) -> str:
    """What it says; nothing where there is no git, or no repository."""
    try:
        said = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return said.stdout.strip()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return named[1] if named else platform.processor() or "unknown"


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return f"{platform.system()} {platform.release()}"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if home and java is None:
        raise SystemExit(f"JAVA_HOME is {home}, which has no bin/java: correct it, or unset it")
    if java is None:
        return "none"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "([^"]+)"', said)
    return version[1] if version else "unknown"
