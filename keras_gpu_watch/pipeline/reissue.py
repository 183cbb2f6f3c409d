# SPDX-License-Identifier: Apache-2.0
"""Issues the op of a dataset once more: on another input or with another setting, everything else as it was.

Functions are those that were traced for the user's dataset, with what they captured. The attributes are TensorFlow's
private ones; where a version lacks one, that raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_gpu_watch.findings import AUTOTUNE
from keras_gpu_watch.pipeline.hidden_settings import read_hidden_settings

Issue = Callable[[Any, Sequence[tf.Tensor], int | None], tf.Tensor]
"""Takes the dataset object, the variants of its inputs, and the new setting of its knob, if any; gives a variant."""
_IN_ORDER = "true"
"""One call at a time kept the order, whatever the user's options say of parallel ones."""


def can_reissue(dataset: Any) -> bool:
    """Tell whether the op of a dataset object can be issued again.

    Args:
        dataset: A dataset object.
    """
    return type(dataset).__name__ in _ISSUES


def reissue(dataset: Any, inputs: Sequence[tf.Tensor], setting: int | None) -> tf.Tensor:
    """Issue the op of a dataset object again.

    Args:
        dataset: A dataset object that `can_reissue`.
        inputs: Variants of what it shall read from.
        setting: The new value of its knob, calls or elements; `None`: as it was.

    Returns:
        The variant of the new dataset.
    """
    return _ISSUES[type(dataset).__name__](dataset, inputs, setting)


def add_prefetch(dataset: Any, variant: tf.Tensor, buffer_size: int) -> tf.Tensor:
    """Put a prefetch behind a variant.

    Args:
        dataset: The dataset object whose elements it has.
        variant: What to read from.
        buffer_size: Elements; -1: AUTOTUNE.

    Returns:
        The variant of the prefetch.
    """
    return tf.raw_ops.PrefetchDataset(
        input_dataset=variant,
        buffer_size=buffer_size,
        legacy_autotune=buffer_size == AUTOTUNE,
        **dataset._flat_structure,
    )


def _plain(op: str, *, has_metadata: bool = True, **attributes: str) -> Issue:
    """For an op with one input, whose other arguments are attributes of the object."""

    def issue(dataset: Any, inputs: Sequence[tf.Tensor], setting: int | None) -> tf.Tensor:
        arguments = {argument: getattr(dataset, attribute) for argument, attribute in attributes.items()}
        common = dataset._common_args if has_metadata else dataset._flat_structure
        return getattr(tf.raw_ops, op)(input_dataset=inputs[0], **arguments, **common)

    return issue


def _with_predicate(op: str) -> Issue:
    def issue(dataset: Any, inputs: Sequence[tf.Tensor], setting: int | None) -> tf.Tensor:
        function = dataset._predicate.function
        return getattr(tf.raw_ops, op)(
            input_dataset=inputs[0],
            other_arguments=function.captured_inputs,
            predicate=function,
            **dataset._common_args,
        )

    return issue


def _mapped(dataset: Any, inputs: Sequence[tf.Tensor]) -> dict[str, Any]:
    function = dataset._map_func.function
    return {
        "input_dataset": inputs[0],
        "other_arguments": function.captured_inputs,
        "f": function,
        **dataset._common_args,
    }


def _map(dataset: Any, inputs: Sequence[tf.Tensor], calls: int | None) -> tf.Tensor:
    arguments = {
        "use_inter_op_parallelism": dataset._use_inter_op_parallelism,
        "preserve_cardinality": dataset._preserve_cardinality,
        **_mapped(dataset, inputs),
    }
    if calls is None:
        return tf.raw_ops.MapDataset(force_synchronous=dataset._force_synchronous, **arguments)
    return tf.raw_ops.ParallelMapDatasetV2(num_parallel_calls=calls, deterministic=_IN_ORDER, **arguments)


def _parallel_map(dataset: Any, inputs: Sequence[tf.Tensor], calls: int | None) -> tf.Tensor:
    return tf.raw_ops.ParallelMapDatasetV2(
        num_parallel_calls=dataset._num_parallel_calls if calls is None else calls,
        deterministic=dataset._deterministic,
        use_inter_op_parallelism=dataset._use_inter_op_parallelism,
        preserve_cardinality=dataset._preserve_cardinality,
        use_unbounded_threadpool=dataset._use_unbounded_threadpool,
        **_mapped(dataset, inputs),
    )


