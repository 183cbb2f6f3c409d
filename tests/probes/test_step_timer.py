# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_gpu_watch.guard import Guard
from keras_gpu_watch.probes.step_timer import STEP_TIMING, StepTimer
from keras_gpu_watch.probes.wait_source import Calls, Waits
from keras_gpu_watch.records import StepArray, StepKind


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Source:
    """Knows one fixed wait; `lags` is how many of the newest calls it does not know yet."""

    def __init__(self, calls_per_read: int = 1, lags: int = 0, wait: float = 0.25, batches: int = 1) -> None:
        self.reason: str | None = None
        self.calls_per_read = calls_per_read
        self.asked: list[tuple[int, bool, float | None]] = []
        self.new_shapes: list[int] = []
        self._lags, self._wait, self._batches = lags, wait, batches

    def resolve(self, calls: Calls, *, final: bool) -> Waits:
        self.asked.append((len(calls), final, calls.ended_call_seconds))
        count = len(calls) if final else len(calls) - self._lags
        return Waits(
            np.full(count, self._wait),
            np.full(count, self._batches),
            np.full(count, 32.0),
            np.isin(np.arange(count), self.new_shapes),
        )


class Bench:
    """A timer around a train function that takes one second on a clock of its own."""

    def __init__(self, source: Any = None, **configuration: Any) -> None:
        self.clock = FakeClock()
        self.source = Source() if source is None else source
        self.notes: list[str] = []
        self.chunks: list[StepArray] = []
        self.errors = 0
        self.guard = Guard(self.notes.append)
        self.chosen = 0
        self.timer = StepTimer(self.guard, self._choose, self.chunks.append, self._error, self.clock)
        defaults = {"step_axis": 0, "batches_per_call": 1, "jit_compile": False, "count_steps": lambda: 0}
        self.timer.configure(**{**defaults, **configuration})
        self.raises: BaseException | None = None
        self.train = self.timer.wrap(self._step)
        self.timer.start_epoch(0)

    def steps(self, count: int, iterator: Any = "iterator", host: float = 0.5) -> None:
        for _ in range(count):
            self.clock.now += host
            self.train(iterator)

    @property
    def rows(self) -> StepArray:
        return np.concatenate(self.chunks)

    def _choose(self, iterator: Any, batches_per_call: int) -> Any:
        self.chosen += 1
        return self.source

    def _error(self, error: BaseException) -> None:
        self.errors += 1

    def _step(self, iterator: Any) -> Any:
        self.clock.now += 1.0
        if self.raises is not None:
            raise self.raises
        return {"loss": 1.5}


def test_a_step_is_split_into_wait_compute_and_host() -> None:
    bench = Bench()
    bench.steps(3)
    rows = bench.rows
    np.testing.assert_array_equal(rows["call_seconds"], [100.5, 102.0, 103.5])
    np.testing.assert_array_equal(rows["done_seconds"], [101.5, 103.0, 104.5])
    np.testing.assert_array_equal(rows["host_seconds"], [np.nan, 0.5, 0.5])
    np.testing.assert_array_equal(rows["input_wait_seconds"], [0.25] * 3)
    np.testing.assert_array_equal(rows["compute_seconds"], [0.75] * 3)
    np.testing.assert_array_equal(rows["compile_seconds"], [0.0] * 3)
    assert rows["kind"].tolist() == [StepKind.FIRST, StepKind.STEADY, StepKind.STEADY]


def test_what_the_train_function_returns_is_handed_on() -> None:
    assert Bench().train("iterator") == {"loss": 1.5}


def test_the_step_axis_goes_on_in_batches_from_where_the_optimizer_stood() -> None:
    bench = Bench(Source(batches=4), step_axis=40, batches_per_call=4)
    bench.steps(3)
    assert bench.rows["step"].tolist() == [44, 48, 52]
    assert bench.rows["batches"].tolist() == [4, 4, 4]


def test_an_unknown_wait_leaves_compute_unknown_and_not_the_whole_call() -> None:
    bench = Bench(Source(wait=np.nan))
    bench.steps(2)
    assert np.isnan(bench.rows["input_wait_seconds"]).all()
    assert np.isnan(bench.rows["compute_seconds"]).all()


def test_a_measured_wait_of_zero_is_zero() -> None:
    bench = Bench(Source(wait=0.0))
    bench.steps(2)
    assert bench.rows["input_wait_seconds"].tolist() == [0.0, 0.0]
    assert bench.rows["compute_seconds"].tolist() == [1.0, 1.0]


def test_steps_are_read_in_chunks_and_none_is_lost_or_doubled() -> None:
    bench = Bench(Source(calls_per_read=4, lags=1))
    bench.timer._read_due = float("inf")
    bench.steps(10)
    bench.timer.finish_epoch()
    assert bench.rows["step"].tolist() == list(range(1, 11))
    assert bench.source.asked[-1][1] is True
    assert max(count for count, _, _ in bench.source.asked) <= 5


def test_slow_steps_are_read_every_half_second_without_waiting_for_a_full_chunk() -> None:
    bench = Bench(Source(calls_per_read=64))
    bench.steps(5)
    assert len(bench.rows) == 5


def test_each_epoch_begins_with_a_first_step() -> None:
    bench = Bench()
    for epoch in range(2):
        bench.timer.start_epoch(epoch)
        bench.steps(2)
        bench.timer.finish_epoch()
    assert bench.rows["epoch"].tolist() == [0, 0, 1, 1]
    assert bench.rows["kind"].tolist() == [StepKind.FIRST, StepKind.STEADY] * 2
    assert np.isnan(bench.rows["host_seconds"]).tolist() == [True, False, True, False]


