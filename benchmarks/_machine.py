"""What a case ran on: the machine, and the versions of what was compared."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

__all__ = ("machine", "versions")

PACKAGES = ("asyncudf", "pyspark", "pyarrow", "pandas", "aiohttp", "uvloop")


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
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        return "none"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "([^"]+)"', said)
    return version[1] if version else "unknown"
