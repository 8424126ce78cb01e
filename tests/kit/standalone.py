"""A standalone cluster of Spark, as it is run on real machines: a master and two workers, each a process of its own.

The second worker is on another host, 127.0.0.2: Spark copies a slow task only to a host that has no attempt of it.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import pyspark

from tests.kit.drivers import DAEMON_FOLDER
from tests.kit.java import ARCHIVE, needs_jvm

SPARK_HOME = Path(pyspark.__path__[0])
# A daemon ends when its standard input does, at the latest with the tests, however they end.
DAEMON = '"$@" & read -r line; kill $!; wait'
LISTENS = re.compile(r"(?:Starting Spark master at|Registered with master|Successfully registered with master) (\S+)")


class StandaloneCluster:
    """A master and workers from the pip package; `url` is what a session's `master` takes.

    Args:
        folder: where the workers keep the folders of their executors, with their output.
    """

    def __init__(self, folder: Path) -> None:
        needs_jvm()
        self.folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        try:
            self.url = self._started("master.Master", "127.0.0.1")
            for name, host in (("1", "127.0.0.1"), ("2", "127.0.0.2")):
                self._started(
                    "worker.Worker", host, "--cores", 4, "--memory", "4g", "--work-dir", folder / name, self.url
                )
        except BaseException:
            self.close()
            raise

    def _started(self, name: str, host: str, *arguments: Any) -> str:
        """Starts one of Spark's daemons on a free port; returns the address of the master once it listens."""
        command = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}"]
        command += ["--host", host, "--port", "0", "--webui-port", "0", *arguments]
        environment = {**os.environ, "SPARK_LOCAL_IP": host, "SPARK_HOME": str(SPARK_HOME)}
        environment["SPARK_NO_DAEMONIZE"] = "1"
        environment["SPARK_DAEMON_JAVA_OPTS"] = environment.pop("SPARK_SUBMIT_OPTS", "")
        process = subprocess.Popen(
            ["/bin/sh", "-c", DAEMON, "sh", *map(str, command)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        self._processes.append(process)
        found: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        lines: list[str] = []

        def read() -> None:
            assert process.stderr is not None
            for line in process.stderr:  # to the end, or the process would wait for somebody to read
                lines.append(line)
                if address := LISTENS.search(line):
                    found.put(address[1])
            found.put(None)

        threading.Thread(target=read, daemon=True).start()
        address = found.get(timeout=300)
        assert address is not None, f"{name} has ended:\n{''.join(lines[-30:])}"
        return address

    def builder(self) -> str:
        """The expression of a session's builder, with two cores in each of two executors."""
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.cores.max": 4,
            "spark.executor.cores": 2,
            "spark.executor.memory": "1g",
            "spark.executorEnv.PYTHONPATH": DAEMON_FOLDER,
        }
        if ARCHIVE.exists():
            settings["spark.executor.extraJavaOptions"] = f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"
        return f"SparkSession.builder.master({self.url!r}).config(map={settings!r})"

    def close(self) -> None:
        """Ends the workers, whose executors end with them, and the master."""
        for process in reversed(self._processes):
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait()
