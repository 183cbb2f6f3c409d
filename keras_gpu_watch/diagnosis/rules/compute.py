# SPDX-License-Identifier: Apache-2.0
"""The step itself is the limit, or too little is known to say."""

from __future__ import annotations

from keras_gpu_watch.diagnosis.context import Context
from keras_gpu_watch.diagnosis.rule import Cause, Found, Rule
from keras_gpu_watch.diagnosis.rules import step
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.diagnosis.wording import duration, percent, times
from keras_gpu_watch.findings import Suggestion, Verdict

COMPUTE_SHARE = "compute_share_of_wall"


def judge(context: Context) -> Verdict | None:
    """Neither input nor host time hold the steps up."""
    if not step.is_the_limit(context):
        return None
    share, ceiling = context.wait_share or 0.0, context.ceiling
    where = "on the CPU" if context.on_accelerator is False else "itself"
    gain = "" if ceiling is None else f" (at most {times(ceiling)} if input were free)"
    evidence = {"input_wait_share": share, "host_share_of_steps": context.host_share}
    if share < LIMITS.moderately_input_share <= (context.epoch.input_wait_share or 0.0):
        gain = f", but for a single wait of {duration(context.epoch.input_wait_max_seconds or 0.0)}"
        evidence = {"input_wait_share_without_longest": share, "host_share_of_steps": context.host_share}
    if context.epoch.compute_seconds is not None:
        evidence[COMPUTE_SHARE] = context.share_of_wall(context.epoch.compute_seconds)
    return Verdict(
        kind="compute_bound",
        headline=f"Compute-bound: the step {where} is the limit, only {percent(share)} of it waits for input; tuning "
        f"the pipeline will not help{gain}",
        evidence=evidence if ceiling is None else {**evidence, "ceiling_speedup": ceiling},
    )


def eager(context: Context) -> Found | None:
    """The model runs eagerly."""
    return step.host_op(context) if context.info and context.info.run_eagerly else None


def a_busy_device(context: Context) -> Found:
    """Nothing is wrong."""
    if context.on_accelerator is False:
        suggestion = Suggestion(
            what="train on a GPU, or with a smaller model",
            why="the step's own computation takes the time",
        )
    else:
        suggestion = Suggestion(
            what="compute in mixed precision, if the model allows it",
            why="the step's own computation takes the time",
            code='keras.mixed_precision.set_global_policy("mixed_float16")',
        )
    return Found(suggestions=(suggestion,))


def judge_insufficient(context: Context) -> Verdict | None:
    """No claim on steps is possible."""
    if context.wait_share is not None:
        return None
    steps = context.epoch.steady_steps
    reason = f"{steps} steady steps, and a claim takes {LIMITS.min_steady_steps}"
    if context.has_steps:
        reason = " ".join(context.epoch.notes) or "the input wait was not measured"
    return Verdict(
        kind="insufficient_data",
        headline=f"Not enough data: {reason}",
        evidence={"steady_steps": float(steps), "steady_steps_needed": float(LIMITS.min_steady_steps)},
    )


def too_short(context: Context) -> Found | None:
    """Too few steps."""
    if context.has_steps:
        return None
    return Found(
        suggestions=(
            Suggestion(
                what="train for more steps an epoch, or for more epochs",
                why="a handful of steps is mostly start-up",
            ),
        )
    )


def not_measured(context: Context) -> Found:
    """Enough steps, without waits."""
    if context.epoch.input_wait_seconds is not None:
        seen = Suggestion(
            what="return a tensor of the device from train_step",
            why="only the launching of steps was seen: nothing that they return tells when their work is done",
        )
        return Found(suggestions=(seen,))
    return Found(
        suggestions=(
            Suggestion(
                what="hand `fit` a watched dataset",
                why="it stamps each batch, so that waits are known whatever the options",
                code="model.fit(watch(ds), callbacks=[GPUWatch()])",
            ),
        )
    )


RULE = Rule(
    kinds=("compute_bound",),
    when=(
        f"Steady steps wait for input less than {percent(LIMITS.moderately_input_share)} of their time, and less than "
        f"{percent(LIMITS.host_share)} is host time. Tuning the pipeline will not help."
    ),
    judge=judge,
    causes=(
        Cause(
            name="host_op",
            when="The model runs eagerly.",
            remedy="`run_eagerly=False`.",
            find=eager,
        ),
        Cause(
            name="communication",
            when="There is more than one replica.",
            remedy="Look at the network and at the step; not at the pipeline.",
            find=step.communication,
        ),
        Cause(
            name=None,
            when="None of these.",
            remedy="Mixed precision, a smaller model, a faster device.",
            find=a_busy_device,
        ),
    ),
)
INSUFFICIENT = Rule(
    kinds=("insufficient_data",),
    when=(
        f"Fewer than {LIMITS.min_steady_steps} steady steps, or the input wait is not measured. Claims that rest on "
        "seconds (epoch start, validation, compiling, epoch end) are still made."
    ),
    judge=judge_insufficient,
    causes=(
        Cause(name=None, when="Too few steps.", remedy="More steps or epochs.", find=too_short),
        Cause(name=None, when="The wait is not measured.", remedy="`fit(watch(dataset))`.", find=not_measured),
    ),
)
