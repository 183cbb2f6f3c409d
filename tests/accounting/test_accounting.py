# SPDX-License-Identifier: Apache-2.0
"""The arithmetic on records made by hand, so that every number is known exactly."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_gpu_watch.accounting import EpochFrame, measure, merge, summarize
from keras_gpu_watch.accounting import totals as step_totals
from keras_gpu_watch.accounting.summary import ESTIMATED_FIELDS, SUBMISSION_ONLY, TOO_FEW_READINGS
from keras_gpu_watch.records import STEP_DTYPE, EpochSummary, StepArray, StepKind

NAN = math.nan
WAIT_FIELDS = (
    "input_wait_seconds",
    "compute_seconds",
    "input_wait_share",
    "input_wait_p50_seconds",
    "input_wait_p95_seconds",
    "input_wait_max_seconds",
    "goodput",
    "ceiling_speedup",
)


def make_steps(
    waits: list[float],
    computes: list[float],
    hosts: list[float] | None = None,
    compiling: tuple[int, ...] = (),
    start: float = 1.0,
    batches: int = 1,
    examples: float = 4.0,
    begins_epoch: bool = True,
    estimated: bool = False,
) -> StepArray:
    """Steps back to back; an unknown wait (NaN) takes no time, the call then lasts `computes`."""
    count = len(waits)
    between = np.array([0.0] * count if hosts is None else hosts)
    wait, compute = np.array(waits), np.array(computes)
    seconds = np.nan_to_num(wait) + compute
    is_compiling = np.isin(np.arange(count), compiling)
    steps = np.zeros(count, STEP_DTYPE)
    steps["done_seconds"] = start + np.cumsum(between + seconds)
    steps["call_seconds"] = steps["done_seconds"] - seconds
    steps["step"] = np.arange(1, count + 1) * batches
    steps["batches"] = batches
    steps["examples"] = examples
    steps["estimated"] = estimated
    steps["kind"] = np.where(is_compiling, StepKind.COMPILE, StepKind.STEADY)
    steps["host_seconds"] = between
    if begins_epoch:
        steps["host_seconds"][0] = NAN
        if 0 not in compiling:
            steps["kind"][0] = StepKind.FIRST
    steps["input_wait_seconds"] = wait
    steps["compute_seconds"] = np.where(is_compiling | np.isnan(wait), NAN, compute)
    steps["compile_seconds"] = np.where(is_compiling, compute, 0.0)
    return steps


def account(steps: StepArray | None, end: float, begin: float = 0.0, **frame: Any) -> EpochSummary:
    totals = None if steps is None else measure(steps)
    return summarize(EpochFrame(epoch=0, begin_seconds=begin, end_seconds=end, **frame), totals)


def parts(epoch: EpochSummary) -> list[float]:
    return [
        epoch.first_batch_seconds,
        epoch.compile_seconds,
        epoch.step_seconds,
        epoch.host_seconds,
        epoch.validation_seconds or 0.0,
        epoch.epoch_end_seconds,
        epoch.unattributed_seconds,
    ]


def test_every_second_of_a_plain_epoch_has_its_place():
    steps = make_steps([2.0, 0.5, 1.0], [3.0, 4.0, 5.0], hosts=[0.0, 0.25, 0.75])
    epoch = account(steps, end=20.0, test_end_seconds=19.0)
    assert (epoch.steps, epoch.batches, epoch.wall_seconds) == (3, 3, 20.0)
    # From the begin to the call at 1.0, and the first step's wait.
    assert epoch.first_batch_seconds == 3.0
    assert epoch.compile_seconds == 0.0
    assert epoch.step_seconds == 13.5
    assert epoch.input_wait_seconds == 1.5
    assert epoch.compute_seconds == 12.0
    assert epoch.host_seconds == 1.0
    # The last step is done at 17.5.
    assert epoch.validation_seconds == 1.5
    assert epoch.epoch_end_seconds == 1.0
    assert epoch.unattributed_seconds == 0.0
    assert epoch.goodput == 12.0 / 20.0
    assert epoch.estimated == ()


def test_only_steady_steps_enter_the_share_the_ceiling_and_the_rates():
    steps = make_steps([9.0, 1.0, 3.0, 5.0], [9.0, 2.0, 4.0, 50.0], hosts=[0.0, 1.0, 1.0, 7.0], compiling=(3,))
    epoch = account(steps, end=200.0)
    assert epoch.input_wait_share == 4.0 / 12.0
    assert epoch.ceiling_speedup == 12.0 / 8.0
    assert epoch.batches_per_second == 2 / 12.0
    assert epoch.examples_per_second == 8.0 / 12.0
    assert (epoch.input_wait_p50_seconds, epoch.input_wait_max_seconds) == (2.0, 3.0)
    assert epoch.input_wait_p95_seconds == pytest.approx(2.9)


def test_the_noise_of_the_rate_is_how_much_blocks_of_steps_differ():
    even = account(make_steps([0.01] * 120, [0.01] * 120, begins_epoch=False), end=9.0)
    # Each second block of ten takes twice as long: the blocks' means lie at 4/3 and 2/3 of theirs.
    uneven = account(make_steps(([0.01] * 10 + [0.03] * 10) * 6, [0.01] * 120, begins_epoch=False), end=9.0)
    assert even.pace_noise == pytest.approx(0.0, abs=1e-9)
    assert uneven.pace_noise == pytest.approx(math.sqrt(12 / 11) / 3 / math.sqrt(12))


def test_steps_that_share_their_luck_are_noisier_than_ones_that_do_not():
    waits = np.tile([0.01, 0.03], 60)
    mixed = account(make_steps(list(waits), [0.01] * 120, begins_epoch=False), end=9.0)
    sorted_steps = account(make_steps(sorted(waits), [0.01] * 120, begins_epoch=False), end=9.0)
    assert mixed.pace_noise == pytest.approx(0.0, abs=1e-9)
    assert sorted_steps.pace_noise == pytest.approx(math.sqrt(12 / 11) / 3 / math.sqrt(12))


def test_a_few_steps_tell_no_noise():
    assert account(make_steps([0.01] * 3, [0.01] * 3), end=9.0).pace_noise is None


def test_the_pace_forgets_a_stall_of_the_host_and_not_one_of_the_input():
    usual = make_steps([0.01] * 120, [0.01] * 120, begins_epoch=False)
    stalled_host = make_steps([0.01] * 120, [0.01] * 120, [0.0] * 60 + [0.9] + [0.0] * 59, begins_epoch=False)
    stalled_input = make_steps([0.01] * 60 + [0.91] + [0.01] * 59, [0.01] * 120, begins_epoch=False)
    pace = account(usual, end=9.0).pace_batches_per_second
    assert pace == pytest.approx(50.0)
    assert account(stalled_host, end=9.0).pace_batches_per_second == pytest.approx(pace)
    assert account(stalled_host, end=9.0).batches_per_second == pytest.approx(120 / 3.3)
    assert account(stalled_input, end=9.0).pace_batches_per_second == pytest.approx(120 / 3.3)


def test_without_waits_there_is_no_pace():
    assert account(make_steps([NAN] * 120, [0.01] * 120), end=9.0).pace_batches_per_second is None


def test_a_compiling_step_is_compile_time_less_its_own_wait():
    steps = make_steps([0.5, 0.25], [10.0, 1.0], compiling=(0,))
    epoch = account(steps, end=20.0)
    assert epoch.compile_seconds == 10.0
    assert epoch.first_batch_seconds == 1.5
    assert epoch.step_seconds == 1.25
    assert epoch.input_wait_seconds == 0.25


def test_a_compiling_step_whose_wait_is_unknown_is_compile_time_as_a_whole():
    steps = make_steps([NAN, 0.25], [10.0, 1.0], compiling=(0,))
    epoch = account(steps, end=20.0)
    assert epoch.compile_seconds == 10.0
    assert epoch.first_batch_seconds == 1.0
    assert epoch.input_wait_seconds == 0.25


def test_a_wait_in_a_compiling_step_of_mid_epoch_is_input_wait():
    epoch = account(make_steps([0.0, 2.0, 1.0], [1.0, 10.0, 1.0], compiling=(1,)), end=20.0)
    assert epoch.compile_seconds == 10.0
    assert epoch.input_wait_seconds == 3.0
    assert epoch.step_seconds == 5.0


def test_waits_that_are_not_known_leave_step_times_and_no_share():
    epoch = account(make_steps([NAN, NAN, NAN], [1.0, 2.0, 3.0]), end=10.0, notes=("why",))
    assert epoch.step_seconds == 6.0
    assert [getattr(epoch, field) for field in WAIT_FIELDS] == [None] * len(WAIT_FIELDS)
    assert epoch.batches_per_second == 2 / 5.0
    assert epoch.estimated == ()
    assert epoch.notes == ("why",)


def test_waits_that_are_known_to_be_zero_are_zero():
    epoch = account(make_steps([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]), end=10.0)
    assert epoch.input_wait_seconds == 0.0
    assert epoch.compute_seconds == 6.0
    assert epoch.input_wait_share == 0.0
    assert (epoch.input_wait_p50_seconds, epoch.input_wait_p95_seconds, epoch.input_wait_max_seconds) == (0.0, 0.0, 0.0)
    assert epoch.ceiling_speedup == 1.0


def test_one_unknown_wait_among_known_ones_is_estimated_from_their_compute():
    epoch = account(make_steps([0.0, 1.0, 1.0, NAN], [2.0, 2.0, 2.0, 2.5]), end=20.0)
    assert epoch.input_wait_seconds == 2.5
    assert epoch.compute_seconds == 8.0
    assert set(epoch.estimated) == set(WAIT_FIELDS)
    assert epoch.input_wait_max_seconds == 1.0


def test_an_estimate_is_never_negative_nor_longer_than_its_call():
    epoch = account(make_steps([0.0, 0.0, NAN], [5.0, 5.0, 2.0]), end=20.0)
    assert epoch.input_wait_seconds == 0.0
    assert epoch.compute_seconds == 12.0


def test_the_estimate_takes_short_groups_of_batches_for_shorter_steps():
    steps = make_steps([0.0, 0.0, NAN], [8.0, 8.0, 5.0], batches=4)
    steps["batches"][2] = 2
    assert account(steps, end=30.0).input_wait_seconds == 1.0


def test_too_few_known_waits_are_no_basis_for_estimates():
    epoch = account(make_steps([1.0, NAN, NAN], [1.0, 1.0, 1.0]), end=10.0)
    assert epoch.input_wait_seconds is None
    assert epoch.notes == (TOO_FEW_READINGS,)
    assert epoch.first_batch_seconds == 2.0
    assert epoch.step_seconds == 3.0


def test_a_small_estimated_share_is_not_marked():
    epoch = account(make_steps([0.0] * 10 + [NAN], [10.0] * 10 + [0.5]), end=110.0)
    assert epoch.estimated == ()
    assert epoch.input_wait_seconds is not None


def test_readings_that_are_estimates_mark_the_account():
    assert account(make_steps([1.0, 1.0], [1.0, 1.0], estimated=True), end=6.0).estimated == ESTIMATED_FIELDS


def test_an_unknown_batch_dimension_leaves_the_examples_unknown():
    epoch = account(make_steps([0.0, 1.0], [1.0, 1.0], examples=NAN), end=6.0)
    assert epoch.examples_per_second is None
    assert epoch.batches_per_second == 0.5


def test_batches_of_no_examples_are_a_rate_of_zero():
    assert account(make_steps([0.0, 1.0], [1.0, 1.0], examples=0.0), end=6.0).examples_per_second == 0.0


def test_the_examples_are_those_of_all_batches_also_of_the_first_and_the_compiling_ones():
    epoch = account(make_steps([0.0] * 4, [1.0] * 4, compiling=(1,), examples=8.0), end=9.0)
    assert epoch.examples == 32.0
    assert epoch.examples_per_second == 8.0


def test_one_batch_of_unknown_size_leaves_all_examples_unknown():
    steps = make_steps([0.0] * 3, [1.0] * 3)
    steps["examples"][0] = NAN
    epoch = account(steps, end=9.0)
    assert epoch.examples is None
    assert epoch.examples_per_second == 4.0
    known = measure(make_steps([0.0], [1.0], start=9.0, begins_epoch=False))
    assert known.examples == 4.0
    assert merge(measure(steps), known).examples is None


def test_batches_without_examples_are_none_of_them():
    assert account(make_steps([0.0, 1.0], [1.0, 1.0], examples=0.0), end=6.0).examples == 0.0


def test_the_spans_of_steps_that_compiled_are_kept_in_the_order_of_time():
    steps = make_steps([1.0, 0.0, 2.0], [3.0, 4.0, 5.0], hosts=[0.0, 0.5, 0.5], compiling=(0, 2))
    for totals in (measure(steps), merge(measure(steps[:1]), measure(steps[1:]))):
        assert totals.compile_spans.tolist() == [[1.0, 5.0], [10.0, 17.0]]
    assert measure(steps[1:2]).compile_spans.shape == (0, 2)


def test_an_epoch_of_one_step_has_no_steady_share():
    epoch = account(make_steps([2.0], [3.0]), end=8.0)
    assert epoch.first_batch_seconds == 3.0
    assert epoch.compute_seconds == 3.0
    assert epoch.input_wait_seconds == 0.0
    none = (epoch.input_wait_share, epoch.input_wait_p50_seconds, epoch.ceiling_speedup, epoch.batches_per_second)
    assert none == (None, None, None, None)


def test_steps_that_only_wait_have_no_ceiling():
    epoch = account(make_steps([1.0, 1.0], [0.0, 0.0]), end=3.0)
    assert epoch.input_wait_share == 1.0
    assert epoch.ceiling_speedup is None


def test_an_epoch_without_steps_waited_for_its_first_batch():
    epoch = account(None, begin=5.0, end=9.0, test_end_seconds=8.0)
    assert (epoch.steps, epoch.batches) == (0, 0)
    assert epoch.validation_seconds == 3.0
    assert epoch.first_batch_seconds == 1.0
    assert epoch.unattributed_seconds == 0.0
    assert epoch.input_wait_seconds is None
    assert epoch.compute_seconds is None


def test_what_follows_a_failure_of_step_timing_is_unattributed():
    epoch = account(make_steps([0.0], [1.0]), end=9.0, is_timed=False)
    assert epoch.unattributed_seconds == 7.0
    assert epoch.epoch_end_seconds == 0.0
    assert account(None, end=9.0, is_timed=False).unattributed_seconds == 9.0


def test_without_validation_it_is_unknown():
    assert account(make_steps([0.0], [1.0]), end=3.0).validation_seconds is None


def test_validation_that_took_no_time_is_zero():
    epoch = account(make_steps([0.0], [1.0]), end=3.0, test_end_seconds=2.0)
    assert epoch.validation_seconds == 0.0
    assert epoch.epoch_end_seconds == 1.0


def test_an_evaluation_before_the_last_step_is_not_validation():
    epoch = account(make_steps([0.0, 0.0], [1.0, 1.0], hosts=[0.0, 5.0]), end=9.0, test_end_seconds=3.0)
    assert epoch.validation_seconds is None
    assert epoch.host_seconds == 5.0
    assert epoch.epoch_end_seconds == 1.0


def test_steps_that_were_only_submitted_have_no_compute_and_say_why():
    epoch = account(make_steps([0.0, 1.0], [1.0, 1.0]), end=9.0, submission_only=True)
    none = (epoch.compute_seconds, epoch.goodput, epoch.input_wait_share, epoch.ceiling_speedup)
    assert none == (None, None, None, None)
    assert epoch.input_wait_seconds == 1.0
    assert epoch.step_seconds == 3.0
    assert epoch.notes == (SUBMISSION_ONLY,)


def test_the_disagreement_of_two_sources_is_the_median():
    steps = make_steps([0.0], [1.0])
    assert account(steps, end=3.0).sources_disagreement_seconds is None
    assert account(steps, end=3.0, disagreements_seconds=(0.0, 0.0)).sources_disagreement_seconds == 0.0
    assert account(steps, end=3.0, disagreements_seconds=(1.0, 9.0, 2.0)).sources_disagreement_seconds == 2.0


def test_an_epoch_in_pieces_is_the_same_as_in_one():
    steps = make_steps([2.0, 0.5, 1.0, 3.0, 0.25], [1.0] * 5, hosts=[0.0, 0.5, 0.5, 0.5, 0.5], compiling=(0, 3))
    frame = EpochFrame(epoch=0, begin_seconds=0.0, end_seconds=20.0)
    whole = summarize(frame, measure(steps))
    for cut in range(1, 5):
        pieces = summarize(frame, merge(measure(steps[:cut]), measure(steps[cut:])))
        # The steps for the picture lie within one piece.
        assert dataclasses.replace(pieces, typical_steps=whole.typical_steps) == whole


def test_one_piece_whose_waits_are_unknown_leaves_the_epochs_wait_unknown():
    known, unknown = make_steps([1.0, 1.0], [1.0, 1.0]), make_steps([NAN], [2.0], start=5.0, begins_epoch=False)
    totals = merge(measure(known), measure(unknown))
    assert totals.input_wait_seconds is None
    epoch = summarize(EpochFrame(epoch=0, begin_seconds=0.0, end_seconds=9.0), totals)
    assert epoch.input_wait_seconds is None
    assert epoch.input_wait_share is None
    assert epoch.input_wait_max_seconds is None
    assert epoch.step_seconds == 5.0


def test_a_long_epoch_keeps_a_bounded_number_of_waits_and_its_exact_maximum(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_totals, "WAITS_KEPT", 10)
    pieces = [measure(make_steps([0.0, *[1.0] * 20, 7.0], [1.0] * 22)) for _ in range(3)]
    totals = functools.reduce(merge, pieces)
    assert len(totals.steady_waits_seconds) <= 10
    epoch = summarize(EpochFrame(epoch=0, begin_seconds=0.0, end_seconds=999.0), totals)
    assert epoch.input_wait_max_seconds == 7.0
    assert epoch.input_wait_p50_seconds == 1.0


def test_a_stall_of_every_twentieth_step_stays_in_the_95th_percentile_of_a_long_epoch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_totals, "WAITS_KEPT", 2000)
    waits = [9.0 if number % 16 == 15 else 0.0 for number in range(1600)]
    pieces = [measure(make_steps(waits, [1.0] * 1600, begins_epoch=False)) for _ in range(8)]
    totals = functools.reduce(merge, pieces)
    assert len(totals.steady_waits_seconds) <= 2001
    share = float((totals.steady_waits_seconds > 0).mean())
    assert share == pytest.approx(1 / 16, rel=0.35)
    assert summarize(EpochFrame(epoch=0, begin_seconds=0.0, end_seconds=1e6), totals).input_wait_p95_seconds == 9.0


# Multiples of 1/64 s, so that floats add up exactly.
durations = st.integers(0, 64_000).map(lambda ticks: ticks / 64)


@st.composite
def epochs(draw: st.DrawFn) -> EpochSummary:
    count = draw(st.integers(0, 8))
    begin, before, end_after = draw(durations), draw(durations), draw(durations)
    if count == 0:
        return account(None, begin=begin, end=begin + end_after)
    waits = draw(st.lists(durations | st.just(NAN), min_size=count, max_size=count))
    computes = draw(st.lists(durations, min_size=count, max_size=count))
    hosts = [0.0, *draw(st.lists(durations, min_size=count - 1, max_size=count - 1))]
    compiling = tuple(draw(st.sets(st.integers(0, count - 1))))
    steps = make_steps(waits, computes, hosts, compiling, start=begin + before, batches=draw(st.integers(1, 7)))
    last = float(steps["done_seconds"][-1])
    cut = draw(st.integers(1, count))
    pieces = [piece for piece in (steps[:cut], steps[cut:]) if len(piece)]
    test_end = draw(st.none() | st.just(last + end_after))
    frame = EpochFrame(
        epoch=0,
        begin_seconds=begin,
        end_seconds=last + end_after + draw(durations),
        test_end_seconds=test_end,
        submission_only=draw(st.booleans()),
    )
    return summarize(frame, functools.reduce(merge, [measure(piece) for piece in pieces]))


@settings(max_examples=300, deadline=None)
@given(epochs())
def test_the_parts_always_add_up_to_the_wall_time(epoch: EpochSummary):
    assert sum(parts(epoch)) == pytest.approx(epoch.wall_seconds, abs=1e-6)
    assert epoch.unattributed_seconds == pytest.approx(0.0, abs=1e-6)
    assert min(parts(epoch)[:-1]) >= -1e-6
    if epoch.input_wait_seconds is not None and epoch.compute_seconds is not None:
        assert epoch.input_wait_seconds + epoch.compute_seconds == pytest.approx(epoch.step_seconds, abs=1e-6)
        assert epoch.input_wait_seconds >= -1e-6
        assert epoch.compute_seconds >= -1e-6


@settings(max_examples=300, deadline=None)
@given(epochs())
def test_every_ratio_lies_in_its_range_and_nothing_is_nan(epoch: EpochSummary):
    numbers = [value for value in dataclasses.astuple(epoch) if isinstance(value, float)]
    assert all(math.isfinite(number) for number in numbers)
    assert epoch.input_wait_share is None or -1e-9 <= epoch.input_wait_share <= 1 + 1e-9
    assert epoch.goodput is None or -1e-9 <= epoch.goodput <= 1 + 1e-9
    assert epoch.ceiling_speedup is None or epoch.ceiling_speedup >= 1 - 1e-9
