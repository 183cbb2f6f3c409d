# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from keras_gpu_watch.sinks.wording import count, duration, number, percent, plain, size, speedup


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("map(decode)", "map(decode)"),
        ("größer [bold]", "größer [bold]"),
        ("two\nlines\r\t", r"two\nlines\r\t"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        # Turns the direction of writing; ends a line for some terminals.
        ("a\u202eb\u2028c", r"a\u202eb\u2028c"),
        ("bad\udcff", r"bad\udcff"),
        ("", ""),
    ],
)
def test_what_could_steer_a_terminal_is_escaped_and_nothing_else(text, shown):
    assert plain(text) == shown
    assert plain(shown) == shown


def test_a_long_string_loses_some_in_its_middle():
    assert plain("/home/me/project/input.py:142", 20) == "/home/me...ut.py:142"
    assert plain("a" * 20, 20) == "a" * 20
    assert len(plain("\n" * 50, 19)) == 19


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(0.0, "0 %"), (0.0004, "<0.1 %"), (0.0005, "0.1 %"), (0.0994, "9.9 %"), (0.0996, "10 %"), (1.0, "100 %")],
)
def test_percentages(ratio, words):
    assert percent(ratio) == words


@pytest.mark.parametrize(
    ("value_bytes", "words"),
    [
        (0.0, "0 B"),
        (24.0, "24 B"),
        (999.0, "999 B"),
        (1000.0, "1.0 KiB"),
        (602112.0, "588 KiB"),
        (9.96 * 2**20, "10 MiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (2.0**52, "4096 TiB"),
    ],
)
def test_sizes(value_bytes, words):
    assert size(value_bytes) == words


def test_other_numbers():
    assert [duration(seconds) for seconds in (0.0, 0.0123, 0.5, 12.34, 1234.5)] == [
        *("0.00 s", "12 ms", "0.50 s", "12.3 s", "1234 s")
    ]
    assert [number(value) for value in (0.004, 1.234, 12.34, 123.4)] == ["0.00", "1.23", "12.3", "123"]
    assert [count(value) for value in (0.0, 2.0, 1.44, 1000.4)] == ["0", "2", "1.4", "1000"]
    assert [speedup(factor) for factor in (1.0, 1.04, 1.84)] == ["at most 1.00x", "at most 1.04x", "at most 1.8x"]
