# SPDX-License-Identifier: Apache-2.0
"""The stages of an input pipeline as its Python objects tell them: no data is read, and nothing runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_gpu_watch.findings import AUTOTUNE, PipelineSummary, Stage
from keras_gpu_watch.pipeline.composites import StageObject, stage_object
from keras_gpu_watch.pipeline.function_graphs import FunctionTraits, read_traits
from keras_gpu_watch.pipeline.keras_adapters import adapted_object, adapter_kind
from keras_gpu_watch.pipeline.user_functions import function_name, function_source, is_internal, library_module

MAX_STAGES = 1_000
"""A dataset that is joined to itself has twice as many; doing that again and again must not keep us here."""
_BATCH_SIZES = ("_batch_size", "_batch_size_t", "_batch_sizes")
_PARALLEL_CALLS = ("_num_parallel_calls", "_num_parallel_calls_t", "_num_parallel_reads")
_BUFFERED = ("prefetch", "shuffle", "shuffle_and_repeat")
"""Stages whose buffer counts elements; a reader's counts bytes."""
_DETERMINISTIC = {"true": True, "false": False}


def read_stages(dataset: Any) -> PipelineSummary:
    """Read the stages of a pipeline from its dataset objects.

    Args:
        dataset: A `tf.data.Dataset`; a watched one is read as the user's own.

    Returns:
        The summary with what was written: the stages, sources first, and the private threadpool's size. Nothing is
        measured.
    """
    if not hasattr(dataset, "_variant_tensor"):
        return PipelineSummary(input_kind="unknown", reason=f"{type(dataset).__name__} does not show its stages")
    found, is_complete = walk_stages(dataset)
    kind = _input_kind([stage for stage, _ in found])
    stages = [_stage(index, stage, inputs) for index, (stage, inputs) in enumerate(found)]
    return PipelineSummary(
        input_kind=kind,
        stages=tuple(_marked(stages, kind)),
        private_threadpool_size=_private_threadpool_size(dataset),
        reason=None if is_complete else f"it has more than {MAX_STAGES} stages",
    )


def input_kind(dataset: Any) -> str:
    """Tell what `fit` was given, from the dataset that it reads.

    Args:
        dataset: A `tf.data.Dataset`.

    Returns:
        `"arrays"`, `"PyDataset"` or `"generator"` where Keras made the dataset from one, else `"tf.data"`.
    """
    found, _ = walk_stages(dataset)
    return _input_kind([stage for stage, _ in found])


def walk_stages(dataset: Any) -> tuple[list[tuple[StageObject, tuple[int, ...]]], bool]:
    """Find the stages in the order of `PipelineSummary.stages`: sources first.

    Args:
        dataset: A `tf.data.Dataset`.

    Returns:
        Each stage with the indices of its inputs, a dataset that is used twice as two of them; and whether these are
        all.
    """
    found: list[StageObject] = []
    readers: list[int | None] = []
    waiting: list[tuple[Any, int | None]] = [(dataset, None)]
    while waiting and len(found) < MAX_STAGES:
        current, reader = waiting.pop()
        stage = stage_object(current)
        waiting.extend((below, len(found)) for below in stage.inputs)
        found.append(stage)
        readers.append(reader)
    # Found from the end of the pipeline, the last input first: the other way round, inputs are in order.
    last = len(found) - 1
    inputs: list[list[int]] = [[] for _ in found]
    for position in range(last, 0, -1):
        reader = readers[position]
        if reader is not None:
            inputs[reader].append(last - position)
    stages = [(stage, tuple(below)) for stage, below in zip(reversed(found), reversed(inputs), strict=True)]
    return stages, not waiting


def _input_kind(stages: Sequence[StageObject]) -> str:
    kinds = (adapter_kind(stage.function) for stage in stages if stage.function is not None)
    return next((kind for kind in kinds if kind), "tf.data")


def _stage(index: int, found: StageObject, inputs: tuple[int, ...]) -> Stage:
    function, traits = found.function, function_traits(found)
    dataset = found.dataset
    calls = _num_parallel_calls(dataset)
    if found.op == "from_generator" and function is not None and adapter_kind(function):
        function = adapted_object(function)
        calls = _workers(function)
    return Stage(
        index=index,
        op=found.op,
        inputs=inputs,
        function=None if function is None else function_name(function),
        source=None if function is None else function_source(function),
        python=traits.python,
        is_stateful=traits.is_stateful,
        is_random=traits.is_random,
        batch_size=_number(dataset, *_BATCH_SIZES),
        buffer_size=_number(dataset, "_buffer_size") if found.op in _BUFFERED else None,
        num_parallel_calls=calls,
        cycle_length=_number(dataset, "_cycle_length"),
        deterministic=_DETERMINISTIC.get(str(getattr(dataset, "_deterministic", None))),
        added_by=_added_by(found),
    )


def function_traits(found: StageObject) -> FunctionTraits:
    """Tell what a stage's functions do; nothing is known of a stage without any.

    Args:
        found: The stage.
    """
    if found.op == "from_generator":
        is_py_dataset = found.function is not None and adapter_kind(found.function) == "PyDataset"
        return FunctionTraits(python="py_dataset" if is_py_dataset else "from_generator", is_stateful=True)
    graphs = [getattr(getattr(wrapper, "function", None), "graph", None) for wrapper in found.wrappers]
    return read_traits([graph for graph in graphs if graph is not None])


def _workers(adapted: Any) -> int | None:
    """Batches that a `PyDataset` makes at a time; `None`: one, or the object is none."""
    workers = getattr(adapted, "workers", None)
    return workers if isinstance(workers, int) and workers > 1 else None


def _num_parallel_calls(dataset: Any) -> int | None:
    if type(dataset).__name__ == "ParallelInterleaveDataset":  # The one of tf.data.experimental: a thread for each.
        return _number(dataset, "_cycle_length")
    return _number(dataset, *_PARALLEL_CALLS)


def _number(dataset: Any, *names: str) -> int | None:
    """A whole number that a dataset object holds under one of these names, if it is known before the pipeline runs."""
    for name in names:
        value = getattr(dataset, name, None)
        if tf.is_tensor(value):
            value = tf.get_static_value(value)
        if value is None:
            continue
        distinct = np.unique(np.asarray(value))
        if distinct.dtype.kind in "iu" and distinct.size == 1:
            return int(distinct[0])
    return None


def _private_threadpool_size(dataset: Any) -> int | None:
    if not tf.executing_eagerly() or not hasattr(dataset, "options"):
        return None
    size = dataset.options().threading.private_threadpool_size
    return None if size is None else int(size)


def _added_by(found: StageObject) -> Literal["user", "keras", "tensorflow"]:
    if not is_internal(found.function):
        return "user"
    module = library_module(found.function) or ""
    return "keras" if module.startswith("keras.") else "tensorflow"


def _marked(stages: list[Stage], kind: str) -> list[Stage]:
    """Mark as Keras's what it put around its own functions."""
    if kind != "tf.data":
        return [replace(stage, added_by="keras") for stage in stages]
    return [replace(stage, added_by="keras") if _follows_keras(stage, stages) else stage for stage in stages]


def _follows_keras(stage: Stage, stages: list[Stage]) -> bool:
    """Whether it is the prefetch that Keras puts behind a map of its own: `class_weight`, images from a directory."""
    if stage.op != "prefetch" or stage.buffer_size != AUTOTUNE or len(stage.inputs) != 1:
        return False
    return stages[stage.inputs[0]].added_by == "keras"
