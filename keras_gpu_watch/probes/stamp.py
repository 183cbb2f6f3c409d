# SPDX-License-Identifier: Apache-2.0
"""In-graph stamps: when each batch was asked for and when it was there, written inside tf.data without Python.

Pulling one batch goes, on the consumer's own thread, through `zip(request stamp, dataset)` and a last map that stamps
again and writes one row into a ring variable. Neither map leaves the thread (`use_inter_op_parallelism=False`), which
costs 7 us a map instead of 65. There is one ring for each iterator, so several live iterators cannot mix.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_gpu_watch.probes.stamp_source import COLUMNS, INDEX, RING_ROWS
from keras_gpu_watch.records import Floats

# tf.data's last batch number; `Dataset.range` needs an end, and no run gets there.
_ENDLESS = 2**62
# The name under which TensorFlow makes a variable that nobody else can find and that dies with its last handle.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"
# Stages after which TensorFlow injects no prefetch, because they fetch ahead themselves (inject_prefetch.cc).
_FETCHING_AHEAD = ("Prefetch", "ParallelMap", "ParallelBatch", "ParallelInterleave", "MapAndBatch")


class StampRing:
    """The rows of one iterator.

    Made by raw ops: a `tf.Variable` would land in the user's strategy scope, where creating one in mid-training raises.
    """

    def __init__(self) -> None:
        self.handle = tf.raw_ops.VarHandleOp(
            dtype=tf.float64, shape=[RING_ROWS, COLUMNS], shared_name=_ANONYMOUS, container=""
        )
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=np.full([RING_ROWS, COLUMNS], -1.0))

    def read(self, first: int, count: int) -> Floats:
        """The rows of batches `first`, `first + 1`, ... as far as they are written.

        Args:
            first: Number of the first batch, from 0.
            count: How many at most; no more than `RING_ROWS` are kept.

        Returns:
            Array of shape `(n, COLUMNS)`, `n <= count`.
        """
        indices = np.arange(first, first + count)
        rows = self._gather(indices % RING_ROWS)
        if count and rows[0, INDEX] > first:
            # Overwritten before it was read: take what is left, oldest first.
            rows = self._gather(np.arange(RING_ROWS))
            rows = rows[np.argsort(rows[:, INDEX])]
            return rows[rows[:, INDEX] >= first][-count:]
        return rows[: int(np.argmin(np.append(rows[:, INDEX] == indices, False)))]

    def _gather(self, indices: Any) -> Floats:
        with tf.init_scope(), tf.device("/CPU:0"):
            rows: Floats = tf.raw_ops.ResourceGather(resource=self.handle, indices=indices, dtype=tf.float64).numpy()
        return rows


class Stamper:
    """Puts stamps on a dataset.

    Its two functions are traced once, and a stamped dataset is used again once its iterator is gone: TensorFlow
    optimizes the graph of a dataset at its first `iter()`, which takes as long as the rest of `iter()`.

    Args:
        dataset: The user's `tf.data.Dataset`.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        with tf.init_scope(), tf.device("/CPU:0"):
            self._dataset = dataset.prefetch(tf.data.AUTOTUNE) if needs_prefetch(dataset) else dataset
            self._spec = dataset.element_spec
            self._flat = _flat_specs(self._dataset)
            if self._flat is not None:
                self._request = _request_function()
                self._record = _record_function(self._flat)
        self._idle: list[tuple[tf.data.Dataset, StampRing]] = []

    def iterator(self) -> tuple[Any, StampRing]:
        """An iterator over the same elements, and the ring that it alone writes into."""
        with tf.init_scope(), tf.device("/CPU:0"):
            dataset, ring = self._idle.pop() if self._idle else self._stamped()
            ring.clear()
            iterator = iter(dataset)
        weakref.finalize(iterator, self._idle.append, (dataset, ring)).atexit = False
        return iterator, ring

    def over(self, dataset: tf.data.Dataset) -> Stamper:
        """A stamper for another dataset of the same elements, without tracing anything again.

        Args:
            dataset: A dataset that fetches ahead by itself where it should: no prefetch is put on it.
        """
        other = copy.copy(self)
        other._dataset = dataset
        other._idle = []
        return other

    def _stamped(self) -> tuple[tf.data.Dataset, StampRing]:
        with tf.init_scope(), tf.device("/CPU:0"):
            ring = StampRing()
            dataset = self._by_public_api(ring) if self._flat is None else self._by_raw_ops(ring, self._flat)
            options = tf.data.Options()
            # The prefetch that TensorFlow would inject here stands below the stamp already, see `needs_prefetch`.
            options.experimental_optimization.inject_prefetch = False
            return dataset.with_options(options), ring

    def _by_raw_ops(self, ring: StampRing, flat: list[tf.TensorSpec]) -> tf.data.Dataset:
        head_types: list[Any] = [tf.int64, tf.float64]
        head_shapes: list[Any] = [[], []]
        types, shapes = [spec.dtype for spec in flat], [spec.shape for spec in flat]
        numbers = tf.raw_ops.RangeDataset(
            start=tf.constant(0, tf.int64),
            stop=tf.constant(_ENDLESS, tf.int64),
            step=tf.constant(1, tf.int64),
            output_types=[tf.int64],
            output_shapes=[[]],
        )
        requests = _raw_map(numbers, self._request, [], head_types, head_shapes)
        zipped = tf.raw_ops.ZipDataset(
            input_datasets=[requests, tf.data.experimental.to_variant(self._dataset)],
            output_types=head_types + types,
            output_shapes=head_shapes + shapes,
        )
        recorded = _raw_map(zipped, self._record, [ring.handle], types, shapes)
        return tf.data.experimental.from_variant(recorded, self._spec)

    def _by_public_api(self, ring: StampRing) -> tf.data.Dataset:
        def stamp(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return number, tf.timestamp()

        def record(head: tuple[tf.Tensor, tf.Tensor], element: Any) -> Any:
            dense = [part for part in tf.nest.flatten(element) if isinstance(part, tf.Tensor)]
            _write_row(*head, dense, ring.handle)
            return element

        requests = tf.data.Dataset.range(_ENDLESS).map(stamp)
        return tf.data.Dataset.zip((requests, self._dataset)).map(record)


def needs_prefetch(dataset: tf.data.Dataset) -> bool:
    """Whether TensorFlow would append `prefetch(AUTOTUNE)` to this dataset.

    It does unless autotuning or the optimization is off or the last stage fetches ahead by itself. Stamps put above
    that prefetch would be measured on its background thread; leaving it out would halve the speed of a pipeline.

    Args:
        dataset: A `tf.data.Dataset`.
    """
    options = dataset.options()
    if options.autotune.enabled is False or not _is_on(options, "inject_prefetch"):
        return False
    return not _fetches_ahead(_last_stage(dataset), options)


def _is_on(options: tf.data.Options, optimization: str) -> bool:
    switches = options.experimental_optimization
    explicit = getattr(switches, optimization)
    return bool(switches.apply_default_optimizations is not False if explicit is None else explicit)


def _last_stage(dataset: Any) -> Any:
    while "Options" in type(dataset).__name__:
        dataset = dataset._input_dataset
    return dataset


def _fetches_ahead(stage: Any, options: tf.data.Options) -> bool:
    name = _name(stage)
    if name in _FETCHING_AHEAD:
        return True
    # TensorFlow fuses `map` + `batch`, with nothing in between, into one stage that fetches ahead ...
    if name == "Batch":
        below = _name(getattr(stage, "_input_dataset", None))
        return below in ("Map", "ParallelMap") and _is_on(options, "map_and_batch_fusion")
    # ... and runs a stateless sequential map in parallel.
    may_be_parallel = name == "Map" and not getattr(stage, "_force_synchronous", False)
    return may_be_parallel and _is_on(options, "map_parallelization") and not _is_stateful(stage)


def _name(stage: Any) -> str:
    return type(stage).__name__.lstrip("_").removesuffix("Dataset")


def _is_stateful(stage: Any) -> bool:
    function = getattr(getattr(stage, "_map_func", None), "function", None)
    graph = getattr(function, "graph", None)
    if graph is None:
        return True
    return any(op.op_def is not None and op.op_def.is_stateful for op in graph.get_operations())


def _flat_specs(dataset: Any) -> list[tf.TensorSpec] | None:
    """Types and shapes of an element's tensors as tf.data's ops see them (private API; `None` where it is missing)."""
    try:
        return [
            tf.TensorSpec(shape, dtype) for shape, dtype in zip(dataset._flat_shapes, dataset._flat_types, strict=True)
        ]
    except (AttributeError, TypeError, ValueError):
        return None


def _raw_map(
    source: tf.Tensor, function: Any, captured: list[tf.Tensor], types: list[Any], shapes: list[Any]
) -> tf.Tensor:
    return tf.raw_ops.MapDataset(
        input_dataset=source,
        other_arguments=captured,
        f=function,
        output_types=types,
        output_shapes=shapes,
        use_inter_op_parallelism=False,
        preserve_cardinality=True,
    )


def _request_function() -> Any:
    def request(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return number, tf.timestamp()

    return _concrete(request, [tf.TensorSpec([], tf.int64)])


def _record_function(flat: list[tf.TensorSpec]) -> Any:
    def record(number: tf.Tensor, requested: tf.Tensor, *rest: tf.Tensor) -> list[tf.Tensor]:
        *element, ring = rest
        dense = [part for part in element if part.dtype != tf.variant]
        _write_row(number, requested, dense, ring)
        return [tf.identity(part) for part in element]

    head = [tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.float64)]
    return _concrete(record, [*head, *flat, tf.TensorSpec([], tf.resource)])


def _concrete(function: Callable[..., Any], signature: list[tf.TensorSpec]) -> Any:
    return tf.function(function, input_signature=signature, autograph=False).get_concrete_function()


def _write_row(number: tf.Tensor, requested: tf.Tensor, dense: list[tf.Tensor], ring: tf.Tensor) -> None:
    row = tf.stack([requested, tf.timestamp(), _batch_dimension(dense), _shape_key(dense), tf.cast(number, tf.float64)])
    tf.raw_ops.ResourceScatterUpdate(resource=ring, indices=tf.math.floormod(number, RING_ROWS), updates=row)


def _batch_dimension(dense: list[tf.Tensor]) -> tf.Tensor:
    batched = [part for part in dense if part.shape.rank]
    if not batched:
        return tf.constant(np.nan, tf.float64)
    return tf.cast(tf.shape(batched[0])[0], tf.float64)


def _shape_key(dense: list[tf.Tensor]) -> tf.Tensor:
    """A number that changes when any dimension that may change does (weights: multiples of an irrational number)."""
    key = tf.constant(0.0, tf.float64)
    for position, part in enumerate(dense):
        if part.shape.rank is not None and not part.shape.is_fully_defined():
            weights = np.sqrt(2.0) * (1 + position) * np.arange(1, part.shape.rank + 1) ** np.pi
            key += tf.reduce_sum(tf.cast(tf.shape(part), tf.float64) * weights)
    return key
