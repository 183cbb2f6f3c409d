# SPDX-License-Identifier: Apache-2.0
"""The wiring of one callback: builds the parts when `fit` starts, drives them, takes them down whatever happens."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from keras_gpu_watch.autotuning import AutoTuning
from keras_gpu_watch.bookkeeper import CALLBACK_TIMING, Bookkeeper
from keras_gpu_watch.clock import Clock, monotonic
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.ledger import Ledger
from keras_gpu_watch.probes.boundaries import Boundaries, note_train_begin
from keras_gpu_watch.probes.epoch_iterator import PoolStamp
from keras_gpu_watch.probes.framework_gpus import tensorflow_gpu_ordinals
from keras_gpu_watch.probes.model_facts import optimizer_step, read_model, worker_index
from keras_gpu_watch.probes.sampler import Sampler
from keras_gpu_watch.probes.sources import choose_source
from keras_gpu_watch.probes.step_timer import StepTimer
from keras_gpu_watch.probes.train_function import TimedFunction
from keras_gpu_watch.probes.wait_source import WaitSource
from keras_gpu_watch.recorder import Recorder
from keras_gpu_watch.records import StepArray, WatchOptions
from keras_gpu_watch.report.live_report import LiveReport
from keras_gpu_watch.report.overlap import draw_overlap
from keras_gpu_watch.report.run_report import RunReport, Status
from keras_gpu_watch.samples import GpuSamples, HostSamples
from keras_gpu_watch.sinks.outputs import Outputs
from keras_gpu_watch.tuning import AutoTune

HOOKS = "a callback hook"
SAMPLING = "sampling of GPUs and host"
POOL_STAMPING = "timing of a PyDataset with workers"


class Session:
    """One `fit`, from `on_train_begin` to whatever ends it.

    States: new -> `train_begin` -> running -> `finish` -> finished. `finish` is called by `train_end`, by an exception
    in a step, by the background thread once `fit` is gone, by the next `fit`, or at exit; more than one may come.

    Args:
        options: What the user asked for.
        autotune: What the tuner may do; `None`: nothing.
        previous: The session of this callback's earlier `fit`.
        clock: The monotonic clock.
    """

    def __init__(
        self,
        options: WatchOptions,
        autotune: AutoTune | None = None,
        previous: Session | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._live = LiveReport(None if previous is None else previous.report)
        self._pid = os.getpid()
        self._clock = clock
        self._guard = Guard(on_failure=self._add_note)
        self._boundaries = Boundaries(clock)
        self._outputs = Outputs(
            options, worker_index(), self._guard, self._finish_if_fit_is_gone, self._add_note, draw_overlap
        )
        self._ledger = Ledger(Recorder() if previous is None else previous.recorder, self._guard)
        earlier_tuning = None if previous is None else previous._autotuning
        self._autotuning: AutoTuning = AutoTuning(autotune, self._guard, self._outputs.warn, earlier_tuning)
        self._pool_stamp = PoolStamp(_stamped)
        self._timer = StepTimer(self._guard, self._choose_source, self._take, self._step_raised, clock)
        self._bookkeeper = Bookkeeper(self._ledger, self._timer, self._autotuning, self._guard, clock)
        self._sampler = Sampler(
            options.gpu_interval_seconds, self._guard, self._take_samples, self._add_note, self._finish_if_fit_is_gone
        )
        self._timed_function = TimedFunction(self._timer.wrap)
        self._lock = threading.RLock()
        self._model: Any = None
        self._begin_seconds = 0.0

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
        self._outputs.tell(self._bookkeeper.attach(self._boundaries, own=callback))
        # Now, because what we watch ourselves is not the user's wish to have it tuned.
        with self._guard(POOL_STAMPING):
            self._pool_stamp.put(self._boundaries.driver)
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
                self._live.note_startup(now - self._begin_seconds)
            self._close_epoch(now)
            self._timed_function.put(self._model)
            self._timer.start_epoch(epoch)
            self._bookkeeper.begin(epoch, now)
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
                (CALLBACK_TIMING, self._bookkeeper.detach),
                (POOL_STAMPING, self._pool_stamp.take_off),
                (HOOKS, self._timer.close),
                (HOOKS, self._autotuning.finish),
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
        files = self._outputs.open(facts.step, self._live.earlier_run_dir)
        started = self._live.continue_run(files.run_dir, files.earlier_report, facts.step)
        self._bookkeeper.model_on_accelerator = facts.on_accelerator
        self._live.update(info=facts.run_info(files.run_dir, started, files.resumed))
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
        self._live.note_wall(end - self._begin_seconds)
        if dropped := self._outputs.dropped:
            self._add_note(f"the disk did not keep up: {dropped} chunks of records are missing in the files")
        self._live.update(status=status, records_dropped=dropped, devices=self._sampler.devices)

    def _choose_source(self, iterator: Any, batches_per_call: int) -> WaitSource | None:
        return choose_source(iterator, batches_per_call, self._add_note)

    def _take(self, chunk: StepArray) -> None:
        self._bookkeeper.take(chunk)
        self._outputs.steps(chunk)

    def _step_raised(self, error: BaseException) -> None:
        self._outputs.tell(self._autotuning.raised(error))
        self.finish("interrupted")

    def _take_samples(self, gpus: GpuSamples, host: HostSamples) -> None:
        self._ledger.add_samples(gpus, host)
        self._outputs.samples(gpus, host)

    def _close_epoch(self, now: float) -> None:
        if not self._ledger.is_open:
            return
        devices = self._sampler.devices
        closed = self._bookkeeper.close(now, self.report.epochs, devices, self.report.info)
        self._live.update(
            epochs=(*self.report.epochs, closed.summary),
            verdict=closed.verdict,
            tuning=self._autotuning.summary,
            devices=devices,
            records_dropped=self._outputs.dropped,
        )
        self._outputs.epoch(closed.summary, self.report.to_json())
        self._outputs.tell(closed.decisions)

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
