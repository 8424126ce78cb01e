"""Figures as people read them: two or three digits, a unit, and no precision that is not known."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

NOTHING = "—"  # for an unknown figure
_SMALL = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
_LARGE = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def seconds(value: float | None) -> str:
    """A span of time.

    >>> [seconds(value) for value in (0.048, 1.24, 59.6, 200, 7500)]
    ['48 ms', '1.2 s', '1 min', '3 min 20 s', '2 h 5 min']
    """
    if value is None or not isfinite(value):
        return NOTHING
    if value < 5e-10:
        return "0 s"
    if value >= 59.5:
        return _long(value)
    size, name = next((size, name) for size, name in _SMALL if value < 999.5 * size)
    return f"{_digits(value / size)} {name}"


def _long(value: float) -> str:
    unit, name, smaller, smaller_name = next(one for one in _LARGE if round(value / one[2]) * one[2] >= one[0])
    whole, rest = divmod(round(value / smaller), unit // smaller)
    return f"{whole:,} {name}" + (f" {rest} {smaller_name}" if rest and whole < 1000 else "")


def amount_(value: float) -> str:
    """An amount of money, or of another unit: whole numbers whole, others with cents or four digits.

    >>> amount_(1_000_000), amount_(19.5), amount_(0.00012345), amount_(0)
    ('1,000,000', '19.50', '0.0001234', '0')
    """
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.2f}" if value >= 1 or round(value, 2) == round(value, 9) else f"{value:.4g}"


def amounts(of_units: Mapping[str, float]) -> str:
    """Amounts with their units.

    >>> amounts({"USD": 1.8, "tokens": 12_000})
    '1.80 USD, 12,000 tokens'
    """
    return ", ".join(f"{amount_(value)} {unit}" for unit, value in of_units.items())


def per_period(seconds_: float) -> str:
    """The period of a rate.

    >>> [per_period(value) for value in (1.0, 60.0, 86400.0, 7.5)]
    ['a second', 'a minute', 'a day', 'in 7.5 s']
    """
    return _PERIODS.get(seconds_) or f"in {seconds(seconds_)}"


_PERIODS = {1.0: "a second", 60.0: "a minute", 3600.0: "an hour", 86400.0: "a day"}


def count(value: float | None) -> str:
    """A whole number.

    >>> count(12345)
    '12,345'
    """
    return NOTHING if value is None or not isfinite(value) else f"{round(value):,}"


def things(value: float | str | None, one: str, many: str = "") -> str:
    """A number and its noun; the number may be a text.

    >>> things(1, "row"), things(1234, "row"), things("0.5", "retry", "retries")
    ('1 row', '1,234 rows', '0.5 retries')
    """
    return f"{value if isinstance(value, str) else count(value)} {noun(value, one, many)}"


def noun(value: float | str | None, one: str, many: str = "") -> str:
    """The noun of a number, in the singular or the plural.

    >>> noun(1, "call"), noun(2, "call")
    ('call', 'calls')
    """
    return one if value in (1, "1") else many or f"{one}s"


def commonest(counted: Mapping[str, int], shown: int) -> list[tuple[str, int]]:
    """The commonest kinds first; those after the first `shown` are together, as "others".

    >>> commonest({"a": 1, "b": 5, "c": 2}, 1)
    [('b', 5), ('others', 3)]
    """
    most = sorted(counted.items(), key=lambda item: -item[1])
    others = sum(times for _, times in most[shown:])
    return [*most[:shown], *([("others", others)] if others else [])]


def number(value: float | None) -> str:
    """A number with a fraction, such as a mean.

    >>> [number(value) for value in (0.042, 7.43, 20.0, 312.4)]
    ['0.042', '7.4', '20', '312']
    """
    return NOTHING if value is None or not isfinite(value) else _digits(value, 100)


def rate(value: float | None) -> str:
    """A number in a second.

    >>> [rate(value) for value in (0.25, 3.14, 12345.6)]
    ['0.25/s', '3.1/s', '12,346/s']
    """
    return NOTHING if value is None or not isfinite(value) else f"{_digits(value)}/s"


def share(value: float | None) -> str:
    """A part of the whole in percent; 0% and 100% mean exactly that, not nearly.

    >>> [share(value) for value in (0, 0.0004, 0.007, 0.931, 0.9996, 1)]
    ['0%', '<0.1%', '0.7%', '93%', '>99.9%', '100%']
    """
    if value is None or not isfinite(value):
        return NOTHING
    if 0 < value < 0.0005:
        return "<0.1%"
    if 0.9995 <= value < 1:
        return ">99.9%"
    is_near = 0 < value < 0.0095 or 0.995 <= value < 1
    return f"{100 * value:.{1 if is_near else 0}f}%"


def bytes_(value: float | None) -> str:
    """An amount of memory.

    >>> [bytes_(value) for value in (320, 1536, 64 << 20)]
    ['320 B', '1.5 KiB', '64 MiB']
    """
    if value is None or not isfinite(value):
        return NOTHING
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = next((power for power in range(4) if value < 1023.5 * 1024**power), 4)
    return f"{_digits(value / 1024**power)} {units[power]}"


def _digits(value: float, whole: float = 10) -> str:
    """At least two digits; no fraction from `whole` on."""
    if abs(value) >= whole - 0.05:
        return f"{value:,.0f}"
    if abs(value) >= 0.95 or value == 0:
        return f"{value:.1f}".removesuffix(".0")
    return f"{float(f'{value:.2g}'):f}".rstrip("0").rstrip(".") if abs(value) >= 1e-6 else "0"
