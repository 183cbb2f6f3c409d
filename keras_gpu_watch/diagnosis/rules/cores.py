# SPDX-License-Identifier: Apache-2.0
"""Causes of input wait that lie in the work of a stage: it waits, or it computes, on some or all cores."""

from __future__ import annotations

import math

from keras_gpu_watch.diagnosis.caching import with_cache
from keras_gpu_watch.diagnosis.context import Context, busy_seconds, calls_at_a_time, work_seconds
from keras_gpu_watch.diagnosis.forecast import calls_needed, speedup_with, whole
from keras_gpu_watch.diagnosis.rule import Cause, Found
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.diagnosis.waiting import all_cores_in_use, cores_in_use, cpu_share, is_waiting
from keras_gpu_watch.diagnosis.wording import percent
from keras_gpu_watch.findings import AUTOTUNE, Stage, Suggestion
from keras_gpu_watch.stage_code import READERS, with_parallel_calls, with_threads

_OWN_THREADS = ("interleave", *READERS)
"""Their parallel calls have threads of their own."""


def cores_needed(context: Context) -> float | None:
    """Cores that all stages together need to keep up with the step; `None`: not known."""
    cores, times = context.usable_cores, context.times
    if cores is None or times is None:
        return None
    # Calls beyond the cores only wait for each other.
    work = min(busy_seconds(context.pipeline.stages), cores * times.period_seconds)
    return work / times.rest_seconds


def latency(context: Context) -> Found | None:
    """The stage waits for a disk, a network, a lock, or sleeps."""
    stage = _users_stage(context)
    if stage is None or not is_waiting(context, stage):
        return None
    return Found(
        clause=f"the stage waits for something else than the CPU (a disk, a network), {_calls(stage)}",
        suggestions=with_cache(context, (_calls_beyond_cores(context, stage),)),
        evidence=_cpu_evidence(context, stage),
    )


def low_parallelism(context: Context) -> Found | None:
    """The stage computes on fewer cores than there are."""
    stage, cores = _users_stage(context), context.usable_cores
    if stage is None or cores is None or is_waiting(context, stage) is not False:
        return None
    if calls_at_a_time(stage) >= math.floor(cores) or all_cores_in_use(context):
        return None
    beyond = _beyond_this_machine(context) if (cores_needed(context) or 0.0) > cores else ()
    return Found(
        clause=f"the stage computes, {_calls(stage)}, and there are {cores:.3g} cores",
        suggestions=with_cache(context, (*more_calls(context, stage), *beyond)),
        evidence=_cpu_evidence(context, stage),
    )


def too_few_cores(context: Context) -> Found | None:
    """The pipeline computes more than the cores can."""
    stage, cores, needed = _users_stage(context), context.usable_cores, cores_needed(context)
    if stage is None or cores is None or needed is None or is_waiting(context, stage) is not False:
        return None
    if needed <= cores:
        return None
    return Found(
        clause=f"to keep up the pipeline needs {needed:.1f} cores, and there are {cores:.3g}",
        suggestions=with_cache(context, _beyond_this_machine(context)),
        evidence=_cpu_evidence(context, stage),
    )


def more_calls(context: Context, stage: Stage) -> tuple[Suggestion, ...]:
    """More calls at a time, within the cores; without a stage that can, less work."""
    cores = context.usable_cores
    # What AUTOTUNE chose too small it will choose again.
    calls = max(2, math.floor(cores)) if cores and stage.num_parallel_calls == AUTOTUNE else AUTOTUNE
    code = with_parallel_calls(stage, calls)
    if code is None or (cores is not None and calls_at_a_time(stage) >= math.floor(cores)):
        return (
            Suggestion(
                what=f"give {stage.label} less to do",
                why="nothing comes out of the pipeline faster than out of this stage",
            ),
        )
    busy = stage.busy_seconds_per_batch
    gain = None if busy is None or cores is None else speedup_with(context, {stage.index: busy / max(1.0, cores)})
    what = f"let {stage.label} work on several elements at a time"
    return (
        Suggestion(
            what=what, why=f"the other cores can share its work{_caveat(stage)}", code=code, expected_speedup=gain
        ),
    )


