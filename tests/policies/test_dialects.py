"""What each dialect of headers tells of a limit; and that lies in it are left out, and nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf._limits.rates.dialects import DIALECTS, Own, Told, lowered

DATE = {"date": "Mon, 24 Feb 2025 20:38:03 GMT"}
AT = 1740429483  # the same, in seconds since 1970


def openai(limit: str, left: str, reset: str, unit: str = "requests") -> dict[str, str]:
    parts = {"limit": limit, "remaining": left, "reset": reset}
    return {f"x-ratelimit-{part}-{unit}": value for part, value in parts.items()}


def anthropic(reset: str) -> dict[str, str]:
    names = {"limit": "80000", "remaining": "79000", "reset": reset}
    return {**DATE, **{f"anthropic-ratelimit-output-tokens-{part}": value for part, value in names.items()}}


def github(reset: object) -> dict[str, str]:
    return {**DATE, "x-ratelimit-limit": "5000", "x-ratelimit-remaining": "4", "x-ratelimit-reset": str(reset)}


TWO = '"burst";q=100;w=60,"daily";q=1000;w=86400'
TOLD: list[tuple[str, str, dict[str, str], Told]] = [
    ("openai", "requests", openai("500", "499", "120ms"), Told(500, 499, 0.12)),
    ("openai", "requests", openai("500", "0", "6m0s"), Told(500, 0, 360)),
    ("openai", "tokens", openai("480000", "472000", "1s", "tokens"), Told(480_000, 472_000, 1)),
    ("openai", "tokens", openai("500", "499", "120ms"), Told()),
    ("openai", "requests", {"x-ratelimit-remaining-requests": "79"}, Told(None, 79)),  # some tell only what is left
    ("anthropic", "output_tokens", anthropic("2025-02-24T20:38:13Z"), Told(80_000, 79_000, 10)),
    ("anthropic", "output_tokens", anthropic("2025-02-24T21:38:13+01:00"), Told(80_000, 79_000, 10)),
    ("anthropic", "output_tokens", anthropic("2025-02-24T20:37:51Z"), Told(80_000, 79_000, 0)),  # in the past
    ("github", "requests", github(AT + 17), Told(5000, 4, 17)),
    ("github", "requests", github(1000 * (AT + 17)), Told(5000, 4, 17)),
    ("github", "requests", github(17), Told(5000, 4, 17)),
    ("github", "requests", {**github("17, 9"), "x-ratelimit-remaining": "4, 0"}, Told(5000, 0, 17)),  # sent twice
    ("github", "requests", github(AT - 5), Told(5000, 4, 0)),
    ("ietf", "requests", {"ratelimit-policy": TWO, "ratelimit": '"burst";r=50;t=30'}, Told(100, 50, 30, 60)),
    ("ietf", "daily", {"ratelimit-policy": TWO, "ratelimit": '"daily";r=7;t=30'}, Told(1000, 7, 30, 86400)),
    ("ietf", "requests", {"ratelimit-policy": TWO, "ratelimit": '"daily";r=0;t=300'}, Told(100, 0, 300, 60)),
    ("ietf", "tokens", {"ratelimit-policy": '"a";q=5;w=1;qu="tokens"', "ratelimit": '"a";r=4'}, Told(5, 4, None, 1)),
    ("ietf", "tokens", {"ratelimit-policy": TWO, "ratelimit": '"burst";r=50;t=30'}, Told()),
    ("ietf", "requests", {"ratelimit": '"a, b; c";r=3;t=4'}, Told(None, 3, 4)),
    (
        "ietf",
        "requests",
        {"ratelimit-policy": "100;w=60, 10000;w=86400", "ratelimit": "limit=100, remaining=50, reset=30"},
        Told(100, 50, 30, 60),
    ),
    (
        "ietf",
        "requests",
        {"ratelimit-limit": "100, 100;w=60", "ratelimit-remaining": "9", "ratelimit-reset": "50"},
        Told(100, 9, 50, 60),
    ),
    ("ietf", "requests", {}, Told()),
]


@pytest.mark.parametrize(("dialect", "unit", "headers", "told"), TOLD)
def test_what_a_dialect_tells(dialect: str, unit: str, headers: dict[str, str], told: Told) -> None:
    assert DIALECTS[dialect].read(headers, unit, 3600.0) == (told, "")


LIES: list[tuple[dict[str, str], Told]] = [
    (openai("-1", "-1", "0"), Told(reset=0)),  # Azure has sent these for weeks
    (openai("0", "499", "1s"), Told(None, 499, 1)),
    (openai("NaN", "499", "1s"), Told(None, 499, 1)),
    (openai("inf", "499", "1s"), Told(None, 499, 1)),
    (openai("1e400", "499", "1s"), Told(None, 499, 1)),
    (openai("a lot", "499", "1s"), Told(None, 499, 1)),
    (openai("500", "nan", "1s"), Told(500, None, 1)),
    (openai("500", "499", "-3"), Told(500, 499)),
    (openai("500", "499", "soon"), Told(500, 499)),
    (openai("500", "499", "inf"), Told(500, 499)),
    (openai("500", "499", "90000h"), Told(500, 499)),
    ({**DATE, **openai("500", "499", "9" * 300)}, Told(500, 499)),
]


@pytest.mark.parametrize(("headers", "told"), LIES)
def test_a_lie_is_left_out_and_named(headers: dict[str, str], told: Told) -> None:
    found = DIALECTS["openai"].read(headers, "requests", 60.0)
    assert found.told == told
    assert found.senseless.startswith("x-ratelimit-")


def test_without_a_date_a_time_is_no_further_away_than_a_period() -> None:
    """This machine's clock may be wrong by hours: nobody waits that long for it."""
    headers = {"x-ratelimit-limit": "60", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "99999999999"}
    assert DIALECTS["github"].read(headers, "requests", 60.0).told.reset == 60.0
    assert DIALECTS["github"].read({**headers, "x-ratelimit-reset": "1000000000"}, "requests", 60.0).told.reset == 0.0


