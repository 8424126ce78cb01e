"""What a case ran on: the machine, the versions of what was compared, and the commit that was measured."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

__all__ = ("CHANGES", "MEASURED", "UNKNOWN", "commit", "machine", "versions")

# What a figure depends on: a run writes tables and results, and they are no change of what it measures.
MEASURED = ("udfs", "queues", "benchmarks", ":!benchmarks/results", "pyproject.toml")
CHANGES, UNKNOWN = "with changes", "unknown"
ROOT = Path(__file__).parent.parent
PACKAGES = ("asyncudf", "pyspark", "pyarrow", "pandas", "aiohttp", "uvloop")


def commit(root: Path = ROOT) -> str:
    """The last commit that changed what is measured; whether there are changes since; or `unknown`."""
    hashed = _git(root, "log", "-1", "--format=%h", "--", *MEASURED)
    if not hashed:
        return UNKNOWN
    return f"{hashed} {CHANGES}" if _git(root, "status", "--porcelain", "--", *MEASURED) else hashed


@functools.cache
def machine() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory / 2**30:.0f} GiB",
        "os": f"{_system()}, {platform.machine()}",
    }


@functools.cache
def versions() -> dict[str, str]:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": python, "java": _java(), **packages}


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
