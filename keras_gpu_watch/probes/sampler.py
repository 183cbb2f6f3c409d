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
from keras_gpu_watch.probes.interpreter_lock import InterpreterLock
from keras_gpu_watch.probes.nvml import load_binding
from keras_gpu_watch.probes.nvml_errors import NvmlError
from keras_gpu_watch.samples import GPU_SAMPLE_DTYPE, HOST_SAMPLE_DTYPE, Devices, GpuSamples, HostSamples

THREAD_NAME = "keras-gpu-watch-sampler"
GPU_SAMPLING = "GPU sampling"
HOST_SAMPLING = "host sampling"
SAMPLES = "handing on samples"
TICK = "the sampling thread's regular check"
CALL_HANGS = "a call of the driver has not come back"
TOO_SHORT = "the run ended before the first sample"
HOST_INTERVAL_SECONDS = 0.5
"""Counters of the host move in steps of 10 ms; read more often they would only show that."""
TOGETHER_SECONDS = 1e-3

_NO_GPU_SAMPLES: GpuSamples = np.zeros(0, GPU_SAMPLE_DTYPE)
_NO_HOST_SAMPLES: HostSamples = np.zeros(0, HOST_SAMPLE_DTYPE)


class Sampler:
    """Samples GPUs and host from one thread, until `stop`.

    Args:
        interval_seconds: Time between two samples of the GPUs; the host is sampled every 0.5 s.
        guard: Takes our own failures; GPUs and host go on without each other.
        take: Receives the samples, on the thread.
        note: Takes a sentence for the user, on the thread.
        on_tick: Called on the thread about every half second.
        clock: The monotonic clock.
    """

    def __init__(
        self,
        interval_seconds: float,
        guard: Guard,
        take: Callable[[GpuSamples, HostSamples], None],
        note: Callable[[str], None],
        on_tick: Callable[[], None] = lambda: None,
        clock: Clock = monotonic,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._guard = guard
        self._take = take
        self._note = note
        self._on_tick = on_tick
        self._clock = clock
        self._gpus: GpuSampler | None = None
        self._host: HostSampler | None = None
        self._interpreter = InterpreterLock(clock)
        self._devices = Devices()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @property
    def devices(self) -> Devices:
        """What is known of the devices by now."""
        devices = self._devices if self._gpus is None else self._gpus.devices
        if devices.reason is None and self._stopping.is_set():
            devices = dataclasses.replace(devices, reason=self._why_unfinished(devices))
        return dataclasses.replace(devices, host=None if self._host is None else self._host.device)

    def start(self, ordinals: Sequence[int] | None = None, step: Callable[[], int] | None = None) -> None:
        """Start the thread. NVML itself is first asked there, because that may take a second.

        Args:
            ordinals: CUDA ordinals of the GPUs that the framework uses; `None` when it can't be asked.
            step: Gives the training step under way, to tell when data was lost.
        """
        try:
            binding = load_binding()
        except NvmlError as error:
            self._devices = Devices(status="not sampled", reason=error.reason)
            self._note(f"no GPU is sampled: {error.reason}")
        else:
            self._gpus = GpuSampler(binding, ordinals, self._say, step, self._stopping.is_set, clock=self._clock)
        with self._guard(HOST_SAMPLING):
            self._host = HostSampler(self._clock, interpreter=self._interpreter)
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
        if self._pid != os.getpid():
            return
        # First of all: Ctrl-C may have come right after the thread was started.
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)

    def _why_unfinished(self, devices: Devices) -> str | None:
        if self._thread is not None and self._thread.is_alive() and self._thread is not threading.current_thread():
            return CALL_HANGS
        return TOO_SHORT if devices.status == "not started" else None

    def _say(self, text: str) -> None:
        # A driver's call that hung comes back when the run is over and its report written.
        if not self._stopping.is_set():
            self._note(text)

    def _run(self) -> None:
        gpu_pace = Pace(self._interval_seconds, self._clock())
        host_pace = Pace(HOST_INTERVAL_SECONDS, gpu_pace.due_seconds)
        while not self._stopping.is_set():
            gpus, host = _NO_GPU_SAMPLES, _NO_HOST_SAMPLES
            if gpu_pace.take_turn(self._clock()):
                gpus = self._sample_gpus()
            if host_pace.take_turn(self._clock()):
                host = self._sample_host()
                self._tick()
            if len(gpus) or len(host):
                self._hand_on(gpus, host)
            due_seconds = min(gpu_pace.due_seconds, host_pace.due_seconds)
            self._interpreter.wait(self._stopping, due_seconds - self._clock())
        with self._guard(GPU_SAMPLING):
            if self._gpus is not None:
                self._gpus.close()

    def _sample_gpus(self) -> GpuSamples:
        if self._gpus is not None and self._guard.ok(GPU_SAMPLING):
            with self._guard(GPU_SAMPLING):
                return self._gpus.sample()
        return _NO_GPU_SAMPLES

    def _sample_host(self) -> HostSamples:
        if self._host is not None and self._guard.ok(HOST_SAMPLING):
            with self._guard(HOST_SAMPLING):
                return self._host.sample()
        return _NO_HOST_SAMPLES

    def _hand_on(self, gpus: GpuSamples, host: HostSamples) -> None:
        if self._guard.ok(SAMPLES) and not self._stopping.is_set():
            with self._guard(SAMPLES):
                self._take(gpus, host)

    def _tick(self) -> None:
        if self._guard.ok(TICK):
            with self._guard(TICK):
                self._on_tick()


class Pace:
    """Turns at multiples of an interval; those that were missed are left out.

    Args:
        interval_seconds: Time from one turn to the next.
        first_seconds: When the first one is due.
    """

    def __init__(self, interval_seconds: float, first_seconds: float) -> None:
        self.due_seconds = first_seconds
        """When the next turn is due."""
        self._interval_seconds = interval_seconds

    def take_turn(self, now: float) -> bool:
        """Whether a turn is due; if so, it counts as taken."""
        # Turns of two paces that fall together must not be split by rounding.
        if now < self.due_seconds - TOGETHER_SECONDS:
            return False
        missed = int(max(now - self.due_seconds, 0.0) / self._interval_seconds)
        self.due_seconds += (missed + 1) * self._interval_seconds
        return True
