# SPDX-License-Identifier: Apache-2.0
"""Python code of the pipeline holds the interpreter lock that the training's own thread needs as well."""

from __future__ import annotations

from keras_gpu_watch.diagnosis.context import Context, stage_seconds
from keras_gpu_watch.diagnosis.rule import Cause, Found, Rule
from keras_gpu_watch.diagnosis.rules import python_code
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.diagnosis.wording import percent, place
from keras_gpu_watch.findings import Stage, Verdict


def judge(context: Context) -> Verdict | None:
    """Much of the wait for input is hidden in compute and host time."""
    stage, held = _pace_setter(context), context.lock_share
    if stage is None or held is None or not python_code.lock_is_held(context):
        return None
    # Where the wait is plain to see, it says more.
    if context.wait_share is None or context.wait_share >= LIMITS.highly_input_share:
        return None
    return Verdict(
        kind="input_bound",
        severity="critical",
        stage=stage.label,
        stage_index=stage.index,
        headline=f"Input-bound: Python code in {place(stage)} holds the interpreter lock {percent(held)} of the time; "
        "the training's own thread waits for it, too, so compute and host time are longer than the step itself",
        evidence={"interpreter_held_share": held, "input_wait_share": context.wait_share},
        lost_share=held * context.share_of_wall(context.epoch.step_seconds + context.epoch.host_seconds),
    )


def cure(context: Context) -> Found | None:
    """What helps against the lock."""
    stage = _pace_setter(context)
    return None if stage is None else Found(suggestions=python_code.without_the_lock(context, stage))


def _pace_setter(context: Context) -> Stage | None:
    """The stage with Python code that is at work nearly all the time: batches come no faster than it gives them."""
    times = context.times
    if times is None:
        return None
    python = [stage for stage in context.pipeline.stages if stage.python]
    if context.is_measured:
        least = LIMITS.pace_share * times.period_seconds
        return next((stage for stage in python if (stage_seconds(stage) or 0.0) >= least), None)
    waits = (context.wait_share or 0.0) >= LIMITS.moderately_input_share
    return python[0] if len(python) == 1 and waits and python_code.is_keras_input(context) else None


RULE = Rule(
    kinds=("input_bound",),
    when=(
        f"Less than {percent(LIMITS.highly_input_share)} of the steps' time is seen as waiting for input, yet Python "
        "code other than the training's own holds the interpreter lock at least "
        f"{percent(LIMITS.interpreter_busy_percent / 100)} of the time, and a stage that runs Python code is at work "
        f"at least {percent(LIMITS.pace_share)} of it. The training's thread waits for the lock inside its compute and "
        "host time, where the wait can't be told from the rest."
    ),
    judge=judge,
    causes=(
        Cause(
            name="python_lock",
            when="In each case.",
            remedy="TensorFlow operations; several processes; doing it once before training. More calls don't help.",
            find=cure,
        ),
    ),
)
