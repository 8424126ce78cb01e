"""Where the tasks of a function with limits of the whole job will meet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from pyspark.sql import SparkSession

from .._coordination.client import Coordinator
from .._coordination.identity import CoordinatorConfig
from .._coordination.permits import open_limits
from .._coordination.share import prepare_shares
from .._errors.exceptions import FatalError
from .._functions.identity import key_name
from .._functions.signature import FunctionSpec
from .._policies.options import Options
from .._policies.rate_limit import RateLimit
from .coordinators import coordinator_url

__all__ = ("coordinator_config", "without_coordinator")


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
