"""The coordinator of limits over a whole job: where a function's tasks find it, and how the driver starts it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from .._errors.exceptions import FatalError, OptionError
from .._errors.safe import SecretUrl, without_secrets
from .._functions.key_names import key_name
from .._functions.options import Options, limits_of
from .._functions.signature import FunctionSpec
from .._limits.coordinator.client import Coordinator
from .._limits.coordinator.names import CoordinatorConfig
from .._limits.coordinator.server import OTHER_WAYS, CoordinatorServer
from .._stores.base import need
from .._stores.ledgers import place_of_ledgers
from .._stores.redis import checked_url
from ._compat import active_context, setting
from .loopback import LOCAL, is_of_one_host, runs_here
from .types import active_session

if TYPE_CHECKING:
    from pyspark import SparkContext  # a client of Spark Connect alone has none
    from pyspark.sql import SparkSession

logger = logging.getLogger("asyncudf")

PREPARE_TIMEOUT = 2.0  # seconds; preparing only makes the first calls begin sooner
POLL_INTERVAL = 1.0  # seconds between two checks whether the application has ended

# The namespace tells the counts of this application from those of others on the same server; only named limits are
# shared with them. An application is a driver's process, or a client's. A forked process is another one.
_namespace = uuid.uuid4().hex
_own_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_is_alone: ContextVar[bool] = ContextVar("is_alone", default=False)
_prepared: set[tuple[str, str]] = set()
_kept: dict[tuple[Any, ...], Kept] = {}  # for each named budget what the first function with it keeps
_warned: set[tuple[str, Kept, Kept]] = set()

# The servers that this process has started, by process, application and number. An entry never changes: a server that
# does not come back is closed, and its successor gets the next number. If two threads start a server at the same time,
# the second finds the server of the first.
_servers: dict[tuple[int, str, int], CoordinatorServer] = {}


def _reset_after_fork() -> None:
    global _namespace
    _namespace = uuid.uuid4().hex
    _prepared.clear()
    _kept.clear()


if hasattr(os, "register_at_fork"):  # where processes can be forked
    os.register_at_fork(after_in_child=_reset_after_fork)


@contextlib.contextmanager
def without_coordinator() -> Iterator[None]:
    """Plan functions in this block without a coordinator: one task is the whole job, as in the test kit."""
    token = _is_alone.set(True)
    try:
        yield
    finally:
        _is_alone.reset(token)


def coordinator_config(
    spec: FunctionSpec, options: Options, session: SparkSession | None = None
) -> CoordinatorConfig | None:
    """The coordinator of a function's tasks in a session; None if the function has no limit of the whole job.

    Without a session, as for a column, it is the session that is active. Raises OptionError if there is none either.
    """
    if _is_alone.get() or (not options.needs_coordinator and options.coordinator is None):
        return None
    if session is None and (session := active_session()) is None:
        raise OptionError(
            f"{spec.name} has limits of the whole job, whose coordinator depends on the Spark session, and none is "
            f"active in this thread. Use the operator, asyncudf.ordered_wait(df, {spec.name}, ...), which takes the "
            "session of its DataFrame"
        )
    url = coordinator_url(options.coordinator, session)
    _warn_of_ledgers(url, spec, options)
    config = CoordinatorConfig(url, _namespace, _name_of(spec.function), _application(session))
    _prepare(config, options)
    return config


def _warn_of_ledgers(url: str, spec: FunctionSpec, options: Options) -> None:
    """Log a warning if functions with a budget of one name keep their spending in different places."""
    kept = Kept(spec.name, place_of_ledgers(options.store))
    for budget in options.budgets:
        if budget.name is None:
            continue
        before = _kept.setdefault((url, budget.name, budget.unit, budget.per, budget.by is None), kept)
        if before.place != kept.place and (budget.name, before, kept) not in _warned:
            _warned.add((budget.name, before, kept))
            logger.warning(
                "the budget %r is one for %s, %s, and for %s, %s: the next run may not know all that is spent of it, "
                "and spend it again. Give both one disk or Redis store=, or each a budget of another name",
                budget.name, before.function, before, spec.name, kept,
            )  # fmt: skip


class Kept(NamedTuple):
    """The place where a function keeps what it spends of a budget, if it has one."""

    function: str
    place: str | None

    def __str__(self) -> str:
        return "which keeps it nowhere" if self.place is None else f"which keeps it {self.place}"


def _name_of(function: Any) -> str:
    """The function's name, with a suffix that tells it from others that the same factory has made."""
    try:
        return f"{key_name(function)}:{_own_names.setdefault(function, uuid.uuid4().hex[:12])}"
    except TypeError:  # an object without a hash, or without weak references
        return key_name(function)


def _application(session: SparkSession) -> str:
    if hasattr(session, "_jsparkSession"):
        return str(session.sparkContext.applicationId)
    return setting(session, "spark.app.id")


