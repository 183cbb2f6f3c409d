# SPDX-License-Identifier: Apache-2.0
"""Keeps the books of one `fit`: an epoch's account, what explains it, and what is tuned for the next one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from keras_gpu_watch.accounting import EpochFrame
from keras_gpu_watch.autotuning import AutoTuning
from keras_gpu_watch.clock import Clock, process_cpu
from keras_gpu_watch.explainer import Explainer
from keras_gpu_watch.findings import Verdict
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.ledger import Ledger
from keras_gpu_watch.probes.boundaries import Boundaries
from keras_gpu_watch.probes.callback_timer import CallbackTimer
from keras_gpu_watch.probes.epoch_iterator import read_fit_input
from keras_gpu_watch.probes.step_timer import STEP_TIMING, StepTimer
from keras_gpu_watch.records import EpochSummary, RunInfo, StepArray
from keras_gpu_watch.samples import Devices

CALLBACK_TIMING = "timing of callbacks"


@dataclass(frozen=True, slots=True)
class ClosedEpoch:
    """What is known when an epoch is over."""

    summary: EpochSummary
    verdict: Verdict | None
    """On the run so far."""
    decisions: tuple[str, ...]
    """The tuner's, for the console."""


class Bookkeeper:
    """Collects what the probes find, and closes each epoch.

    Args:
        ledger: Holds records and the account under way.
        timer: Times the steps.
        autotuning: Tunes the input pipeline, if the user wants it.
        guard: Keeps the account when what is added to it fails.
        clock: The monotonic clock.
    """

    def __init__(self, ledger: Ledger, timer: StepTimer, autotuning: AutoTuning, guard: Guard, clock: Clock) -> None:
        self.model_on_accelerator = False
        """Whether the model lives on a GPU or TPU."""
        self._ledger = ledger
        self._timer = timer
        self._autotuning = autotuning
        self._guard = guard
        self._callback_timer = CallbackTimer(clock)
        self._explainer = Explainer(guard, clock)
        self._overhead_before_seconds = 0.0
        self._cpu_before_seconds: float | None = None

    def attach(self, boundaries: Boundaries, own: Any) -> list[str]:
        """Begin to time the other callbacks, and prepare what explains and tunes.

        Args:
            boundaries: Know the list of callbacks and the call of `fit`.
            own: The callback that is not timed.

        Returns:
            Lines for the console.
        """
        with self._guard(CALLBACK_TIMING):
            self._callback_timer.attach(boundaries.callbacks, own=own)
        self._explainer.prepare()
        return self._autotuning.begin(read_fit_input(boundaries.driver))

    def begin(self, epoch: int, now: float) -> None:
        """Open the account of `epoch`, which begins now."""
        self._explainer.begin_epoch()
        self._ledger.begin(epoch, now)
        self._overhead_before_seconds = self._timer.overhead_seconds
        self._cpu_before_seconds = process_cpu()

    def take(self, chunk: StepArray) -> None:
        """Take the newest steps, and look at what they fetched from."""
        self._ledger.add(chunk)
        self._explainer.poll(self._timer.iterator)
        self._autotuning.see(self._timer.iterator)

    def close(
        self, now: float, earlier: tuple[EpochSummary, ...], devices: Devices, info: RunInfo | None
    ) -> ClosedEpoch:
        """Close the epoch.

        Args:
            now: Its end, on the monotonic clock.
            earlier: The epochs before it.
            devices: The machine.
            info: What was known when the run began.
        """
        self._timer.finish_epoch()
        self._explainer.poll(self._timer.iterator, final=True)
        summary = self._ledger.close(self._frame(now), devices)
        with self._guard(CALLBACK_TIMING):
            summary = dataclasses.replace(summary, callbacks=self._callback_timer.take_epoch(now))
        if self._cpu_before_seconds is not None:
            summary = dataclasses.replace(summary, process_cpu_seconds=process_cpu() - self._cpu_before_seconds)
        summary = self._explainer.explain(summary, earlier, devices, info)
        summary, decisions = self._autotuning.end_epoch(summary, devices)
        verdict = self._explainer.explain_run((*earlier, summary), devices, info)
        return ClosedEpoch(summary, verdict, tuple(decisions))

    def detach(self) -> None:
        """Give the other callbacks their own hooks back."""
        self._callback_timer.detach()

    def _frame(self, now: float) -> EpochFrame:
        timer = self._timer
        return dataclasses.replace(
            self._ledger.frame(now),
            watch_overhead_seconds=timer.overhead_seconds - self._overhead_before_seconds,
            disagreements_seconds=tuple(timer.disagreements_seconds),
            notes=tuple(f"input wait is not known: {reason}" for reason in timer.reasons),
            is_timed=self._guard.ok(STEP_TIMING),
            submission_only=self.model_on_accelerator and timer.wait_for_device.seen_on_device is False,
        )
