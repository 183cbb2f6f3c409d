# SPDX-License-Identifier: Apache-2.0
"""What the tuner looks at when an epoch is over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from keras_gpu_watch.findings import PipelineSummary, Stage
from keras_gpu_watch.knobs import Knobs
from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.tuning.limits import NUMBERS

PYTHON_CAUSES = ("python_lock", "single_producer")
"""Causes of a verdict that more calls do not cure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """An epoch that is over, and the machine."""

    summary: EpochSummary
    knobs: Knobs | None
    """With which all of its batches were made; `None`: they were changed in its midst, or it is not known."""
    is_first: bool = False
    """Whether it is its `fit`'s first one, with cold caches and a step to compile."""
    usable_cores: float | None = None
    process_memory_bytes: float | None = None
    """The most that the process held in the epoch."""
    free_memory_bytes: float | None = None
    """What it may still take."""

    @property
    def rate(self) -> float | None:
        """Batches per second of steady steps, whatever stalls outside of the input; `None` where there are too few."""
        is_enough = self.summary.steady_steps >= NUMBERS.min_steady_steps
        return self.summary.pace_batches_per_second if is_enough else None

    @property
    def noise(self) -> float:
        """Relative standard error of that rate."""
        noise = self.summary.pace_noise
        return NUMBERS.assumed_noise if noise is None else noise

    @property
    def wait_seconds(self) -> float | None:
        """Mean input wait for a batch; `None`: not known."""
        share, rate = self.summary.input_wait_share, self.summary.batches_per_second
        return None if share is None or not rate else share / rate

    @property
    def wait_share(self) -> float | None:
        """Share of the input wait in steady steps."""
        wait, pace = self.wait_seconds, self.summary.pace_batches_per_second
        return None if wait is None or pace is None else min(1.0, wait * pace)

    @property
    def is_input_bound(self) -> bool:
        """Whether the training waits for its input enough to care."""
        return (self.wait_share or 0.0) >= NUMBERS.input_bound_share

    @property
    def rest_seconds(self) -> float | None:
        """What a batch would take if its input were free; `None`: not known."""
        share, pace = self.wait_share, self.summary.pace_batches_per_second
        return None if share is None or not pace or share >= 1 else (1 - share) / pace

    @property
    def cores(self) -> int:
        """Whole cores that this process may use."""
        return max(1, math.floor(self.usable_cores or 1.0))

    @property
    def pipeline(self) -> PipelineSummary:
        """The input pipeline; one without stages where nothing is known of it."""
        return self.summary.pipeline or PipelineSummary()

    @property
    def stages(self) -> Mapping[int, Stage]:
        """The pipeline's stages by index."""
        return {stage.index: stage for stage in self.pipeline.stages}

    @property
    def cause(self) -> str | None:
        """The epoch's verdict in a word, if it is about the input."""
        verdict = self.summary.verdict
        return None if verdict is None or "input" not in verdict.kind else verdict.cause

    @property
    def blamed_index(self) -> int | None:
        """Of the stage with the largest share of the wait; else of the one that the verdict blames."""
        shared = [stage for stage in self.pipeline.stages if stage.wait_share]
        if shared:
            return max(shared, key=lambda stage: stage.wait_share or 0.0).index
        verdict = self.summary.verdict
        return verdict.stage_index if verdict is not None and "input" in verdict.kind else None

    @property
    def remedy(self) -> str | None:
        """What else the user may do, in the words of the verdict on the input."""
        verdict = self.summary.verdict
        if verdict is None or "input" not in verdict.kind or not verdict.suggestions:
            return None
        return verdict.suggestions[0].what

    @property
    def is_bursty(self) -> bool:
        """Whether the pipeline is fast enough in the mean, and some batches take long.

        Not by the verdict, which may be about something else in an epoch of two troubles.
        """
        wait, rest, typical = self.wait_seconds, self.rest_seconds, self.summary.input_wait_p50_seconds
        if wait is None or rest is None or typical is None or wait >= rest:
            return False
        # What reads datasets in turn waits in bursts by nature, however slow it is.
        blamed = self.stages.get(self.blamed_index) if self.blamed_index is not None else None
        if blamed is not None and blamed.op in ("interleave", "flat_map"):
            return False
        slowest = self.pipeline.slowest_seconds_per_batch
        is_fast = slowest is None or slowest < rest + NUMBERS.explained_share * wait
        return is_fast and typical < NUMBERS.explained_share * wait

    @property
    def is_python_bound(self) -> bool:
        """Whether Python code in the pipeline sets the pace."""
        return self.cause in PYTHON_CAUSES


def why_not_judged(observation: Observation, asked: Knobs) -> str | None:
    """Why an epoch can't be compared with others; `None`: it can.

    Args:
        observation: The epoch.
        asked: The knobs that it should have run with.
    """
    if observation.is_first:
        return "the first epoch of a training starts cold"
    if observation.knobs is None or observation.knobs != asked:
        return "its batches were not all made with these settings"
    if observation.rate is None:
        return f"it has fewer than {NUMBERS.min_steady_steps} steady steps"
    if observation.wait_share is None:
        return "its input wait is not known"
    return None
