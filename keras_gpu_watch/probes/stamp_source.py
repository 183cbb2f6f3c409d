# SPDX-License-Identifier: Apache-2.0
"""Input waits from the in-graph stamps of a watched dataset: exact, also with autotuning off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from keras_gpu_watch.clock import Clock, monotonic, wall_offset
from keras_gpu_watch.probes.wait_source import Calls, Waits, WaitSource, unknown
from keras_gpu_watch.records import Bools, Floats, Ints

STAMPS_ATTRIBUTE = "_keras_gpu_watch_stamps"
"""Attribute of a stamped iterator that holds its ring."""
DATASET_ATTRIBUTE = "_keras_gpu_watch_dataset"
"""Attribute of a stamped iterator that holds the user's dataset."""
TUNABLE_ATTRIBUTE = "_keras_gpu_watch_tunable"
"""Attribute of a stamped iterator that holds the watched dataset that made it."""
KNOBS_ATTRIBUTE = "_keras_gpu_watch_knobs"
"""Attribute of a stamped iterator that holds the `Knobs` with which it was made."""
WATCHED_ATTRIBUTE = "_keras_gpu_watch_watched"
"""Attribute that is true of a watched dataset."""

REQUEST, READY, EXAMPLES, SHAPE_KEY, INDEX = range(5)
"""Columns of a row: two wall-clock times (seconds), the batch dimension (NaN if unknown), a hash of the shapes, the
batch's number in its iterator."""
COLUMNS = 5
RING_ROWS = 4096
"""Batches that may be fetched between two reads; 160 KB a live iterator."""

CLOCK_STEP_SECONDS = 1e-3
"""The wall clock moved against the monotonic one by more than this between two reads: their stamps are void."""
CLOCK_STEPPED = "the system clock was stepped while these batches were fetched"
SECOND_OPINION_EVERY_SECONDS = 1.0


class Ring(Protocol):
    """Where the stamps of one iterator are read."""

    def read(self, first: int, count: int) -> Floats:
        """Rows of the batches from number `first` on, as far as written and kept, at most `count`."""
        ...


class StampSource:
    """Waits from stamps.

    Args:
        ring: The iterator's stamps.
        batches_per_call: `steps_per_execution`.
        second_opinion: Makes another source, which once a second is asked about the same calls; its disagreement is
            reported, not used.
        clock: The monotonic clock.
        offset: Gives what to add to a wall-clock stamp to place it on that clock, in seconds.
    """

    def __init__(
        self,
        ring: Ring,
        batches_per_call: int,
        second_opinion: Callable[[], WaitSource] | None = None,
        clock: Clock = monotonic,
        offset: Callable[[], float] = wall_offset,
    ) -> None:
        self.reason: str | None = None
        self.calls_per_read = max(1, RING_ROWS // 4 // batches_per_call)
        self._ring = ring
        self._second_opinion = second_opinion
        self._second_opinion_due = clock()
        self._clock = clock
        self._offset = offset
        self._last_offset = offset()
        self._next_row = 0

    def resolve(self, calls: Calls, *, final: bool) -> Waits:
        """All calls, each with the rows whose `ready` lies within it."""
        offset = self._offset()
        stepped = abs(offset - self._last_offset) > CLOCK_STEP_SECONDS
        self._last_offset = offset
        before = self._next_row
        rows = self._read(len(calls) * calls.batches_per_call)
        self.reason = CLOCK_STEPPED if stepped else None
        if stepped:
            return unknown(calls, final=final)
        request, ready = rows[:, REQUEST] + offset, rows[:, READY] + offset
        first, end = np.searchsorted(ready, calls.call_seconds), np.searchsorted(ready, calls.done_seconds)
        batches = _batches(rows[:, INDEX], first, end, before)
        waits = _waits(calls, request, ready, first, end)
        waits[batches > end - first] = np.nan
        return Waits(
            input_wait_seconds=waits,
            batches=batches,
            examples=_sums(rows[:, EXAMPLES], first, end),
            new_shape=_new_shapes(rows[:, SHAPE_KEY], first, end, calls.shapes_seen),
            estimated=calls.batches_per_call > 1,
            disagreement_seconds=self._disagreement(calls, waits, final=final),
        )

    def _read(self, expected: int) -> Floats:
        rows = self._ring.read(self._next_row, min(expected + 1, RING_ROWS))
        if len(rows) > expected:
            # A custom train function fetches more than one batch a call.
            rows = self._ring.read(self._next_row, RING_ROWS)
        if len(rows):
            self._next_row = int(rows[-1, INDEX]) + 1
        return rows

    def _disagreement(self, calls: Calls, waits: Floats, *, final: bool) -> float | None:
        # Several batches a call are an estimate on either side: nothing to compare.
        if self._second_opinion is None or calls.batches_per_call > 1:
            return None
        if self._clock() < self._second_opinion_due and not final:
            return None
        self._second_opinion_due = self._clock() + SECOND_OPINION_EVERY_SECONDS
        other = self._second_opinion().resolve(calls, final=True).input_wait_seconds
        known = ~np.isnan(other) & ~np.isnan(waits)
        return float(np.median(np.abs(other - waits)[known])) if known.any() else None


def _batches(index: Floats, first: Ints, end: Ints, before: int) -> Ints:
    """Batches of each call by their numbers, so that rows overwritten before they were read still count."""
    found = end > first
    last = np.full(len(first), float(before - 1))
    last[found] = index[end[found] - 1]
    previous = np.concatenate([[before - 1.0], last[:-1]])
    return np.where(found, last - previous, 0).astype(np.int64)


def _waits(calls: Calls, request: Floats, ready: Floats, first: Ints, end: Ints) -> Floats:
    if len(first) and np.all(end - first == 1):
        waits = ready[first] - request[first]
    else:
        rows = zip(first, end, calls.done_seconds, strict=True)
        waits = np.array([_wait_in_call(request[a:b], ready[a:b], done) for a, b, done in rows])
    return np.clip(waits, 0.0, calls.seconds)


def _wait_in_call(request: Floats, ready: Floats, done: float) -> float:
    """Wait of one call that fetched `k` batches: what `k` equal steps don't explain (docs/measuring.md)."""
    count = len(ready)
    if count == 0:
        return float("nan")
    if count == 1:
        return float(ready[0] - request[0])
    step = np.min((done - ready) / (count - np.arange(count)))
    return float(done - request[0] - count * step)


def _new_shapes(keys: Floats, first: Ints, end: Ints, seen: set[float]) -> Bools:
    found = np.zeros(len(first), np.bool_)
    unseen = set(keys.tolist()) - seen
    seen |= unseen
    for key in unseen:
        row = int(np.argmax(keys == key))
        found |= (first <= row) & (row < end)
    return found


def _sums(values: Floats, first: Ints, end: Ints) -> Floats:
    totals = np.concatenate([[0.0], np.cumsum(values)])
    sums: Floats = totals[end] - totals[first]
    return np.where(end > first, sums, np.nan)
