"""Java programs of the peers: compiled where they are older than their sources, then run in place of this process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

__all__ = ("become", "opened")

FOLDER = Path(__file__).parent
NETTY = "io.netty"


def become(
    program: str, jars: Path, classes: Path, options: Sequence[str], arguments: Sequence[str], netty: str = NETTY
) -> NoReturn:
    """Turn into the JVM that runs `<program>.java` with these jars.

    Args:
        options: the JVM's.
        netty: the package that Netty has in these jars.
    """
    sources = [FOLDER / f"{program}.java", FOLDER / "Client.java"]
    compiled = classes / f"{program}.class"
    if not compiled.exists() or compiled.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        classes.mkdir(parents=True, exist_ok=True)
        copies = [classes / source.name for source in sources]
        for source, copy in zip(sources, copies, strict=True):
            copy.write_text(source.read_text().replace(f"import {NETTY}.", f"import {netty}."))
        command = [_tool("javac"), "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), *map(str, copies)]
        subprocess.run(command, check=True, timeout=120)
    path = os.pathsep.join((str(classes), f"{jars}/*"))
    java = [_tool("java"), *options, "-cp", path, program, *arguments]
    os.execv(java[0], java)


def opened(*packages: str) -> list[str]:
    """The JVM's options that open these packages of `java.base` to everybody."""
    return [argument for package in packages for argument in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]


def _tool(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{home}/bin" if home else None) or shutil.which(name)
    if found is None:
        sys.exit(f"{name} was not found: install a JDK of version 17 or newer, or set JAVA_HOME")
    return found
