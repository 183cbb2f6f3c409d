# SPDX-License-Identifier: Apache-2.0
"""Which knobs of a pipeline may be turned without any element, or their order, being another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf
from tensorflow.python.data.ops import debug_mode

from keras_gpu_watch.findings import AUTOTUNE, Stage
from keras_gpu_watch.knobs import END, FixedStage, Knob, Tunable
from keras_gpu_watch.pipeline.barriers import find_barriers
from keras_gpu_watch.pipeline.call_order import RANDOM, CallOrder
from keras_gpu_watch.pipeline.composites import StageObject
from keras_gpu_watch.pipeline.dataset_objects import MAX_STAGES, read_stages, walk_stages
from keras_gpu_watch.pipeline.element_size import batch_size_at, element_bytes
from keras_gpu_watch.pipeline.shape_key import shape_key

_CALLS: Literal["parallel_calls"] = "parallel_calls"
_BUFFER: Literal["buffer_size"] = "buffer_size"
_SEQUENTIAL = ("_MapDataset", "_BatchDataset", "_InterleaveDataset")
_PARALLEL = ("_ParallelMapDataset", "_ParallelBatchDataset", "_ParallelInterleaveDataset")
_GATHERING = ("_BatchDataset", "_InterleaveDataset")
_PREFETCH = "_PrefetchDataset"
_DEBUGGING = "tf.data's debug mode is on"
_TOO_MANY = f"the pipeline has more than {MAX_STAGES} stages"
_CYCLE_LENGTH = "without a `cycle_length` its order depends on the number of calls"
_SYNCHRONOUS = "`synchronous=True` asks for one call at a time"
_READERS = "the order of its records depends on the number of readers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What may be changed of a pipeline, and the objects that hold it."""

    tunable: Tunable
    objects: Mapping[int, Any]
    """By index of a stage, the dataset object that holds its settings."""


def read_tunable(dataset: Any, *, parallel_python: bool = False) -> Tunable:
    """Tell what may be changed of a pipeline.

    Args:
        dataset: A `tf.data.Dataset`.
        parallel_python: Whether the user says that several calls of his Python functions may run at a time.

    Returns:
        Its knobs, and the stages whose knob must stay as it is.
    """
    return survey(dataset, parallel_python=parallel_python).tunable


def survey(dataset: Any, *, parallel_python: bool = False) -> Survey:
    """Tell what may be changed of a pipeline, and where.

    Args:
        dataset: A `tf.data.Dataset`.
        parallel_python: As for `read_tunable`.
    """
    walked, is_complete = walk_stages(dataset)
    found = [stage for stage, _ in walked]
    summary = read_stages(dataset)
    stages = summary.stages
    trouble = _DEBUGGING if debug_mode.DEBUG_MODE else None if is_complete else _TOO_MANY
    order = CallOrder(stages, found, parallel_python=parallel_python)
    if trouble is None:
        reasons = _reasons(dataset, stages, found, order)
    else:
        reasons = [trouble if _has_knob(stage, found[stage.index]) else None for stage in stages]
    turnable = [stage.index for stage in stages if _kind(found[stage.index].dataset)]
    knobs = [_knob(index, stages, found) for index in turnable if reasons[index] is None]
    if trouble is None and _may_fetch_ahead(dataset, found[-1], order):
        knobs.append(_end_knob(dataset, stages))
    fixed = [
        FixedStage(index=stage.index, label=stage.label, reason=reason)
        for stage, reason in zip(stages, reasons, strict=True)
        if reason
    ]
    return Survey(
        tunable=Tunable(
            shape=shape_key(stages, found),
            knobs=tuple(knobs),
            private_threadpool_size=summary.private_threadpool_size,
            threadpool_is_tunable=trouble is None,
            fixed=tuple(fixed),
        ),
        objects={index: each.dataset for index, each in enumerate(found)},
    )


