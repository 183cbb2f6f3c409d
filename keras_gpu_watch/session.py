# SPDX-License-Identifier: Apache-2.0
"""The wiring of one callback: builds the parts when `fit` starts, drives them, takes them down whatever happens."""

from __future__ import annotations

import atexit
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from keras_gpu_watch.clock import Clock, monotonic
from keras_gpu_watch.explainer import Explainer
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.ledger import Ledger
from keras_gpu_watch.probes.boundaries import Boundaries, note_train_begin
from keras_gpu_watch.probes.callback_timer import CallbackTimer
from keras_gpu_watch.probes.epoch_iterator import PoolStamp
from keras_gpu_watch.probes.framework_gpus import tensorflow_gpu_ordinals
from keras_gpu_watch.probes.model_facts import optimizer_step, read_model, worker_index
from keras_gpu_watch.probes.sampler import Sampler
from keras_gpu_watch.probes.sources import choose_source
from keras_gpu_watch.probes.step_timer import STEP_TIMING, StepTimer
from keras_gpu_watch.probes.train_function import TimedFunction
from keras_gpu_watch.probes.wait_source import WaitSource
from keras_gpu_watch.recorder import Recorder
from keras_gpu_watch.records import StepArray, WatchOptions
from keras_gpu_watch.report.live_report import LiveReport
from keras_gpu_watch.report.overlap import draw_overlap
from keras_gpu_watch.report.run_report import RunReport, Status, earlier_report
from keras_gpu_watch.samples import GpuSamples, HostSamples
from keras_gpu_watch.sinks.outputs import Outputs

HOOKS = "a callback hook"
SAMPLING = "sampling of GPUs and host"
CALLBACK_TIMING = "timing of callbacks"
POOL_STAMPING = "timing of a PyDataset with workers"


