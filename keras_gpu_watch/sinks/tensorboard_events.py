# SPDX-License-Identifier: Apache-2.0
"""Writes the scalars that TensorBoard shows: one event file, one event for all scalars of a step."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto import event_pb2

from keras_gpu_watch import tags
from keras_gpu_watch.clock import Clock, monotonic, wall, wall_offset
from keras_gpu_watch.records import EpochSummary, Floats, StepArray
from keras_gpu_watch.sinks import storage
from keras_gpu_watch.sinks.thinning import Points, StepThinner, WindowThinner

_MS = 1e3
_PERCENT = 1e2
_STEP_SCALES = ((tags.STEP_INPUT_WAIT, _MS), (tags.STEP_COMPUTE, _MS), (tags.STEP_HOST, _MS), (tags.STEP_TOTAL, _MS))
_WINDOW_SCALES = (
    (tags.WINDOW_SHARE, _PERCENT),
    (tags.WINDOW_MEAN, _MS),
    (tags.WINDOW_P95, _MS),
    (tags.WINDOW_MAX, _MS),
    (tags.WINDOW_SUM, _MS),
)
_EPOCH_SCALES = (
    (tags.EPOCH_GOODPUT, _PERCENT),
    (tags.EPOCH_SHARE, _PERCENT),
    (tags.EPOCH_CEILING, 1.0),
    (tags.EPOCH_FIRST_BATCH, 1.0),
    (tags.EPOCH_EXAMPLES, 1.0),
)
_FLUSH_SECONDS = 1.0
# Flushing to an object store uploads the whole file again.
_REMOTE_FLUSH_SECONDS = 30.0
_file_numbers = itertools.count()


class TensorBoardEvents:
    """A sink that writes step, window and epoch scalars into one event file.

    The file is created with the first record. Epoch and window scalars are written whatever `update_freq` is: windows
    are few, and they are what keeps a single stall visible.

    Args:
        run_dir: Directory of the run; must exist and have no other writer.
        update_freq: `"batch"`, `"epoch"` (no step scalars) or a number of steps.
        start_step: Optimizer iterations done before this training's first step.
        resumed: Whether an earlier run's files in `run_dir` are continued.
        mono: Monotonic clock of the records.
        wall_clock: Clock that TensorBoard shows.
    """

    def __init__(
        self,
        run_dir: str,
        update_freq: str | int,
        start_step: int,
        resumed: bool,
        *,
        mono: Clock = monotonic,
        wall_clock: Clock = wall,
    ) -> None:
        self._run_dir = run_dir
        # TensorBoard discards what has this step or a later one: the checkpoint's own step stays.
        self._session_step = start_step + 1 if resumed else start_step
        self._last_step = start_step
        self._mono = mono
        self._wall = wall_clock
        self._step_points = StepThinner(update_freq)
        self._window_points = WindowThinner()
        self._step_series = _Series(_STEP_SCALES)
        self._window_series = _Series(_WINDOW_SCALES)
        self._epoch_series = _Series(_EPOCH_SCALES)
        self._writer: Any = None
        self._closed = False
        self._flush_seconds = _REMOTE_FLUSH_SECONDS if storage.is_remote(run_dir) else _FLUSH_SECONDS
        self._flushed_at_seconds = float("-inf")

    def steps(self, chunk: StepArray) -> None:
        """Write the points that these steps complete.

        Raises:
            OSError: If the file cannot be written.
        """
        if not len(chunk):
            return
        self._last_step = int(chunk["step"][-1])
        with storage.os_errors():
            self._write(self._step_series, self._step_points.add(chunk))
            self._write(self._window_series, self._window_points.add(chunk))
            if self._is_flush_due():
                self._flush()

    def epoch(self, summary: EpochSummary, report_json: str) -> None:
        """Write the epoch's scalars at its last step.

        Raises:
            OSError: If the file cannot be written.
        """
        scalars = (
            summary.goodput,
            summary.input_wait_share,
            summary.ceiling_speedup,
            summary.first_batch_seconds,
            summary.examples_per_second,
        )
        row = np.array([scalars], dtype=np.float64)
        point = Points(np.array([self._last_step]), np.array([self._mono()]), row)
        with storage.os_errors():
            self._write(self._window_series, self._window_points.end_epoch())
            self._write(self._epoch_series, point)
            # A flush uploads the whole file again to an object store: there it keeps to its interval.
            if not storage.is_remote(self._run_dir) or self._is_flush_due():
                self._flush()

    def _is_flush_due(self) -> bool:
        return self._mono() - self._flushed_at_seconds >= self._flush_seconds

    def close(self, report_json: str) -> None:
        """Write what is still held back and close the file.

        Raises:
            OSError: If the file cannot be written.
        """
        if self._closed:
            return
        self._closed = True
        with storage.os_errors():
            self._write(self._step_series, self._step_points.finish())
            self._write(self._window_series, self._window_points.finish())
            if self._writer is not None:
                self._writer.close()

    def _write(self, series: _Series, points: Points) -> None:
        if not len(points.steps):
            return
        if self._writer is None:
            self._open()
        walls = points.done_seconds - wall_offset(self._mono, self._wall)
        series.write(points, walls, self._writer.write)

    def _flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()
        self._flushed_at_seconds = self._mono()

    def _open(self) -> None:
        self._writer = tf.io.TFRecordWriter(storage.join(self._run_dir, _file_name(self._run_dir, self._wall())))
        version = event_pb2.Event(wall_time=self._wall(), file_version="brain.Event:2")
        self._writer.write(version.SerializeToString())
        # Also in a run's first file: TensorBoard takes the first start it meets for the beginning, and only a later one
        # for a restart after which to discard.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        session = event_pb2.Event(wall_time=self._wall(), step=self._session_step, session_log=start)
        self._writer.write(session.SerializeToString())


def _file_name(run_dir: str, wall_seconds: float) -> str:
    """A name that sorts after the run's earlier files, which is the order in which TensorBoard reads them.

    The clock alone does not ensure that: it may have been set back, or run late on another machine.
    """
    parts = (name.partition("tfevents.")[2].partition(".")[0] for name in storage.list_directory(run_dir))
    earlier = [int(part) for part in parts if part.isdecimal()]
    seconds = max([int(wall_seconds), *(second + 1 for second in earlier)])
    return f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}.{next(_file_numbers)}"


class _Series:
    """Writes scalars that belong together, one event for each point.

    One event is kept and filled anew for each combination of scalars that are present: building one takes ten times as
    long.
    """

    def __init__(self, scales: Sequence[tuple[tags.Tag, float]]) -> None:
        self._names = [tag.name for tag, _ in scales]
        self._scales = np.array([scale for _, scale in scales])
        self._bits = 1 << np.arange(len(scales))
        self._events: dict[int, tuple[Any, list[tuple[int, Any]]]] = {}

    def write(self, points: Points, walls: Floats, write: Callable[[bytes], None]) -> None:
        present = ~np.isnan(points.values) @ self._bits
        rows = points.values * self._scales
        for step, wall_time, row, mask in zip(
            points.steps.tolist(), walls.tolist(), rows.tolist(), present.tolist(), strict=True
        ):
            if not mask:
                continue
            event, slots = self._events.get(mask) or self._new_event(mask)
            event.step = step
            event.wall_time = wall_time
            for column, value in slots:
                value.simple_value = row[column]
            write(event.SerializeToString())

    def _new_event(self, mask: int) -> tuple[Any, list[tuple[int, Any]]]:
        event = event_pb2.Event()
        slots = [
            (column, event.summary.value.add(tag=name)) for column, name in enumerate(self._names) if mask >> column & 1
        ]
        self._events[mask] = event, slots
        return event, slots
