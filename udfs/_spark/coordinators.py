"""Where the tasks find their coordinator: at a server of the user's, or at one that the driver starts for them."""

from __future__ import annotations

import ipaddress
import os
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from .._coordination.server import OTHER_WAYS, CoordinatorServer
from .._errors.exceptions import OptionError
from .._stores.base import need
from .._stores.redis import checked_url
from .._text.urls import SecretUrl, without_secrets
from .driver import driver_host, is_local

__all__ = ("coordinator_url",)


BEAT = 1.0  # seconds between two looks whether the application has ended

# By process, application and number the servers that were started. Of two threads that start one at the same time, one
# finds that the other was quicker. An entry is never changed: a server that does not come back is closed, and the next
# number is for its successor.
_servers: dict[tuple[int, str, int], CoordinatorServer] = {}


def coordinator_url(given: str | None, session: SparkSession | None = None) -> SecretUrl:
    """Where the tasks of a session's queries find their coordinator; the password may be in it.

    Without one that is given the driver starts a server when this is first called, one for the Spark application: on
    loopback in local mode, else on `spark.driver.host`. It ends with the application. If it is killed it comes back at
    the same address, and tasks that run go on; if it cannot, they fail, and the next query gets another one.

    Args:
        given: the option `coordinator`: the URL of a Redis or Valkey server, or None.
        session: None for the active one.

    Raises:
        OptionError: there can be no coordinator, or what was given is not the URL of one that all tasks share. The
            message names the ways out, and no secret.
    """
    need("a limit of the whole job", "coordinator", "redis")
    session = SparkSession.active() if session is None else session
    context = _context_of(session)
    if given is not None:
        return _given(given, context)
    if context is None:
        raise OptionError(
            "the driver can start no coordinator for limits of the whole job: this Spark Connect session's workers are "
            f"not known to be on this machine; so {OTHER_WAYS}"
        )
    return SecretUrl(_server_of(context).url)


def _context_of(session: SparkSession) -> Any:
    """The SparkContext of this process that runs a session's queries; None if they run elsewhere, or may do so.

    A session of Spark Connect is here, as with `remote("local[2]")`, only if the application that its server tells of
    is ours: an address on this machine may lead to a tunnel.
    """
    if hasattr(session, "_jsparkSession"):
        return session.sparkContext
    try:
        from pyspark import SparkContext
    except ImportError:  # a client alone
        return None
    context = SparkContext._active_spark_context
    if context is None or session.conf.get("spark.app.id", None) != context.applicationId:
        return None
    return context


def _given(given: str, context: Any) -> SecretUrl:
    url = checked_url(given, "coordinator")
    if context is None or is_local(context) or _is_of_one_host(driver_host(context)):
        return SecretUrl(url)
    if _is_of_one_host(urlsplit(url).hostname):
        raise OptionError(
            f"coordinator={without_secrets(url)!r} leads each machine to a server of its own, which keeps no limit of "
            "the whole job; name a host that all executors reach"
        )
    return SecretUrl(url)


def _is_of_one_host(host: str | None) -> bool:
    """Whether an address leads each machine to itself."""
    if not host or host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _server_of(context: Any) -> CoordinatorServer:
    number = 0
    while True:
        key = (os.getpid(), context.applicationId, number)
        server = _servers.get(key)
        if server is None:
            started = _start(context)
            server = _servers.setdefault(key, started)
            if server is started:
                name = "asyncudf-coordinator"
                threading.Thread(target=_end_with, args=(context, server), name=name, daemon=True).start()
                return server
            started.close()
        if not server.is_closed:
            if server.is_ready():
                return server
            server.close()
        number += 1


def _start(context: Any) -> CoordinatorServer:
    host = driver_host(context)
    try:
        return CoordinatorServer(host)
    except OSError as error:
        what = "loopback" if is_local(context) else "spark.driver.host"
        raise OptionError(
            f"the driver can start no coordinator for limits of the whole job: it cannot listen at {what}, {host} "
            f"({error.strerror or error}). Set spark.driver.host to an address of the driver's own machine; or "
            f"{OTHER_WAYS}"
        ) from error


def _end_with(context: Any, server: CoordinatorServer) -> None:
    """In a thread of its own: Spark tells Python nothing of its end, which may also come from outside."""
    while not server.is_closed and not _has_ended(context):
        time.sleep(BEAT)
    server.close()


def _has_ended(context: Any) -> bool:
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:  # stopped just now, or the JVM is gone
        return True
