"""`ResultStore`: where results are kept, so that no call is paid for twice."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, Self

from asyncudf.queues._public import public

from .._errors.checks import Seconds, optional, plain_function, seconds, text
from .._errors.exceptions import AsyncUDFError, OptionError
from .._errors.records import error_text
from .._errors.safe import safe_repr, type_name

if TYPE_CHECKING:  # loaded by what makes or opens such a store: most workers have none
    from .local import LocalFolder, LocalResults
    from .redis import RedisResults, RedisServer

    Location = LocalFolder | RedisServer  # where the results of a store are: plain values, which travel
    Connection = LocalResults | RedisResults  # the open results of a location

Key = Callable[..., Any]


@public("asyncudf")
class ResultStore:
    """Keeps the results of calls: equal arguments have equal results, until `ttl` is over.

    `executor`, `disk` and `redis` make the stores that come with the library. For one of your own, subclass it: `open`,
    `get_many`, `put_many` and `close` over bytes, as coroutines. `asyncudf.testing.check_result_store` says whether it
    keeps these promises.

    - An object travels to the executors, so it must pickle: set its configuration in `__init__`, and connect in `open`.
      Each task has its own, and opens it on the event loop that its calls run on. Each coroutine may run in another
      asyncio task. Where functions of a chain share an object, the first one opens it, and each other one opens a
      `copy.copy` of it.
    - Lookups and writes may run at the same time.
    - A key is 16 bytes, a value any bytes. A value comes back as it was put, or not at all; a store may lose values.
    - The option `on_store_error` says what happens if a coroutine raises an error. No row is lost.
    - Each coroutine may be cancelled at any `await`. The store must work after that.

    Attributes:
        ttl: seconds for which a result counts; None: for ever.
        error_ttl: seconds for which an error counts that another attempt would not mend; None: errors are not stored.
        key: a plain function of the arguments: its result takes their place in the key; None: the arguments count.

    >>> import time
    >>> class Dictionary(ResultStore):
    ...     entries: dict[bytes, tuple[bytes, float]] = {}  # of all objects of this class
    ...     async def get_many(self, keys: list[bytes]) -> list[bytes | None]:
    ...         found = [self.entries.get(key) for key in keys]
    ...         return [entry[0] if entry and entry[1] > time.time() else None for entry in found]
    ...     async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
    ...         end = float("inf") if ttl is None else time.time() + ttl
    ...         self.entries.update({key: (value, end) for key, value in items.items()})
    >>> from asyncudf.testing import check_result_store
    >>> check_result_store(Dictionary, travels=False)  # True for one that does not live in this process alone
    """

    ttl: float | None = None
    error_ttl: float | None = None
    key: Key | None = None
    is_built_in: bool = False  # of the library: each task opens a copy of it, and its leases count
    leases: Leases | None = None  # while it is open, where tasks agree on which of them calls

    @classmethod
    def executor(
        cls,
        max_bytes: int = 2**30,
        ttl: Seconds | None = None,
        error_ttl: Seconds | None = None,
        key: Key | None = None,
    ) -> ResultStore:
        """A store that all Python workers of an executor share, in Spark's own temporary folder.

        It lives until the application ends. In local mode there is one.

        Args:
            max_bytes: how large its files may grow together, at least 16 MiB. When they are full, the older half of the
                results is deleted at once. A result that is larger than 1/32 of `max_bytes` is not stored.
            ttl, error_ttl, key: the attributes.

        Raises:
            OptionError: a value that cannot work, or lmdb or msgspec is not installed.
        """
        need("ResultStore.executor", "store", "lmdb", "msgspec")
        from .local import LocalFolder

        return _BuiltInStore(LocalFolder(None, _size(max_bytes)), ttl, error_ttl, key)

    @classmethod
    def disk(
        cls,
        path: str | os.PathLike[str],
        max_bytes: int = 10 * 2**30,
        ttl: Seconds | None = None,
        error_ttl: Seconds | None = None,
        key: Key | None = None,
    ) -> ResultStore:
        """A store that all workers of a host share, in a folder that stays: the next run finds this run's results.

        Results survive when any of the processes is killed. After a power failure a file may be damaged: delete the
        folder. It must be on a disk of the host, not on a network. It must belong to the user of the workers, and
        no other user may write to it: in a task that opens any other folder the store fails (`on_store_error`).

        Args:
            path: a folder; it is made if it is not there, for its owner alone. `~` is the home of the program's user.
            max_bytes: as in `executor`. The stores of one folder may differ in it: each begins files of its own size.
            ttl, error_ttl, key: the attributes.

        Raises:
            OptionError: a value that cannot work, or lmdb or msgspec is not installed, or this is Windows.
        """
        need("ResultStore.disk", "store", "lmdb", "msgspec")
        from .local import LocalFolder

        return _BuiltInStore(LocalFolder(_folder(path), _size(max_bytes)), ttl, error_ttl, key)

    @classmethod
    def redis(
        cls,
        url: str,
        prefix: str = "asyncudf",
        ttl: Seconds | None = None,
        error_ttl: Seconds | None = None,
        key: Key | None = None,
    ) -> ResultStore:
        """A store that the whole cluster shares, in Redis or a server that speaks its protocol.

        Args:
            url: such as `redis://:password@host:6379/0`, `rediss://...` or `unix://...`; never shown with its password.
            prefix: the beginning of all keys, before a colon.
            ttl, error_ttl, key: the attributes. Redis itself deletes results that are too old.

        Raises:
            OptionError: a value that cannot work, or redis or msgspec is not installed.
        """
        need("ResultStore.redis", "redis", "redis", "msgspec")
        from .redis import RedisServer, checked_url

        return _BuiltInStore(RedisServer(checked_url(url), text(prefix, "prefix")), ttl, error_ttl, key)

    async def open(self) -> None:
        """Connect; called once, before anything else, on the loop of the calls."""

    async def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The value of each key, in the order of the keys; None for a value that is missing or too old."""
        raise NotImplementedError(f"{type(self).__name__} needs a coroutine get_many(keys)")

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        """Store values for `ttl` seconds, or for ever; once it returns, other tasks find them too."""
        raise NotImplementedError(f"{type(self).__name__} needs a coroutine put_many(items, ttl)")

    async def close(self) -> None:
        """Disconnect; called once, also after a failure."""

    async def info(self) -> dict[str, int]:
        """What is in the store.

        Returns:
            The number of `entries` that are not too old, the `bytes` that they take, and how many lookups have found a
            value (`hits`) or none (`misses`).
        """
        raise AsyncUDFError(f"{type(self).__name__} cannot say what is in it: it has no coroutine info()")

    async def delete(self, keys: Sequence[bytes]) -> None:
        """Delete some results, whichever task has put them."""
        raise AsyncUDFError(f"{type(self).__name__} cannot delete results: it has no coroutine delete(keys)")

    async def clear(self) -> None:
        """Delete all results."""
        raise AsyncUDFError(f"{type(self).__name__} cannot delete results: it has no coroutine clear()")

    async def __aenter__(self) -> Self:
        """Open it for a block: `async with store: print(await store.info())`."""
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Leases(Protocol):
    """The leases of one store object; each task has one."""

    def take(self, key: bytes) -> bool:
        """Lease a key, unless another object has it leased; also True if this object has it leased already."""
        ...

    def give_back(self, key: bytes) -> None:
        """End the lease of a key, if there is one."""

    def close(self) -> None:
        """End all leases of this object."""


