"""What a store is made with: checked at once, without loading a library, and never shown with a secret."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from asyncudf import AsyncUDFError, OptionError, ResultStore, async_pandas_udf
from asyncudf._stores.base import check_attributes, in_folder
from asyncudf.testing import MemoryStore, check_result_store, run_rows


class Forgetful(ResultStore):
    """A user's store, of which no result comes back."""

    async def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        pass


async def coroutine(city: str) -> str:
    """What no key can be made by."""
    return city


class AsyncKey:
    """An object that is called like a coroutine."""

    async def __call__(self, city: str) -> str:
        return city


class BytesPath:
    """A path that is no text."""

    def __fspath__(self) -> bytes:
        return b"x"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResultStore.executor(max_bytes=0), "max_bytes must be a whole number of at least 16777216 .* not 0"),
        (lambda: ResultStore.executor(max_bytes=1e9), "max_bytes must be a whole number"),  # type: ignore[arg-type]
        (lambda: ResultStore.disk(""), "path must be that of a folder, a text, not ''"),
        (lambda: ResultStore.disk("x", max_bytes=2**70), "at most 17592186044416, not 1180591620717411303424"),
        (lambda: ResultStore.disk(b"x"), "path must be that of a folder, a text, not b'x'"),  # type: ignore[arg-type]
        (lambda: ResultStore.disk(BytesPath()), "path must be that of a folder, a text"),  # type: ignore[arg-type]
        (lambda: ResultStore.disk("a\0b"), "path must be that of a folder"),
        (lambda: ResultStore.disk("x", key=coroutine), "key must be a plain function"),
        (lambda: ResultStore.redis("redis://h", key=AsyncKey()), "key must be a plain function"),
        (lambda: ResultStore.redis("redis://h?decode_responses=True"), "'decode_responses' that a store cannot take"),
        (lambda: ResultStore.redis("redis://h?socket_timeout=abc"), "Invalid value for 'socket_timeout'"),
        *(
            (lambda path=path: ResultStore.redis(f"redis://h{path}"), "url must end with the number of a database")
            for path in ("/notadb", "/-1", "/0/1", "//0", "/1.0", "/%30")
        ),
        *(
            (
                lambda query=query: ResultStore.redis(f"redis://h/0?{query}"),
                f"an option that redis does not take: {said}",
            )
            for query, said in (
                ("db=x", "Invalid value for 'db'"),
                ("protocol=7", "protocol must be either 2 or 3"),
                ("max_connections=-1", ".*must be a positive integer"),
                ("ssl_keyfile=a", ".*unexpected keyword argument 'ssl_keyfile'"),
            )
        ),
        (lambda: ResultStore.redis("redis://h?db=1&db=2"), "has the option db 2 times; leave all but one out"),
        (lambda: ResultStore.redis("rediss://h?ssl_cert_reqs=maybe"), "Invalid SSL Certificate Requirements Flag"),
        (lambda: ResultStore.redis("redis://h?nope=a"), "'nope' that a store cannot take; it can client_name, db"),
        (lambda: ResultStore.redis("redis://h/0#1"), "has a # behind which all would be left out"),
        (lambda: ResultStore.executor(ttl=0), "ttl must be more than 0 seconds, not 0"),
        (lambda: ResultStore.executor(ttl=float("inf")), "use None for no limit"),
        (lambda: ResultStore.executor(ttl="1h"), "ttl must be .* not '1h'"),  # type: ignore[arg-type]
        (lambda: ResultStore.disk("x", error_ttl=-1), "error_ttl must be more than 0 seconds"),
        (lambda: ResultStore.redis("redis://h", prefix=""), "prefix must be a text of at least one character"),
        (lambda: ResultStore.redis(None), "url must be a text such as"),  # type: ignore[arg-type]
        (lambda: ResultStore.redis("localhost:6379"), "url must begin with redis://"),
        (lambda: ResultStore.redis("redis://"), "and name a host"),
    ],
)
def test_a_value_that_cannot_work_is_told(make: Any, message: str) -> None:
    """The error names the option, the value, and what to do."""
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, value)
            for name in ("ttl", "error_ttl")
            for value in (True, "1h", float("nan"), 0, -1, float("inf"), 10**400)
        ),
        ("ttl", timedelta(hours=1)),
        ("key", coroutine),
        ("key", AsyncKey()),
        ("key", "city"),
    ],
)
def test_a_users_store_is_checked_as_ours(name: str, value: Any) -> None:
    """Attributes that a subclass sets as it likes: an error names the attribute, and what it must be."""

    class Mine(Forgetful):
        """A store of a user's."""

    check_attributes(Mine())
    for kind, good in (("ttl", 5), ("error_ttl", 0.5), ("key", len)):
        store = Mine()
        setattr(store, kind, good)
        check_attributes(store)
    setattr(Mine, name, staticmethod(value) if value is coroutine else value)
    with pytest.raises(OptionError, match=rf"^{name} .*must be"):
        check_attributes(Mine())


