# SPDX-License-Identifier: Apache-2.0
"""Input waits from tf.data's own model of a live iterator: nothing is wrapped, the waits come one call late.

The model keeps the last 100 gaps, the times between the end of one fetch and the begin of the next. Both begins are the
same constant launch time after the train function is entered, so it cancels out:
`ready_i - request_i = (call_{i+1} - gap_{i+1}) - call_i`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keras_gpu_watch.probes.wait_source import Calls, Waits, unknown
from keras_gpu_watch.records import Bools, Floats, Ints

GAPS_KEPT = 100
"""tf.data's `model::Model` keeps this many."""
READ_CALLS = 96
"""A read costs a millisecond in the middle of a training, so it covers nearly all that is kept."""
GAP_DROPPED_SECONDS = 10.0
"""tf.data takes a gap of this length or more for a pause and drops it."""
TOLERANCE_SECONDS = 5e-3
"""How far a gap may miss its call before it is taken for another call's."""

NO_MODEL = (
    "tf.data keeps no timing of this input (autotuning is off, or a PyDataset has workers). "
    "If it is a tf.data.Dataset, use fit(watch(dataset))"
)
MISCOUNTED = (
    "the batches that tf.data counted don't match the calls of the train function. "
    "If the input is a tf.data.Dataset, use fit(watch(dataset))"
)
TOO_MANY_BATCHES = (
    f"tf.data keeps {GAPS_KEPT} gaps, too few for steps_per_execution > {GAPS_KEPT}: use fit(watch(dataset))"
)

SLOW_COMPILE_SECONDS = 0.05
SLOW_COMPILE_RATIO = 3.0
"""A call with an unusual batch counts as compiling when its compute is this long, and this many times the median."""


@dataclass(frozen=True, slots=True)
class ModelReading:
    """What one look at an iterator's model gives."""

    elements: int
    """Batches fetched so far."""
    bytes: int
    """Their total size."""
    gap_seconds: Floats
    """The last gaps, newest last."""


@dataclass(frozen=True, slots=True)
class ElementSize:
    """How to tell a batch's number of examples from its bytes."""

    bytes_per_example: int | None
    batch_dimension: int | None
    """Where the batch dimension is static."""

    def examples(self, batches: float, total_bytes: float) -> float:
        """Examples in some batches; NaN if it can't be known."""
        if self.batch_dimension is not None:
            return batches * self.batch_dimension
        if self.bytes_per_example:
            return total_bytes / self.bytes_per_example
        return float("nan")


