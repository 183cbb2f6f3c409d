# SPDX-License-Identifier: Apache-2.0
"""Stands in for what a short epoch leaves unmeasured: its stages as they were in an epoch with the same settings."""

from __future__ import annotations

from dataclasses import replace

from keras_gpu_watch.findings import PipelineSummary
from keras_gpu_watch.knobs import Knobs
from keras_gpu_watch.tuning.evidence import Observation


class StageMemory:
    """Keeps the most complete table of the pipeline's stages, for as long as the settings stay the same."""

    def __init__(self) -> None:
        self._knobs: Knobs | None = None
        self._pipeline: PipelineSummary | None = None

    def complete(self, observation: Observation) -> Observation:
        """The same epoch, with the remembered stages where they tell more than its own.

        Args:
            observation: An epoch; it is remembered.
        """
        pipeline = observation.summary.pipeline
        if observation.knobs is None or observation.knobs != self._knobs:
            self._knobs, self._pipeline = observation.knobs, None
        if self._pipeline is None or _measured(pipeline) >= _measured(self._pipeline):
            self._pipeline = pipeline
            return observation
        return replace(observation, summary=replace(observation.summary, pipeline=self._pipeline))


def _measured(pipeline: PipelineSummary | None) -> int:
    """Stages whose work is known."""
    return 0 if pipeline is None else sum(stage.busy_seconds_per_batch is not None for stage in pipeline.stages)
