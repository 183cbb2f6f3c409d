# SPDX-License-Identifier: Apache-2.0
"""The sampling thread: reads GPUs and host at a steady pace, beside the training."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Sequence

import numpy as np

from keras_gpu_watch.clock import Clock, monotonic
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.probes.gpu_sampler import GpuSampler
from keras_gpu_watch.probes.host_sampler import HostSampler
from keras_gpu_watch.probes.nvml import load_binding
from keras_gpu_watch.probes.nvml_errors import NvmlError
from keras_gpu_watch.samples import GPU_SAMPLE_DTYPE, HOST_SAMPLE_DTYPE, Devices, GpuSamples, HostSamples

THREAD_NAME = "keras-gpu-watch-sampler"
GPU_SAMPLING = "GPU sampling"
HOST_SAMPLING = "host sampling"
SAMPLES = "handing on samples"
HOST_INTERVAL_SECONDS = 0.5
"""Counters of the host move in steps of 10 ms; read more often they would only show that."""


class Sampler:
    """Samples GPUs and host from one thread, until `stop`.

    Args:
        interval_seconds: Time between two samples of the GPUs; the host is sampled every 0.5 s at most.
        guard: Takes our own failures; GPUs and host go on without each other.
        take: Receives the samples, on the thread.
        note: Takes a sentence for the user, on the thread.
        step: Gives the training step under way, to tell when data was lost.
        clock: The monotonic clock.
    """

    def __init__(
        self,
        interval_seconds: float,
        guard: Guard,
        take: Callable[[GpuSamples, HostSamples], None],
        note: Callable[[str], None],
        step: Callable[[], int] | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._guard = guard
        self._take = take
        self._note = note
        self._step = step
        self._clock = clock
        self._gpus: GpuSampler | None = None
        self._host: HostSampler | None = None
        self._host_due_seconds = float("-inf")
        self._devices = Devices()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @property
    def devices(self) -> Devices:
        """What is known of the devices by now."""
        devices = self._devices if self._gpus is None else self._gpus.devices
        return dataclasses.replace(devices, host=None if self._host is None else self._host.device)

    def start(self, ordinals: Sequence[int] | None = None) -> None:
        """Start the thread. NVML itself is first asked there, because that may take a second.

        Args:
            ordinals: CUDA ordinals of the GPUs that the framework uses; `None` when it can't be asked.
        """
        try:
            binding = load_binding()
        except NvmlError as error:
            self._devices = Devices(status="not sampled", reason=error.reason)
            self._note(f"no GPU is sampled: {error.reason}")
        else:
            self._gpus = GpuSampler(binding, ordinals, self._note, self._step, clock=self._clock)
        with self._guard(HOST_SAMPLING):
            self._host = HostSampler(self._clock)
        thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The system allows no more threads.
            self._devices, self._gpus = Devices(status="not sampled", reason=str(error)), None
            self._note(f"neither GPUs nor host are sampled: {error}")
        else:
            self._thread = thread

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """End the thread.

        Args:
            timeout_seconds: How long to wait for a call of the driver that has not come back.
        """
        # A forked child has no such thread.
        if self._thread is None or self._pid != os.getpid():
            return
        self._stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        due_seconds = self._clock()
        while not self._stopping.is_set():
            gpus, host = self._sample_gpus(), self._sample_host()
            if (len(gpus) or len(host)) and not self._stopping.is_set() and self._guard.ok(SAMPLES):
                with self._guard(SAMPLES):
                    self._take(gpus, host)
            due_seconds = next_due(due_seconds, self._clock(), self._interval_seconds)
            self._stopping.wait(due_seconds - self._clock())
        if self._gpus is not None:
            with self._guard(GPU_SAMPLING):
                self._gpus.close()

    def _sample_gpus(self) -> GpuSamples:
        if self._gpus is not None and self._guard.ok(GPU_SAMPLING):
            with self._guard(GPU_SAMPLING):
                return self._gpus.sample()
        return np.zeros(0, GPU_SAMPLE_DTYPE)

    def _sample_host(self) -> HostSamples:
        now = self._clock()
        if self._host is not None and self._guard.ok(HOST_SAMPLING) and now >= self._host_due_seconds:
            # Half an interval of grace, so that jitter does not skip a turn.
            self._host_due_seconds = now + HOST_INTERVAL_SECONDS - self._interval_seconds / 2
            with self._guard(HOST_SAMPLING):
                return self._host.sample()
        return np.zeros(0, HOST_SAMPLE_DTYPE)


def next_due(due_seconds: float, now: float, interval_seconds: float) -> float:
    """The next multiple of the interval after `due_seconds` that is not over yet: what was missed is left out."""
    missed = int(max(now - due_seconds, 0.0) / interval_seconds)
    return due_seconds + (missed + 1) * interval_seconds
