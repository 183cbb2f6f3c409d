# SPDX-License-Identifier: Apache-2.0
"""Whether a stage computes or waits: for a disk, a network, a lock.

CPU use alone says nothing. It is compared with the time that the stage's calls are under way: calls that use the CPU
for little of it wait for something else.
"""

from __future__ import annotations

from dataclasses import replace

from keras_gpu_watch.diagnosis.context import Context, busy_seconds, clip, mean, work_seconds
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.findings import PipelineSummary, Stage


def with_waiting_stages(context: Context) -> PipelineSummary | None:
    """The epoch's pipeline, each measured stage marked as waiting or computing.

    Args:
        context: The epoch; `None` comes back where nothing is known of its pipeline.
    """
    pipeline = context.epoch.pipeline
    if pipeline is None:
        return None
    stages = (
        replace(stage, is_waiting=is_waiting(context, stage)) if stage.busy_seconds_per_batch else stage
        for stage in pipeline.stages
    )
    return replace(pipeline, stages=tuple(stages))


def cores_in_use(context: Context) -> float | None:
    """Cores that this process keeps busy: by samples, or over the whole epoch where it was too short for any."""
    percent_used, cores, epoch = mean(context.host.process_cpu_percent), context.usable_cores, context.epoch
    if percent_used is not None:
        return None if cores is None else percent_used / 100 * cores
    if epoch.process_cpu_seconds is None or epoch.wall_seconds <= 0:
        return None
    return epoch.process_cpu_seconds / epoch.wall_seconds


def cpu_share(context: Context, stage: Stage) -> float | None:
    """Share of its time in which a stage's calls use the CPU, 0..1; `None`: not known.

    What the training's step uses is not known, but bounded: by one core on an accelerator, else by all. So the share
    lies between two bounds, and their mean is taken.
    """
    used, times, work = cores_in_use(context), context.times, _work_seconds(context, stage)
    if used is None or times is None or not work or context.usable_cores is None:
        return None
    others = busy_seconds([each for each in context.pipeline.stages if each.index != stage.index])
    most = used * times.period_seconds
    steps_cores = 1.0 if context.on_accelerator else context.usable_cores
    least = most - times.rest_seconds * steps_cores - others
    return (clip(least / work) + clip(most / work)) / 2


def is_waiting(context: Context, stage: Stage) -> bool | None:
    """Whether a stage's calls wait for something else than the CPU; `None`: not known."""
    share = cpu_share(context, stage)
    if share is None:
        return None
    # With more threads than cores, calls that compute wait for a core.
    if share >= LIMITS.waiting_cpu_share or all_cores_in_use(context):
        return False
    # So they do where other processes use all cores.
    if share >= LIMITS.sure_waiting_cpu_share and _is_machine_full(context):
        return None
    return True


def all_cores_in_use(context: Context) -> bool:
    """Whether this process keeps all of its cores busy."""
    used, cores = cores_in_use(context), context.usable_cores
    return used is not None and cores is not None and used >= LIMITS.full_cpu_percent / 100 * cores


def _is_machine_full(context: Context) -> bool:
    """Whether all processes together leave no core idle."""
    everybody = mean(context.host.cpu_percent)
    return everybody is not None and everybody >= LIMITS.full_cpu_percent


def _work_seconds(context: Context, stage: Stage) -> float | None:
    """What the waits prove beyond what was counted is the work of the stage to blame, and no other's."""
    blamed = context.blamed
    is_blamed = blamed is not None and blamed.index == stage.index
    return work_seconds(context, stage) if is_blamed else stage.busy_seconds_per_batch
