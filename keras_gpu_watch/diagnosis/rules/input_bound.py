# SPDX-License-Identifier: Apache-2.0
"""Steps wait for their batches."""

from __future__ import annotations

from keras_gpu_watch.diagnosis.caching import with_cache
from keras_gpu_watch.diagnosis.context import Context, calls_at_a_time
from keras_gpu_watch.diagnosis.rule import Cause, Found, Rule
from keras_gpu_watch.diagnosis.rules import buffers, cores, python_code
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.diagnosis.wording import duration, percent, place, times
from keras_gpu_watch.findings import AUTOTUNE, Kind, Severity, Stage, Suggestion, Verdict
from keras_gpu_watch.stage_code import with_parallel_calls

_NAMES = {
    "input_bound": "Input-bound",
    "moderately_input_bound": "Moderately input-bound",
    "bursty_input": "Bursty input",
}


def judge(context: Context) -> Verdict | None:
    """The kind by the share of the wait, with the stage to blame."""
    share = context.wait_share
    if share is None or share < LIMITS.moderately_input_share:
        return None
    is_high = share >= LIMITS.highly_input_share
    kind: Kind = "input_bound" if is_high else "moderately_input_bound"
    severity: Severity = "critical" if is_high else "warning"
    if buffers.is_bursty(context):
        kind = "bursty_input"
    stage = context.blamed
    return Verdict(
        kind=kind,
        severity=severity,
        stage=stage.label if stage else None,
        stage_index=stage.index if stage else None,
        headline=f"{_NAMES[kind]}: {_waits(context)}",
        evidence=_evidence(context),
        lost_share=context.share_of_wall(_waited_seconds(context, share)),
    )


def _waited_seconds(context: Context, share: float) -> float:
    """All input wait; where some of the steps' is not known, they are taken to wait like the others."""
    seconds = context.epoch.input_wait_seconds
    return share * (context.epoch.step_seconds + context.epoch.host_seconds) if seconds is None else seconds


def _waits(context: Context) -> str:
    batch, stage, ceiling = context.times, context.blamed, context.ceiling
    one = "step" if context.info is None or context.info.steps_per_execution == 1 else "batch"
    how_long = percent(context.wait_share or 0.0) + " of the time"
    if batch is not None:
        how_long = f"{duration(batch.wait_seconds)} of {duration(batch.period_seconds)}"
    for_what = "its batch" if stage is None else place(stage)
    at_most = "" if ceiling is None else f", at most {times(ceiling)} faster if input were free"
    return f"each {one} waits {how_long} for {for_what}{at_most}"


def _evidence(context: Context) -> dict[str, float]:
    epoch, batch, stage = context.epoch, context.times, context.blamed
    known: dict[str, float | None] = {
        "input_wait_share": context.wait_share,
        "ceiling_speedup": context.ceiling,
        "steady_steps": epoch.steady_steps,
        "input_wait_p50_seconds": epoch.input_wait_p50_seconds,
        "input_wait_p95_seconds": epoch.input_wait_p95_seconds,
        "input_wait_max_seconds": epoch.input_wait_max_seconds,
    }
    if batch is not None:
        known["input_wait_seconds_per_batch"] = batch.wait_seconds
        known["compute_and_host_seconds_per_batch"] = batch.rest_seconds
    if stage is not None:
        known["stage_wait_share"] = stage.wait_share
        known["stage_busy_seconds_per_batch"] = stage.busy_seconds_per_batch
        known["stage_calls_at_a_time"] = calls_at_a_time(stage) if stage.busy_seconds_per_batch is not None else None
        known["stage_elements_per_batch"] = stage.elements_per_batch
    return {name: float(value) for name, value in known.items() if value is not None}


def slow_stage(context: Context) -> Found | None:
    """The stage is known and the user's own, the reason is not known."""
    stage = context.blamed
    if stage is None or stage.added_by != "user":
        return None
    return Found(suggestions=with_cache(context, cores.more_calls(context, stage)))


def unknown(context: Context) -> Found:
    """Nothing is known but the wait, or the stage is none of the user's."""
    if python_code.is_keras_input(context):
        return Found(suggestions=(python_code.more_workers(context),))
    if context.pipeline.input_kind == "arrays":
        larger = Suggestion(
            what="give `fit` a larger `batch_size`",
            why="arrays are cut into batches in no time; what is left is the cost of each fetch",
            code="model.fit(x, y, batch_size=larger_batch)",
        )
        return Found(suggestions=(larger,))
    sequential = [stage for stage in context.pipeline.stages if stage.op == "map" and stage.num_parallel_calls is None]
    costliest = sequential[0] if len(sequential) == 1 else Stage(index=0, op="map")
    parallel = Suggestion(
        what=f"run {costliest.label if len(sequential) == 1 else 'the costliest map'} in parallel, and fetch ahead",
        why=context.pipeline.reason or "no stage of your own is known to be slow",
        code=f"{with_parallel_calls(costliest, AUTOTUNE)}\nds = ds.prefetch(tf.data.AUTOTUNE)",
    )
    return Found(suggestions=(parallel,))


RULE = Rule(
    kinds=("input_bound", "moderately_input_bound", "bursty_input"),
    when=(
        f"`input_bound`: steady steps wait for input at least {percent(LIMITS.highly_input_share)} of their time; "
        f"`moderately_input_bound`: at least {percent(LIMITS.moderately_input_share)}; `bursty_input`: the same, but "
        "the pipeline is fast enough in the mean. The stage to blame is the one with the largest share of the wait, "
        "over all batches of the epoch. A single wait that is more than half of all waiting is left out. Rests on at "
        f"least {LIMITS.min_steady_steps} steady steps."
    ),
    judge=judge,
    causes=(
        *buffers.CAUSES,
        *python_code.CAUSES,
        *cores.CAUSES,
        Cause(
            name="slow_stage",
            when="A stage is to blame, and nothing above explains it, or CPU use and interpreter lock are not known.",
            remedy="More calls at a time, if it can; less work in it.",
            find=slow_stage,
        ),
        Cause(
            name=None,
            when="No stage's work is known, or Keras added the stage.",
            remedy="Parallel maps and a prefetch; workers for a `PyDataset`; larger batches for arrays.",
            find=unknown,
        ),
    ),
)
