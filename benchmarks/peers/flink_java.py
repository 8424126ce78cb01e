"""Flink's Java API: compiles FlinkAsync.java with the jars of the apache-flink-libraries wheel and becomes its JVM."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

SOURCE = Path(__file__).with_name("FlinkAsync.java")
CLASSES = Path(sys.prefix, "classes")
JARS = Path(sys.prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages", "pyflink", "lib")
# What Flink's own start scripts open for Java 17, as far as this job needs it.
OPENED = ("java.lang", "java.net", "java.io", "java.nio", "java.util", "java.util.concurrent", "java.time")


def _tool(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{home}/bin" if home else None) or shutil.which(name)
    if found is None:
        sys.exit(f"{name} was not found: install a JDK of version 17 or newer, or set JAVA_HOME")
    return found


def main() -> None:
    compiled = CLASSES / "FlinkAsync.class"
    if not compiled.exists() or compiled.stat().st_mtime < SOURCE.stat().st_mtime:
        command = [_tool("javac"), "-nowarn", "-cp", f"{JARS}/*", "-d", str(CLASSES), str(SOURCE)]
        subprocess.run(command, check=True, timeout=120)
    opened = [argument for package in OPENED for argument in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
    path = os.pathsep.join((str(CLASSES), f"{JARS}/*"))
    java = [_tool("java"), "-Xmx1g", *opened, "-cp", path, "FlinkAsync"]
    os.execv(java[0], [*java, sys.argv[1], version("apache-flink-libraries")])


if __name__ == "__main__":
    main()
