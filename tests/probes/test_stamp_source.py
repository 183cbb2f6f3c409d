# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from keras_gpu_watch.probes.stamp_source import CLOCK_STEPPED, RING_ROWS, StampSource
from keras_gpu_watch.probes.wait_source import Calls, Waits
from keras_gpu_watch.records import Floats

OFFSET_SECONDS = -1.6e9
"""From wall clock to monotonic clock."""
MakeCalls = Callable[..., Calls]


class Rows:
    """A ring of plain rows: when each batch was asked for and there (monotonic), its examples, a key of its shape."""

    def __init__(self, kept: int = RING_ROWS) -> None:
        self.rows: list[tuple[float, float, float, float, float]] = []
        self._kept = kept

    def add(self, *batches: tuple[float, float], examples: float = np.nan, shape: float = 0.0) -> None:
        for request, ready in batches:
            self.rows.append((request - OFFSET_SECONDS, ready - OFFSET_SECONDS, examples, shape, len(self.rows)))

    def read(self, first: int, count: int) -> Floats:
        kept = self.rows[-self._kept :]
        return np.array([row for row in kept if row[4] >= first][:count]).reshape(-1, 5)


def source(rows: Rows, batches_per_call: int = 1, **arguments: object) -> StampSource:
    return StampSource(rows, batches_per_call, offset=lambda: OFFSET_SECONDS, **arguments)  # type: ignore[arg-type]


def assert_waits(waits: Waits, expected: Sequence[float]) -> None:
    # Wall-clock stamps have a resolution of a quarter of a microsecond.
    np.testing.assert_allclose(waits.input_wait_seconds, expected, atol=1e-6)


def test_a_wait_lasts_from_request_to_ready(make_calls: MakeCalls) -> None:
    rows = Rows()
    rows.add((10.001, 10.051), (10.101, 10.101), (10.2, 10.23))
    waits = source(rows).resolve(make_calls([(10.0, 10.1), (10.1, 10.2), (10.2, 10.3)]), final=False)
    assert_waits(waits, [0.05, 0.0, 0.03])
    assert waits.batches.tolist() == [1, 1, 1]
    assert not waits.estimated


def test_reads_go_on_where_the_last_one_stopped(make_calls: MakeCalls) -> None:
    rows = Rows()
    stamps = source(rows)
    rows.add((10.0, 10.05))
    assert_waits(stamps.resolve(make_calls([(10.0, 10.1)]), final=False), [0.05])
    rows.add((10.1, 10.12), (10.2, 10.27))
    assert_waits(stamps.resolve(make_calls([(10.1, 10.2), (10.2, 10.3)]), final=True), [0.02, 0.07])


def test_a_batch_fetched_outside_of_a_call_makes_the_next_wait_unknown(make_calls: MakeCalls) -> None:
    rows = Rows()
    rows.add((9.0, 9.5), (10.0, 10.05), (10.13, 10.14), (10.2, 10.21))
    waits = source(rows).resolve(make_calls([(10.0, 10.1), (10.2, 10.3)]), final=False)
    assert np.isnan(waits.input_wait_seconds).tolist() == [True, True]
    assert waits.batches.tolist() == [2, 2]


def test_a_call_without_a_row_has_an_unknown_wait(make_calls: MakeCalls) -> None:
    rows = Rows()
    rows.add((10.0, 10.05))
    waits = source(rows).resolve(make_calls([(10.0, 10.1), (10.1, 10.2)]), final=False)
    assert np.isnan(waits.input_wait_seconds).tolist() == [False, True]
    assert np.isnan(waits.examples).tolist() == [True, True]


def test_a_wait_is_never_longer_than_its_call_nor_negative(make_calls: MakeCalls) -> None:
    rows = Rows()
    rows.add((9.0, 10.05), (10.16, 10.15))
    waits = source(rows).resolve(make_calls([(10.0, 10.1), (10.1, 10.2)]), final=False)
    assert_waits(waits, [0.1, 0.0])