def test_a_function_of_ones_own() -> None:
    """Numbers and texts alike; what it raises, and what is no such dict, is left out."""

    def read(given: Any) -> Any:
        return Own(function=lambda headers: given).read({}, "requests", 60.0)

    assert read({"limit": 5, "remaining": "3", "reset": "1m30s", "per": 10}) == (Told(5, 3, 90, 10), "")
    assert read(None) == (Told(), "")
    assert read({}) == (Told(), "")
    for wrong in (7, {"limits": 5}, {"limit": []}):
        assert (read(wrong).told, bool(read(wrong).senseless)) == (Told(), True)
    assert Own(function=lambda headers: headers["x"]).read({}, "", 1.0) == (Told(), "the function raised KeyError")


texts = st.one_of(
    st.text(max_size=40),
    st.sampled_from(['"a";q=1;w=', ";;,,==", '"', "a=b;c", "-0", "1_0", "٣", "1e9", "6m0s6m", "2025-13-45T99:99:99Z"]),
)
NAMES = (
    *openai("", "", ""),
    *anthropic(""),
    *github(""),
    *("ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"),
)


@given(st.dictionaries(st.sampled_from(NAMES), texts), st.sampled_from(["requests", "output_tokens"]))
def test_whatever_headers_say_what_is_read_can_be_used(headers: dict[str, str], unit: str) -> None:
    """No text of headers raises, and no number is negative, NaN or endless."""
    for dialect in DIALECTS.values():
        if not dialect.units or unit in dialect.units:
            told = dialect.read(headers, unit, 60.0).told
            assert all(value is None or (math.isfinite(value) and value >= 0) for value in told)
            assert told.limit is None or told.limit > 0
            assert told.per is None or told.per > 0


def test_headers_of_any_client_are_read() -> None:
    """Names in any case; a header that comes twice is a list, as HTTP says."""

    class Twice:
        def items(self) -> list[tuple[str, str]]:
            return [("RateLimit", '"a";r=1'), ("ratelimit", '"b";r=2'), ("X-One", "1")]

    class Response:
        headers = Twice()

    for given_headers in (Twice(), Response()):
        assert lowered(given_headers) == {"ratelimit": '"a";r=1, "b";r=2', "x-one": "1"}
    with pytest.raises(TypeError, match="tell_limits takes the headers of an answer"):
        lowered(None)