def _batch(dataset: Any, inputs: Sequence[tf.Tensor], calls: int | None) -> tf.Tensor:
    arguments = {
        "input_dataset": inputs[0],
        "batch_size": dataset._batch_size,
        "drop_remainder": dataset._drop_remainder,
        **dataset._common_args,
    }
    if calls is None:
        return tf.raw_ops.BatchDatasetV2(**arguments)
    return tf.raw_ops.ParallelBatchDataset(num_parallel_calls=calls, deterministic=_IN_ORDER, **arguments)


def _parallel_batch(dataset: Any, inputs: Sequence[tf.Tensor], calls: int | None) -> tf.Tensor:
    return tf.raw_ops.ParallelBatchDataset(
        input_dataset=inputs[0],
        batch_size=dataset._batch_size,
        num_parallel_calls=dataset._num_parallel_calls if calls is None else calls,
        drop_remainder=dataset._drop_remainder,
        deterministic=dataset._deterministic,
        **dataset._common_args,
    )


def _padded_batch(dataset: Any, inputs: Sequence[tf.Tensor], setting: int | None) -> tf.Tensor:
    return tf.raw_ops.PaddedBatchDatasetV2(
        input_dataset=inputs[0],
        batch_size=dataset._batch_size,
        padded_shapes=tf.nest.flatten(dataset._padded_shapes),
        padding_values=tf.nest.flatten(dataset._padding_values),
        drop_remainder=dataset._drop_remainder,
        output_shapes=dataset._flat_shapes,
        metadata=dataset._common_args["metadata"],
    )


def _interleave(dataset: Any, inputs: Sequence[tf.Tensor], calls: int | None) -> tf.Tensor:
    arguments = {
        "cycle_length": dataset._cycle_length,
        "block_length": dataset._block_length,
        **_mapped(dataset, inputs),
    }
    if calls is None:
        return tf.raw_ops.InterleaveDataset(**arguments)
    return tf.raw_ops.ParallelInterleaveDatasetV4(
        num_parallel_calls=calls,
        deterministic=_IN_ORDER,
        buffer_output_elements=AUTOTUNE,
        prefetch_input_elements=AUTOTUNE,
        **arguments,
    )


def _parallel_interleave(dataset: Any, inputs: Sequence[tf.Tensor], calls: int | None) -> tf.Tensor:
    return tf.raw_ops.ParallelInterleaveDatasetV4(
        cycle_length=dataset._cycle_length,
        block_length=dataset._block_length,
        buffer_output_elements=dataset._buffer_output_elements,
        prefetch_input_elements=dataset._prefetch_input_elements,
        num_parallel_calls=dataset._num_parallel_calls if calls is None else calls,
        deterministic=read_hidden_settings(dataset).node.attr["deterministic"].s,
        **_mapped(dataset, inputs),
    )


def _prefetch(dataset: Any, inputs: Sequence[tf.Tensor], buffer_size: int | None) -> tf.Tensor:
    size = int(dataset._buffer_size) if buffer_size is None else buffer_size
    return tf.raw_ops.PrefetchDataset(
        input_dataset=inputs[0], buffer_size=size, legacy_autotune=size == AUTOTUNE, **dataset._common_args
    )


def _shuffle(dataset: Any, inputs: Sequence[tf.Tensor], setting: int | None) -> tf.Tensor:
    return tf.raw_ops.ShuffleDatasetV3(
        input_dataset=inputs[0],
        buffer_size=dataset._buffer_size,
        seed=dataset._seed,
        seed2=dataset._seed2,
        seed_generator=read_hidden_settings(dataset).seed_generator,
        reshuffle_each_iteration=dataset._reshuffle_each_iteration,
        **dataset._common_args,
    )