@pytest.mark.parametrize(
    ("batches", "done", "expected"),
    [
        # Three steps of 0.2, each batch there before it is needed: only the first one is waited for.
        ([(0.0, 0.1), (0.1, 0.15), (0.15, 0.2)], 0.7, 0.1),
        # Each fetch outlasts the step beside it by 0.1.
        ([(0.0, 0.3), (0.3, 0.6), (0.6, 0.9)], 1.1, 0.5),
        # One long fetch amid short ones.
        ([(0.0, 0.0), (0.0, 0.9), (0.9, 0.9)], 1.3, 0.7),
        # The last one is late.
        ([(0.0, 0.0), (0.0, 0.0), (0.0, 0.5)], 0.7, 0.1),
    ],
    ids=["first only", "all alike", "one long", "last long"],
)
def test_several_batches_a_call_wait_for_what_equal_steps_do_not_explain(
    batches: list[tuple[float, float]], done: float, expected: float, make_calls: MakeCalls
) -> None:
    rows = Rows()
    rows.add(*((10 + request, 10 + ready) for request, ready in batches))
    waits = source(rows, 3).resolve(make_calls([(10.0, 10 + done)], batches_per_call=3), final=False)
    assert_waits(waits, [expected])
    assert waits.estimated
    assert waits.batches.tolist() == [3]


def test_a_short_last_group_is_judged_by_its_own_batches(make_calls: MakeCalls) -> None:
    rows = Rows()
    rows.add((10.0, 10.1), (10.1, 10.1), (10.1, 10.1))
    rows.add((10.7, 11.0), (11.0, 11.0))
    waits = source(rows, 3).resolve(make_calls([(10.0, 10.7), (10.7, 11.4)], batches_per_call=3), final=True)
    assert_waits(waits, [0.1, 0.3])
    assert waits.batches.tolist() == [3, 2]


def test_a_train_function_that_fetches_more_than_announced_is_not_left_behind(make_calls: MakeCalls) -> None:
    rows = Rows()
    stamps = source(rows)
    for first in (10, 110):
        times = [(float(second), second + 1.0) for second in range(first, first + 100)]
        for begin, _ in times:
            rows.add((begin, begin + 0.1), (begin + 0.1, begin + 0.1))
        waits = stamps.resolve(make_calls(times), final=False)
        assert_waits(waits, [0.1] * 100)
        assert waits.batches.tolist() == [2] * 100


def test_rows_overwritten_before_they_were_read_still_count_but_have_no_wait(make_calls: MakeCalls) -> None:
    rows = Rows(kept=3)
    times = [(10.0 + number, 11.0 + number) for number in range(5)]
    rows.add(*((begin, begin + 0.2) for begin, _ in times))
    waits = source(rows).resolve(make_calls(times), final=False)
    assert np.isnan(waits.input_wait_seconds).tolist() == [True, True, True, False, False]
    np.testing.assert_allclose(waits.input_wait_seconds[3:], 0.2, atol=1e-6)
    assert waits.batches.sum() == 5


def test_a_group_that_was_overwritten_in_part_has_no_wait(make_calls: MakeCalls) -> None:
    rows = Rows(kept=3)
    rows.add((10.0, 10.1), (10.2, 10.3), (11.0, 11.1), (11.2, 11.3))
    waits = source(rows, 2).resolve(make_calls([(10.0, 11.0), (11.0, 12.0)], batches_per_call=2), final=False)
    assert np.isnan(waits.input_wait_seconds).tolist() == [True, False]
    assert waits.batches.tolist() == [2, 2]


def test_a_stepped_clock_voids_that_window_only(make_calls: MakeCalls) -> None:
    rows = Rows()
    moved = OFFSET_SECONDS - 0.5
    offsets: Iterator[float] = iter([OFFSET_SECONDS, OFFSET_SECONDS, moved, moved])
    stamps = StampSource(rows, 1, offset=lambda: next(offsets))
    rows.add((10.0, 10.05))
    assert_waits(stamps.resolve(make_calls([(10.0, 10.1)]), final=False), [0.05])
    rows.add((10.1, 10.12), (10.7, 10.75))
    voided = stamps.resolve(make_calls([(10.1, 10.2), (10.2, 10.3)]), final=False)
    assert np.isnan(voided.input_wait_seconds).tolist() == [True, True]
    assert stamps.reason == CLOCK_STEPPED
    rows.add((10.8, 10.84))
    assert_waits(stamps.resolve(make_calls([(10.3, 10.4)]), final=False), [0.04])
    assert stamps.reason is None