def test_a_timedelta_in_a_users_store_is_told_in_seconds() -> None:
    """What our own stores take, and a subclass has to turn into a number."""
    store = Forgetful()
    store.ttl = timedelta(hours=1)  # type: ignore[assignment]
    with pytest.raises(OptionError, match=r"must be a number of seconds: ttl = 3600\.0"):
        check_attributes(store)


@pytest.mark.parametrize(
    "option",
    [
        "password=s3cret", "db=3", "socket_timeout=0.5", "socket_timeout=5", "ssl_keyfile=a", "protocol=2",
        "ssl_cert_reqs=none", "socket_keepalive=True", "max_connections=10", "client_name=my-job",
    ],
)  # fmt: skip
def test_options_of_a_url(option: str) -> None:
    """What the client knows and the store does not depend on may be behind the question mark."""
    assert "s3cret" not in repr(ResultStore.redis(f"rediss://h/0?{option}"))


@pytest.mark.parametrize(
    "password", ["pa/ss", "12/34", "12#34@", "pa?ss", "12?34", "p@12/x", "a:b/c", "12/34@56"], ids=str
)
@pytest.mark.parametrize("user", ["", "me"])
def test_a_password_that_breaks_a_url_is_not_shown(password: str, user: str) -> None:
    """A URL that would be read wrongly, with part of the password for a host or a port, is refused without it."""
    with pytest.raises(OptionError) as raised:
        ResultStore.redis(f"redis://{user}:{password}@host:6379/0")
    assert password not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "rediss://me:s3cret@h:1/2",
        "redis://:s3cret@[::1]:6379",
        "unix://:s3cret@/tmp/s",
        "redis://h?password=s3cret",
    ],
)
def test_a_store_shows_no_secret(url: str) -> None:
    """Neither a store nor what it is made of shows a password."""
    store = ResultStore.redis(url, ttl=5)
    shown = f"{store!r} {store.location!r} {store.location} {vars(store)}"  # type: ignore[attr-defined]
    assert "s3cret" not in shown
    assert "ttl=5" in shown


@pytest.mark.parametrize(
    "store",
    [
        ResultStore.executor(max_bytes=2**25, ttl=timedelta(hours=1), error_ttl=60, key=len),
        ResultStore.disk("results", ttl=3600.0, error_ttl=timedelta(minutes=1), key=len),
        ResultStore.redis("redis://:pw@host", "prefix", 3600, 60, len),
    ],
    ids=["executor", "disk", "redis"],
)
def test_a_store_travels_with_all_that_it_is_made_with(store: ResultStore) -> None:
    """A pickle or a copy is of the same place, with the same attributes, and small."""
    data = pickle.dumps(store)
    assert len(data) < 500
    for other in (pickle.loads(data), copy.copy(store)):
        assert vars(other) == vars(store)
        assert (other.ttl, other.error_ttl, other.key) == (3600.0, 60.0, len)


def test_a_path_is_that_of_the_driver() -> None:
    """A relative path is meant from where the program was started, not from where a worker is."""
    store = ResultStore.disk(Path("results"))
    assert store.location.path == str(Path.cwd() / "results")  # type: ignore[attr-defined]
    assert ResultStore.disk("~/results").location.path == str(Path.home() / "results")  # type: ignore[attr-defined]


