# SPDX-License-Identifier: Apache-2.0
"""Numbers and other people's strings in the form in which the console shows them."""

from __future__ import annotations

import math

_CUT = "..."
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def plain(text: str, limit: int | None = None) -> str:
    """A string of the user's program in one line: what could steer a terminal is escaped.

    Args:
        text: Any string.
        limit: Characters that it may have, above 3; a longer one loses some in its middle, because the end of a path
            says more than what is before.

    Returns:
        Printable characters only.
    """
    # A lone surrogate, of a file name that is no UTF-8, is not printable either.
    shown = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    if limit is None or len(shown) <= limit:
        return shown
    head = (limit - len(_CUT)) // 2
    return shown[:head] + _CUT + shown[len(shown) - (limit - len(_CUT) - head) :]


def percent(ratio: float) -> str:
    """A ratio as a percentage."""
    value = 100 * ratio
    if 0 < value < 0.05:
        return "<0.1 %"
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def duration(seconds: float) -> str:
    """A time with its unit."""
    return f"{1e3 * seconds:.2g} ms" if 0 < seconds < 0.0995 else f"{number(seconds)} s"


def number(value: float) -> str:
    """A number with three digits or so, and no more than two after the point."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def count(value: float) -> str:
    """A number of things, which may be a mean."""
    return f"{value:.0f}" if value == int(value) or value >= 99.95 else f"{value:.1f}"


def size(value_bytes: float) -> str:
    """A number of bytes with its unit."""
    value, units = value_bytes, iter(_BYTE_UNITS)
    unit = next(units)
    while value >= 999.5 and unit != _BYTE_UNITS[-1]:
        value, unit = value / 1024, next(units)
    return f"{value:.0f} {unit}" if unit == "B" or value >= 9.95 else f"{value:.1f} {unit}"


def speedup(factor: float) -> str:
    """How many times faster, at most."""
    # Rounded down, but for the error of a float.
    digits = 1 if factor >= 1.1 else 2
    return f"at most {math.floor(factor * 10**digits + 1e-9) / 10**digits:.{digits}f}x"
