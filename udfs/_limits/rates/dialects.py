"""How services tell their limits in the headers of an answer: each dialect reads what is told of one unit."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from ..._errors.checks import is_plain, text, unknown_name
from ..._errors.exceptions import OptionError
from ..._errors.safe import safe_repr, type_name
from ..._errors.waits import each_of, number_in, seconds_until, server_now, time_in

Headers = Mapping[str, Any]  # by names in lower case
MOST = 1e12  # permits; more is no limit of a service
LONGEST_RESET = 32 * 86400.0  # seconds
MINUTE, HOUR = 60.0, 3600.0
REQUESTS = "requests"


class Told(NamedTuple):
    """What an answer says of a limit; None: it does not say."""

    limit: float | None = None  # permits in a period, more than 0
    remaining: float | None = None  # permits, 0 or more
    reset: float | None = None  # seconds after the answer, 0 or more
    per: float | None = None  # seconds of the period

    @property
    def is_nothing(self) -> bool:
        return self.limit is None and self.remaining is None


class Reading(NamedTuple):
    """What was read from headers, and an example of a header that made no sense and was left out."""

    told: Told
    senseless: str = ""  # as people are shown it


@dataclasses.dataclass(frozen=True)
class Dialect:
    """Reads answers, and says how the limits of its services work.

    Args:
        per: seconds of the period of its limits, unless the user or the answers say otherwise.
        refills: what was used comes back bit by bit, not at the reset.
        spreads: the reset is the end of a window, over which the rest is spread.
        units: those that it has; empty if any may be asked for.
    """

    per: float = MINUTE
    refills: bool = False
    spreads: bool = False
    units: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)

    def read(self, headers: Headers, unit: str, period: float) -> Reading:
        """What these headers tell of a unit, in a period of so many seconds where they do not say it."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Named(Dialect):
    """One header for each number of each unit."""

    header: str = dataclasses.field(kw_only=True)  # its name, with the `{part}` and the `{unit}`

    def read(self, headers: Headers, unit: str, period: float) -> Reading:
        names = {part: self.header.format(part=part, unit=unit.replace("_", "-")) for part in PARTS[:3]}
        return _reading({part: (name, headers.get(name)) for part, name in names.items()}, headers, period)


@dataclasses.dataclass(frozen=True)
class Own(Dialect):
    """A user's function of the headers, which returns a dict with "limit", "remaining", "reset" and "per"."""

    function: Callable[[Headers], Mapping[str, Any] | None] = dataclasses.field(kw_only=True)

    def read(self, headers: Headers, unit: str, period: float) -> Reading:
        try:
            given = self.function(headers)
        except BaseException as error:  # code of the user's
            return Reading(Told(), f"the function raised {type_name(error)}")
        if given is None:
            return Reading(Told())
        if not isinstance(given, Mapping) or not given.keys() <= {*PARTS}:
            return Reading(Told(), f"the function gave {safe_repr(given)}, not a dict with {', '.join(PARTS)}")
        return _reading({key: (key, value) for key, value in given.items()}, headers, period)


@dataclasses.dataclass(frozen=True)
class Ietf(Dialect):
    """`RateLimit-Policy` and `RateLimit`, and the headers of earlier drafts.

    Of several policies of a unit, the policy with the shortest window sets the pace, and each of them may be used up.
    You may ask for a policy by its name.
    """

    def read(self, headers: Headers, unit: str, period: float) -> Reading:
        try:
            policies = _policies(headers)
        except ValueError as error:
            return Reading(Told(), str(error))
        chosen = [unit] if unit in policies else [name for name in policies if policies[name]["unit"] == unit]
        readings = [
            _reading({part: (part, policies[name].get(part)) for part in PARTS}, headers, period) for name in chosen
        ]
        if not readings:
            return Reading(Told())
        told = min((one.told for one in readings), key=lambda told: told.per or period)
        if spent := [one.told for one in readings if one.told.remaining == 0]:
            told = told._replace(remaining=0.0, reset=max(spent, key=lambda told: told.reset or 0.0).reset)
        return Reading(told, next((one.senseless for one in readings if one.senseless), ""))


PARTS = ("limit", "remaining", "reset", "per")
RANGES = {"limit": (1.0, MOST), "remaining": (0.0, MOST), "per": (0.001, LONGEST_RESET)}


