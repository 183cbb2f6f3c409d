# SPDX-License-Identifier: Apache-2.0
"""Writes the scalars that TensorBoard shows: one event file, one event for all scalars of a step or sample."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto import event_pb2

from keras_gpu_watch import tags
from keras_gpu_watch.clock import Clock, monotonic, wall, wall_offset
from keras_gpu_watch.records import Bools, EpochSummary, Floats, StepArray
from keras_gpu_watch.samples import GpuSamples, HostSamples
from keras_gpu_watch.sinks import storage
from keras_gpu_watch.sinks.finding_scalars import FindingScalars
from keras_gpu_watch.sinks.sample_points import GPU_COLUMNS, HOST_COLUMNS, SamplePoints
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
    (tags.EPOCH_VALIDATION, 1.0),
    (tags.EPOCH_COMPILE, 1.0),
)
# In the order of `HOST_COLUMNS` and `GPU_COLUMNS`.
_HOST_SCALES = (
    (tags.HOST_CPU, 1.0),
    (tags.HOST_PROCESS_CPU, 1.0),
    (tags.HOST_IOWAIT, 1.0),
    (tags.HOST_MEMORY, 1.0),
    (tags.HOST_DISK_READ, 1 / 2**20),
    (tags.HOST_INTERPRETER, 1.0),
)
_FLUSH_SECONDS = 1.0
# Flushing to an object store uploads the whole file again.
_REMOTE_FLUSH_SECONDS = 30.0
_KEPT_EVENTS = 32
_file_numbers = itertools.count()


class TensorBoardEvents:
    """A sink that writes the scalars of steps, windows, epochs and samples into one event file.

    The file is created with the first record. `update_freq` is about steps only: windows, epochs and samples are few,
    and windows are what keeps a single stall visible.

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
        self._finding_scalars = FindingScalars()
        self._sample_points = SamplePoints(start_step)
        self._sample_series = _Series(_sample_scales(gpus=0))
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
            self._write_samples(self._sample_points.add_steps(chunk))
            if self._is_flush_due():
                self._flush()

    def samples(self, gpus: GpuSamples, host: HostSamples) -> None:
        """Write the samples whose step is known, and keep the others until it is.

        Raises:
            OSError: If the file cannot be written.
        """
        with storage.os_errors():
            self._write_samples(self._sample_points.add_samples(gpus, host))
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
            summary.validation_seconds,
            summary.compile_seconds,
        )
        row = np.array([scalars], dtype=np.float64)
        point = Points(np.array([self._last_step]), np.array([self._mono()]), row)
        with storage.os_errors():
            self._write(self._window_series, self._window_points.end_epoch())
            self._write(self._epoch_series, point)
            self._write_findings(self._finding_scalars.of(summary))
            self._write_samples(self._sample_points.end_epoch())
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
            for points in self._sample_points.finish():
                self._write_samples(points)
            if self._writer is not None:
                self._writer.close()

    def _write(self, series: _Series, points: Points) -> None:
        if not len(points.steps):
            return
        if self._writer is None:
            self._open()
        walls = points.seconds - wall_offset(self._mono, self._wall)
        series.write(points, walls, self._writer.write)

    def _write_findings(self, scalars: Mapping[str, float]) -> None:
        if not scalars:
            return
        event = event_pb2.Event(step=self._last_step, wall_time=self._wall())
        for name, value in scalars.items():
            event.summary.value.add(tag=name, simple_value=value)
        # The epoch's own scalars stand before it, so the file is open.
        self._writer.write(event.SerializeToString())

    def _write_samples(self, points: Points) -> None:
        columns = points.values.shape[1]
        if columns > self._sample_series.columns:
            self._sample_series = _Series(_sample_scales((columns - len(HOST_COLUMNS)) // len(GPU_COLUMNS)))
        self._write(self._sample_series, points)

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


def _sample_scales(gpus: int) -> list[tuple[tags.Tag, float]]:
    """Scalars of the columns that `SamplePoints` gives: those of the host, then those of each GPU."""
    scales = list(_HOST_SCALES)
    for gpu in range(gpus):
        scales += [(dataclasses.replace(tag, name=tag.name.replace("<i>", str(gpu))), 1.0) for tag in tags.GPU_TAGS]
    return scales


class _Series:
    """Writes scalars that belong together, one event for each point.

    One event is kept and filled anew for each combination of scalars that are present: building one takes ten times as
    long. Eight GPUs that come and go make any number of combinations, so only some events are kept.
    """

    def __init__(self, scales: Sequence[tuple[tags.Tag, float]]) -> None:
        self.columns = len(scales)
        self._names = [tag.name for tag, _ in scales]
        self._scales = np.array([scale for _, scale in scales])
        self._events: dict[bytes, tuple[Any, list[tuple[int, Any]]]] = {}

    def write(self, points: Points, walls: Floats, write: Callable[[bytes], None]) -> None:
        rows = (points.values * self._scales).tolist()
        masks = _row_bytes(~np.isnan(points.values))
        for step, wall_time, row, mask in zip(points.steps.tolist(), walls.tolist(), rows, masks, strict=True):
            event, slots = self._events.get(mask) or self._new_event(mask, row)
            if not slots:
                continue
            event.step = step
            event.wall_time = wall_time
            for column, value in slots:
                value.simple_value = row[column]
            write(event.SerializeToString())

    def _new_event(self, mask: bytes, row: Sequence[float]) -> tuple[Any, list[tuple[int, Any]]]:
        event = event_pb2.Event()
        slots = [
            (column, event.summary.value.add(tag=name))
            for column, name in enumerate(self._names)
            if not math.isnan(row[column])
        ]
        if len(self._events) == _KEPT_EVENTS:
            del self._events[next(iter(self._events))]
        self._events[mask] = event, slots
        return event, slots


def _row_bytes(present: Bools) -> list[bytes]:
    """Each row as bytes, to look it up by."""
    bits = np.packbits(present, axis=1)
    return bits.view(f"V{bits.shape[1]}").ravel().tolist()