def test_a_new_iterator_gets_a_source_of_its_own_after_the_old_one_was_read() -> None:
    bench = Bench(Source(calls_per_read=64, lags=1))
    bench.timer._read_due = float("inf")
    bench.steps(3, iterator="first")
    bench.steps(3, iterator="second")
    assert bench.chosen == 2
    assert bench.source.asked == [(3, True, None)]
    bench.timer.finish_epoch()
    assert bench.rows["step"].tolist() == [1, 2, 3, 4, 5, 6]


def test_what_is_no_iterator_of_fit_is_called_and_not_timed() -> None:
    bench = Bench()
    bench.source = None
    bench.steps(2)
    assert bench.chunks == []
    assert bench.clock.now == 103.0


@pytest.mark.parametrize(
    "error", [StopIteration(), tf.errors.OutOfRangeError(None, None, "end")], ids=["stop", "range"]
)
def test_the_end_of_data_is_no_error_and_tells_when_it_was_found(error: Exception) -> None:
    bench = Bench(Source(lags=1))
    bench.steps(2)
    bench.raises = error
    bench.clock.now += 0.5
    called = bench.clock.now
    with pytest.raises(type(error)):
        bench.train("iterator")
    assert bench.errors == 0
    assert bench.source.asked[-1] == (1, True, called)
    assert len(bench.rows) == 2


@pytest.mark.parametrize("error", [ValueError("theirs"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_error_of_the_step_goes_through_unchanged_and_is_told(error: BaseException) -> None:
    bench = Bench()
    bench.steps(1)
    bench.raises = error
    with pytest.raises(type(error)) as caught:
        bench.train("iterator")
    assert caught.value is error
    assert bench.errors == 1


def test_a_train_function_that_calls_itself_is_timed_once() -> None:
    bench = Bench()
    depth = [0]

    def step(iterator: Any) -> Any:
        depth[0] += 1
        bench.clock.now += 1.0
        return inner(iterator) if depth[0] < 3 else {}

    inner = bench.timer.wrap(step)
    inner("iterator")
    assert depth[0] == 3
    assert bench.rows["done_seconds"] - bench.rows["call_seconds"] == [3.0]


class Broken(Source):
    def resolve(self, calls: Calls, *, final: bool) -> Waits:
        raise RuntimeError("ours")


def test_our_own_failure_is_said_once_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Broken())
    bench.steps(4)
    assert bench.clock.now == 106.0
    assert len(bench.notes) == 1
    assert STEP_TIMING in bench.notes[0]
    assert len(caplog.records) == 1
    assert not bench.guard.ok(STEP_TIMING)


def test_a_source_that_cannot_be_chosen_is_our_failure_and_not_the_users(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()

    def fail(iterator: Any, batches_per_call: int) -> Any:
        raise RuntimeError("ours")

    bench.timer._choose_source = fail
    bench.steps(2)
    assert len(bench.notes) == 1
    assert bench.chunks == []


def test_a_closed_timer_times_nothing_and_still_calls() -> None:
    bench = Bench()
    bench.steps(1)
    bench.timer.close()
    bench.steps(2)
    assert len(bench.rows) == 1
    assert bench.clock.now == 104.5


def test_why_waits_are_not_known_is_kept_for_the_epoch() -> None:
    bench = Bench()
    bench.source.reason = "no model"
    bench.steps(2)
    assert list(bench.timer.reasons) == ["no model"]
    bench.timer.start_epoch(1)
    assert list(bench.timer.reasons) == []


@pytest.mark.parametrize("jit_compile", [True, False])
def test_a_new_shape_compiles_under_xla_only(jit_compile: bool) -> None:
    bench = Bench(jit_compile=jit_compile)
    bench.source.new_shapes = [0]
    bench.steps(1)
    compiled = bench.rows[0]
    assert (compiled["kind"] == StepKind.COMPILE) is np.bool_(jit_compile)
    assert compiled["compile_seconds"] == (0.75 if jit_compile else 0.0)
    assert np.isnan(compiled["compute_seconds"]) == jit_compile


def counting(traces: Callable[[], int]) -> Any:
    @tf.function
    def traced(number: tf.Tensor) -> tf.Tensor:
        return number + 1

    def train(iterator: Any) -> Any:
        return traced(tf.zeros([traces()]))

    return train


def test_a_step_that_traced_is_a_compile_step() -> None:
    bench = Bench()
    size = [1]
    bench.train = bench.timer.wrap(counting(lambda: size[0]))
    for size[0] in (1, 1, 2, 3, 3):
        bench.train("iterator")
    bench.timer.finish_epoch()
    kinds = bench.rows["kind"].tolist()
    # Of several shapes the third one is traced with its dimension left open.
    assert kinds[:3] == [StepKind.COMPILE, StepKind.STEADY, StepKind.COMPILE]
    assert kinds[4] == StepKind.STEADY


def test_reading_is_counted_as_our_own_time() -> None:
    bench = Bench()

    class Slow(Source):
        def resolve(self, calls: Calls, *, final: bool) -> Waits:
            bench.clock.now += 0.125
            return super().resolve(calls, final=final)

    bench.source = Slow()
    bench.steps(4)
    assert bench.timer.overhead_seconds == 0.5
