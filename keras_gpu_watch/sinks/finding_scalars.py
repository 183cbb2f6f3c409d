# SPDX-License-Identifier: Apache-2.0
"""An epoch's scalars of the pipeline's stages, of callbacks and of what was tuned, by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from keras_gpu_watch import tags
from keras_gpu_watch.findings import Stage
from keras_gpu_watch.knobs import END, Knobs
from keras_gpu_watch.records import EpochSummary

MAX_STAGES = 60
"""Stages that get scalars: TensorBoard's list of charts would be of no use with more."""
SLOWEST_CALLBACKS = 5
_MS = 1e3
_PERCENT = 1e2


class FindingScalars:
    """Names and values of one epoch's scalars; a stage that had some keeps having them."""

    def __init__(self) -> None:
        self._stages: set[str] = set()

    def of(self, epoch: EpochSummary) -> dict[str, float]:
        """What was measured of stages and callbacks, and the knobs that were tuned.

        Args:
            epoch: The epoch's account.

        Returns:
            Values by the scalar's name, in the units of `tags`.
        """
        stages = () if epoch.pipeline is None else epoch.pipeline.stages
        scalars: dict[str, float] = {}
        for stage in sorted(stages, key=lambda stage: -(stage.busy_seconds_per_batch or 0.0)):
            readings = _stage_readings(stage)
            if readings and len(self._stages) < MAX_STAGES:
                self._stages.add(stage.tag_name)
            if stage.tag_name in self._stages:
                scalars.update(readings)
        slowest = sorted(epoch.callbacks, key=lambda callback: -callback.seconds)[:SLOWEST_CALLBACKS]
        for callback in slowest:
            scalars[tags.CALLBACK_SECONDS.name.replace("<name>", callback.tag_name)] = callback.seconds
        scalars.update(_tuner_readings(epoch.knobs or Knobs(), stages))
        return scalars


def _tuner_readings(knobs: Knobs, stages: Sequence[Stage]) -> dict[str, float]:
    """The knobs that are not as the user set them."""
    names = {stage.index: stage.tag_name for stage in stages} | {END: "added"}
    readings = {
        tag.name.replace("<stage>", names.get(index, str(index))): float(value)
        for tag, values in ((tags.TUNER_CALLS, knobs.parallel_calls), (tags.TUNER_BUFFER, knobs.buffer_sizes))
        for index, value in values.items()
    }
    if knobs.private_threadpool_size is not None:
        readings[tags.TUNER_THREADS.name] = float(knobs.private_threadpool_size)
    return readings


def _stage_readings(stage: Stage) -> dict[str, float]:
    """Only what was measured."""
    readings = (
        (tags.STAGE_BUSY, stage.busy_seconds_per_batch, _MS),
        (tags.STAGE_PARALLELISM, stage.parallelism, 1.0),
        (tags.STAGE_WAIT_SHARE, stage.wait_share, _PERCENT),
        (tags.STAGE_BUFFERED, stage.buffered_elements, 1.0),
        (tags.STAGE_CAPACITY, stage.capacity_batches_per_second, 1.0),
    )
    return {
        tag.name.replace("<stage>", stage.tag_name): scale * value
        for tag, value, scale in readings
        if value is not None and math.isfinite(value)
    }