def test_only_an_executors_store_is_placed(tmp_path: Path) -> None:
    """It gets its folder where it runs; a store that has a location, or is of a user's class, keeps it."""
    store = in_folder(ResultStore.executor(max_bytes=2**25, ttl=5, key=len), str(tmp_path))
    location = store.location  # type: ignore[attr-defined]
    assert (location.path, location.max_bytes, store.ttl, store.key) == (f"{tmp_path}-{2**25}", 2**25, 5.0, len)
    check_result_store(lambda: in_folder(ResultStore.executor(), str(tmp_path / "of Spark")))
    for other in (ResultStore.disk("x"), ResultStore.redis("redis://h"), MemoryStore(), ResultStore()):
        assert in_folder(other, str(tmp_path)) is other


@pytest.mark.parametrize(
    ("library", "make", "extra"),
    [
        ("lmdb", ResultStore.executor, "store"),
        ("msgspec", lambda: ResultStore.disk("x"), "store"),
        ("redis", lambda: ResultStore.redis("redis://h"), "redis"),
        ("msgspec", lambda: ResultStore.redis("redis://h"), "redis"),
    ],
)
def test_a_missing_library_names_the_extra(
    library: str, make: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not installed is told when the store is made, with what to install."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == library else found(name))
    with pytest.raises(OptionError, match=rf'needs {library}: pip install "asyncudf\[{extra}\]"'):
        make()


def test_nothing_is_loaded_before_it_is_used() -> None:
    """Neither the library nor a store that is only made loads lmdb, redis or msgspec."""
    program = (
        "import sys, asyncudf, asyncudf.testing\n"
        "from asyncudf._stores.base import ResultStore\n"
        "ResultStore.redis('redis://h'), ResultStore.disk('x'), ResultStore.executor()\n"
        "print([name for name in ('lmdb', 'redis', 'msgspec') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


async def test_a_store_is_opened_once_and_before_use(tmp_path: Path) -> None:
    """What is not open, or is open already, is told; to close it twice does no harm."""
    store = ResultStore.disk(tmp_path)
    for use in (store.get_many([b"k"]), store.put_many({}, None), store.info(), store.delete([]), store.clear()):
        with pytest.raises(AsyncUDFError, match="is not open"):
            await use
    async with store:
        with pytest.raises(AsyncUDFError, match="is open already"):
            await store.open()
    await store.close()


async def test_a_users_store_says_what_it_lacks() -> None:
    """Without a method that it needs, or may have, the error names it."""

    class Mine(ResultStore):
        """Nothing yet."""

    class Reads(Mine):
        async def get_many(self, keys: list[bytes]) -> list[bytes | None]:
            return [None] * len(keys)

    async def weather(city: str) -> str:
        return city

    for store, lacking in ((Mine(), r"get_many\(keys\)"), (Reads(), r"put_many\(items, ttl\)")):
        with pytest.raises(OptionError, match=rf"coroutine {lacking}: {type(store).__name__} does not define it"):
            async_pandas_udf(weather, store=store)
    async with Mine() as store:
        with pytest.raises(NotImplementedError, match="Mine needs a coroutine get_many"):
            await store.get_many([])
        with pytest.raises(NotImplementedError, match="Mine needs a coroutine put_many"):
            await store.put_many({}, None)
        for use in (store.info(), store.delete([]), store.clear()):
            with pytest.raises(AsyncUDFError, match="Mine cannot"):
                await use


def test_a_memory_store_may_be_subclassed() -> None:
    """A test that counts what its function asks of a store overrides the methods; so does each task's copy."""
    asked: list[int] = []

    class Counted(MemoryStore):
        async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
            asked.append(len(keys))
            return await super().get_many(keys)

    async def twice(number: int) -> int:
        return 2 * number

    store = Counted()
    assert [run_rows(twice, [1, 2], store=store) for _ in range(2)] == [[2, 4], [2, 4]]
    assert (asked, asyncio.run(store.info())["hits"]) == ([2, 2], 2)


def test_a_memory_store_stays_in_its_process() -> None:
    """It does not pickle, and says which one does."""
    with pytest.raises(OptionError, match=r"does not travel to Spark's workers; use ResultStore\.executor"):
        pickle.dumps(MemoryStore())
