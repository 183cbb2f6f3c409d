# SPDX-License-Identifier: Apache-2.0
"""The account of the epoch under way: collects steps and samples, and closes at the next boundary."""

from __future__ import annotations

import dataclasses

from keras_gpu_watch.accounting import EpochFrame, StepTotals, measure, merge, summarize
from keras_gpu_watch.device_accounting import SampleFrame, remarks, summarize_gpus, summarize_host
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.recorder import Recorder
from keras_gpu_watch.records import EpochSummary, StepArray
from keras_gpu_watch.samples import Devices, GpuSamples, HostSamples

SAMPLE_ACCOUNT = "the account of GPUs and host"
EPOCH_STEPS_AT_ONCE = 100_000
"""A longer epoch is added up piece by piece, so that its memory stays bounded."""


class Ledger:
    """Takes what the probes find, and gives each epoch's account.

    Args:
        recorder: Holds the records; shared by the `fit`s of one callback.
        guard: Keeps the account of time when that of the samples fails.
    """

    def __init__(self, recorder: Recorder, guard: Guard) -> None:
        self.recorder = recorder
        self._guard = guard
        self._epoch: int | None = None
        self._begin_seconds = 0.0
        self._test_end_seconds: float | None = None
        self._totals: StepTotals | None = None
        self._remarked: set[tuple[int, str]] = set()
        """GPUs, and kinds of remarks that were made on them: numbers change, and one line a run is enough."""

    @property
    def is_open(self) -> bool:
        """Whether an epoch is under way."""
        return self._epoch is not None

    def clear(self) -> None:
        """Forget what an epoch left that was never closed."""
        self.recorder.take_epoch()
        self.recorder.forget_samples()
        self._totals = None

    def begin(self, epoch: int, begin_seconds: float) -> None:
        """Open the account of `epoch`."""
        self._epoch, self._begin_seconds = epoch, begin_seconds
        self._test_end_seconds = None

    def add(self, chunk: StepArray) -> None:
        """Take some steps."""
        self.recorder.add(chunk)
        if self.recorder.epoch_steps >= EPOCH_STEPS_AT_ONCE:
            self._add_up()

    def add_samples(self, gpus: GpuSamples, host: HostSamples) -> None:
        """Take some samples; from any thread."""
        self.recorder.add_samples(gpus, host)

    def note_test_end(self, now: float) -> None:
        """Note the end of validation."""
        self._test_end_seconds = now

    def frame(self, now: float) -> EpochFrame:
        """What the ledger knows of the epoch under way, which ends now."""
        return EpochFrame(
            epoch=self._epoch or 0,
            begin_seconds=self._begin_seconds,
            end_seconds=now,
            test_end_seconds=self._test_end_seconds,
        )

    def close(self, frame: EpochFrame, devices: Devices) -> EpochSummary:
        """Close the epoch's account.

        Args:
            frame: What `frame` gave, completed.
            devices: The devices that the samples are of.
        """
        self._add_up()
        totals, self._totals, self._epoch = self._totals, None, None
        summary = summarize(frame, totals)
        if self._guard.ok(SAMPLE_ACCOUNT):
            with self._guard(SAMPLE_ACCOUNT):
                return self._with_samples(summary, frame, totals, devices)
        return summary

    def _with_samples(
        self, summary: EpochSummary, frame: EpochFrame, totals: StepTotals | None, devices: Devices
    ) -> EpochSummary:
        gpu_samples, host_samples = self.recorder.take_samples()
        sample_frame = _sample_frame(frame, totals)
        gpus = summarize_gpus(gpu_samples, sample_frame)
        step_seconds = None if totals is None else _mean_step_seconds(totals)
        found = {
            (gpu.gpu, kind): text
            for gpu in gpus
            for kind, text in remarks(gpu, devices.gpus[gpu.gpu], step_seconds).items()
        }
        sentences = [text for key, text in found.items() if key not in self._remarked]
        self._remarked |= set(found)
        return dataclasses.replace(
            summary,
            gpus=gpus,
            host=summarize_host(host_samples, sample_frame),
            notes=(*summary.notes, *sentences),
        )

    def _add_up(self) -> None:
        """Add the epoch's steps so far to its totals, and forget them."""
        steps = self.recorder.take_epoch()
        if len(steps):
            more = measure(steps)
            self._totals = more if self._totals is None else merge(self._totals, more)


def _sample_frame(frame: EpochFrame, totals: StepTotals | None) -> SampleFrame:
    if totals is None:
        return SampleFrame(frame.begin_seconds, frame.end_seconds)
    return SampleFrame(
        begin_seconds=frame.begin_seconds,
        end_seconds=frame.end_seconds,
        steps_begin_seconds=totals.first_call_seconds,
        steps_end_seconds=totals.last_done_seconds,
        compile_spans=totals.compile_spans,
        examples=totals.examples,
    )


def _mean_step_seconds(totals: StepTotals) -> float | None:
    return totals.steady_seconds / totals.steady_steps if totals.steady_steps else None
