# SPDX-License-Identifier: Apache-2.0
"""What a dataset object is in the user's words, where TensorFlow builds one of his stages from several objects.

Everything private to TensorFlow is looked up by name: what a version lacks stays unknown, and what is not recognised
for sure is shown as what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keras_gpu_watch.pipeline.user_functions import captured, is_internal, library_module, user_function

_OTHER_WORDS = {
    "TensorSlice": "from_tensor_slices",
    "Tensor": "from_tensors",
    "SparseTensorSlice": "from_sparse_tensor_slices",
    "Generator": "from_generator",
    "List": "from_list",
    "Variant": "from_variant",
    "DenseToSparseBatch": "sparse_batch",
    "DirectedInterleave": "choose_from_datasets",
    **{reader: f"{reader}Dataset" for reader in ("TFRecord", "TextLine", "FixedLengthRecord", "Csv", "Sql")},
}
"""Class names, without what all of them share, of stages that users call by another word."""
_OPTIONS = "_OptionsDataset"
_ENDLESS_RANGE = re.compile(rf"RangeDatasetOp\(-?\d+, {2**63 - 1}, 1\)")
_MAX_WRAPPERS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StageObject:
    """One stage of the user's, and the objects it is made of."""

    op: str
    dataset: Any
    """The object that holds its settings."""
    inputs: tuple[Any, ...] = ()
    wrappers: tuple[Any, ...] = ()
    """TensorFlow's `StructuredFunctionWrapper`s of its functions."""
    function: Any = None
    """The Python function that says most about it; of a library, where there is none of the user's in it."""


def stage_object(dataset: Any) -> StageObject:
    """Recognise the stage that ends in a dataset object.

    Args:
        dataset: A dataset object.

    Returns:
        The stage. Wrappers that do nothing (options, names, a watched dataset) are looked through.
    """
    dataset = _unwrapped(dataset)
    wrappers = tuple(_functions_of(dataset))
    plain = StageObject(
        op=op_name(type(dataset).__name__),
        dataset=dataset,
        inputs=tuple(inputs_of(dataset)),
        wrappers=wrappers,
        function=_telling_function(wrappers),
    )
    recognise = _COMPOSITES.get(type(dataset).__name__)
    return recognise(plain) if recognise else plain


def op_name(class_name: str) -> str:
    """Say the class of a dataset in the user's words: `"_ParallelMapDataset"` is a `"map"`."""
    name = re.sub(r"Dataset(V\d+)?$", "", class_name.lstrip("_")).removeprefix("Parallel")
    return _OTHER_WORDS.get(name) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def inputs_of(dataset: Any) -> list[Any]:
    """Get the dataset objects that one reads from; none where it does not tell."""
    if not hasattr(dataset, "_inputs"):
        return []
    if hasattr(dataset, "_dataset_to_concatenate"):
        # `Dataset.apply` writes what it was called on over the inputs of a concatenation.
        return [dataset._input_dataset, dataset._dataset_to_concatenate]
    return list(dataset._inputs())


def _unwrapped(dataset: Any) -> Any:
    for _ in range(_MAX_WRAPPERS):
        inner = inside(dataset)
        if inner is None:
            break
        dataset = inner
    return dataset


def inside(dataset: Any) -> Any:
    """Find what a wrapper is around; `None`: it is none.

    Args:
        dataset: A dataset object.
    """
    inputs = inputs_of(dataset)
    if type(dataset).__name__ == _OPTIONS and inputs:
        return inputs[0]
    variant = getattr(dataset, "_variant_tensor", None)
    for inner in (getattr(dataset, "_dataset", None), *inputs):
        # The same data under another name or element spec.
        if variant is not None and getattr(inner, "_variant_tensor", None) is variant:
            return inner
    return None


def _functions_of(dataset: Any) -> list[Any]:
    return list(dataset._functions()) if hasattr(dataset, "_functions") else []


def _telling_function(wrappers: Sequence[Any]) -> Any:
    """The first function of the user's; where there is none, a library's, if it is the only one."""
    functions = [user_function(wrapper._func) for wrapper in wrappers if hasattr(wrapper, "_func")]
    users = [function for function in functions if not is_internal(function)]
    if users:
        return users[0]
    return functions[0] if len(functions) == 1 else None


def _is_named(function: Any, *names: str) -> bool:
    """Whether it is one of TensorFlow's own functions of these names."""
    return is_internal(function) and getattr(function, "__name__", None) in names


def _is_written_in(module: str, function: Any) -> bool:
    return is_internal(function) and str(library_module(function)).endswith(module)


def _own_function(dataset: Any) -> Any:
    """The function of a single dataset object as TensorFlow holds it."""
    wrappers = _functions_of(dataset)
    return getattr(wrappers[0], "_func", None) if wrappers else None


