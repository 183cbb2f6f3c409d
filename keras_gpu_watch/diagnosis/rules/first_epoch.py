# SPDX-License-Identifier: Apache-2.0
"""What belongs to a fit's first epoch, and must not be taken for a habit: compiling, and cold caches."""

from __future__ import annotations

from keras_gpu_watch.diagnosis.context import Context, ratio
from keras_gpu_watch.diagnosis.rule import Cause, Found, Rule
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.diagnosis.wording import duration, percent, times
from keras_gpu_watch.findings import Kind, Severity, Suggestion, Verdict
from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.stage_code import with_drop_remainder


def judge_compile(context: Context) -> Verdict | None:
    """Tracing and compiling by its share."""
    epoch = context.epoch
    share = context.share_of_wall(epoch.compile_seconds)
    if not context.has_seconds or share < LIMITS.compile_share:
        return None
    severity: Severity = "warning" if _is_a_storm(context) else "info"
    return Verdict(
        kind="compile_bound",
        severity=severity,
        headline=f"Compiling takes {duration(epoch.compile_seconds)} of {duration(epoch.wall_seconds)}, in "
        f"{epoch.compile_steps} steps",
        evidence={
            "compile_seconds": epoch.compile_seconds,
            "compile_share": share,
            "compile_steps": float(epoch.compile_steps),
        },
        lost_share=share,
    )


def changing_shapes(context: Context) -> Found | None:
    """More compilations than a training of one shape needs."""
    if not _is_a_storm(context):
        return None
    gain = context.speedup_without(context.epoch.compile_seconds)
    return Found(
        clause="each new shape of a batch is compiled anew",
        suggestions=(
            Suggestion(
                what="give all batches the same size",
                why="a short last batch is another shape",
                code=with_drop_remainder(context.pipeline),
                expected_speedup=gain,
            ),
            Suggestion(
                what="pad sequences and images to one of a few lengths",
                why="each length is compiled once",
                code="ds = ds.bucket_by_sequence_length(length, boundaries, batch_sizes, pad_to_bucket_boundary=True)",
                expected_speedup=gain,
            ),
        ),
    )


def once(context: Context) -> Found:
    """As many compilations as any training needs."""
    return Found(clause="that is done once" if context.is_first else "")


def _is_a_storm(context: Context) -> bool:
    return context.epoch.compile_steps > LIMITS.usual_compile_steps


def judge_cold(context: Context) -> Verdict | None:
    """The first epoch waited, the later ones don't."""
    if not context.earlier or any(stage.op == "cache" for stage in context.pipeline.stages):
        return None
    first, later = context.earlier[0], context.epoch
    share, share_now = first.input_wait_share, later.input_wait_share
    if share is None or share_now is None or share < LIMITS.moderately_input_share or share < 2 * share_now:
        return None
    seconds, seconds_now = _seconds_per_batch(first), _seconds_per_batch(later)
    if seconds is None or seconds_now is None or seconds < LIMITS.cold_epoch_ratio * seconds_now:
        return None
    kind: Kind = "input_bound" if share >= LIMITS.highly_input_share else "moderately_input_bound"
    lost = (seconds - seconds_now) * first.batches
    return Verdict(
        kind=kind,
        severity="info",
        headline=f"Only the first epoch waited for its input, {times(seconds / seconds_now)} as long a batch as "
        "later ones",
        evidence={
            "first_epoch_input_wait_share": share,
            "later_input_wait_share": share_now,
            "first_epoch_seconds_per_batch": seconds,
            "later_seconds_per_batch": seconds_now,
        },
        lost_share=ratio(lost, first.wall_seconds + later.wall_seconds),
    )


def cold_cache(context: Context) -> Found:
    """The operating system's cache held nothing yet."""
    del context
    return Found(
        clause="the files were not yet in the machine's memory, so the later epochs are what counts",
        suggestions=(
            Suggestion(
                what="tune and compare on the second epoch or a later one",
                why="the first one measures the disk or the network",
            ),
        ),
    )


def _seconds_per_batch(epoch: EpochSummary) -> float | None:
    """Time a batch without the first one and what was compiled."""
    return ratio_or_none(epoch.step_seconds + epoch.host_seconds, epoch.batches)


def ratio_or_none(part: float, whole: float) -> float | None:
    """A quotient; `None` for nothing by nothing."""
    return part / whole if part > 0 and whole > 0 else None


COMPILE = Rule(
    kinds=("compile_bound",),
    when=(
        f"Steps that traced or compiled are at least {percent(LIMITS.compile_share)} of an epoch of "
        f"{LIMITS.min_wall_seconds:.0f} s or more. A note only, unless shapes change."
    ),
    judge=judge_compile,
    causes=(
        Cause(
            name="changing_shapes",
            when=f"More than {LIMITS.usual_compile_steps} steps of an epoch compiled.",
            remedy="`drop_remainder=True`; padding to a few lengths.",
            find=changing_shapes,
        ),
        Cause(name=None, when="No more than that.", remedy="None: it is done once.", find=once),
    ),
)
COLD_CACHE = Rule(
    kinds=("input_bound", "moderately_input_bound"),
    when=(
        "Of the first epoch, a note: a pipeline without a cache waited in it for at least "
        f"{percent(LIMITS.moderately_input_share)} of the steps' time and twice the later share, and its batches took "
        f"{LIMITS.cold_epoch_ratio:.0f} times as long, compiling and first batch left out."
    ),
    judge=judge_cold,
    causes=(
        Cause(
            name="cold_cache",
            when="In each case.",
            remedy="None: compare later epochs. A faster disk, if it matters.",
            find=cold_cache,
        ),
    ),
)