def _prepare(config: CoordinatorConfig, options: Options) -> None:
    """Tell the coordinator, once, that no task has a share or permits yet; else the first calls wait to be sure."""
    begin = dict(one for limit, _ in limits_of(options) for one in limit.beginnings(config.function))
    begin = {name: one for name, one in begin.items() if (config.url, name) not in _prepared}
    if not begin:
        return
    # In a thread of its own: in a notebook this one has a running loop.
    thread = threading.Thread(target=lambda: asyncio.run(_prepare_at(config, begin)), daemon=True)
    thread.start()
    thread.join(2 * PREPARE_TIMEOUT)


async def _prepare_at(
    config: CoordinatorConfig, begin: Mapping[str, Callable[[Coordinator], Awaitable[object]]]
) -> None:
    # A server that refuses the driver is no error here: a task that is refused says so.
    with contextlib.suppress(FatalError):
        async with Coordinator(
            config.url, config.namespace, clock=time.monotonic, patience=PREPARE_TIMEOUT
        ) as coordinator:
            for one in begin.values():
                await one(coordinator)
        _prepared.update((config.url, name) for name in begin)


def coordinator_url(given: str | None, session: SparkSession) -> SecretUrl:
    """The URL of the coordinator for the tasks of a session; it may contain the password.

    If none is given, the first call starts a server on the driver, one for the Spark application: on loopback in local
    mode, else on `spark.driver.host`. It ends with the application. For a Spark Connect server on this machine there is
    one for this process, on loopback, which ends with the process. A server that is killed comes back at the same
    address, and running tasks go on. If it cannot come back they fail, and the next query gets another server. Raises
    OptionError, which names the ways out and no secret, if there is none that all tasks share.
    """
    need("a limit of the whole job", "coordinator", "redis")
    context = _context_of(session)
    if given is not None:
        return _given(given, context)
    if context is None and not _runs_here(session):
        raise OptionError(
            "the driver can start no coordinator for limits of the whole job: this Spark Connect session's workers are "
            f"not known to be on this machine; so {OTHER_WAYS}"
        )
    return SecretUrl(_server_of(context).url)


def _runs_here(session: SparkSession) -> bool:
    try:
        return runs_here(session)
    except Exception as error:
        raise OptionError(
            "the driver can start no coordinator for limits of the whole job: a task was sent to find out whether this "
            f"Spark Connect session's workers are on this machine, and has failed, as others would: {error}"
        ) from error


def _context_of(session: SparkSession) -> Any:
    """The SparkContext in this process that runs a session's queries; None if they may run elsewhere.

    A Spark Connect session runs here, as with `remote("local[2]")`, only if its server names the application of this
    process: an address on this machine may lead to a tunnel.
    """
    if hasattr(session, "_jsparkSession"):
        return session.sparkContext
    context = active_context()
    is_here = context is not None and setting(session, "spark.app.id") == context.applicationId
    return context if is_here else None


def _given(given: str, context: Any) -> SecretUrl:
    url = checked_url(given, "coordinator")
    is_alone = context is None or is_local(context) or is_of_one_host(driver_host(context))
    if not is_alone and is_of_one_host(urlsplit(url).hostname):
        raise OptionError(
            f"coordinator={without_secrets(url)!r} leads each machine to a server of its own, which keeps no limit of "
            "the whole job; name a host that all executors reach"
        )
    return SecretUrl(url)


def _server_of(context: Any) -> CoordinatorServer:
    """The server of an application; of this process, if there is no context."""
    application, number = "" if context is None else context.applicationId, 0
    while True:
        key = (os.getpid(), application, number)
        server = _servers.get(key)
        if server is None:
            started = _start(context)
            server = _servers.setdefault(key, started)
            if server is started and context is None:
                return server
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
    host = LOCAL if context is None else driver_host(context)
    try:
        return CoordinatorServer(host)
    except OSError as error:
        what = "loopback" if context is None or is_local(context) else "spark.driver.host"
        raise OptionError(
            f"the driver can start no coordinator for limits of the whole job: it cannot listen at {what}, {host} "
            f"({error.strerror or error}). Set spark.driver.host to an address of the driver's own machine; or "
            f"{OTHER_WAYS}"
        ) from error


def _end_with(context: Any, server: CoordinatorServer) -> None:
    """Close the server when the application has ended. Spark does not tell Python of its end, so this thread polls."""
    while not server.is_closed and not _has_ended(context):
        time.sleep(POLL_INTERVAL)
    server.close()


def _has_ended(context: Any) -> bool:
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:  # stopped just now, or the JVM is gone
        return True


def is_local(context: SparkContext) -> bool:
    """Whether the executor is in the driver's own process, and so its Python workers are on this machine."""
    return (context.master or "").split("[")[0] == "local"


def driver_host(context: SparkContext) -> str:
    """The host at which executors reach the driver: loopback if all of them are in the driver's process."""
    if is_local(context):
        return LOCAL
    host: str = context.getConf().get("spark.driver.host") or LOCAL
    return host.removeprefix("[").removesuffix("]")