def _from_generator(stage: StageObject) -> StageObject:
    """A single dummy element, and a `flat_map` to the generator's elements."""
    if not _is_named(make := _own_function(stage.dataset), "flat_map_fn"):
        return stage
    first = captured(make).get("get_iterator_id_fn")
    state = captured(first).get("generator_state")
    return replace(stage, op="from_generator", inputs=(), wrappers=(), function=getattr(state, "_generator", None))


def _file_reader(stage: StageObject) -> StageObject:
    """A `flat_map` or `interleave` over the files' names; a dataset of names that the user made is a stage of his."""
    names = getattr(stage.dataset, "_filenames", None)
    if names is None or not hasattr(names, "_inputs"):
        return stage
    is_list = type(_unwrapped(names)).__name__ == "_TensorSliceDataset"
    return replace(stage, inputs=() if is_list else (names,))


def _enumerate(stage: StageObject) -> StageObject:
    """A `zip` with a range up to the end of int64, whose Python object TensorFlow has taken away."""
    if len(stage.inputs) == 2 and is_endless_range(stage.inputs[0]):
        return replace(stage, op="enumerate", inputs=stage.inputs[1:])
    return stage


def is_endless_range(dataset: Any) -> bool:
    """Tell whether it is the numbers of an `enumerate`.

    Args:
        dataset: A dataset object.
    """
    return bool(_ENDLESS_RANGE.search(_opaque_kind(dataset)))


def _opaque_kind(dataset: Any) -> str:
    """What TensorFlow says of a dataset that has no Python objects any more."""
    return repr(getattr(dataset, "_variant_tensor", None)) if type(dataset).__name__ == "_VariantDataset" else ""


def _ragged_batch(stage: StageObject) -> StageObject:
    inner = _unwrapped(stage.inputs[0]) if stage.inputs else None
    if type(inner).__name__ != "_DenseToRaggedDataset":
        return stage
    return replace(stage, op="ragged_batch", inputs=tuple(inputs_of(inner)))


def _without_normalizer(stage: StageObject) -> StageObject:
    """`unbatch` and `rebatch` put a map in front that makes every tensor dense."""
    inner = _unwrapped(stage.inputs[0]) if stage.inputs else None
    if not _is_named(_own_function(inner), "normalize"):
        return stage
    return replace(stage, inputs=tuple(inputs_of(inner)))


def _snapshot(stage: StageObject) -> StageObject:
    """Without a `shard_func`: numbered elements, the snapshot, and a map that takes the numbers off again."""
    if not _is_written_in("snapshot_op", _own_function(stage.dataset)):
        return stage
    snapshot = stage_object(stage.inputs[0])
    numbered = stage_object(snapshot.inputs[0])
    return replace(snapshot, inputs=numbered.inputs)


def _directed_interleave(stage: StageObject) -> StageObject:
    """The first input says which of the others comes next; `sample_from_datasets` draws it."""
    if len(stage.inputs) < 2:
        return stage
    selector, *data = stage.inputs
    draw = _own_function(_unwrapped(selector))
    if _is_named(draw, "select_dataset_constant_logits", "select_dataset_varying_logits"):
        return _rejection_resample(data[0]) or replace(stage, op="sample_from_datasets", inputs=tuple(data))
    return replace(stage, inputs=tuple(data) if _opaque_kind(selector) else stage.inputs)


def _rejection_resample(first: Any) -> StageObject | None:
    """A sample from the data with their classes, and from the same data with some of them rejected."""
    if not _is_named(_own_function(_unwrapped(first)), "add_class_value"):
        return None
    return replace(stage_object(first), op="rejection_resample")


def _counter(stage: StageObject) -> StageObject:
    if not _is_written_in("counter_op", _own_function(stage.dataset)):
        return stage
    return replace(stage, op="counter", inputs=(), wrappers=(), function=None)


def _bucket_by_sequence_length(stage: StageObject) -> StageObject:
    key_function = captured(_own_function(stage.dataset)).get("key_func")
    if not _is_named(key_function, "element_to_bucket_id"):
        return stage
    return replace(stage, op="bucket_by_sequence_length")


_COMPOSITES: dict[str, Callable[[StageObject], StageObject]] = {
    "_FlatMapDataset": _from_generator,
    "TFRecordDatasetV2": _file_reader,
    "TextLineDatasetV2": _file_reader,
    "FixedLengthRecordDatasetV2": _file_reader,
    "_ZipDataset": _enumerate,
    "_BatchDataset": _ragged_batch,
    "_UnbatchDataset": _without_normalizer,
    "_RebatchDataset": _without_normalizer,
    "_MapDataset": _snapshot,
    "_DirectedInterleaveDataset": _directed_interleave,
    "_ScanDataset": _counter,
    "_GroupByWindowDataset": _bucket_by_sequence_length,
}
"""By the class of the object that comes last."""