def test_a_drifting_clock_is_followed(make_calls: MakeCalls) -> None:
    rows = Rows()
    offset = [OFFSET_SECONDS]
    stamps = StampSource(rows, 1, offset=lambda: offset[0])
    for number in range(100):
        offset[0] -= 0.0009
        begin = 10.0 + number
        rows.add((begin + OFFSET_SECONDS - offset[0], begin + 0.3 + OFFSET_SECONDS - offset[0]))
        assert_waits(stamps.resolve(make_calls([(begin, begin + 0.5)]), final=False), [0.3])
    assert stamps.reason is None


def test_examples_are_added_up_for_each_call(make_calls: MakeCalls) -> None:
    rows = Rows()
    rows.add((10.0, 10.1), (10.2, 10.2), examples=32)
    rows.add((11.0, 11.1), (11.2, 11.2), examples=5)
    waits = source(rows, 2).resolve(make_calls([(10.0, 11.0), (11.0, 12.0)], batches_per_call=2), final=False)
    assert waits.examples.tolist() == [64, 10]


def test_unknown_examples_stay_unknown_and_leave_other_calls_alone(make_calls: MakeCalls) -> None:
    rows = Rows()
    rows.add((10.0, 10.1), examples=32)
    rows.add((11.0, 11.1))
    waits = source(rows).resolve(make_calls([(10.0, 11.0), (11.0, 12.0)]), final=False)
    np.testing.assert_array_equal(waits.examples, [32, np.nan])


def test_a_shape_is_new_once(make_calls: MakeCalls) -> None:
    rows = Rows()
    seen: set[float] = set()
    stamps = source(rows)
    found = []
    for number, shape in enumerate([1.0, 1.0, 2.0, 1.0, 2.0, 3.0]):
        begin = 10.0 + number
        rows.add((begin, begin + 0.1), shape=shape)
        calls = make_calls([(begin, begin + 1)], shapes_seen=seen)
        found += stamps.resolve(calls, final=False).new_shape.tolist()
    assert found == [True, False, True, False, False, True]


class Opinion:
    """A second source that is off by a fixed time, and counts how often it is asked."""

    reason = None
    calls_per_read = 1

    def __init__(self, waits: Sequence[float]) -> None:
        self.waits = np.array(waits)
        self.asked = 0

    def resolve(self, calls: Calls, *, final: bool) -> Waits:
        self.asked += 1
        count = len(calls)
        return Waits(self.waits[:count], np.ones(count, np.int64), np.full(count, np.nan), np.zeros(count, np.bool_))


def test_the_second_opinion_is_compared_where_both_know(make_calls: MakeCalls) -> None:
    rows = Rows()
    rows.add((10.0, 10.05), (11.0, 11.05), (12.0, 12.05))
    opinion = Opinion([0.053, 0.047, np.nan])
    waits = source(rows, second_opinion=lambda: opinion).resolve(
        make_calls([(10.0, 11.0), (11.0, 12.0), (12.0, 13.0)]), final=False
    )
    assert waits.disagreement_seconds == pytest.approx(0.003, abs=1e-6)
    assert_waits(waits, [0.05] * 3)


def test_the_second_opinion_is_asked_once_a_second_and_at_the_end(make_calls: MakeCalls) -> None:
    rows, opinion, now = Rows(), Opinion([0.05]), [0.0]
    stamps = source(rows, second_opinion=lambda: opinion, clock=lambda: now[0])
    for number in range(31):
        now[0] = number * 0.1
        begin = 10.0 + number
        rows.add((begin, begin + 0.05))
        stamps.resolve(make_calls([(begin, begin + 1)]), final=number == 30)
    assert opinion.asked == 4


def test_an_opinion_without_a_known_wait_is_no_disagreement(make_calls: MakeCalls) -> None:
    rows = Rows()
    rows.add((10.0, 10.05))
    waits = source(rows, second_opinion=lambda: Opinion([np.nan])).resolve(make_calls([(10.0, 11.0)]), final=True)
    assert waits.disagreement_seconds is None


@pytest.mark.parametrize("batches_per_call", [1, 7, 64, 2048, 5000])
def test_reads_come_before_the_ring_overflows_where_that_is_possible(batches_per_call: int) -> None:
    calls_per_read = source(Rows(), batches_per_call).calls_per_read
    assert calls_per_read >= 1
    assert calls_per_read == 1 or calls_per_read * batches_per_call <= RING_ROWS
