# SPDX-License-Identifier: Apache-2.0
"""Gaps are made here as tf.data makes them, by playing fetches and calls whose times are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from keras_gpu_watch.probes.gap_source import (
    GAP_DROPPED_SECONDS,
    GAPS_KEPT,
    MISCOUNTED,
    NO_MODEL,
    TOO_MANY_BATCHES,
    ElementSize,
    GapSource,
    ModelReading,
    last_ready_seconds,
)
from keras_gpu_watch.probes.wait_source import Calls

LAUNCH_SECONDS = 0.001
UNKNOWN_SIZE = ElementSize(bytes_per_example=None, batch_dimension=None)
MakeCalls = Callable[..., Calls]


@dataclass
class Play:
    """A training and tf.data's book-keeping of it.

    A call launches, fetches its first batch, works, and returns. Within a call the next batch is fetched beside the
    work on the one before.
    """

    batches_per_call: int = 1
    now: float = 100.0
    times: list[tuple[float, float]] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    elements: int = 0
    bytes: int = 0
    gaps: list[float] = field(default_factory=list)
    ended: float | None = None
    _fetch_end: float | None = None

    def call(self, fetches: Sequence[float], work: float, host: float = 0.0, *, ends: bool = False) -> None:
        """One call with a fetch for each batch; with `ends` it then finds the data used up."""
        self.now += host
        begin = self.now
        free = self.now + LAUNCH_SECONDS
        request = free
        for duration in fetches:
            delivered = self._fetch(request, duration)
            free = max(free, delivered) + work
            request = delivered
        self.ready.append(delivered)
        if ends:
            self._gap(request)
        self.now = free
        self.times.append((begin, self.now))

    def end(self, host: float = 0.0) -> None:
        """A call that finds the data used up at once."""
        self.now += host
        self.ended = self.now
        self._gap(self.now + LAUNCH_SECONDS)

    def reading(self) -> ModelReading:
        return ModelReading(self.elements, self.bytes, np.array(self.gaps[-GAPS_KEPT:]))

    def _fetch(self, request: float, duration: float) -> float:
        self._gap(request)
        self._fetch_end = request + duration
        self.elements += 1
        self.bytes += 16
        return self._fetch_end

    def _gap(self, request: float) -> None:
        if self._fetch_end is not None and request - self._fetch_end < GAP_DROPPED_SECONDS:
            self.gaps.append(request - self._fetch_end)


NOTHING_READ = ModelReading(0, 0, np.empty(0))


def found(play: Play, make_calls: MakeCalls, newest: int | None = None, traced: Sequence[int] = ()) -> np.ndarray:
    """What is found of the newest calls, put beside the truth: error in seconds, NaN where nothing was found."""
    count = len(play.times) if newest is None else newest
    calls = make_calls(
        play.times[-count:], traced, batches_per_call=play.batches_per_call, ended_call_seconds=play.ended
    )
    before = play.elements - count * play.batches_per_call
    # The constant launch time is in each reading; it cancels out in a wait.
    return (
        last_ready_seconds(calls, play.reading(), NOTHING_READ, before) + LAUNCH_SECONDS - np.array(play.ready[-count:])
    )


def assert_found(errors: np.ndarray, unknown: Sequence[int]) -> None:
    assert np.flatnonzero(np.isnan(errors)).tolist() == list(unknown)
    assert np.nanmax(np.abs(errors), initial=0.0) < 1e-9


def test_every_call_but_the_newest_is_found(make_calls: MakeCalls) -> None:
    play = Play()
    for number in range(20):
        play.call([0.01 * (number % 4)], work=0.02, host=0.003 * (number % 3))
    assert_found(found(play, make_calls), unknown=[19])


def test_end_of_data_tells_the_newest_call_too(make_calls: MakeCalls) -> None:
    play = Play()
    for number in range(5):
        play.call([0.01 * number], work=0.02)
    play.end(host=0.004)
    assert_found(found(play, make_calls), unknown=[])


def test_only_as_many_calls_are_found_as_gaps_are_kept(make_calls: MakeCalls) -> None:
    play = Play()
    for number in range(GAPS_KEPT + 30):
        play.call([0.001 * (number % 7)], work=0.02)
    assert_found(found(play, make_calls), unknown=[*range(29), GAPS_KEPT + 29])


@pytest.mark.parametrize("pause", [10.0, 60.0])
@pytest.mark.parametrize("at", [1, 5, 9])
def test_a_long_host_time_leaves_a_hole_and_the_others_in_place(pause: float, at: int, make_calls: MakeCalls) -> None:
    play = Play()
    for number in range(10):
        play.call([0.01 * (number % 4)], work=0.02, host=pause if number == at else 0.003)
    assert_found(found(play, make_calls), unknown=[at - 1, 9])


def test_a_step_of_ten_seconds_leaves_a_hole_and_no_invented_wait(make_calls: MakeCalls) -> None:
    play = Play()
    for number in range(10):
        play.call([0.01 * (number % 4)], work=10.0 if number == 4 else 0.02)
    assert_found(found(play, make_calls), unknown=[4, 9])


def test_a_fetch_of_ten_seconds_is_found(make_calls: MakeCalls) -> None:
    play = Play()
    for number in range(10):
        play.call([12.0 if number == 4 else 0.01], work=0.02)
    assert_found(found(play, make_calls), unknown=[9])


def test_a_long_fetch_and_a_long_step_together_are_left_unknown(make_calls: MakeCalls) -> None:
    play = Play()
    for number in range(10):
        play.call([12.0 if number == 4 else 0.01], work=15.0 if number == 6 else 0.02)
    assert np.isnan(found(play, make_calls)).all()


@pytest.mark.parametrize("slow", ["fetch", "step"])
def test_a_long_call_is_told_apart_by_what_is_new_since_the_last_read(slow: str, make_calls: MakeCalls) -> None:
    play = Play()
    gaps = source(play)
    for _ in range(GAPS_KEPT + 50):
        play.call([0.01], work=0.02 + 0.0001 * len(play.times))
    gaps.resolve(make_calls(play.times), final=False)
    for number in range(6):
        long = number == 2
        play.call([12.0 if long and slow == "fetch" else 0.01], work=12.0 if long and slow == "step" else 0.02)
    waits = gaps.resolve(make_calls(play.times[-7:]), final=True).input_wait_seconds
    expected = [0.01, 0.01, 0.01, 12.0 if slow == "fetch" else np.nan, 0.01, 0.01, np.nan]
    np.testing.assert_allclose(waits, expected, atol=1e-9)


def test_a_step_just_short_of_a_pause_is_found(make_calls: MakeCalls) -> None:
    play = Play()
    for number in range(10):
        play.call([0.01 * (number % 4)], work=9.99 if number == 4 else 0.02)
    assert_found(found(play, make_calls), unknown=[9])


def test_a_long_wait_is_no_pause(make_calls: MakeCalls) -> None:
    play = Play()
    for number in range(10):
        play.call([25.0 if number == 4 else 0.01], work=0.02)
    assert_found(found(play, make_calls), unknown=[9])


def test_several_pauses_leave_several_holes(make_calls: MakeCalls) -> None:
    play = Play()
    for number in range(12):
        play.call([0.01 * (number % 4)], work=0.02, host=12.0 if number in (3, 4, 9) else 0.0)
    assert_found(found(play, make_calls), unknown=[2, 3, 8, 11])


def test_the_call_before_one_that_traced_is_not_known(make_calls: MakeCalls) -> None:
    play = Play()
    for _ in range(6):
        play.call([0.01], work=0.02)
    assert_found(found(play, make_calls, traced=[3]), unknown=[2, 5])


def test_the_last_batch_of_each_group_is_found(make_calls: MakeCalls) -> None:
    play = Play(batches_per_call=4)
    for number in range(6):
        play.call([0.01, 0.03, 0.0, 0.002 * number], work=0.02, host=0.001)
    assert_found(found(play, make_calls), unknown=[5])


def test_end_of_data_after_full_groups_tells_the_newest_group(make_calls: MakeCalls) -> None:
    play = Play(batches_per_call=4)
    for _ in range(6):
        play.call([0.01, 0.03, 0.0, 0.002], work=0.02)
    play.end()
    assert_found(found(play, make_calls), unknown=[])


def test_a_short_last_group_does_not_shift_the_others(make_calls: MakeCalls) -> None:
    play = Play(batches_per_call=4)
    for number in range(5):
        play.call([0.01, 0.03, 0.0, 0.002 * number], work=0.02)
    play.call([0.01, 0.02], work=0.02, ends=True)
    calls = make_calls(play.times, batches_per_call=4)
    ready = last_ready_seconds(calls, play.reading(), NOTHING_READ, 0, last_group_short=True)
    assert_found(ready + LAUNCH_SECONDS - np.array(play.ready), unknown=[5])


def test_a_gap_of_another_call_is_not_used(make_calls: MakeCalls) -> None:
    play = Play()
    for _ in range(6):
        play.call([0.01], work=0.02)
    # As if somebody else had fetched in between: what lies there no longer fits the call.
    play.gaps[2] = 5.0
    assert_found(found(play, make_calls), unknown=[2, 5])


def source(play: Play, size: ElementSize = UNKNOWN_SIZE) -> GapSource:
    return GapSource(play.reading, size, play.batches_per_call)


def test_waits_are_the_fetches_and_the_newest_comes_with_the_next_read(make_calls: MakeCalls) -> None:
    play, fetches = Play(), [0.01, 0.0, 0.03, 0.02, 0.05, 0.0, 0.01, 0.04]
    gaps = source(play)
    for fetch in fetches[:4]:
        play.call([fetch], work=0.02)
    first = gaps.resolve(make_calls(play.times), final=False)
    for fetch in fetches[4:]:
        play.call([fetch], work=0.02)
    second = gaps.resolve(make_calls(play.times[3:]), final=False)
    np.testing.assert_allclose([*first.input_wait_seconds, *second.input_wait_seconds], fetches[:7], atol=1e-9)
    assert [*first.batches, *second.batches] == [1] * 7
    assert not first.estimated
    assert gaps.reason is None


def test_a_final_read_covers_the_newest_call_as_not_known(make_calls: MakeCalls) -> None:
    play = Play()
    for _ in range(4):
        play.call([0.01], work=0.02)
    waits = source(play).resolve(make_calls(play.times), final=True)
    assert np.isnan(waits.input_wait_seconds).tolist() == [False, False, False, True]


def test_a_call_that_traced_has_no_wait_of_its_own(make_calls: MakeCalls) -> None:
    play = Play()
    for _ in range(4):
        play.call([0.01], work=0.02)
    waits = source(play).resolve(make_calls(play.times, traced=[1]), final=True)
    assert np.isnan(waits.input_wait_seconds).tolist() == [True, True, False, True]


def test_batches_that_do_not_fit_the_calls_make_waits_unknown_and_say_so(make_calls: MakeCalls) -> None:
    play = Play()
    gaps = source(play)
    for _ in range(3):
        play.call([0.01], work=0.02)
    assert not np.isnan(gaps.resolve(make_calls(play.times), final=True).input_wait_seconds[:2]).any()
    begin = len(play.times)
    for _ in range(3):
        play.call([0.01], work=0.02)
    play.elements += 2
    waits = gaps.resolve(make_calls(play.times[begin:]), final=True)
    assert np.isnan(waits.input_wait_seconds).all()
    assert gaps.reason == MISCOUNTED


def test_an_iterator_used_before_is_counted_from_where_it_stands(make_calls: MakeCalls) -> None:
    play = Play()
    for _ in range(7):
        play.call([0.5], work=0.0)
    used = len(play.times)
    for _ in range(4):
        play.call([0.01], work=0.02)
    waits = source(play).resolve(make_calls(play.times[used:]), final=False)
    np.testing.assert_allclose(waits.input_wait_seconds, [0.01] * 3, atol=1e-9)


def test_no_model_makes_waits_unknown_rather_than_zero(make_calls: MakeCalls) -> None:
    gaps = GapSource(lambda: None, UNKNOWN_SIZE, 1)
    waits = gaps.resolve(make_calls([(0.0, 1.0), (1.0, 2.0)]), final=False)
    assert np.isnan(waits.input_wait_seconds).tolist() == [True, True]
    assert gaps.reason == NO_MODEL


def test_more_batches_a_call_than_gaps_are_kept_is_said_at_once(make_calls: MakeCalls) -> None:
    play = Play(batches_per_call=GAPS_KEPT + 1)
    gaps = source(play)
    for _ in range(2):
        play.call([0.01] * (GAPS_KEPT + 1), work=0.02)
    waits = gaps.resolve(make_calls(play.times, batches_per_call=GAPS_KEPT + 1), final=True)
    assert gaps.reason == TOO_MANY_BATCHES
    assert np.isnan(waits.input_wait_seconds).all()
    assert waits.batches.tolist() == [GAPS_KEPT + 1] * 2


@pytest.mark.parametrize("batches_per_call", [1, 4, 50, 100])
def test_reads_come_often_enough_to_lose_no_gap(batches_per_call: int, make_calls: MakeCalls) -> None:
    play = Play(batches_per_call)
    gaps = source(play)
    covered, missing = 0, 0
    for _ in range(150):
        play.call([0.03] * batches_per_call, work=0.02)
        pending = play.times[covered:]
        if len(pending) >= gaps.calls_per_read + (covered > 0):
            waits = gaps.resolve(make_calls(pending, batches_per_call=batches_per_call), final=False)
            missing += int(np.isnan(waits.input_wait_seconds).sum())
            covered += len(waits)
    assert covered > 80
    assert missing == 0


def test_several_batches_a_call_wait_for_what_no_step_covered(make_calls: MakeCalls) -> None:
    play = Play(batches_per_call=8)
    for _ in range(12):
        play.call([0.05] * 8, work=0.02)
    waits = source(play).resolve(make_calls(play.times, batches_per_call=8), final=True)
    assert waits.estimated
    # The first fetch, and what each further one outlasts the step beside it. A step's end can't be told from the
    # launch of the next one.
    np.testing.assert_allclose(waits.input_wait_seconds[:-1], 0.05 + 7 * 0.03, atol=8 * LAUNCH_SECONDS)


def test_several_batches_a_call_that_are_there_early_show_no_wait(make_calls: MakeCalls) -> None:
    play = Play(batches_per_call=8)
    for _ in range(12):
        play.call([0.0] * 8, work=0.02)
    waits = source(play).resolve(make_calls(play.times, batches_per_call=8), final=True)
    assert np.nanmax(waits.input_wait_seconds) <= LAUNCH_SECONDS


def test_a_short_last_group_is_counted_and_judged_by_its_own_size(make_calls: MakeCalls) -> None:
    play = Play(batches_per_call=8)
    for _ in range(12):
        play.call([0.05] * 8, work=0.02)
    play.call([0.05] * 3, work=0.02, ends=True)
    waits = source(play).resolve(make_calls(play.times, batches_per_call=8), final=True)
    assert waits.batches.tolist() == [8] * 12 + [3]
    np.testing.assert_allclose(waits.input_wait_seconds[-1], 0.05 + 2 * 0.03, atol=3 * LAUNCH_SECONDS)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (ElementSize(bytes_per_example=4, batch_dimension=None), [4.0] * 4),
        (ElementSize(bytes_per_example=4, batch_dimension=32), [32.0] * 4),
        (UNKNOWN_SIZE, [np.nan] * 4),
    ],
    ids=["from bytes", "static", "not known"],
)
def test_examples_come_from_the_static_dimension_or_the_bytes(
    size: ElementSize, expected: list[float], make_calls: MakeCalls
) -> None:
    play = Play()
    for _ in range(4):
        play.call([0.01], work=0.02)
    waits = source(play, size).resolve(make_calls(play.times), final=True)
    np.testing.assert_array_equal(waits.examples, expected)


def test_examples_of_a_call_that_is_left_over_are_counted_once(make_calls: MakeCalls) -> None:
    play = Play()
    gaps = source(play, ElementSize(bytes_per_example=4, batch_dimension=None))
    for _ in range(4):
        play.call([0.01], work=0.02)
    first = gaps.resolve(make_calls(play.times), final=False)
    for _ in range(4):
        play.call([0.01], work=0.02)
    second = gaps.resolve(make_calls(play.times[3:]), final=True)
    assert first.examples.sum() + second.examples.sum() == 8 * 4


def test_a_slow_call_with_an_unusual_batch_compiles_under_xla_only(make_calls: MakeCalls) -> None:
    for jit_compile in (True, False):
        play = Play()
        play.call([0.01], work=0.02)
        gaps = source(play)
        gaps.resolve(make_calls(play.times), final=False)
        for number in range(5):
            play.call([0.01], work=0.9 if number == 4 else 0.02)
        play.bytes += 5
        waits = gaps.resolve(make_calls(play.times, jit_compile=jit_compile), final=True)
        assert waits.new_shape.tolist() == [False] * 5 + [jit_compile]


def test_a_slow_call_among_usual_batches_does_not_compile(make_calls: MakeCalls) -> None:
    play = Play()
    for number in range(6):
        play.call([0.01], work=0.9 if number == 4 else 0.02)
    waits = source(play).resolve(make_calls(play.times, jit_compile=True), final=True)
    assert not waits.new_shape.any()
