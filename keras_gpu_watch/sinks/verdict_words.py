# SPDX-License-Identifier: Apache-2.0
"""Verdicts, what else costs time, and what was tuned, in lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from keras_gpu_watch.findings import Suggestion, Verdict
from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.sinks.wording import duration, percent, plain, speedup

MOST_OTHERS = 5
SLOWEST_CALLBACKS = 5
# Callbacks are named from this share of the run's wall time on.
_NAMED_SHARE = 0.01
_INDENT = "  "
_CODE_INDENT = 8 * " "


def brief_lines(verdict: Verdict, width: int) -> list[str]:
    """What is said of a verdict below an epoch's line.

    Args:
        verdict: The epoch's.
        width: Columns that a line may have; code is not broken.

    Returns:
        Its headline and its first suggestion.
    """
    lines = _wrapped(f"{_INDENT}=> ", _headline(verdict), width)
    for suggestion in verdict.suggestions[:1]:
        lines += [*_wrapped(f"{_INDENT}   Try: ", _what(suggestion), width), *_code(suggestion.code)]
    return lines


def full_lines(verdict: Verdict, others: Sequence[Verdict], width: int) -> list[str]:
    """What is said of a verdict at the end.

    Args:
        verdict: The run's.
        others: Of what else costs time.
        width: Columns that a line may have; code is not broken.

    Returns:
        Its headline, all its suggestions, and the headlines of the others.
    """
    lines = _wrapped("GPU Watch: ", _headline(verdict), width)
    for number, suggestion in enumerate(verdict.suggestions, start=1):
        why = plain(suggestion.why)
        words = f"{_what(suggestion)}: {why}" if why else _what(suggestion)
        lines += [*_wrapped(f"{_INDENT}{number}. ", words, width), *_code(suggestion.code)]
    for other in others[:MOST_OTHERS]:
        lines += _wrapped(f"{_INDENT}Also: ", _headline(other), width)
    return lines


def callback_lines(epochs: Sequence[EpochSummary], width: int) -> list[str]:
    """The slowest callbacks of the run, if they took a noticeable part of it.

    Args:
        epochs: All of the run.
        width: Columns that a line may have.

    Returns:
        One sentence, or nothing.
    """
    wall = sum(epoch.wall_seconds for epoch in epochs)
    seconds: dict[str, float] = {}
    for callback in (callback for epoch in epochs for callback in epoch.callbacks):
        seconds[callback.name] = seconds.get(callback.name, 0.0) + callback.seconds
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:SLOWEST_CALLBACKS]
    named = [
        f"{plain(name, 40)} {duration(spent)} ({percent(spent / wall)})"
        for name, spent in slowest
        if spent > _NAMED_SHARE * wall
    ]
    return _wrapped(f"{_INDENT}Callbacks: ", ", ".join(named), width) if named else []


def tuning_lines(tuning: dict[str, Any] | None, width: int) -> list[str]:
    """What tuning came to, and the settings as code.

    Args:
        tuning: A `TuningSummary` as it stands in the report; `None` without one.
        width: Columns that a line may have; code is not broken.
    """
    if tuning is None:
        return []
    fixed = [f"{plain(stage['label'])} was left as it is: {plain(stage['reason'])}" for stage in tuning["fixed"]]
    lines = _wrapped("GPU Watch tuner: ", plain(tuning["headline"]), width)
    return [*lines, *_code(tuning["code"]), *(line for each in fixed for line in _wrapped(_INDENT, each, width))]


def _headline(verdict: Verdict) -> str:
    return plain(verdict.headline or verdict.kind.replace("_", " "))


def _what(suggestion: Suggestion) -> str:
    gain = "" if suggestion.expected_speedup is None else f" ({speedup(suggestion.expected_speedup)})"
    return plain(suggestion.what) + gain


def _code(code: str | None) -> Iterator[str]:
    for line in code.strip("\n").split("\n") if code else ():
        yield f"{_CODE_INDENT}{plain(line.expandtabs(4))}"


def _wrapped(head: str, words: str, width: int) -> list[str]:
    hanging = " " * len(head)
    # A path or a name is broken only by the terminal, so that it can be copied from wider ones.
    return textwrap.wrap(
        words, width, initial_indent=head, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
