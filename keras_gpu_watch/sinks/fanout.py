# SPDX-License-Identifier: Apache-2.0
"""Hands records to the sinks on a background thread, so that the training thread never waits for an output."""

from __future__ import annotations

import os
import queue
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress

from keras_gpu_watch.clock import monotonic
from keras_gpu_watch.guard import Guard, logger
from keras_gpu_watch.records import EpochSummary, StepArray
from keras_gpu_watch.samples import GpuSamples, HostSamples
from keras_gpu_watch.sinks.sink import Sink

THREAD_NAME = "keras-gpu-watch-writer"
_TICK_SECONDS = 0.5
_EPOCH_WAIT_SECONDS = 1.0
_TICK_PART = "the writer thread's regular check"

_Job = Callable[[Sink], None]


class BackgroundFanout:
    """A sink that passes everything on to other sinks from a thread of its own.

    A sink that raises is dropped and the others go on. In a forked child, which has no such thread, nothing is done.

    Args:
        sinks: The sinks, by the name under which a failure is reported.
        guard: Takes the sinks' failures.
        on_tick: Called from the thread about every half second.
        queue_size: How many calls may wait; steps and samples beyond that are dropped and counted.
        on_write_error: Called with a sentence for the report when a sink met an `OSError`. The first one is also shown
            as a warning: a full disk or a missing permission is the machine's state, not a failure of ours.
    """

    def __init__(
        self,
        sinks: Mapping[str, Sink],
        guard: Guard,
        on_tick: Callable[[], None],
        queue_size: int = 256,
        on_write_error: Callable[[str], None] | None = None,
    ) -> None:
        self.dropped = 0
        """Calls that were not passed on because the queue was full."""
        self._sinks = dict(sinks)
        self._guard = guard
        self._on_tick = on_tick
        self._on_write_error = on_write_error
        self._warned = False
        # None only wakes the thread.
        self._queue: queue.Queue[_Job | None] = queue.Queue(queue_size)
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._close_lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._closing = False
        self._hangs = False
        self._final_json = ""

    def start(self) -> None:
        """Start the thread; a second call does nothing.

        Raises:
            RuntimeError: If the system allows no more threads. `close` then does all the work.
        """
        if self._foreign() or self._closing or self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        thread.start()
        self._thread = thread

    def steps(self, chunk: StepArray) -> None:
        """Pass steps on; when the queue is full they are dropped and counted."""
        self._put(lambda sink: sink.steps(chunk), wait_seconds=0.0)

    def samples(self, gpus: GpuSamples, host: HostSamples) -> None:
        """Pass samples on, from whatever thread; when the queue is full they are dropped and counted."""
        self._put(lambda sink: sink.samples(gpus, host), wait_seconds=0.0)

    def epoch(self, summary: EpochSummary, report_json: str) -> None:
        """Pass an epoch's account on; waits up to 1 s for room in the queue, unless it was full the last time."""
        self._put(lambda sink: sink.epoch(summary, report_json), wait_seconds=_EPOCH_WAIT_SECONDS)

    def close(self, report_json: str, timeout_seconds: float = 2.0) -> None:
        """Pass on what is queued, close the sinks and end the thread.

        May be called again, from several threads, and from `on_tick`; the first call's report counts.

        Args:
            report_json: The final report.
            timeout_seconds: How long to wait. A thread that needs longer goes on by itself and dies with the process.
        """
        if self._foreign():
            return
        with self._close_lock:
            first, self._closing = not self._closing, True
            if first:
                self._final_json = report_json
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            self._finish()
        else:
            # A full queue needs no wake-up.
            with suppress(queue.Full):
                self._queue.put_nowait(None)
            thread.join(timeout_seconds)

    def _foreign(self) -> bool:
        """Whether this is a forked copy; its locks may be held for ever by threads that it does not have."""
        return os.getpid() != self._pid

    def _put(self, job: _Job, wait_seconds: float) -> None:
        if self._foreign() or self._closing:
            return
        # A disk that hangs is waited for once, not at every epoch.
        wait_seconds = 0.0 if self._hangs else wait_seconds
        try:
            self._queue.put(job, block=wait_seconds > 0, timeout=wait_seconds)
            self._hangs = False
        except queue.Full:
            # Steps and samples come from two threads.
            with self._count_lock:
                self.dropped += 1
            self._hangs = self._hangs or wait_seconds > 0

    def _run(self) -> None:
        next_tick_seconds = monotonic() + _TICK_SECONDS
        while not self._closing:
            with suppress(queue.Empty):
                self._hand_out(self._queue.get(timeout=max(next_tick_seconds - monotonic(), 0.0)))
            if monotonic() >= next_tick_seconds:
                self._tick()
                next_tick_seconds = monotonic() + _TICK_SECONDS
        self._finish()

    def _tick(self) -> None:
        if self._guard.ok(_TICK_PART):
            with self._guard(_TICK_PART):
                self._on_tick()

    def _finish(self) -> None:
        """Drain the queue and close the sinks; the second time there is nothing left to do."""
        with suppress(queue.Empty):
            while True:
                self._hand_out(self._queue.get_nowait())
        self._hand_out(lambda sink: sink.close(self._final_json))
        self._sinks.clear()

    def _hand_out(self, job: _Job | None) -> None:
        if job is None:
            return
        # A failure's report may lead to `close` in the middle of this, which empties the table.
        for part, sink in list(self._sinks.items()):
            if part not in self._sinks:
                continue
            passed_on = False
            with self._guard(part):
                try:
                    job(sink)
                    passed_on = True
                except OSError as error:
                    self._note_write_error(part, error)
            if not passed_on:
                self._sinks.pop(part, None)

    def _note_write_error(self, part: str, error: OSError) -> None:
        sentence = f"{part} cannot be written any more: {error}"
        if self._on_write_error is not None:
            self._on_write_error(sentence)
        if self._warned:
            return
        self._warned = True
        try:
            warnings.warn(f"keras-gpu-watch: {sentence}; training goes on.", RuntimeWarning, stacklevel=2)
        except Warning as warning:
            # Warnings were made errors. Here that would end the thread, where nobody sees it.
            logger.warning("%s", warning)
