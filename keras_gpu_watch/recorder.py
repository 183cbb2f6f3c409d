# SPDX-License-Identifier: Apache-2.0
"""Holds steps and samples: one epoch's for its account, the newest steps of the whole run for the user."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

from keras_gpu_watch.records import STEP_DTYPE, StepArray
from keras_gpu_watch.samples import GPU_SAMPLE_DTYPE, HOST_SAMPLE_DTYPE, GpuSamples, HostSamples

RUN_STEPS = 200_000
"""Steps of the whole run that are kept: 15 MB."""
EPOCH_SAMPLES = 100_000
"""Rows of samples that are kept for an epoch's account, of GPUs and of the host each: 30 MB at most."""


class Recorder:
    """Thread-safe and bounded: the oldest steps of a long run are let go, and samples of a long epoch thinned.

    Args:
        run_steps: Steps of the whole run that are kept.
        epoch_samples: Rows of samples of the GPUs, and of the host, that are kept until they are taken.
    """

    def __init__(self, run_steps: int = RUN_STEPS, epoch_samples: int = EPOCH_SAMPLES) -> None:
        self._lock = threading.Lock()
        self._run_steps = run_steps
        self._run: deque[StepArray] = deque()
        self._kept = 0
        self._epoch: list[StepArray] = []
        self._epoch_steps = 0
        self._gpus = _Samples(GPU_SAMPLE_DTYPE, epoch_samples)
        self._host = _Samples(HOST_SAMPLE_DTYPE, epoch_samples)

    @property
    def epoch_steps(self) -> int:
        """Steps that `take_epoch` would give."""
        return self._epoch_steps

    def add(self, chunk: StepArray) -> None:
        """Take some steps, newest last."""
        with self._lock:
            self._epoch.append(chunk)
            self._epoch_steps += len(chunk)
            self._run.append(chunk)
            self._kept += len(chunk)
            while self._kept - len(self._run[0]) >= self._run_steps:
                self._kept -= len(self._run.popleft())

    def take_epoch(self) -> StepArray:
        """The steps since the last call, which are forgotten as an epoch's (they stay in `run`)."""
        with self._lock:
            chunks, self._epoch, self._epoch_steps = self._epoch, [], 0
        return _joined(chunks)

    def run(self) -> StepArray:
        """The newest steps of the whole run."""
        with self._lock:
            chunks = list(self._run)
        return _joined(chunks)[-self._run_steps :]

    def add_samples(self, gpus: GpuSamples, host: HostSamples) -> None:
        """Take what was read at one time.

        Args:
            gpus: A row for each GPU that answered.
            host: One row, or none.
        """
        with self._lock:
            self._gpus.add(gpus)
            self._host.add(host)

    def take_samples(self) -> tuple[GpuSamples, HostSamples]:
        """The samples since the last call, in the order of time.

        Returns:
            Those of the GPUs and those of the host. Each begins with the last ones handed out before (of each GPU its
            last), so that a counter can be interpolated at the moment between. When there are too many, every second
            sample time is let go, again and again: the samples are then evenly wider apart, and the newest is kept.
        """
        with self._lock:
            return self._gpus.take(), self._host.take()

    def forget_samples(self) -> None:
        """Forget all samples, also those that `take_samples` would begin with: another `fit` is another time."""
        with self._lock:
            self._gpus.forget()
            self._host.forget()


class _Samples:
    """The samples of one kind: every `stride`-th chunk since the last `take`, and the newest one."""

    def __init__(self, dtype: np.dtype[np.void], limit_rows: int) -> None:
        self._dtype = dtype
        self._limit_bytes = limit_rows * dtype.itemsize
        self._before: NDArray[np.void] = np.zeros(0, dtype)
        self._start_over()

    def forget(self) -> None:
        self._before = self._before[:0]
        self._start_over()

    def _start_over(self) -> None:
        # As bytes, because NumPy takes seconds to join a hundred thousand structured arrays.
        self._chunks: list[bytes] = []
        self._kept_bytes = 0
        self._stride = 1
        self._added = 0

    def add(self, chunk: NDArray[np.void]) -> None:
        # A gap: nothing was read.
        if not len(chunk):
            return
        if self._newest_is_extra():
            self._kept_bytes -= len(self._chunks.pop())
        self._chunks.append(chunk.tobytes())
        self._kept_bytes += len(self._chunks[-1])
        self._added += 1
        if self._kept_bytes > self._limit_bytes:
            self._thin()

    def _newest_is_extra(self) -> bool:
        """Whether the newest chunk is kept only because it is the newest."""
        return self._added > 0 and (self._added - 1) % self._stride > 0

    def _thin(self) -> None:
        newest = self._chunks[-1]
        in_turn = self._chunks[:-1] if self._newest_is_extra() else self._chunks
        self._chunks = in_turn[::2]
        self._stride *= 2
        if self._newest_is_extra():
            self._chunks.append(newest)
        self._kept_bytes = sum(len(chunk) for chunk in self._chunks)

    def take(self) -> NDArray[np.void]:
        samples = np.concatenate([self._before, np.frombuffer(b"".join(self._chunks), self._dtype)])
        self._start_over()
        self._before = _last_of_each(samples)
        return samples


def _last_of_each(samples: NDArray[np.void]) -> NDArray[np.void]:
    """The last row of each GPU, or of the host: copies, which don't keep all of `samples` alive."""
    if "gpu" not in (samples.dtype.names or ()):
        return samples[-1:].copy()
    _, from_end = np.unique(samples["gpu"][::-1], return_index=True)
    return samples[np.sort(len(samples) - 1 - from_end)]


def _joined(chunks: list[StepArray]) -> StepArray:
    return np.concatenate(chunks) if chunks else np.zeros(0, STEP_DTYPE)
