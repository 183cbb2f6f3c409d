# SPDX-License-Identifier: Apache-2.0
"""Causes of input wait that lie in how data is held: prefetch, caches, the size of elements."""

from __future__ import annotations

from keras_gpu_watch.diagnosis.caching import free_bytes, unfilled_cache
from keras_gpu_watch.diagnosis.context import Context
from keras_gpu_watch.diagnosis.forecast import at_most, speedup_to, speedup_with, whole
from keras_gpu_watch.diagnosis.rule import Cause, Found
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.diagnosis.wording import duration, percent
from keras_gpu_watch.findings import AUTOTUNE, Stage, Suggestion
from keras_gpu_watch.stage_code import with_parallel_calls

_COPYING = ("batch", "padded_batch", "ragged_batch", "unbatch", "rebatch", "cache", "from_tensor_slices", "prefetch")
"""Stages that compute nothing: their work is to move bytes."""
_MIB = 2**20


def is_bursty(context: Context) -> bool:
    """Whether the pipeline is fast enough in the mean, and only some steps wait."""
    times, typical = context.times, context.epoch.input_wait_p50_seconds
    if times is None or typical is None or context.epoch.input_wait_max_seconds is None or not times.wait_seconds:
        return False
    # A pipeline that is fast enough needs no longer for a batch than the rest of the step takes. Even if nothing were
    # fetched ahead, half of the time at most would be waiting.
    if times.wait_seconds >= times.rest_seconds:
        return False
    batches_per_step = context.epoch.batches / max(1, context.epoch.steps)
    if typical >= LIMITS.even_wait_share * times.wait_seconds * batches_per_step:
        return False
    if context.is_measured:
        return not _opens_datasets(context.blamed) and not context.is_wait_explained
    # Workers that give several batches at once look like bursts, however slow they are in the mean.
    if context.pipeline.input_kind in ("PyDataset", "generator"):
        return False
    return typical < LIMITS.moderately_input_share * times.period_seconds * batches_per_step


def shallow_prefetch(context: Context) -> Found | None:
    """Bursts that a deeper buffer evens out."""
    times, longest = context.times, context.epoch.input_wait_max_seconds
    if times is None or longest is None or not is_bursty(context):
        return None
    present, missing = _prefetched(context), longest / times.rest_seconds
    depth = whole(present + missing, 2, _most_elements(context))
    after = times.rest_seconds + (context.explained_wait_seconds if context.is_measured else 0.0)
    suggestion = Suggestion(
        what=f"let the last prefetch hold {depth} batches",
        why=f"the longest wait of {duration(longest)} is as long as {missing:.0f} steps",
        code=f"ds = ds.prefetch({depth})",
        expected_speedup=at_most(context, times.period_seconds / after),
    )
    return Found(
        clause="the pipeline is fast enough in the mean, but now and then a batch takes long (up to "
        f"{duration(longest)})",
        suggestions=(suggestion,),
        evidence={"prefetched_batches": present},
    )


def cache_not_filled(context: Context) -> Found | None:
    """A cache that the pipeline reads past."""
    cache = unfilled_cache(context)
    if cache is None:
        return None
    below = {stage.index: 0.0 for stage in context.below(cache)}
    gain = speedup_with(context, below)
    return Found(
        clause="the pipeline's cache is not filled, so what stands before it runs again in each epoch",
        evidence={"elements_below_cache": max(stage.elements or 0.0 for stage in context.below(cache))},
        suggestions=(
            Suggestion(
                what="let one epoch read all of the data, so that the cache is completed",
                why="a cache counts only after the first full pass; an epoch that stops earlier throws it away",
                code="ds = ds.cache().repeat()  # and steps_per_epoch of at least one full pass",
                expected_speedup=gain,
            ),
            Suggestion(
                what="if only a part of the data is wanted, take it before the cache",
                why="then that part is all of it",
                code="ds = ds.take(count).cache()",
                expected_speedup=gain,
            ),
        ),
    )


def no_prefetch(context: Context) -> Found | None:
    """Batches are made on the training's own thread, and would have been ready beside the step."""
    times, serial = context.times, context.pipeline.serial_seconds_per_batch
    if times is None or not serial or serial < LIMITS.explained_share * times.wait_seconds:
        return None
    ahead = max(serial, context.pipeline.slowest_seconds_per_batch or 0.0)
    saved = times.period_seconds - max(times.rest_seconds, ahead)
    if saved < LIMITS.explained_share * times.wait_seconds:
        return None
    suggestion = Suggestion(
        what="end the pipeline with a prefetch",
        why=f"{duration(serial)} of work for each batch would then be done during the step",
        code="ds = ds.prefetch(tf.data.AUTOTUNE)",
        expected_speedup=speedup_to(context, ahead),
    )
    return Found(
        clause="nothing is fetched ahead",
        suggestions=(suggestion,),
        evidence={"serial_seconds_per_batch": serial},
    )