def _policies(headers: Headers) -> dict[str, dict[str, Any]]:
    """What is told of each policy, by its name; before draft 8 policies have no names, and go by their numbers."""
    found: dict[str, dict[str, Any]] = {}
    limits = [*_items(headers.get("ratelimit-limit"))]  # draft 6: 100, 100;w=60
    for name, given in (*_items(headers.get("ratelimit-policy")), *limits):
        policy = found.setdefault(name, {"limit": given.get("q", name), "unit": given.get("qu", REQUESTS)})
        if "w" in given:
            policy.setdefault("per", given["w"])
    state = {"limit": limits[0][0] if limits else None}
    state.update((part, headers.get(f"ratelimit-{part}")) for part in PARTS[1:3])
    for name, given in _items(headers.get("ratelimit")):
        part, _, value = name.partition("=")
        if part in PARTS:  # draft 7: limit=100, remaining=50, reset=30
            state[part] = value
        else:
            policy = found.setdefault(name, {"unit": given.get("qu", REQUESTS)})
            policy.update(remaining=given.get("r"), reset=given.get("t"))
    if any(state.values()):
        found.setdefault(str(state["limit"]), {"unit": REQUESTS}).update(state)
    return found


def _items(value: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """The items of a list of structured fields: each with its parameters."""
    text = "" if value is None else str(value)
    if text.count('"') % 2:
        raise ValueError(safe_repr(text))
    for item in re.findall(r'(?:[^,"]|"[^"]*")+', text):
        name, *parameters = [one.strip() for one in re.findall(r'(?:[^;"]|"[^"]*")+', item)] or [""]
        pairs = (one.partition("=") for one in parameters)
        yield name.strip('"'), {key.strip(): value.strip().strip('"') for key, _, value in pairs}


def _reading(given: Mapping[str, tuple[str, Any]], headers: Headers, period: float) -> Reading:
    """Read each value that is given; `given` also has the name that messages use for it."""
    parts, senseless = {}, ""
    for key, (name, value) in given.items():
        if value is None:
            continue
        try:
            if key == "reset":
                parts[key] = max(_reset(one, headers, period) for one in each_of(value))
            else:
                parts[key] = min(_number(one, *RANGES[key]) for one in each_of(value))
        except ValueError:
            senseless = senseless or f"{name}: {safe_repr(value)}"
    return Reading(Told(**parts), senseless)


def _number(value: Any, least: float, most: float) -> float:
    """A number of permits or seconds; raises ValueError for what cannot be one."""
    number = number_in(value)
    if number is None or not least <= number <= most:
        raise ValueError
    return number


def _reset(value: Any, headers: Headers, period: float) -> float:
    """Seconds until the reset, 0 for a time in the past."""
    number = number_in(value)
    if number is not None and (number < 0 or math.isinf(number)):
        raise ValueError
    wait = seconds_until(value, headers)
    is_time = number is not None and wait is not None and wait < number
    if wait is None:
        if (time := time_in(value)) is None:
            raise ValueError
        wait, is_time = max(0.0, time - server_now(headers)), True
    if is_time and "date" not in headers:
        wait = min(wait, period)  # by this machine's clock, which may be wrong by hours
    if wait > LONGEST_RESET:
        raise ValueError
    return wait


DIALECTS: Mapping[str, Dialect] = {
    "openai": Named(refills=True, units=(REQUESTS, "tokens"), header="x-ratelimit-{part}-{unit}"),
    "anthropic": Named(
        refills=True,
        units=(REQUESTS, "tokens", "input_tokens", "output_tokens"),
        header="anthropic-ratelimit-{unit}-{part}",
    ),
    "github": Named(HOUR, spreads=True, units=(REQUESTS,), header="x-ratelimit-{part}"),
    "ietf": Ietf(),
}
Source = Literal["openai", "anthropic", "github", "ietf"] | Callable[[Headers], Mapping[str, Any] | None]


def dialect_of(source: Any, unit: str) -> Dialect:
    """The dialect of a name, or of a function that reads headers; OptionError for another name or unit."""
    text(unit, "unit of a rate limit")
    if isinstance(source, str):
        if source not in DIALECTS:
            raise OptionError(unknown_name("dialect of rate limit headers", source, DIALECTS))
        found = DIALECTS[source]
        if found.units and unit not in found.units:
            raise OptionError(unknown_name(f"unit of the {source} headers", unit, found.units))
        return found
    if not is_plain(source):
        raise OptionError(
            f"the dialect must be one of {', '.join(DIALECTS)}, or a plain function of the headers that returns a dict "
            f'such as {{"limit": 500, "remaining": 20, "reset": "1s"}}, not {safe_repr(source)}'
        )
    return Own(function=source)


def lowered(given: Any) -> dict[str, Any]:
    """Headers by their names in lower case; raises TypeError for what are none."""
    headers: Any = given if hasattr(given, "items") else getattr(given, "headers", None)
    if not hasattr(headers, "items"):
        raise TypeError(
            f"tell_limits takes the headers of an answer, or a response that has them, not {safe_repr(given)}"
        )
    found: dict[str, Any] = {}
    for name, value in headers.items():
        key = str(name).lower()
        found[key] = f"{found[key]}, {value}" if "ratelimit" in key and key in found else value
    return found
