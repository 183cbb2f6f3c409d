# SPDX-License-Identifier: Apache-2.0
"""Parts of an epoch besides its steps: the first batch, and validation. They rest on seconds, not on steps."""

from __future__ import annotations

from keras_gpu_watch.diagnosis.context import Context, busy_seconds, stage_seconds
from keras_gpu_watch.diagnosis.forecast import whole
from keras_gpu_watch.diagnosis.rule import Cause, Found, Rule
from keras_gpu_watch.diagnosis.rules.host import begin_seconds
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.diagnosis.wording import duration, percent
from keras_gpu_watch.findings import Severity, Stage, Suggestion, Verdict

_MAX_VALIDATION_FREQ = 50


def start_seconds(context: Context) -> float:
    """Time before the first batch, or before the first batches of all epochs that are judged as one."""
    return _seconds_each_time(context) * max(1, len(context.parts))


def judge_start(context: Context) -> Verdict | None:
    """The first batch comes late in each epoch."""
    seconds = start_seconds(context)
    share = context.share_of_wall(seconds)
    if not context.has_seconds or share < LIMITS.epoch_start_share:
        return None
    # What a fit does once is no habit. Filling a large buffer is one, where its own work explains the time.
    if context.is_first and not _fill_explains(context):
        return None
    severity: Severity = "critical" if share >= LIMITS.high_epoch_start_share else "warning"
    return Verdict(
        kind="epoch_start_bound",
        severity=severity,
        headline=f"Slow epoch start: {duration(seconds)} of {duration(context.epoch.wall_seconds)} pass before an "
        "epoch's first batch",
        evidence={"first_batch_seconds": seconds, "first_batch_share": share},
        lost_share=share,
    )


def shuffle_refill(context: Context) -> Found | None:
    """A shuffle buffer is filled before the first batch can come."""
    stage = _largest_shuffle(context)
    if stage is None or _fill_explains(context) is False:
        return None
    gain = context.speedup_without(start_seconds(context))
    size = stage.buffer_size or 0
    return Found(
        clause=f"{stage.label} fills its buffer of {size} elements each time",
        stage=stage,
        evidence={"shuffle_buffer_elements": float(size)},
        suggestions=(
            Suggestion(
                what="shuffle before the costly stages: file names, indices or encoded images instead of decoded ones",
                why="such elements fill the same buffer in no time",
                code=f"ds = ds.shuffle({size})  # first, then map and batch",
                expected_speedup=gain,
            ),
            Suggestion(
                what="repeat after the shuffle, so that it is filled again while the epoch before still trains",
                why="with `steps_per_epoch` one iterator lives as long as the fit",
                code=f"ds = ds.shuffle({size}).repeat()  # and fit(ds, steps_per_epoch=...)",
                expected_speedup=gain,
            ),
            Suggestion(
                what="or take a smaller buffer",
                why="it starts sooner, and shuffles less well",
                code=f"ds = ds.shuffle({max(1, size // 10)})",
                expected_speedup=gain,
            ),
        ),
    )


def iterator_start(context: Context) -> Found:
    """Nothing in the pipeline has to be filled."""
    return Found(
        clause="the pipeline is started anew each time",
        suggestions=(
            Suggestion(
                what="keep one iterator for the whole fit",
                why="then files are listed and opened, and threads are started, only once",
                code="ds = ds.repeat()  # and fit(ds, steps_per_epoch=...)",
                expected_speedup=context.speedup_without(start_seconds(context)),
            ),
        ),
    )


def judge_validation(context: Context) -> Verdict | None:
    """Validation is a large part of the epoch."""
    seconds = context.epoch.validation_seconds
    if seconds is None or not context.has_seconds:
        return None
    share = context.share_of_wall(seconds)
    if share < LIMITS.validation_share:
        return None
    severity: Severity = "critical" if share >= LIMITS.high_validation_share else "warning"
    return Verdict(
        kind="validation_bound",
        severity=severity,
        headline=f"Validation takes {duration(seconds)} of {duration(context.epoch.wall_seconds)} an epoch",
        evidence={"validation_seconds": seconds, "validation_share": share},
        lost_share=share,
    )


def validation_callback(context: Context) -> Found | None:
    """Most of the validation is some callback's."""
    seconds = context.epoch.validation_seconds or 0.0
    slowest = max(context.epoch.callbacks, key=lambda each: each.validation_seconds, default=None)
    if slowest is None or slowest.validation_seconds < LIMITS.explained_share * seconds:
        return None
    return Found(
        name=f"callback:{slowest.name}",
        clause=f"{duration(slowest.validation_seconds)} of it are {slowest.name}'s",
        evidence={"callback_seconds": slowest.validation_seconds},
        suggestions=(
            Suggestion(
                what=f"let {slowest.name} do less in validation",
                why="its hooks run on the training's own thread",
                expected_speedup=context.speedup_without(slowest.validation_seconds),
            ),
        ),
    )


