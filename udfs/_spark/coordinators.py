"""The coordinator of limits over a whole job: where a function's tasks find it, and the one that the driver starts."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from .._coordination.client import Coordinator
from .._coordination.config import CoordinatorConfig
from .._coordination.permits import open_limits
from .._coordination.server import OTHER_WAYS, CoordinatorServer
from .._coordination.share import prepare_shares
from .._errors.exceptions import FatalError, OptionError
from .._functions.key_names import key_name
from .._functions.signature import FunctionSpec
from .._policies.options import Options
from .._policies.rate_limit import RateLimit
from .._stores.base import need
from .._stores.redis import checked_url
from .._text.urls import SecretUrl, without_secrets
from ._compat import active_context

if TYPE_CHECKING:  # a client of Spark Connect alone has none
    from pyspark import SparkContext

__all__ = (
    "coordinator_config",
    "coordinator_url",
    "driver_host",
    "without_coordinator",
)


# An application is a process with a driver, or a client of one: on a server that it shares with others what it counts
# is its own, but for limits that have a name. A process that is forked off is another one.
_namespace = uuid.uuid4().hex
PATIENCE = 2.0  # seconds for what only makes the first calls begin sooner

_own_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_is_alone: ContextVar[bool] = ContextVar("is_alone", default=False)
_prepared: set[tuple[str, str]] = set()


def _begin_anew() -> None:
    global _namespace
    _namespace = uuid.uuid4().hex
    _prepared.clear()


if hasattr(os, "register_at_fork"):  # where processes can be forked
    os.register_at_fork(after_in_child=_begin_anew)


@contextlib.contextmanager
def without_coordinator() -> Iterator[None]:
    """What is planned within the block runs in one task, as in the test kit, which is the whole job."""
    token = _is_alone.set(True)
    try:
        yield
    finally:
        _is_alone.reset(token)


def coordinator_config(spec: FunctionSpec, options: Options) -> CoordinatorConfig | None:
    """Where a function's tasks meet; None if it has nothing to agree on.

    Raises:
        OptionError: they would have to meet, and there can be no coordinator; the message names the ways out.
    """
    if _is_alone.get() or (not options.needs_coordinator and options.coordinator is None):
        return None
    config = CoordinatorConfig(
        coordinator_url(options.coordinator), _namespace, _name_of(spec.function), _application()
    )
    _prepare(config, options)
    return config


def _name_of(function: Any) -> str:
    """Its name, and what tells it from others that the same factory has made."""
    try:
        return f"{key_name(function)}:{_own_names.setdefault(function, uuid.uuid4().hex[:12])}"
    except TypeError:  # an object that cannot be a key, or not be referred to weakly
        return key_name(function)


def _application() -> str:
    """Spark's name of the application that the active session belongs to."""
    session = SparkSession.active()
    if hasattr(session, "_jsparkSession"):
        return str(session.sparkContext.applicationId)
    return str(session.conf.get("spark.app.id", ""))


def _prepare(config: CoordinatorConfig, options: Options) -> None:
    """Tell the coordinator, once, that nobody has a share or permits; else the first calls wait until that is sure."""
    shares = [] if options.job_capacity is None else [config.share(options.job_capacity)]
    shares = [name for name in shares if (config.url, name) not in _prepared]
    rates = [(name, limit) for name, limit in config.rates(options.rate_limit) if (config.url, name) not in _prepared]
    if not shares and not rates:
        return
    _prepared.update((config.url, name) for name in [*shares, *(name for name, _ in rates)])
    # In a thread of its own: in a notebook this one has a running loop.
    thread = threading.Thread(target=lambda: asyncio.run(_told(config, shares, rates)), daemon=True)
    thread.start()
    thread.join(2 * PATIENCE)


async def _told(config: CoordinatorConfig, shares: list[str], rates: list[tuple[str, RateLimit]]) -> None:
    # Whether the server lets the driver in is not what counts: the tasks tell if it does not let them in.
    with contextlib.suppress(FatalError):
        async with Coordinator(config.url, config.namespace, clock=time.monotonic, patience=PATIENCE) as coordinator:
            if shares:
                await prepare_shares(coordinator, shares)
            if rates:
                await open_limits(coordinator, rates)


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
    context = active_context()
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


LOCAL = "127.0.0.1"


def is_local(context: SparkContext) -> bool:
    """Whether the executor is in the driver's own process, and so its Python workers are on this machine."""
    return (context.master or "").split("[")[0] == "local"


def driver_host(context: SparkContext) -> str:
    """Where the executors reach the driver: on this machine alone, where they all are in its own process."""
    if is_local(context):
        return LOCAL
    host: str = context.getConf().get("spark.driver.host") or LOCAL
    return host.removeprefix("[").removesuffix("]")
