"""Writes numbers, sizes, times and shares in a short form for people."""

from __future__ import annotations

from datetime import UTC, datetime
from math import isnan

UNKNOWN = "–"


def rounded(number: float) -> str:
    """Three digits, from 10,000 on with a letter: 9.5, 950, 12.3k, 4.56M. In between in full: 9,876."""
    if isnan(number):
        return UNKNOWN
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            scale = 1e3 if letter == "k" else limit
            return f"{_three_digits(number / scale)}{letter}"
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else _three_digits(number)


def _three_digits(number: float) -> str:
    if abs(number) >= 100:
        return f"{number:.0f}"
    text = f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size(number: float) -> str:
    """Bytes, in units of 1,000: 950 B, 12.3 kB, 4.56 MB."""
    if isnan(number):
        return UNKNOWN
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(number) >= limit:
            return f"{_three_digits(number / limit)} {unit}"
    return f"{number:.0f} B"


def seconds(number: float) -> str:
    """A duration, in the unit that suits it: 950 ms, 12.3 s, 2.5 min, 3 h, 4 days."""
    if isnan(number):
        return UNKNOWN
    if number < 1:
        return f"{number * 1000:.0f} ms"
    if number < 120:
        return f"{_three_digits(number)} s"
    minutes, hours, days = number / 60, number / 3600, number / 86400
    if minutes < 120:
        return f"{_two_digits(minutes)} min"
    return f"{_two_digits(hours)} h" if hours < 72 else f"{_two_digits(days)} days"


def _two_digits(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0") if number < 10 else f"{number:.0f}"


def percent(share: float) -> str:
    """A share, from 0 to 1, in percent."""
    if isnan(share):
        return UNKNOWN
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{share * 100:.0f} %" if share >= 0.0995 or share == 0 else f"{share * 100:.1f} %"


def moment(epoch_s: float) -> str:
    """A time in UTC. `epoch_s`: seconds since 1970."""
    return UNKNOWN if isnan(epoch_s) else datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: 1 record, 12,345 records. `plural`: where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def several(number: float, noun: str, plural: str = "") -> str:
    """A rounded number with its noun: 1 record, 12.3k records."""
    text = rounded(number)
    return f"{text} {noun if text == '1' else plural or noun + 's'}"
