# SPDX-License-Identifier: Apache-2.0
"""The train-function wrapper: stamps each call and hands on finished steps in chunks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_gpu_watch.clock import Clock, monotonic
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.probes.device_values import DeviceWait
from keras_gpu_watch.probes.train_function import TIMER_ATTRIBUTE, TrainFunction, trace_counter
from keras_gpu_watch.probes.wait_source import Calls, Waits, WaitSource
from keras_gpu_watch.records import STEP_DTYPE, StepArray, StepKind

STEP_TIMING = "step timing"
SHAPES_ATTRIBUTE = "_keras_gpu_watch_shapes"
"""Attribute of a train function: the batch shapes it has met, which XLA has compiled it for."""
READ_EVERY_SECONDS = 0.5
"""A run of slow steps is read at least this often, so that what is shown is never older."""

SourceChooser = Callable[[Any, int], "WaitSource | None"]
"""From an iterator and `steps_per_execution` to its source of waits; `None` for what is not `fit`'s own iterator."""


class StepTimer:
    """Times the calls of one model's train function.

    The fast path of a step is two clock reads, one look at the tracing counters and one append. Everything else is
    done for many steps at a time, when a chunk is read.

    Args:
        guard: Catches our own failures.
        choose_source: Finds the source of waits for an iterator.
        emit: Takes each chunk of finished steps.
        on_error: Called when a step raised, before the exception goes on.
        clock: The monotonic clock.
    """

    def __init__(
        self,
        guard: Guard,
        choose_source: SourceChooser,
        emit: Callable[[StepArray], None],
        on_error: Callable[[BaseException], object],
        clock: Clock = monotonic,
    ) -> None:
        self.overhead_seconds = 0.0
        """Time used on the training thread by reading chunks, since the timer was made."""
        self.wait_for_device = DeviceWait()
        self.disagreements_seconds: list[float] = []
        """This epoch's differences between two sources."""
        self.reasons: dict[str, None] = {}
        """Why waits of this epoch are not known, in the order met."""
        self._guard = guard
        self._choose_source = choose_source
        self._emit = emit
        self._on_error = on_error
        self._clock = clock
        self._epoch = 0
        self._step_axis = 0
        self._batches_per_call = 1
        self._jit_compile = False
        self._count_steps: Callable[[], int] = lambda: 0
        self._shapes_seen: set[float] = set()
        self._pending: list[tuple[float, float, bool]] = []
        self._calls_per_read = 1
        self._read_due = 0.0
        self._previous_done = float("nan")
        self._iterator: Any = None
        self._source: WaitSource | None = None
        self._inside = False
        self._closed = False

    def configure(
        self, *, step_axis: int, batches_per_call: int, jit_compile: bool, count_steps: Callable[[], int]
    ) -> None:
        """Set what is known of the model when its first epoch begins.

        Args:
            step_axis: The optimizer's iteration now.
            batches_per_call: `steps_per_execution`.
            jit_compile: Whether the train step is compiled by XLA.
            count_steps: Gives the optimizer's iteration, where no source counts the batches.
        """
        self._count_steps = count_steps
        self._step_axis = step_axis
        self._batches_per_call = batches_per_call
        self._jit_compile = jit_compile

    def wrap(self, function: TrainFunction) -> TrainFunction:
        """The same train function, timed.

        Args:
            function: What `make_train_function` made.

        Returns:
            A function that takes and returns the same.
        """
        # What is pending was done by the function before.
        self._read_guarded(final=False)
        self._shapes_seen = getattr(function, "__dict__", {}).setdefault(SHAPES_ATTRIBUTE, set())
        count_traces = trace_counter(function)
        wait_for_device = self.wait_for_device
        clock = self._clock

        @functools.wraps(function, updated=())
        def timed(iterator: Any) -> Any:
            if self._inside or not (iterator is self._iterator or self._adopt(iterator)):
                return function(iterator)
            self._inside = True
            traces = count_traces()
            call = clock()
            try:
                outputs = function(iterator)
                if wait_for_device.seen_on_device is not False:
                    wait_for_device(outputs)
            except BaseException as error:
                self._raised(error, call)
                raise
            finally:
                self._inside = False
            done = clock()
            self._pending.append((call, done, count_traces() != traces))
            if len(self._pending) >= self._calls_per_read or done >= self._read_due:
                self._read_guarded(final=False)
            return outputs

        setattr(timed, TIMER_ATTRIBUTE, self)
        return timed

    @property
    def step(self) -> int:
        """Optimizer iteration after the newest step that was read."""
        return self._step_axis

    @property
    def iterator(self) -> Any:
        """The iterator that the newest step fetched from; `None` before the first one."""
        return self._iterator

    @property
    def closed(self) -> bool:
        """Whether it times nothing any more."""
        return self._closed

    def start_epoch(self, epoch: int) -> None:
        """From now on steps belong to `epoch`."""
        self._epoch = epoch
        self._previous_done = float("nan")
        self.disagreements_seconds = []
        self.reasons = {}

    def finish_epoch(self) -> None:
        """Read and emit what is left; a wait that is not known by now stays unknown."""
        self._read_guarded(final=True)

    def close(self) -> None:
        """Time nothing any more, and let go of the iterator and the model."""
        self._closed = True
        self._iterator = self._source = None
        self._count_steps = lambda: 0

    def _adopt(self, iterator: Any) -> bool:
        """Whether to time this iterator; a new one gets a source of its own."""
        if self._closed or not self._guard.ok(STEP_TIMING):
            return False
        with self._guard(STEP_TIMING):
            source = self._choose_source(iterator, self._batches_per_call)
            if source is None:
                return False
            self._read(final=True)
            self._iterator, self._source = iterator, source
            self._calls_per_read = source.calls_per_read
            return True
        return False

    def _raised(self, error: BaseException, call: float) -> None:
        # The data being used up is how an epoch of unknown length ends: Keras catches both.
        if isinstance(error, StopIteration) or type(error).__name__ == "OutOfRangeError":
            self._read_guarded(final=True, ended_call=call)
        else:
            with self._guard(STEP_TIMING):
                self._on_error(error)

    def _read_guarded(self, *, final: bool, ended_call: float | None = None) -> None:
        start = self._clock()
        with self._guard(STEP_TIMING):
            self._read(final=final, ended_call=ended_call)
        if not self._guard.ok(STEP_TIMING):
            self._pending.clear()
            self.close()
        end = self._clock()
        self.overhead_seconds += end - start
        self._read_due = end + READ_EVERY_SECONDS

    def _read(self, *, final: bool, ended_call: float | None = None) -> None:
        if not self._pending or self._source is None:
            return
        calls = self._calls(ended_call)
        waits = self._source.resolve(calls, final=final)
        self._calls_per_read = self._source.calls_per_read + len(calls) - len(waits)
        if self._source.reason is not None:
            self.reasons[self._source.reason] = None
        if waits.disagreement_seconds is not None:
            self.disagreements_seconds.append(waits.disagreement_seconds)
        if len(waits):
            if final and not waits.counted:
                self._correct_last_group(waits)
            del self._pending[: len(waits)]
            self._emit(self._chunk(calls, waits))

    def _correct_last_group(self, waits: Waits) -> None:
        """Take a short last group's size from the optimizer, in place."""
        last = self._count_steps() - self._step_axis - int(waits.batches[:-1].sum())
        if 1 <= last < self._batches_per_call:
            waits.batches[-1] = last

    def _calls(self, ended_call: float | None) -> Calls:
        call, done, traced = zip(*self._pending, strict=True)
        return Calls(
            call_seconds=np.array(call),
            done_seconds=np.array(done),
            traced=np.array(traced, np.bool_),
            batches_per_call=self._batches_per_call,
            jit_compile=self._jit_compile,
            ended_call_seconds=ended_call,
            shapes_seen=self._shapes_seen,
        )

    def _chunk(self, calls: Calls, waits: Waits) -> StepArray:
        count = len(waits)
        call, done = calls.call_seconds[:count], calls.done_seconds[:count]
        wait = waits.input_wait_seconds
        compiling = calls.traced[:count] | (waits.new_shape & calls.jit_compile)
        chunk = np.zeros(count, STEP_DTYPE)
        chunk["epoch"] = self._epoch
        chunk["step"] = self._step_axis + np.cumsum(waits.batches)
        chunk["batches"] = waits.batches
        chunk["examples"] = waits.examples
        chunk["kind"] = np.where(compiling, StepKind.COMPILE, StepKind.STEADY)
        chunk["estimated"] = waits.estimated & ~np.isnan(wait)
        chunk["call_seconds"] = call
        chunk["done_seconds"] = done
        chunk["host_seconds"] = call - np.concatenate([[self._previous_done], done[:-1]])
        chunk["input_wait_seconds"] = wait
        chunk["compute_seconds"] = np.where(compiling, np.nan, done - call - wait)
        chunk["compile_seconds"] = np.where(compiling, done - call - np.nan_to_num(wait), 0.0)
        if np.isnan(self._previous_done) and not compiling[0]:
            chunk["kind"][0] = StepKind.FIRST
        self._previous_done = float(done[-1])
        self._step_axis = int(chunk["step"][-1])
        chunk.setflags(write=False)
        return chunk