class Session:
    """One `fit`, from `on_train_begin` to whatever ends it.

    States: new -> `train_begin` -> running -> `finish` -> finished. `finish` is called by `train_end`, by an exception
    in a step, by the background thread once `fit` is gone, by the next `fit`, or at exit; more than one may come.

    Args:
        options: What the user asked for.
        previous: The session of this callback's earlier `fit`.
        clock: The monotonic clock.
    """

    def __init__(self, options: WatchOptions, previous: Session | None = None, clock: Clock = monotonic) -> None:
        self._live = LiveReport()
        self._pid = os.getpid()
        self._earlier = RunReport() if previous is None else previous.report
        """The report that this one continues."""
        self._clock = clock
        self._guard = Guard(on_failure=self._add_note)
        self._ledger = Ledger(Recorder() if previous is None else previous.recorder, self._guard)
        self._boundaries = Boundaries(clock)
        self._outputs = Outputs(
            options, worker_index(), self._guard, self._finish_if_fit_is_gone, self._add_note, draw_overlap
        )
        self._explainer = Explainer(self._guard, clock)
        self._callback_timer = CallbackTimer(clock)
        self._pool_stamp = PoolStamp(_stamped)
        self._timer = StepTimer(self._guard, self._choose_source, self._take, lambda: self.finish("interrupted"), clock)
        self._sampler = Sampler(
            options.gpu_interval_seconds, self._guard, self._take_samples, self._add_note, self._finish_if_fit_is_gone
        )
        self._timed_function = TimedFunction(self._timer.wrap)
        self._lock = threading.RLock()
        self._model: Any = None
        self._begin_seconds = 0.0
        self._epoch_overhead_seconds = 0.0
        self._model_on_accelerator = False

    @property
    def report(self) -> RunReport:
        """What is known so far."""
        return self._live.newest

    @property
    def recorder(self) -> Recorder:
        """The records of this and earlier `fit`s."""
        return self._ledger.recorder

    def join(self, callback: Any) -> None:
        """Prepare for the `fit` that is making its list of callbacks.

        Args:
            callback: The callback whose `set_model` is running.
        """
        with self._guard(HOOKS):
            note_train_begin(callback, self._clock)

    def decline(self, reason: str) -> None:
        """Measure nothing in this `fit`, and say why.

        Args:
            reason: A sentence for the user.
        """
        with self._guard(HOOKS):
            self._live.update(status="not measured")
            self._add_note(reason)

    def train_begin(self, callback: Any, model: Any) -> None:
        """Start timing.

        Args:
            callback: The callback whose `on_train_begin` is running.
            model: Its Keras model.
        """
        self._model = model
        self._live.update(status="running")
        atexit.register(_finish_at_exit, weakref.ref(self))
        with self._hook():
            self._begin_seconds = self._boundaries.attach(callback)
            self._timed_function.put(model)
        with self._guard(CALLBACK_TIMING):
            self._callback_timer.attach(self._boundaries.callbacks, own=callback)
        with self._guard(POOL_STAMPING):
            self._pool_stamp.put(self._boundaries.driver)
        self._explainer.prepare()
        # Unless that failed and everything has been taken down.
        with self._guard(SAMPLING):
            if self._model is not None:
                self._sampler.start(tensorflow_gpu_ordinals(), lambda: self._timer.step)

    def epoch_begin(self, epoch: int) -> None:
        """End the epoch before, if there was one, and begin `epoch`."""
        entered = self._clock()
        with self._lock, self._hook():
            if self._model is None:
                return
            now = self._boundaries.take("on_epoch_begin")
            if self.report.info is None:
                self._open(self._model)
                # Finding and making the run's files belongs to the startup, not to the first batch.
                now += self._clock() - entered
                self._live.update(startup_seconds=(self._earlier.startup_seconds or 0.0) + now - self._begin_seconds)
            self._close_epoch(now)
            self._timed_function.put(self._model)
            self._timer.start_epoch(epoch)
            self._explainer.begin_epoch()
            self._ledger.begin(epoch, now)
            self._epoch_overhead_seconds = self._timer.overhead_seconds
            self._timer.overhead_seconds += self._clock() - max(entered, now)

    def batch_begin(self) -> None:
        """Time the train function that is about to be called, if a callback replaced it within the epoch."""
        # The guard costs more than this look, which is taken before each step.
        model = self._model
        if model is None or self._timed_function.is_in_place(model):
            return
        with self._hook():
            self._timed_function.put(model)

    def test_end(self) -> None:
        """Note the end of validation."""
        now = self._boundaries.take("on_test_end")
        if self._ledger.is_open:
            self._ledger.note_test_end(now)

    def train_end(self) -> None:
        """End the last epoch and the run."""
        self.finish("finished", self._boundaries.take("on_train_end"))

    def finish(self, status: Status, now: float | None = None) -> None:
        """Take everything down and complete the files; a second call does nothing.

        Each part is taken down whether or not the one before it could be.

        Args:
            status: How the run ended.
            now: When, on the monotonic clock.
        """
        # A forked child has no business with its parent's run, and may have inherited its locks as held.
        if self._pid != os.getpid():
            return
        with self._lock:
            model, self._model = self._model, None
            if model is None:
                return
            end = self._clock() if now is None else now
            parts: tuple[tuple[str, Callable[[], object]], ...] = (
                (SAMPLING, self._sampler.stop),
                (HOOKS, lambda: self._close_epoch(end)),
                (HOOKS, lambda: self._timed_function.take_off(model)),
                (CALLBACK_TIMING, self._callback_timer.detach),
                (POOL_STAMPING, self._pool_stamp.take_off),
                (HOOKS, self._timer.close),
                (HOOKS, self._boundaries.detach),
                (HOOKS, lambda: self._end_report(status, end)),
            )
            for part, take_down in parts:
                with self._guard(part):
                    take_down()
        # Not under the lock: a slow disk must not hold up whoever asks next whether this run is over.
        report_json = ""
        with self._guard(HOOKS):
            report_json = self.report.to_json()
        with self._guard(HOOKS):
            self._outputs.close(report_json)

    @contextmanager
    def _hook(self) -> Iterator[None]:
        """A hook's body: when it fails, everything of ours is taken down and training goes on."""
        with self._guard(HOOKS):
            yield
        if not self._guard.ok(HOOKS):
            self.finish("interrupted")

    def _open(self, model: Any) -> None:
        self._ledger.clear()
        facts = read_model(model)
        files = self._outputs.open(facts.step, None if self._earlier.info is None else self._earlier.info.run_dir)
        self._earlier = earlier_report(self._earlier, files.run_dir, files.earlier_report, facts.step)
        started = facts.step if self._earlier.info is None else self._earlier.info.start_step
        self._model_on_accelerator = facts.on_accelerator
        info = facts.run_info(files.run_dir, started, files.resumed)
        self._live.update(epochs=self._earlier.epochs, info=info)
        # Even a run that is killed in its first epoch can then be continued.
        self._outputs.begin(self.report.to_json())
        self._timer.configure(
            step_axis=facts.step,
            batches_per_call=facts.steps_per_execution,
            jit_compile=facts.jit_compile,
            count_steps=lambda: optimizer_step(model),
        )
        if facts.steps_per_execution > 1:
            self._add_note(
                f"steps_per_execution={facts.steps_per_execution}: one measurement covers that many batches, and its "
                "input wait is an estimate"
            )

    def _end_report(self, status: Status, end: float) -> None:
        wall = (self._earlier.wall_seconds or 0.0) + end - self._begin_seconds
        if dropped := self._outputs.dropped:
            self._add_note(f"the disk did not keep up: {dropped} chunks of records are missing in the files")
        self._live.update(status=status, wall_seconds=wall, records_dropped=dropped, devices=self._sampler.devices)

    def _choose_source(self, iterator: Any, batches_per_call: int) -> WaitSource | None:
        return choose_source(iterator, batches_per_call, self._add_note)

    def _take(self, chunk: StepArray) -> None:
        self._ledger.add(chunk)
        self._outputs.steps(chunk)
        self._explainer.poll(self._timer.iterator)

    def _take_samples(self, gpus: GpuSamples, host: HostSamples) -> None:
        self._ledger.add_samples(gpus, host)
        self._outputs.samples(gpus, host)

    def _close_epoch(self, now: float) -> None:
        if not self._ledger.is_open:
            return
        self._timer.finish_epoch()
        self._explainer.poll(self._timer.iterator, final=True)
        frame = dataclasses.replace(
            self._ledger.frame(now),
            watch_overhead_seconds=self._timer.overhead_seconds - self._epoch_overhead_seconds,
            disagreements_seconds=tuple(self._timer.disagreements_seconds),
            notes=tuple(f"input wait is not known: {reason}" for reason in self._timer.reasons),
            is_timed=self._guard.ok(STEP_TIMING),
            submission_only=self._model_on_accelerator and self._timer.wait_for_device.seen_on_device is False,
        )
        devices = self._sampler.devices
        summary = self._ledger.close(frame, devices)
        with self._guard(CALLBACK_TIMING):
            summary = dataclasses.replace(summary, callbacks=self._callback_timer.take_epoch(now))
        summary = self._explainer.explain(summary, self.report.epochs, devices, self.report.info)
        epochs = (*self.report.epochs, summary)
        verdict = self._explainer.explain_run(epochs, devices, self.report.info)
        self._live.update(epochs=epochs, verdict=verdict, devices=devices, records_dropped=self._outputs.dropped)
        self._outputs.epoch(summary, self.report.to_json())

    def _add_note(self, text: str) -> None:
        if self._live.add_note(text):
            self._outputs.say(text)

    def _finish_if_fit_is_gone(self) -> None:
        if not self._boundaries.driver_is_running():
            self.finish("interrupted")


def _stamped(dataset: Any) -> Any:
    # Here, because with another backend than TensorFlow this package must not load it.
    from keras_gpu_watch.watched import watch

    return watch(dataset)


def _finish_at_exit(reference: weakref.ref[Session]) -> None:
    session = reference()
    if session is not None:
        session.finish("interrupted")
