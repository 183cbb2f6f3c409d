# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keras_gpu_watch.findings import CallbackSeconds, Suggestion, Verdict
from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.sinks.verdict_words import brief_lines, callback_lines, full_lines

MakeEpoch = Callable[..., EpochSummary]
MORE_CALLS = Suggestion(
    what="Run more calls at a time",
    why="most cores are idle",
    code="ds = ds.map(decode, num_parallel_calls=8)\nds = ds.prefetch(2)",
    expected_speedup=1.84,
)
CACHE = Suggestion(what="Cache it", why="")


def make_verdict(**changes: Any) -> Verdict:
    fields: dict[str, Any] = {"kind": "input_bound", "headline": "map(decode) is too slow.", "suggestions": ()}
    return Verdict(**{**fields, **changes})


def test_below_an_epoch_stand_the_headline_and_the_first_suggestion():
    assert brief_lines(make_verdict(suggestions=(MORE_CALLS, CACHE)), width=80) == [
        "  => map(decode) is too slow.",
        "     Try: Run more calls at a time (at most 1.8x)",
        "        ds = ds.map(decode, num_parallel_calls=8)",
        "        ds = ds.prefetch(2)",
    ]


def test_a_verdict_without_suggestions_is_its_headline():
    assert brief_lines(make_verdict(), width=80) == ["  => map(decode) is too slow."]
    assert full_lines(make_verdict(), (), width=80) == ["GPU Watch: map(decode) is too slow."]
    assert brief_lines(make_verdict(headline=""), width=80) == ["  => input bound"]


def test_at_the_end_stand_all_suggestions_and_what_else_costs_time():
    others = [make_verdict(kind="validation_bound", headline=f"Validation {n}.") for n in range(9)]
    lines = full_lines(make_verdict(suggestions=(MORE_CALLS, CACHE)), others, width=80)
    assert lines[:5] == [
        "GPU Watch: map(decode) is too slow.",
        "  1. Run more calls at a time (at most 1.8x): most cores are idle",
        "        ds = ds.map(decode, num_parallel_calls=8)",
        "        ds = ds.prefetch(2)",
        "  2. Cache it",
    ]
    assert lines[5:] == [f"  Also: Validation {n}." for n in range(5)]


def test_sentences_are_wrapped_and_code_is_not():
    code = "ds = ds.map(" + "a" * 100 + ")"
    long = make_verdict(
        headline="word " * 40, suggestions=(Suggestion(what="verb " * 20, why="reason " * 20, code=code),)
    )
    for lines in (brief_lines(long, width=60), full_lines(long, (long,), width=60)):
        assert all(len(line) <= 60 for line in lines if "aaa" not in line)
        assert f"        {code}" in lines


def test_strings_of_the_users_code_stay_in_their_line():
    hostile = make_verdict(
        headline="map(f\n  => all is well) is slow",
        suggestions=(Suggestion(what="do\x1b[2J", why="", code="\tf('\x07')"),),
    )
    assert brief_lines(hostile, width=200) == [
        r"  => map(f\n  => all is well) is slow",
        r"     Try: do\x1b[2J",
        r"            f('\x07')",
    ]


@pytest.mark.parametrize(("seconds", "is_named"), [(0.0, False), (0.199, False), (0.201, True)])
def test_callbacks_are_named_from_one_percent_of_the_runs_time_on(make_epoch: MakeEpoch, seconds, is_named):
    epochs = [
        make_epoch(0, wall_seconds=10.0, callbacks=(CallbackSeconds(name="Mine", step_seconds=seconds),)),
        make_epoch(1, wall_seconds=10.0),
    ]
    assert bool(callback_lines(epochs, width=80)) == is_named


def test_callbacks_seconds_are_those_of_all_hooks_and_epochs_together(make_epoch: MakeEpoch):
    both = (
        CallbackSeconds(name="Mine", step_seconds=1.0, epoch_seconds=0.5, validation_seconds=0.25),
        CallbackSeconds(name="ModelCheckpoint", epoch_seconds=2.0),
    )
    epochs = [make_epoch(n, wall_seconds=10.0, callbacks=both[: n + 1]) for n in range(2)]
    assert callback_lines(epochs, width=80) == ["  Callbacks: Mine 3.50 s (18 %), ModelCheckpoint 2.00 s (10 %)"]


def test_of_many_callbacks_the_five_slowest_are_named(make_epoch: MakeEpoch):
    callbacks = tuple(CallbackSeconds(name=f"C{n}", epoch_seconds=1.0 + n) for n in range(9))
    (line,) = callback_lines([make_epoch(wall_seconds=50.0, callbacks=callbacks)], width=200)
    assert [word for word in line.split() if word.startswith("C") and word != "Callbacks:"] == [
        *("C8", "C7", "C6", "C5", "C4")
    ]