class _BuiltInStore(ResultStore):
    """A store of the library: a location, and the connection to it while it is open."""

    is_built_in: bool = True

    def __init__(self, location: Location, ttl: Seconds | None, error_ttl: Seconds | None, key: Key | None) -> None:
        self.ttl = optional(seconds)(ttl, "ttl")
        self.error_ttl = optional(seconds)(error_ttl, "error_ttl")
        self.key = optional(plain_function)(key, "key")
        self.location = location
        self._connection: Connection | None = None
        self.leases = None

    def __repr__(self) -> str:
        given = {"ttl": self.ttl, "error_ttl": self.error_ttl, "key": self.key}
        shown = "".join(f", {name}={safe_repr(value)}" for name, value in given.items() if value is not None)
        return f"<ResultStore {self.location}{shown}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_connection": None, "leases": None}  # for pickles and copies

    @property
    def _open(self) -> Connection:
        if self._connection is None:
            raise AsyncUDFError(f"{self!r} is not open: use it inside of `async with store:`")
        return self._connection

    async def open(self) -> None:
        if self._connection is not None:
            raise AsyncUDFError(f"{self!r} is open already: open a copy of it, as each task does")
        self._connection = self.location.connect()
        self.leases = self.location.leases()

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._open.get_many(keys)

    async def put_many(self, items: Mapping[bytes, bytes], ttl: float | None) -> None:
        await self._open.put_many(items, ttl)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        leases, self.leases = self.leases, None
        if leases is not None:
            leases.close()
        if connection is not None:
            await connection.close()

    async def info(self) -> dict[str, int]:
        return await self._open.info()

    async def delete(self, keys: Sequence[bytes]) -> None:
        await self._open.delete(keys)

    async def clear(self) -> None:
        await self._open.clear()


