# SPDX-License-Identifier: Apache-2.0
"""Why a step that does not wait takes long without using its device."""

from __future__ import annotations

from keras_gpu_watch.diagnosis.context import Context
from keras_gpu_watch.diagnosis.rule import Cause, Found
from keras_gpu_watch.diagnosis.rules.host import is_host_bound
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.diagnosis.wording import duration
from keras_gpu_watch.findings import Suggestion

_MULTIPLE_BATCHES = Suggestion(
    what="run several batches in each call of the train function",
    why="the way from Python to the device is then gone once for all of them",
    code="model.compile(optimizer, loss, steps_per_execution=16)",
)


def is_the_limit(context: Context) -> bool:
    """Whether neither input nor host time hold the steps up."""
    share = context.wait_share
    return share is not None and share < LIMITS.moderately_input_share and not is_host_bound(context)


def host_op(context: Context) -> Found | None:
    """Python runs in the step itself."""
    if not runs_python(context):
        return None
    return Found(
        clause="the step runs Python code on the host",
        suggestions=(
            Suggestion(
                what="compile the step: no run_eagerly, no py_function or numpy_function in train_step",
                why="between two of its operations the device waits for Python",
                code="model.compile(optimizer, loss, run_eagerly=False)",
            ),
        ),
    )


def runs_python(context: Context) -> bool:
    """Whether the step is run eagerly, or Python is busy all the time without a pipeline that would explain it."""
    if context.info and context.info.run_eagerly:
        return True
    held = context.lock_share
    if any(stage.python for stage in context.pipeline.stages):
        return False
    return held is not None and held >= LIMITS.interpreter_busy_percent / 100


def communication(context: Context) -> Found | None:
    """Several replicas exchange gradients."""
    replicas = context.info.replicas if context.info else None
    if replicas is None or replicas <= 1:
        return None
    return Found(
        clause=f"{replicas} replicas exchange gradients in each step",
        evidence={"replicas": float(replicas)},
        suggestions=(
            Suggestion(
                what="time a step on one replica, and the network between them; larger batches, fewer exchanges",
                why="a step ends when the slowest exchange does; no change of the input pipeline helps",
            ),
        ),
    )


def small_batch(context: Context) -> Found | None:
    """Steps are too short to fill a device."""
    times = context.times
    if times is None or times.rest_seconds >= LIMITS.short_step_seconds:
        return None
    larger = Suggestion(
        what="use larger batches (and a learning rate to match)",
        why="a step has costs that do not depend on the size of its batch",
        code=larger_batch(context),
    )
    return Found(
        clause=f"a batch takes only {duration(times.rest_seconds)}",
        suggestions=(larger, _MULTIPLE_BATCHES),
    )


def larger_batch(context: Context) -> str | None:
    """The batching with four times the size, where that is known."""
    sizes = [stage.batch_size for stage in context.pipeline.stages if stage.batch_size and stage.batch_size > 0]
    return f"ds = ds.batch({4 * sizes[-1]})" if sizes else None


def launch_bound(context: Context) -> Found:
    """Steps are long, and their kernels short."""
    suggestions = [
        Suggestion(
            what="replace loops over time steps or small pieces by whole operations",
            why="many small kernels take longer to launch than to run; recurrent layers run as one kernel only without "
            "recurrent_dropout and with their default activations",
        )
    ]
    if not (context.info and context.info.jit_compile):
        suggestions.append(
            Suggestion(
                what="let XLA join the kernels",
                why="one large kernel is launched instead of many small ones",
                code="model.compile(optimizer, loss, jit_compile=True)",
            )
        )
    return Found(clause="its steps are long, but leave it idle", suggestions=tuple(suggestions))


CAUSES = (
    Cause(
        name="host_op",
        when=(
            "The model runs eagerly, or Python code holds the interpreter lock at least "
            f"{LIMITS.interpreter_busy_percent:.0f} % of the time, and none of it is in the pipeline."
        ),
        remedy="A compiled step without Python in it.",
        find=host_op,
    ),
    Cause(
        name="communication",
        when="There is more than one replica.",
        remedy="Look at the network and at the step; not at the pipeline.",
        find=communication,
    ),
    Cause(
        name="small_batch",
        when=f"A batch takes less than {duration(LIMITS.short_step_seconds)}.",
        remedy="Larger batches; `steps_per_execution`.",
        find=small_batch,
    ),
    Cause(
        name="launch_bound",
        when="None of these.",
        remedy="Fewer, larger operations; `jit_compile=True`.",
        find=launch_bound,
    ),
)
