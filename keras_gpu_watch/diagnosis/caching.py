# SPDX-License-Identifier: Apache-2.0
"""Caches: one that is never filled, and whether a stage's elements would fit into one."""

from __future__ import annotations

from keras_gpu_watch.diagnosis.context import Context
from keras_gpu_watch.diagnosis.forecast import speedup_with
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.findings import Stage, Suggestion
from keras_gpu_watch.stage_code import cached

_NEVER_THE_SAME = ("shuffle", "repeat", "sample_from_datasets", "rejection_resample", "random")
"""What comes behind these differs from epoch to epoch, or has no end."""


def free_bytes(context: Context) -> float | None:
    """Memory that this process may still use, at the epoch's fullest moment."""
    host, used_percent = context.devices.host, context.host.memory_max_percent
    if host is None or host.usable_memory_bytes is None or used_percent is None:
        return None
    return max(0.0, host.usable_memory_bytes * (1 - used_percent / 100))


def unfilled_cache(context: Context) -> Stage | None:
    """A cache below which the blamed stage, or any where none is, still gives elements after the first epoch."""
    if context.is_first:
        return None
    for cache in context.pipeline.stages:
        if cache.op != "cache":
            continue
        below = context.below(cache)
        blamed = context.blamed
        if blamed is not None and blamed not in below:
            continue
        # Under a `repeat` above it, one long pass may still be filling it.
        if any(each.op == "repeat" and cache in context.below(each) for each in context.pipeline.stages):
            continue
        if any(stage.elements for stage in below):
            return cache
    return None


def with_cache(context: Context, suggestions: tuple[Suggestion, ...]) -> tuple[Suggestion, ...]:
    """The same suggestions, and a cache behind the blamed stage where its elements fit into memory."""
    stage = context.blamed
    if stage is None or not _can_be_cached(context, stage):
        return suggestions
    size, free = _epoch_bytes(context, stage), free_bytes(context)
    if size is None or free is None or size > LIMITS.memory_share * free:
        return suggestions
    below = {each.index: 0.0 for each in (stage, *context.below(stage))}
    cache = Suggestion(
        what=f"keep what {stage.label} gives in memory, before random augmentation",
        why=f"an epoch's elements are {size / 2**20:.0f} MiB, and {free / 2**20:.0f} MiB are free; from the second "
        "epoch on nothing below the cache runs (if an epoch reads all of the data)",
        code=cached(stage),
        expected_speedup=speedup_with(context, below),
    )
    return (*suggestions, cache)


def _can_be_cached(context: Context, stage: Stage) -> bool:
    """Whether it gives the same elements in each epoch, and nothing holds them already."""
    parts = (stage, *context.below(stage))
    has_cache = any(each.op in ("cache", "snapshot") for each in context.pipeline.stages)
    is_users = all(each.added_by == "user" for each in parts)
    return is_users and not has_cache and all(_is_repeatable(each) for each in parts)


def _is_repeatable(stage: Stage) -> bool:
    """Whether it is known to give the same each time; nobody can see what Python code draws."""
    may_draw = stage.is_random or (stage.python is not None and stage.is_random is not False)
    return not may_draw and stage.op not in _NEVER_THE_SAME


def _epoch_bytes(context: Context, stage: Stage) -> float | None:
    if stage.elements_per_batch is None or stage.bytes_per_element is None:
        return None
    return stage.elements_per_batch * stage.bytes_per_element * context.epoch.batches