def location_of(store: ResultStore | None) -> Location | None:
    """The place where a store of the library keeps results; None for a store of the user's."""
    return store.location if isinstance(store, _BuiltInStore) else None


def store_label(store: ResultStore) -> str:
    """A store as people are shown it: what kind it is and how long its results count, without its place.

    >>> class MyStore(ResultStore):
    ...     error_ttl = 60.0
    >>> store_label(MyStore())
    'MyStore(error_ttl=60)'
    """
    kind = f"ResultStore.{store.location.kind}" if isinstance(store, _BuiltInStore) else type_name(store)
    ages = {"ttl": store.ttl, "error_ttl": store.error_ttl}
    return f"{kind}({', '.join(f'{name}={age:g}' for name, age in ages.items() if age is not None)})"


def of_task(store: ResultStore, taken: set[int]) -> ResultStore:
    """The store object that one operator of a task opens: the user's object, or a copy if its id is in `taken`."""
    if id(store) in taken or store.is_built_in:
        try:
            return copy.copy(store)
        except BaseException as error:
            raise AsyncUDFError(
                f"{safe_repr(store)} is used by several functions, and no copy of it can be made: {error_text(error)}"
            ) from error
    taken.add(id(store))
    return store


def in_folder(store: ResultStore, folder: str) -> ResultStore:
    """The store; an executor's store as one in a folder beside `folder`, which has a folder for each `max_bytes`."""
    if not isinstance(store, _BuiltInStore):
        return store
    location: Any = store.location
    if location.kind != "executor":
        return store
    location = dataclasses.replace(location, path=f"{folder}-{location.max_bytes}")
    return _BuiltInStore(location, store.ttl, store.error_ttl, store.key)


def need(what: str, extra: str, *libraries: str) -> None:
    """Check that libraries are installed, without importing them."""
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(f'{what} needs {" and ".join(missing)}: pip install "asyncudf[{extra}]"')


def result_store(value: Any, name: str) -> ResultStore:
    if not isinstance(value, ResultStore):
        raise OptionError(f"{name} must be a ResultStore, such as ResultStore.disk('/data'), not {safe_repr(value)}")
    check_attributes(value)
    return value


def check_attributes(store: Any) -> None:
    """Check the methods, ttl, error_ttl and key of a store, also of a user's class; OptionError if one cannot work."""
    for needed in ("get_many(keys)", "put_many(items, ttl)"):
        name = needed.split("(")[0]
        if getattr(type(store), name) is getattr(ResultStore, name):
            raise OptionError(f"a store must have the coroutine {needed}: {type(store).__name__} does not define it")
    for name in ("ttl", "error_ttl"):
        value = getattr(store, name)
        if isinstance(value, timedelta):  # the library's own stores turn it into a number
            number = value.total_seconds()
            raise OptionError(f"{name} of a store must be a number of seconds: {name} = {number!r}, not a timedelta")
        optional(seconds)(value, f"{name} of a store")
    optional(plain_function)(store.key, "key of a store")


def _folder(path: Any) -> str:
    try:
        given = os.fspath(path)
    except TypeError:
        given = None
    if not isinstance(given, str) or not given or "\0" in given:
        raise OptionError(f"path must be that of a folder, a text, not {safe_repr(path)}")
    if sys.platform == "win32":
        from .lmdb_files import NOT_ON_WINDOWS

        raise OptionError(NOT_ON_WINDOWS)
    found = os.path.abspath(os.path.expanduser(given))
    if os.path.lexists(found) and not os.path.isdir(found):
        raise OptionError(f"path must be that of a folder, but {found} is none")
    # A folder of another user's is left to the tasks, which may run as that user. Else they would call for each row.
    if os.path.isdir(found):
        status = os.stat(found)
        if status.st_uid == os.geteuid() and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OptionError(f"path must be that of a folder which others cannot write to; chmod go-w {found}")
    return found


def _size(max_bytes: int) -> int:
    from .local import LARGEST, SMALLEST

    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not SMALLEST <= max_bytes <= LARGEST:
        raise OptionError(
            f"max_bytes must be a whole number of at least {SMALLEST} and at most {LARGEST}, not {safe_repr(max_bytes)}"
        )
    return max_bytes