def validation_itself(context: Context) -> Found:
    """Evaluating takes the time."""
    seconds = context.epoch.validation_seconds or 0.0
    rest = max(0.0, context.epoch.wall_seconds - seconds)
    target = LIMITS.target_validation_share
    freq = whole(seconds * (1 - target) / (target * rest) if rest else 2, 2, _MAX_VALIDATION_FREQ)
    return Found(
        suggestions=(
            Suggestion(
                what=f"validate every {freq} epochs",
                why=f"it would then take about {percent(target)} of the time",
                code=f"model.fit(ds, validation_data=validation_ds, validation_freq={freq})",
                expected_speedup=context.speedup_without(seconds * (1 - 1 / freq)),
            ),
            Suggestion(
                what="use larger batches in validation, and feed it as well as training",
                why="without gradients there is memory for them; its own input is not measured here",
                code="validation_ds = validation_ds.rebatch(larger_batch).cache().prefetch(tf.data.AUTOTUNE)",
                expected_speedup=context.speedup_without(seconds),
            ),
            Suggestion(
                what="or validate on a part of the data",
                why="its time goes with the number of batches",
                code="model.fit(ds, validation_data=validation_ds, validation_steps=steps)",
                expected_speedup=context.speedup_without(seconds),
            ),
        ),
    )


def _seconds_each_time(context: Context) -> float:
    """Time until the first batch, as far as each epoch so far took it, without what callbacks certainly took of it.

    A pause that came once, as of a garbage collection, is no habit.
    """
    epochs = [each for each in (*context.earlier, *(context.parts or (context.epoch,))) if each.steps]
    return max(0.0, min((each.first_batch_seconds - begin_seconds(each) for each in epochs), default=0.0))


def _largest_shuffle(context: Context) -> Stage | None:
    shuffles = [
        stage
        for stage in context.pipeline.stages
        if stage.op in ("shuffle", "shuffle_and_repeat") and _buffered_batches(context, stage) > 1
    ]
    return max(shuffles, key=lambda stage: _buffered_batches(context, stage), default=None)


def _buffered_batches(context: Context, stage: Stage) -> float:
    """Training batches that a shuffle's full buffer holds; counted in elements where their share is not known."""
    elements = stage.elements_per_batch
    if elements is None:
        elements = max((each.batch_size or 1 for each in context.pipeline.stages), default=1)
        elements = 1 if any(each.op == "batch" for each in context.below(stage)) else elements
    return (stage.buffer_size or 0) / max(elements, 1.0)


def _fill_explains(context: Context) -> bool | None:
    """Whether filling a shuffle buffer takes as long; `None`: there is none, or the work before it is not known."""
    stage = _largest_shuffle(context)
    below = () if stage is None else context.below(stage)
    if stage is None or not busy_seconds(below):
        return None
    per_batch = sum(stage_seconds(each) or 0.0 for each in below)
    return per_batch * _buffered_batches(context, stage) >= LIMITS.explained_share * _seconds_each_time(context)


EPOCH_START = Rule(
    kinds=("epoch_start_bound",),
    when=(
        f"At least {percent(LIMITS.epoch_start_share)} of an epoch of {LIMITS.min_wall_seconds:.0f} s or more pass "
        "before its first batch, in each epoch so far, callbacks left out. Not of a fit's first epoch, unless "
        f"filling a shuffle buffer explains at least {percent(LIMITS.explained_share)} of it."
    ),
    judge=judge_start,
    causes=(
        Cause(
            name="shuffle_refill",
            when="A `shuffle` has a buffer of more than a batch, and filling it may take as long.",
            remedy="Shuffle before the costly stages; `repeat` after the shuffle; a smaller buffer.",
            find=shuffle_refill,
        ),
        Cause(
            name="iterator_start",
            when="There is none, or filling it does not take as long.",
            remedy="One iterator for the whole fit: `repeat` and `steps_per_epoch`.",
            find=iterator_start,
        ),
    ),
)
VALIDATION = Rule(
    kinds=("validation_bound",),
    when=(
        f"Validation is at least {percent(LIMITS.validation_share)} of an epoch of {LIMITS.min_wall_seconds:.0f} s "
        "or more."
    ),
    judge=judge_validation,
    causes=(
        Cause(
            name="callback:<name>",
            when=f"A callback's test hooks are at least {percent(LIMITS.explained_share)} of it.",
            remedy="Less work in that callback.",
            find=validation_callback,
        ),
        Cause(
            name=None,
            when="No callback is.",
            remedy="`validation_freq`, larger batches, fewer `validation_steps`.",
            find=validation_itself,
        ),
    ),
)