def large_elements(context: Context) -> Found | None:
    """A stage that only moves bytes, and many of them."""
    stage = context.blamed
    if stage is None or stage.op not in _COPYING or not stage.bytes_per_element:
        return None
    rate = _copied_bytes_per_second(stage)
    is_fast = rate is not None and rate >= LIMITS.copied_bytes_per_second
    if not is_fast and stage.bytes_per_element < LIMITS.large_element_bytes:
        return None
    evidence = {"bytes_per_element": stage.bytes_per_element}
    if rate is not None:
        evidence["copied_bytes_per_second"] = rate
    smaller = Suggestion(
        what="make the elements smaller: uint8 instead of float32, smaller images",
        why=f"{stage.label} moves elements of {stage.bytes_per_element / _MIB:.1f} MiB; cast them on the device",
        code="x = keras.layers.Rescaling(1 / 255)(inputs)  # in the model, on batches of uint8",
    )
    return Found(
        clause="the stage does little but copy large elements",
        evidence=evidence,
        suggestions=(smaller, *_parallel_copies(context, stage)),
    )


def _opens_datasets(stage: Stage | None) -> bool:
    """Whether a stage's counted work may lack that of the datasets which it opens; they wait in bursts by nature."""
    return stage is not None and stage.op in ("interleave", "flat_map")


def _copied_bytes_per_second(stage: Stage) -> float | None:
    if not stage.busy_seconds_per_batch or stage.elements_per_batch is None or stage.bytes_per_element is None:
        return None
    return stage.bytes_per_element * stage.elements_per_batch / stage.busy_seconds_per_batch


def _parallel_copies(context: Context, stage: Stage) -> tuple[Suggestion, ...]:
    code = with_parallel_calls(stage, AUTOTUNE)
    cores, busy = context.usable_cores, stage.busy_seconds_per_batch
    if code is None or stage.num_parallel_calls is not None or cores is None or cores < 2 or busy is None:
        return ()
    return (
        Suggestion(
            what="copy several batches at a time",
            why="one thread copies as fast as one core can",
            code=code,
            expected_speedup=speedup_with(context, {stage.index: busy / cores}),
        ),
    )


def _prefetched(context: Context) -> float:
    """Elements that the last prefetch may hold now."""
    for stage in reversed(context.pipeline.stages):
        if stage.op == "prefetch":
            return float(stage.buffer_limit or max(0, stage.buffer_size or 0))
    return 0.0


def _most_elements(context: Context) -> int:
    """Batches that a buffer may hold, by memory where that is known."""
    free = free_bytes(context)
    size = max((stage.bytes_per_element or 0.0 for stage in context.pipeline.stages), default=0.0)
    if free is None or not size:
        return LIMITS.max_prefetch
    return whole(LIMITS.memory_share * free / size, 2, LIMITS.max_prefetch)


CAUSES = (
    Cause(
        name="shallow_prefetch",
        when=(
            "The kind is `bursty_input`: less than half of the time is waiting, the median wait is less than "
            f"{percent(LIMITS.even_wait_share)} of the mean one, and the stages' mean times explain less than "
            f"{percent(LIMITS.explained_share)} of the wait. Without measured stages, the median step must not wait. "
            "Not where the stage to blame opens datasets (`interleave`, `flat_map`), whose work may go uncounted."
        ),
        remedy="A deeper prefetch: as many more batches as steps fit into the longest wait.",
        find=shallow_prefetch,
    ),
    Cause(
        name="cache_not_filled",
        when="After the first epoch, stages before a `cache` still give elements, and one of them is to blame.",
        remedy="One epoch that reads all of the data; or `take` before the cache.",
        find=cache_not_filled,
    ),
    Cause(
        name="no_prefetch",
        when=(
            "Work on the training's own thread, with nothing fetched ahead, is at least "
            f"{percent(LIMITS.explained_share)} of the wait, and would fit beside the step for as much."
        ),
        remedy="`.prefetch(tf.data.AUTOTUNE)` at the end.",
        find=no_prefetch,
    ),
    Cause(
        name="large_elements",
        when=(
            f"A stage that only copies is to blame, and copies {LIMITS.copied_bytes_per_second / 1e9:.0f} GB a "
            f"second and core, or elements of {LIMITS.large_element_bytes / _MIB:.0f} MiB."
        ),
        remedy="uint8 instead of float32, smaller images, casting on the device.",
        find=large_elements,
    ),
)
