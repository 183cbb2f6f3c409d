# SPDX-License-Identifier: Apache-2.0
"""How much faster steps can get at most, when something in the pipeline changes.

A pipeline gives batches no faster than its slowest stage, and a step takes no less than its compute and host time. The
larger of the two bounds what any change can give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from keras_gpu_watch.diagnosis.context import Context, stage_seconds, work_seconds
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.findings import Stage


def speedup_with(context: Context, changed: Mapping[int, float]) -> float | None:
    """Bound on the speed-up when some stages take another time.

    Args:
        context: The epoch.
        changed: Seconds a batch of the changed stages, by index.

    Returns:
        At least 1, at most the ceiling; `None` where no batch times or no stages' times are known.
    """
    if not context.is_measured:
        return None
    seconds = [changed.get(stage.index, stage_seconds(stage) or 0.0) for stage in context.pipeline.stages]
    return speedup_to(context, max(seconds))


def speedup_to(context: Context, pipeline_seconds: float) -> float | None:
    """Bound on the speed-up when the pipeline runs beside the step and takes that long for a batch.

    Args:
        context: The epoch.
        pipeline_seconds: Time a batch, in seconds.
    """
    times = context.times
    if times is None:
        return None
    return at_most(context, times.period_seconds / max(times.rest_seconds, pipeline_seconds))


def at_most(context: Context, speedup: float) -> float:
    """A speed-up of steps, bounded by the ceiling where that is known."""
    ceiling = context.ceiling if context.ceiling is not None else math.inf
    return min(max(1.0, speedup), max(1.0, ceiling))


def calls_needed(context: Context, stage: Stage) -> int | None:
    """Calls at a time with which a stage keeps up with the step.

    Args:
        context: The epoch.
        stage: The stage to blame.
    """
    times, work = context.times, work_seconds(context, stage)
    if times is None or work is None:
        return None
    return whole(work / times.rest_seconds * (1 + LIMITS.spare_calls_share), 2, LIMITS.max_parallel_calls)


def whole(value: float, least: int, most: int) -> int:
    """The next whole number, within bounds."""
    return math.ceil(min(max(value, least), most))
