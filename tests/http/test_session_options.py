"""A session that cannot work, or that would show a secret in Spark's plan, is refused where it is declared."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
import yarl
from pyspark import cloudpickle

from asyncudf import OptionError, async_pandas_udf, http

URL = "https://example.com"


def of(**options: Any) -> Callable[[], Any]:
    return lambda: http.session(URL, **options)


WRONG = [
    (lambda: http.session("example.com"), "base_url must be the address of a service, .*, not 'example.com'"),
    (lambda: http.session("ftp://example.com"), "base_url must be the address of a service, .*, not 'ftp"),
    (lambda: http.session("http://"), "base_url must be the address of a service"),
    (lambda: http.session("http://example.com:port"), "base_url must be the address of a service"),
    (lambda: http.session(5), "base_url must be the address of a service, .*, not 5"),  # type: ignore[arg-type]
    (lambda: http.session("https://example.com/v1?a=b"), r"base_url must be .*\?\*\*\*.*params="),
    (of(headers=["Accept"]), r"headers must be a dict of texts, or a function .*, not \['Accept'\]"),
    (of(headers=[("X-Api-Key", "S3CRET")]), "headers must be a dict of texts, or a function .*, not a list"),
    (of(headers={"X-Api-Key": "S3CRET"}), "headers must not hold X-Api-Key, which all who see Spark's plan could read"),
    (of(headers={"x-auth-token": "S3CRET"}), "headers must not hold x-auth-token"),
    (of(token=5), "token must be a function of no arguments, not a int"),
    (of(sign="S3CRET"), "sign must be a function of one argument, an http.Request, not a str"),
    (of(token=lambda: "a", token_env="B"), "token and token_env are two ways to the same header"),
    (lambda: http.session(token_env="API_TOKEN"), r"need base_url: .* http\.session\('https://example"),
    (lambda: http.session(headers=dict), "need base_url"),
    (of(connections=0), "connections must be at least 1, not 0"),
    (of(total_timeout=-1), "total_timeout must be more than 0 seconds, not -1; use None"),
    (of(connect_timeout=0), "connect_timeout must be more than 0 seconds, not 0; use None"),
    (of(read_timeout="5 s"), "read_timeout must be a number of seconds or a timedelta, not '5 s'"),
    (of(keep_alive=-1), r"keep_alive must be seconds \(0 or more\) or a timedelta, not -1"),
    (of(dns_cache=float("inf")), r"dns_cache must be seconds \(0 or more\) or a timedelta, not inf"),
    (of(dns_cache=10**400), r"dns_cache must be seconds \(0 or more\) or a timedelta, not <int of 1329 bits>"),
    (of(timeout=5), "unknown option of http.session or aiohttp 'timeout'; did you mean '.*timeout'"),
    (of(limit=5), "unknown option of http.session or aiohttp 'limit'; there are: .*connections"),
    (of(trust_envs=True), "unknown option of http.session or aiohttp 'trust_envs'; did you mean 'trust_env'"),
    (of(loop=None), "unknown option of http.session or aiohttp 'loop'"),
    (of(connector=object()), "connector .* belongs to one event loop; make it in the task: on_executor=lambda"),
    (of(on_executor={"connector": 5}), "on_executor must be a function of no arguments, not a dict"),
]


@pytest.mark.parametrize(("make", "said"), WRONG)
def test_a_session_that_cannot_work_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()


@pytest.mark.parametrize(
    ("make", "way_out"),
    [
        (lambda: http.session("https://me:S3CRET@example.com"), "headers=<function>"),
        (lambda: http.session("https://S3CRET@example.com"), "headers=<function>"),
        (of(token="S3CRET"), "token_env='NAME'"),
        (of(token_env="sk-S3CRET"), "the name of an environment variable"),
        (of(headers={"authorization": "Bearer S3CRET"}), "token_env='NAME'"),
        (of(headers={"Cookie": "S3CRET"}), "headers=lambda"),
        (of(auth=("me", "S3CRET")), "on_executor="),
        (of(cookies={"sid": "S3CRET"}), "on_executor="),
        (of(proxy="http://me:S3CRET@proxy.example.com"), "on_executor="),
    ],
)
def test_what_would_show_a_secret_is_refused_without_showing_it(make: Callable[[], Any], way_out: str) -> None:
    with pytest.raises(OptionError, match=way_out) as caught:
        make()
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (URL, URL),
        (f"{URL}/v1", f"{URL}/v1/"),
        (f"{URL}/v1/", f"{URL}/v1/"),
        (f"{URL}/a%2Fb", f"{URL}/a%2Fb/"),
        ("http://[::1]:8080/a", "http://[::1]:8080/a/"),
        (yarl.URL(f"{URL}/v1"), f"{URL}/v1/"),
        (None, None),
    ],
)
def test_the_path_of_an_address_ends_with_a_slash(given: Any, kept: str | None) -> None:
    """Else aiohttp would leave out the last part of its path, or refuse it."""
    assert http.session(given).base_url == kept


def test_a_declared_session_travels_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "S3CRET")
    factory = http.session(
        f"{URL}/v1",
        token_env="API_TOKEN",
        headers=lambda: {"X-Api-Key": "another"},
        read_timeout=timedelta(minutes=1),
        raise_for_status=http.raise_for_status,
        limit_per_host=5,
    )

    @async_pandas_udf("int", resources=factory)
    async def call(x: int, session: aiohttp.ClientSession) -> int:
        return x

    travelled = pickle.loads(cloudpickle.dumps(call))
    assert b"S3CRET" not in cloudpickle.dumps(call)
    assert call.spec.parameters == travelled.spec.parameters == ("x",), "the parameter `session` is the session"
    other = travelled.spec.resources["session"]
    assert (other.base_url, other.options["timeout"].sock_read, other.options) == (f"{URL}/v1/", 60.0, factory.options)
    assert repr(other) == "http.session('https://example.com/v1/')"