def _kind(dataset: Any) -> Literal["parallel_calls", "buffer_size"] | None:
    name = type(dataset).__name__
    return _CALLS if name in _SEQUENTIAL + _PARALLEL else _BUFFER if name == _PREFETCH else None


def _reasons(dataset: Any, stages: Sequence[Stage], found: Sequence[StageObject], order: CallOrder) -> list[str | None]:
    """By stage, why its knob must not be turned; `None`: it may be, or there is none."""
    barriers, cuts = find_barriers(dataset), order.cut_reasons()
    reasons = [
        (_own_reason(stage, each, order) or barriers.get(id(each.dataset)) or cuts[stage.index])
        if _has_knob(stage, each)
        else None
        for stage, each in zip(stages, found, strict=True)
    ]
    return _merged(reasons, found)


def _has_knob(stage: Stage, found: StageObject) -> bool:
    return _kind(found.dataset) is not None or _is_parallel_reader(stage)


def _is_parallel_reader(stage: Stage) -> bool:
    return stage.num_parallel_calls is not None and stage.op != "from_generator"


def _own_reason(stage: Stage, found: StageObject, order: CallOrder) -> str | None:
    if _kind(found.dataset) is None:
        return _READERS
    if stage.is_random:
        return RANDOM
    if hasattr(found.dataset, "_cycle_length") and (stage.cycle_length or AUTOTUNE) == AUTOTUNE:
        return _CYCLE_LENGTH
    if getattr(found.dataset, "_force_synchronous", False):
        return _SYNCHRONOUS
    if type(found.dataset).__name__ in _PARALLEL or (stage.buffer_size or 0) != 0:
        return None
    is_gathering = type(found.dataset).__name__ in _GATHERING
    error_reason = order.error_reason(stage.index) if is_gathering else None
    return order.own_reason(stage.index) or order.ahead_reason(stage.index) or error_reason


def _merged(reasons: list[str | None], found: Sequence[StageObject]) -> list[str | None]:
    """A dataset that is used twice is two stages and one knob: the first one's, if it may be turned at both places."""
    merged, first = list(reasons), dict[int, int]()
    for index, each in enumerate(found):
        if _kind(each.dataset) is None:
            continue
        earlier = first.setdefault(id(each.dataset), index)
        if earlier != index:
            merged[earlier] = merged[earlier] or reasons[index]
            merged[index] = merged[earlier] or "it is the same dataset as another stage, and its knob is there"
    return merged


def _knob(index: int, stages: Sequence[Stage], found: Sequence[StageObject]) -> Knob:
    stage, dataset = stages[index], found[index].dataset
    kind = _kind(dataset) or _CALLS
    return Knob(
        index=index,
        label=stage.label,
        kind=kind,
        written=stage.num_parallel_calls if kind == _CALLS else stage.buffer_size,
        limit=stage.cycle_length,
        element_bytes=element_bytes(dataset.element_spec, batch_size_at(stages, index)),
        python=stage.python,
    )


def _end_knob(dataset: Any, stages: Sequence[Stage]) -> Knob:
    size = element_bytes(dataset.element_spec, batch_size_at(stages, stages[-1].index))
    return Knob(index=END, label="prefetch", kind=_BUFFER, element_bytes=size)


def _may_fetch_ahead(dataset: tf.data.Dataset, last: StageObject, order: CallOrder) -> bool:
    """Whether a prefetch may be put behind the last stage: its calls may share a state with the training."""
    name = type(last.dataset).__name__
    if name == _PREFETCH:
        return False
    return name in _PARALLEL or _is_fetched_ahead(dataset.options()) or not order.has_state


def _is_fetched_ahead(options: tf.data.Options) -> bool:
    """Whether TensorFlow fetches ahead of the training by itself."""
    switches = options.experimental_optimization
    by_default = switches.apply_default_optimizations is not False
    is_on = by_default if switches.inject_prefetch is None else switches.inject_prefetch
    return options.autotune.enabled is not False and bool(is_on)