def _scan(dataset: Any, inputs: Sequence[tf.Tensor], setting: int | None) -> tf.Tensor:
    function = dataset._scan_func.function
    return tf.raw_ops.ScanDataset(
        input_dataset=inputs[0],
        initial_state=tf.nest.flatten(dataset._initial_state),
        other_arguments=function.captured_inputs,
        f=function,
        preserve_cardinality=True,
        **dataset._common_args,
    )


def _group_by_window(dataset: Any, inputs: Sequence[tf.Tensor], setting: int | None) -> tf.Tensor:
    arguments: dict[str, Any] = {}
    for role in ("key_func", "reduce_func", "window_size_func"):
        function = getattr(dataset, f"_{role}").function
        arguments |= {role: function, f"{role}_other_arguments": function.captured_inputs}
    return tf.raw_ops.GroupByWindowDataset(input_dataset=inputs[0], **arguments, **dataset._common_args)


def _zip(dataset: Any, inputs: Sequence[tf.Tensor], setting: int | None) -> tf.Tensor:
    return tf.raw_ops.ZipDataset(input_datasets=list(inputs), **dataset._common_args)


def _concatenate(dataset: Any, inputs: Sequence[tf.Tensor], setting: int | None) -> tf.Tensor:
    first, second = inputs
    return tf.raw_ops.ConcatenateDataset(input_dataset=first, another_dataset=second, **dataset._common_args)


def _directed_interleave(dataset: Any, inputs: Sequence[tf.Tensor], setting: int | None) -> tf.Tensor:
    selector, *data = inputs
    return tf.raw_ops.DirectedInterleaveDataset(
        selector_input_dataset=selector,
        data_input_datasets=data,
        stop_on_empty_dataset=dataset._stop_on_empty_dataset,
        **dataset._flat_structure,
    )


def _ignore_errors(dataset: Any, inputs: Sequence[tf.Tensor], setting: int | None) -> tf.Tensor:
    return tf.raw_ops.IgnoreErrorsDataset(
        input_dataset=inputs[0],
        log_warning=read_hidden_settings(dataset).node.attr["log_warning"].b,
        **dataset._flat_structure,
    )


_ISSUES: dict[str, Issue] = {
    "_MapDataset": _map,
    "_ParallelMapDataset": _parallel_map,
    "_BatchDataset": _batch,
    "_ParallelBatchDataset": _parallel_batch,
    "_PaddedBatchDataset": _padded_batch,
    "_InterleaveDataset": _interleave,
    "_ParallelInterleaveDataset": _parallel_interleave,
    "_PrefetchDataset": _prefetch,
    "_ShuffleDataset": _shuffle,
    "_ScanDataset": _scan,
    "_GroupByWindowDataset": _group_by_window,
    "_ZipDataset": _zip,
    "_ConcatenateDataset": _concatenate,
    "_DirectedInterleaveDataset": _directed_interleave,
    "_IgnoreErrorsDataset": _ignore_errors,
    "_FlatMapDataset": lambda dataset, inputs, _: tf.raw_ops.FlatMapDataset(**_mapped(dataset, inputs)),
    "_FilterDataset": _with_predicate("FilterDataset"),
    "_TakeWhileDataset": _with_predicate("TakeWhileDataset"),
    "_TakeDataset": _plain("TakeDataset", count="_count"),
    "_SkipDataset": _plain("SkipDataset", count="_count"),
    "_RepeatDataset": _plain("RepeatDataset", count="_count"),
    "_ShardDataset": _plain("ShardDataset", num_shards="_num_shards", index="_index"),
    "_WindowDataset": _plain(
        "WindowDataset", size="_size", shift="_shift", stride="_stride", drop_remainder="_drop_remainder"
    ),
    "_UniqueDataset": _plain("UniqueDataset"),
    "_UnbatchDataset": _plain("UnbatchDataset"),
    "_RebatchDataset": _plain(
        "RebatchDatasetV2", has_metadata=False, batch_sizes="_batch_sizes", drop_remainder="_drop_remainder"
    ),
    "_AssertCardinalityDataset": _plain(
        "AssertCardinalityDataset", has_metadata=False, cardinality="_expected_cardinality"
    ),
}
"""By class. Those who would lose what they hold are missing: caches, snapshots, and whatever is not known."""