def _calls_beyond_cores(context: Context, stage: Stage) -> Suggestion:
    calls = max(calls_needed(context, stage) or 2, whole(stage.num_parallel_calls or 0, 0, LIMITS.max_parallel_calls))
    code = with_parallel_calls(stage, calls)
    if code is None:
        return Suggestion(
            what=f"have the data of {stage.label} at hand earlier: in larger pieces, nearer, or read by parallel "
            "stages",
            why="it waits, and works on one element at a time",
        )
    cores = context.usable_cores
    if stage.op not in _OWN_THREADS and (cores is None or calls > cores):
        code = with_threads(code, context.pipeline, calls)
    work = work_seconds(context, stage)
    return Suggestion(
        what=f"let {calls} calls of {stage.label} wait at a time, with a thread for each",
        why=f"calls that wait need no core, but each one needs a thread{_caveat(stage)}",
        code=code,
        expected_speedup=None if work is None else speedup_with(context, {stage.index: work / calls}),
    )


def _beyond_this_machine(context: Context) -> tuple[Suggestion, ...]:
    cores, needed = context.usable_cores, cores_needed(context)
    if not cores or needed is None:
        return ()
    workers = whole(needed / cores, 2, LIMITS.max_parallel_calls)
    return (
        Suggestion(
            what="do the costly part once, before training, and read its result (TFRecords, `Dataset.save`)",
            why=f"the pipeline needs {needed:.1f} cores of this kind to keep up with the step",
            code="ds.save(path)  # once\nds = tf.data.Dataset.load(path)",
            expected_speedup=context.ceiling,
        ),
        Suggestion(
            what=f"run the pipeline on {workers} machines of this size, with the tf.data service",
            why="its workers do all of it",
            code=(
                "sharding = tf.data.experimental.service.ShardingPolicy.DYNAMIC\n"
                "ds = ds.apply(tf.data.experimental.service.distribute(sharding, service=address))"
                f"  # {workers} workers"
            ),
            expected_speedup=context.ceiling,
        ),
        Suggestion(
            what="compute less on the CPU: uint8 instead of float32, augmentation in the model, smaller images",
            why="what runs in the model runs on its device",
        ),
    )


def _users_stage(context: Context) -> Stage | None:
    """The stage to blame, if the user can change it, and what it does is not hidden by the interpreter lock."""
    stage = context.blamed
    if stage is None or stage.added_by != "user" or (stage.python and context.lock_share is None):
        return None
    return stage


def _calls(stage: Stage) -> str:
    calls = calls_at_a_time(stage)
    return "one call at a time" if calls < 2 else f"{calls:.0f} calls at a time"


def _caveat(stage: Stage) -> str:
    if stage.op == "flat_map":
        return ". Elements will come in another order"
    if stage.is_random:
        return ". Its random numbers will reach other elements: draw them with tf.random.stateless_* to keep them"
    if stage.python or stage.is_stateful:
        return ". It keeps a state or runs Python: several calls must be allowed to run at the same time"
    if stage.op in _OWN_THREADS:
        return ". A longer cycle changes the order of the elements; deterministic=False would be faster still"
    return ""


def _cpu_evidence(context: Context, stage: Stage) -> dict[str, float]:
    known = {
        "cores_in_use": cores_in_use(context),
        "usable_cores": context.usable_cores,
        "cores_needed": cores_needed(context),
        "stage_cpu_share": cpu_share(context, stage),
    }
    return {name: value for name, value in known.items() if value is not None}


CAUSES = (
    Cause(
        name="latency",
        when=(
            "The calls of the stage to blame use the CPU for less than "
            f"{percent(LIMITS.waiting_cpu_share)} of the time they are under way "
            f"({percent(LIMITS.sure_waiting_cpu_share)} where other processes leave no core idle), and this process "
            "does not use all cores."
        ),
        remedy="More parallel calls than there are cores, with a private thread pool of that size.",
        find=latency,
    ),
    Cause(
        name="low_parallelism",
        when=(
            "The stage to blame computes, in fewer calls at a time than there are cores, and less than "
            f"{LIMITS.full_cpu_percent:.0f} % of the cores' time is in use."
        ),
        remedy="`num_parallel_calls=tf.data.AUTOTUNE`, or the number of cores.",
        find=low_parallelism,
    ),
    Cause(
        name="too_few_cores",
        when="The stage to blame computes, and the pipeline's work for a batch, by the step's time, is more than all "
        "cores.",
        remedy="Work done once before training; the tf.data service with as many workers; less work on the CPU.",
        find=too_few_cores,
    ),
)
