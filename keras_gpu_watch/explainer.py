# SPDX-License-Identifier: Apache-2.0
"""Adds to an epoch's account what explains it: the pipeline's stages, and the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_gpu_watch.clock import Clock, monotonic
from keras_gpu_watch.diagnosis import diagnose, diagnose_run, mark_waiting
from keras_gpu_watch.findings import PipelineSummary, Verdict
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.records import EpochSummary, RunInfo
from keras_gpu_watch.samples import Devices

RUN_EPOCHS = 200
"""The run's verdict rests on the first epoch and this many of the newest, so that it does not cost more and more."""
STAGES = "the pipeline's stages"
DIAGNOSIS = "the diagnosis"
POLL_EVERY_SECONDS = 1.0
SAVED_POLLS = 3.0
"""Polls that may be saved up, so that a short epoch can have one at its begin and one at its end."""


class Explainer:
    """Looks at the live pipeline while an epoch runs, and judges the epoch when it is over.

    Args:
        guard: Keeps the account when the stages or the diagnosis fail.
        clock: The monotonic clock.
    """

    def __init__(self, guard: Guard, clock: Clock = monotonic) -> None:
        self._guard = guard
        self._clock = clock
        self._probe: Any = None
        self._last_poll_seconds = float("-inf")
        self._counted_at_seconds = clock()
        self._allowed_polls = SAVED_POLLS
        self._is_first_step = False

    def prepare(self) -> None:
        """Load what reads pipelines, which takes long enough to be no part of any step."""
        with self._guard(STAGES):
            self._pipeline()

    def begin_epoch(self) -> None:
        """The next step is an epoch's first one: look at the pipeline after it."""
        self._is_first_step = True

    def poll(self, iterator: Any, *, final: bool = False) -> None:
        """Look at the live pipeline, once a second on average at most.

        Args:
            iterator: What the newest step fetched from; `None` is let pass.
            final: Whether the epoch is over: look in any case, if a look is left.
        """
        if iterator is None or not self._guard.ok(STAGES) or not self._may_poll(final):
            return
        with self._guard(STAGES):
            self._pipeline().poll(iterator)

    def _may_poll(self, final: bool) -> bool:
        now = self._clock()
        saved = self._allowed_polls + (now - self._counted_at_seconds) / POLL_EVERY_SECONDS
        self._allowed_polls, self._counted_at_seconds = min(SAVED_POLLS, saved), now
        is_due = final or self._is_first_step or now - self._last_poll_seconds >= POLL_EVERY_SECONDS
        # One is kept for the epoch's end: without it the others tell little.
        if not is_due or self._allowed_polls < (1 if final else 2):
            return False
        self._allowed_polls -= 1
        self._last_poll_seconds = now
        self._is_first_step = False
        return True

    def explain(
        self, summary: EpochSummary, earlier: Sequence[EpochSummary], devices: Devices, info: RunInfo | None
    ) -> EpochSummary:
        """The same account, with stages and verdict.

        Args:
            summary: The epoch's account.
            earlier: Those of the epochs before it.
            devices: The devices that its samples are of.
            info: What was known when the run began.
        """
        summary = dataclasses.replace(summary, pipeline=self._stages(summary))
        if self._guard.ok(DIAGNOSIS):
            with self._guard(DIAGNOSIS):
                summary = mark_waiting(summary, earlier, devices, info)
                verdict, others = diagnose([*earlier, summary], devices, info)
                return dataclasses.replace(summary, verdict=verdict, other_verdicts=others)
        return summary

    def explain_run(self, epochs: Sequence[EpochSummary], devices: Devices, info: RunInfo | None) -> Verdict | None:
        """The verdict on all epochs together; `None` when there is nothing to judge.

        Of a run that is tuned, on those with the newest settings: what was cured is no longer to blame.
        """
        if epochs and self._guard.ok(DIAGNOSIS):
            with self._guard(DIAGNOSIS):
                knobs = epochs[-1].knobs
                alike = [epoch for epoch in epochs[1:] if knobs is None or epoch.knobs == knobs]
                return diagnose_run([*epochs[:1], *alike[-RUN_EPOCHS:]], devices, info)
        return None

    def _stages(self, summary: EpochSummary) -> PipelineSummary | None:
        if self._probe is None or not self._guard.ok(STAGES):
            return None
        wait_seconds, rest_seconds = _seconds_per_batch(summary)
        with self._guard(STAGES):
            found: PipelineSummary | None = self._probe.take_epoch(rest_seconds, wait_seconds)
            return found
        return None

    def _pipeline(self) -> Any:
        if self._probe is None:
            # Here, because with another backend than TensorFlow this package must not load it.
            from keras_gpu_watch.pipeline.stages import PipelineProbe

            self._probe = PipelineProbe()
        return self._probe


def _seconds_per_batch(summary: EpochSummary) -> tuple[float | None, float | None]:
    """A steady batch's input wait, and the rest of its step."""
    rate, share = summary.batches_per_second, summary.input_wait_share
    if not rate or share is None:
        return None, None
    return share / rate, (1 - share) / rate
