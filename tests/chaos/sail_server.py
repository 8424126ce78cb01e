"""A server of Sail, in a process that a job kills: it tells its address, and ends with its standard input."""

import faulthandler
import os
import signal
import sys

from pysail.spark import SparkConnectServer

if __name__ == "__main__":
    with open(f"{sys.argv[1]}/stacks-{os.getpid()}", "w") as file:
        faulthandler.register(signal.SIGUSR1, file)
        server = SparkConnectServer("127.0.0.1", 0)
        server.start(background=True)
        host, port = server.listening_address
        print(f"sc://{host}:{port}", flush=True)
        sys.stdin.read()
        server.stop()
        # At the interpreter's end Sail waits for functions that still run, and they for Python's lock, which it has.
        os._exit(0)