class GapSource:
    """Waits from gaps.

    Args:
        read: Looks at the iterator's model; `None` when there is none.
        size: How to tell examples from bytes.
        batches_per_call: `steps_per_execution`.
    """

    def __init__(self, read: Callable[[], ModelReading | None], size: ElementSize, batches_per_call: int) -> None:
        self.reason: str | None = TOO_MANY_BATCHES if batches_per_call > GAPS_KEPT else None
        # The first read comes after one call: it tells the usual size of a batch.
        self.calls_per_read = 1
        self._later_calls_per_read = max(1, min(READ_CALLS, GAPS_KEPT // batches_per_call - 1))
        self._read = read
        self._size = size
        self._elements = 0
        """Fetched before the oldest call not covered yet."""
        self._last = ModelReading(0, 0, np.empty(0))
        self._usual_bytes: float | None = None
        self._carried_examples = 0.0
        self._carried_unusual = False
        self._compute_per_batch: list[float] = []

    def resolve(self, calls: Calls, *, final: bool) -> Waits:
        """All calls but the newest one, whose gap is not there yet; with `final` that one too, as not known."""
        reading = self._read()
        self.calls_per_read = self._later_calls_per_read
        if reading is None:
            self.reason = NO_MODEL
            return unknown(calls, final=final)
        batches = self._batches(calls, reading.elements)
        if batches is None:
            self.reason = MISCOUNTED
            left = unknown(calls, final=final)
            self._elements, self._last = reading.elements - (len(calls) - len(left)) * calls.batches_per_call, reading
            return left
        if self.reason == MISCOUNTED:
            self.reason = None
        waits = self._waits(calls, batches, reading)
        examples, unusual = self._examples(batches, reading)
        compiling = _compiling(calls, waits, unusual or self._carried_unusual)
        if calls.batches_per_call > 1:
            # An estimate from equal steps takes compiling for waiting.
            waits = np.where(compiling, np.nan, waits)
        covered = len(calls) if final else len(calls) - 1
        self._elements += int(batches[:covered].sum())
        self._carried_examples = 0.0 if final else float(examples[-1])
        self._carried_unusual = unusual and not final
        self._last = reading
        return Waits(
            input_wait_seconds=waits[:covered],
            batches=batches[:covered],
            examples=examples[:covered],
            new_shape=compiling[:covered],
            estimated=calls.batches_per_call > 1,
        )

    def _batches(self, calls: Calls, elements: int) -> Ints | None:
        """Batches of each call: full groups but for the last one."""
        count, full = len(calls), calls.batches_per_call
        if self._last.elements == 0 and elements > count * full:
            # The iterator had been used before we saw it.
            self._elements = elements - count * full
        last = elements - self._elements - (count - 1) * full
        if not 1 <= last <= full:
            return None
        return np.array([full] * (count - 1) + [last], np.int64)

    def _waits(self, calls: Calls, batches: Ints, reading: ModelReading) -> Floats:
        ready = last_ready_seconds(
            calls, reading, self._last, self._elements, last_group_short=batches[-1] < batches[0]
        )
        if calls.batches_per_call == 1:
            # A call that traced did so before it fetched.
            return np.where(calls.traced, np.nan, np.clip(ready - calls.call_seconds, 0.0, calls.seconds))
        if calls.batches_per_call > GAPS_KEPT:
            return np.full(len(calls), np.nan)
        # Steps inside a call are taken for equal. The last one lasted from its batch's delivery to `done`, or less
        # when the batch lay ready early; no step lasted longer than the call's average.
        bounds = np.minimum(calls.done_seconds - ready, calls.seconds / batches)
        self._compute_per_batch = [*self._compute_per_batch, *bounds[~(np.isnan(bounds) | calls.traced)]][-256:]
        if not self._compute_per_batch:
            return np.full(len(calls), np.nan)
        step = float(np.median(self._compute_per_batch))
        return np.where(calls.traced, np.nan, np.clip(calls.seconds - batches * step, 0.0, calls.seconds))

    def _examples(self, batches: Ints, reading: ModelReading) -> tuple[Floats, bool]:
        """Examples of each call, and whether some batch since the last reading had an unusual size."""
        fetched = reading.elements - self._last.elements
        size = reading.bytes - self._last.bytes
        if self._usual_bytes is None:
            self._usual_bytes = size / max(fetched, 1)
        unusual = abs(size - fetched * self._usual_bytes) > 0.5
        new = self._size.examples(fetched, size) * batches / max(fetched, 1)
        # A call left over from the last reading keeps the examples found then.
        if fetched < batches.sum():
            new[0] = self._carried_examples
        return new, unusual


def last_ready_seconds(
    calls: Calls, reading: ModelReading, before: ModelReading, elements_before: int, *, last_group_short: bool = False
) -> Floats:
    """When each call's last batch was delivered.

    Args:
        calls: The calls, oldest first; full groups but for the last one.
        reading: The model after the last call.
        before: The model at the last look, after the first of these calls or before it.
        elements_before: Batches fetched before the first call.
        last_group_short: Whether the last call found the data used up within its group.

    Returns:
        Array of `len(calls)` times on the calls' clock; NaN where there is no gap (yet), where the next call
        traced, and where tf.data dropped the gap as a pause, or may have.
    """
    ended = calls.ended_call_seconds
    # A fetch that finds the data used up records a gap although it fetches nothing.
    fruitless = (ended is not None) + last_group_short
    following = np.append(calls.call_seconds[1:], np.nan if ended is None or last_group_short else ended)
    long = following - calls.call_seconds >= GAP_DROPPED_SECONDS
    dropped = np.zeros(len(calls), np.bool_)
    if long.any() or (calls.batches_per_call > 1 and (calls.seconds >= GAP_DROPPED_SECONDS).any()):
        count = _dropped_gaps(reading, before, fruitless)
        if count:
            dropped = long
        if count is None or (count and (count != long.sum() or calls.batches_per_call > 1)):
            return np.full(len(calls), np.nan)
    following_elements = elements_before + np.arange(1, len(calls) + 1) * calls.batches_per_call
    newest = reading.elements - 1 + fruitless
    # Dropped gaps that are newer move the older ones up.
    newer_dropped = np.append(np.cumsum(dropped[::-1])[::-1][1:], 0)
    behind_newest = newest - np.minimum(following_elements, reading.elements) - newer_dropped
    position = len(reading.gap_seconds) - 1 - behind_newest
    known = (position >= 0) & (behind_newest >= 0) & ~np.isnan(following) & ~dropped
    known[:-1] &= ~calls.traced[1:]
    ready = np.full(len(calls), np.nan)
    ready[known] = following[known] - reading.gap_seconds[position[known]]
    within = (calls.call_seconds - TOLERANCE_SECONDS <= ready) & (ready <= calls.done_seconds + TOLERANCE_SECONDS)
    return np.where(within, ready, np.nan)


def _dropped_gaps(reading: ModelReading, before: ModelReading, fruitless: int) -> int | None:
    """How many gaps tf.data dropped between two looks; `None` if that can't be told."""
    gaps, old = reading.gap_seconds, before.gap_seconds
    # The very first fetch has no gap before it.
    expected = reading.elements - max(before.elements, 1) + fruitless
    if not len(old):
        # Of a full list it is not known what it has lost at its other end.
        return expected - len(gaps) if len(gaps) < GAPS_KEPT else None
    added = [count for count in range(min(len(gaps), expected) + 1) if _continues(old, gaps[: len(gaps) - count])]
    return expected - added[0] if len(added) == 1 else None


def _continues(old: Floats, kept: Floats) -> bool:
    shared = min(len(old), len(kept))
    return shared > 0 and np.array_equal(old[-shared:], kept[-shared:])


def _compiling(calls: Calls, waits: Floats, unusual: bool) -> Bools:
    if not (calls.jit_compile and unusual):
        return np.zeros(len(calls), np.bool_)
    compute = calls.seconds - (np.nan_to_num(waits) if calls.batches_per_call == 1 else 0.0)
    untraced = compute[~calls.traced]
    if not len(untraced):
        return np.zeros(len(calls), np.bool_)
    # Of two calls the shorter one is the usual one.
    usual = float(np.quantile(untraced, 0.5, method="lower"))
    return np.asarray(compute > max(SLOW_COMPILE_SECONDS, SLOW_COMPILE_RATIO * usual))
