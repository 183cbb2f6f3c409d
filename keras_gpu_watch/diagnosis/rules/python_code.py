# SPDX-License-Identifier: Apache-2.0
"""Causes of input wait that lie in Python code: the interpreter lock, and generators that work one at a time."""

from __future__ import annotations

from keras_gpu_watch.diagnosis.context import Context
from keras_gpu_watch.diagnosis.forecast import calls_needed, speedup_with, whole
from keras_gpu_watch.diagnosis.rule import Cause, Found
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.diagnosis.wording import percent
from keras_gpu_watch.findings import Stage, Suggestion

_MAX_PRODUCERS = 64
_HELD = LIMITS.interpreter_busy_percent / 100


def lock_is_held(context: Context) -> bool | None:
    """Whether Python code in the pipeline holds the interpreter lock most of the time; `None`: not measured."""
    share = context.lock_share
    return None if share is None else share >= _HELD


def python_lock(context: Context) -> Found | None:
    """Python code is to blame, and holds the lock."""
    if not _is_python(context) or not lock_is_held(context):
        return None
    return Found(
        clause="the stage's Python code holds the interpreter lock, so more calls or threads don't help",
        suggestions=without_the_lock(context, context.blamed),
        evidence={"interpreter_held_share": context.lock_share or 0.0},
    )


def single_producer(context: Context) -> Found | None:
    """A Python generator is to blame, and mostly waits."""
    if not _is_producer(context) or _workers(context) > 1 or lock_is_held(context) is not False:
        return None
    suggestion = more_workers(context) if is_keras_input(context) else _several_generators(context)
    return Found(
        clause="one Python generator makes the batches one after the other; a larger prefetch can't help",
        suggestions=(suggestion,),
        evidence={"interpreter_held_share": context.lock_share or 0.0},
    )


def few_workers(context: Context) -> Found | None:
    """A `PyDataset`'s workers are to blame, and mostly wait."""
    workers = _workers(context)
    if not _is_producer(context) or workers <= 1 or lock_is_held(context) is not False:
        return None
    return Found(
        clause=f"its {workers} workers wait for something else than the interpreter",
        suggestions=(more_workers(context),),
        evidence={"interpreter_held_share": context.lock_share or 0.0, "workers": float(workers)},
    )


def without_the_lock(context: Context, stage: Stage | None) -> tuple[Suggestion, ...]:
    """What makes batches without the interpreter lock.

    Args:
        context: The epoch.
        stage: The stage whose Python code holds it; `None`: the source.
    """
    return (_processes(context),) if is_keras_input(context) else (_tensorflow_ops(stage), _offline())


def is_keras_input(context: Context) -> bool:
    """Whether Keras itself asks a Python object for the batches."""
    return context.pipeline.input_kind in ("PyDataset", "generator")


def more_workers(context: Context) -> Suggestion:
    """Threads that make several batches at a time."""
    count = _producers(context)
    return Suggestion(
        what=f"make the batches in {count} threads",
        why="work that waits can run side by side (for work that computes, add use_multiprocessing=True)",
        code=f"data = YourPyDataset(workers={count})  # a keras.utils.PyDataset",
        expected_speedup=_gain(context, count),
    )


def _is_python(context: Context) -> bool:
    stage = context.blamed
    return bool(stage and stage.python) or (stage is None and is_keras_input(context))


def _is_producer(context: Context) -> bool:
    stage = context.blamed
    if stage is None:
        return is_keras_input(context)
    return stage.op == "from_generator" or bool(stage.python and not stage.inputs)


def _workers(context: Context) -> int:
    """Batches that the source to blame makes at a time."""
    stage = context.blamed
    return max(1, stage.num_parallel_calls or 1) if stage else 1


def _producers(context: Context) -> int:
    stage = context.blamed or Stage(index=0, op="from_generator")
    return whole((calls_needed(context, stage) or 2) * _workers(context), 2, _MAX_PRODUCERS)


def _gain(context: Context, producers: int) -> float | None:
    stage = context.blamed
    if stage is None or stage.busy_seconds_per_batch is None:
        return None
    return speedup_with(context, {stage.index: stage.busy_seconds_per_batch / producers})


def _tensorflow_ops(stage: Stage | None) -> Suggestion:
    label = stage.label if stage else "the source"
    return Suggestion(
        what=f"write {label} with TensorFlow's own operations",
        why="they run without the interpreter lock, on all cores",
    )


def _offline() -> Suggestion:
    return Suggestion(
        what="or do this work once, before training",
        why="then each epoch only reads its result",
        code="ds.save(path)  # once\nds = tf.data.Dataset.load(path)",
    )


def _processes(context: Context) -> Suggestion:
    count = _producers(context)
    if context.usable_cores is not None:
        count = whole(min(count, context.usable_cores), 2, _MAX_PRODUCERS)
    return Suggestion(
        what=f"make the batches in {count} processes",
        why="each process has an interpreter lock of its own; threads share one",
        code=f"data = YourPyDataset(workers={count}, use_multiprocessing=True)  # a keras.utils.PyDataset",
    )


def _several_generators(context: Context) -> Suggestion:
    count = _producers(context)
    return Suggestion(
        what=f"read from {count} generators side by side, each with a part of the data",
        why="one generator is asked for one element at a time; the order of the elements will be another one",
        code=(
            "def read_part(part):\n"
            "    return tf.data.Dataset.from_generator(generate, args=(part,), output_signature=ds.element_spec)\n\n"
            f"parts = tf.data.Dataset.range({count})\n"
            f"ds = parts.interleave(read_part, cycle_length={count}, num_parallel_calls={count})"
        ),
        expected_speedup=_gain(context, count),
    )


CAUSES = (
    Cause(
        name="python_lock",
        when=(
            "The stage to blame runs Python code, and Python code other than the training's own holds the "
            f"interpreter lock at least {percent(_HELD)} of the time."
        ),
        remedy="TensorFlow operations; several processes; doing it once before training. More calls don't help.",
        find=python_lock,
    ),
    Cause(
        name="single_producer",
        when=f"A Python generator is to blame, and the interpreter lock is held less than {percent(_HELD)} of the "
        "time.",
        remedy="Several generators through `interleave`; a `PyDataset` with workers. A larger prefetch does not help.",
        find=single_producer,
    ),
    Cause(
        name="few_workers",
        when="The same of a `PyDataset` with several workers.",
        remedy="More workers.",
        find=few_workers,
    ),
)
