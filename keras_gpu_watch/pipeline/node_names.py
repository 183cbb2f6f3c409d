# SPDX-License-Identifier: Apache-2.0
"""tf.data's names of running iterators, in the words of its public methods."""

from __future__ import annotations

import functools
import re

_OTHER_WORDS = {
    "FromTensor": "from_tensors",
    "TensorSlice": "from_tensor_slices",
    "Generator": "from_generator",
    "TFRecord": "TFRecordDataset",
    "TextLine": "TextLineDataset",
    "FixedLengthRecord": "FixedLengthRecordDataset",
    "MemoryCache": "cache",
    "FileCache": "cache",
    "DirectedInterleave": "choose_from_datasets",
}
# Methods that are made of others: the word of their last iterator.
_MADE_OF = {
    "from_generator": {"flat_map"},
    "TFRecordDataset": {"flat_map", "interleave"},
    "TextLineDataset": {"flat_map"},
    "FixedLengthRecordDataset": {"flat_map"},
    "list_files": {"shuffle", "from_tensor_slices"},
    "enumerate": {"zip"},
    "sample_from_datasets": {"choose_from_datasets"},
    "rejection_resample": {"choose_from_datasets"},
    "bucket_by_sequence_length": {"group_by_window"},
    "counter": {"scan"},
    "ragged_batch": {"batch", "map_and_batch"},
    "copy_to_device": {"from_generator"},
    "prefetch_to_device": {"from_generator"},
}
FUSED = {"map_and_batch": ("batch", "map"), "shuffle_and_repeat": ("repeat", "shuffle")}
"""Two stages that tf.data runs as one: the upper one, and the lower one, which does the work."""
OPENERS = frozenset({"flat_map", "interleave", "group_by_window"})
"""Their first input is the user's; any other is a dataset that they opened and that lives for a while."""
_OF_ONE_INPUT = (
    "map",
    "filter",
    "batch",
    "padded_batch",
    "unbatch",
    "window",
    "shuffle",
    "repeat",
    "cache",
    "prefetch",
)
_WITH_A_NODE = {*_OF_ONE_INPUT, "take", "skip", "shard", "interleave", "flat_map", "zip", "concatenate"}


@functools.lru_cache(maxsize=256)
def word(name: str) -> str:
    """tf.data's public word for an iterator's name: `"ParallelMapV2"` is a `"map"`."""
    base = re.sub(r"^(Legacy)?(Parallel|Finite|Forever|Empty)?|V\d+$", "", name)
    return _OTHER_WORDS.get(base) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", base).lower()


def agree(op: str, name: str) -> bool:
    """Whether a stage may run as an iterator of that name."""
    other = word(name)
    return op == other or other in _MADE_OF.get(op, ()) or FUSED.get(other, ("",))[0] == op


def contradict(op: str, name: str) -> bool:
    """Whether a stage certainly does not run as an iterator of that name: both are well known, and differ."""
    return op in _WITH_A_NODE and word(name) in _WITH_A_NODE and not agree(op, name)
