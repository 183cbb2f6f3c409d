# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ground_truth import sleeping_dataset

from keras_gpu_watch.probes import stamp
from keras_gpu_watch.probes.stamp import Stamper, StampRing, needs_prefetch
from keras_gpu_watch.probes.stamp_source import COLUMNS, EXAMPLES, INDEX, READY, REQUEST, RING_ROWS, SHAPE_KEY

AUTOTUNE = tf.data.AUTOTUNE


@pytest.fixture(params=["raw ops", "public API"])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to put stamps on a dataset."""
    if request.param == "public API":
        monkeypatch.setattr(stamp, "_flat_specs", lambda dataset: None)
    return str(request.param)


def rows_of(dataset: tf.data.Dataset, count: int = 100) -> np.ndarray:
    """All rows that one pass over the dataset leaves."""
    stamped, ring = Stamper(dataset).iterator()
    for _ in stamped:
        pass
    return ring.read(0, count)


def numbers(count: int = 8) -> tf.data.Dataset:
    return tf.data.Dataset.range(count)


def test_a_new_ring_is_empty() -> None:
    assert StampRing().read(0, 10).shape == (0, COLUMNS)


def test_rows_are_read_as_far_as_they_are_written(build: str) -> None:
    stamped, ring = Stamper(numbers()).iterator()
    iterator = iter(stamped)
    for fetched in range(1, 5):
        next(iterator)
        assert ring.read(0, 100)[:, INDEX].tolist() == list(range(fetched))
    assert ring.read(2, 100)[:, INDEX].tolist() == [2, 3]
    assert ring.read(1, 2)[:, INDEX].tolist() == [1, 2]
    assert len(ring.read(4, 100)) == 0


def test_reading_nothing_gives_nothing() -> None:
    stamped, ring = Stamper(numbers()).iterator()
    next(iter(stamped))
    assert ring.read(0, 0).shape == (0, COLUMNS)


def test_a_ring_that_went_round_keeps_the_newest_rows() -> None:
    stamped, ring = Stamper(numbers(RING_ROWS + 200).prefetch(8)).iterator()
    for _ in stamped:
        pass
    assert ring.read(RING_ROWS + 100, 1000)[:, INDEX].tolist() == list(range(RING_ROWS + 100, RING_ROWS + 200))
    # Overwritten before they were read: what is left comes, oldest first, without a hole.
    left = ring.read(0, RING_ROWS)[:, INDEX]
    assert left.tolist() == list(range(200, RING_ROWS + 200))


def test_stamps_lie_in_order_and_within_the_call_that_fetched(build: str) -> None:
    stamped, ring = Stamper(numbers().batch(2)).iterator()
    iterator = iter(stamped)
    for number in range(4):
        before = time.time()
        next(iterator)
        after = time.time()
        row = ring.read(number, 1)[0]
        assert before <= row[REQUEST] <= row[READY] <= after


def test_a_slow_fetch_lies_between_request_and_ready(build: str) -> None:
    stamped, ring = Stamper(sleeping_dataset(0.03, 6)).iterator()
    for _ in stamped:
        # Time of the consumer must not count.
        time.sleep(0.02)
    rows = ring.read(0, 10)
    waits = rows[:, READY] - rows[:, REQUEST]
    assert len(waits) == 6
    assert waits.min() >= 0.03
    assert np.median(waits) < 0.045


def test_two_iterators_write_into_two_rings(build: str) -> None:
    stamper = Stamper(numbers())
    (first, first_ring), (second, second_ring) = stamper.iterator(), stamper.iterator()
    one, other = iter(first), iter(second)
    for _ in range(3):
        next(one)
    next(other)
    next(one)
    assert first_ring.read(0, 100)[:, INDEX].tolist() == [0, 1, 2, 3]
    assert second_ring.read(0, 100)[:, INDEX].tolist() == [0]


def test_a_ring_is_used_again_once_its_iterator_is_gone_and_is_empty_then(build: str) -> None:
    stamper = Stamper(numbers())
    kept, kept_ring = stamper.iterator()
    gone, gone_ring = stamper.iterator()
    next(kept)
    next(gone)
    del gone
    again, ring = stamper.iterator()
    assert ring is gone_ring
    assert len(ring.read(0, 100)) == 0
    assert [int(number) for number in again] == list(range(8))
    assert len(kept_ring.read(0, 100)) == 1


def test_examples_are_the_batch_dimension_of_each_batch(build: str) -> None:
    assert rows_of(numbers(10).batch(4))[:, EXAMPLES].tolist() == [4, 4, 2]


def test_examples_of_scalars_are_not_known(build: str) -> None:
    assert np.isnan(rows_of(numbers(3))[:, EXAMPLES]).all()


def test_examples_come_from_the_first_component_that_has_a_batch(build: str) -> None:
    dataset = numbers(6).batch(2).map(lambda batch: (tf.constant(1.0), batch, tf.zeros([5, 1])))
    assert rows_of(dataset)[:, EXAMPLES].tolist() == [2, 2, 2]


def test_zero_examples_are_zero_and_not_unknown(build: str) -> None:
    dataset = numbers(2).map(lambda number: tf.zeros([number, 3]))
    assert rows_of(dataset)[:, EXAMPLES].tolist() == [0, 1]


def keys(shapes: list[tuple[int, ...]]) -> list[float]:
    """Shape keys of batches with these shapes."""
    rank = len(shapes[0])
    dataset = tf.data.Dataset.from_generator(
        lambda: (np.zeros(shape, np.float32) for shape in shapes),
        output_signature=tf.TensorSpec([None] * rank, tf.float32),
    )
    return rows_of(dataset, 1000)[:, SHAPE_KEY].tolist()


def test_the_shape_key_is_the_same_for_the_same_shape_and_for_no_other() -> None:
    shapes: list[tuple[int, ...]] = [(a, b, c) for a in range(1, 7) for b in range(1, 7) for c in range(1, 7)]
    found = keys(shapes + shapes)
    assert found[: len(shapes)] == found[len(shapes) :]
    assert len(set(found)) == len(shapes)


def test_the_shape_key_tells_components_apart(build: str) -> None:
    dataset = numbers(4).map(lambda number: (tf.zeros([1 + number % 2]), tf.zeros([1 + number // 2])))
    assert len(set(rows_of(dataset)[:, SHAPE_KEY])) == 4


def test_a_static_shape_needs_no_key(build: str) -> None:
    assert set(rows_of(numbers(8).batch(2, drop_remainder=True))[:, SHAPE_KEY]) == {0.0}


def test_the_ring_lies_on_the_cpu_whatever_device_the_user_has_chosen(build: str) -> None:
    with tf.device("/GPU:0" if tf.config.list_physical_devices("GPU") else "/CPU:0"):
        _, ring = Stamper(numbers()).iterator()
    assert ring.handle.device.endswith("CPU:0")


def test_a_ring_is_made_within_a_tf_function_and_a_strategy() -> None:
    dataset, made = numbers(), []

    @tf.function
    def traced() -> tf.Tensor:
        made.append(Stamper(dataset).iterator())
        return tf.constant(0)

    with tf.distribute.MirroredStrategy(["/CPU:0"]).scope():
        traced()
        made.append(Stamper(dataset).iterator())
    for stamped, ring in made:
        assert [int(number) for number in stamped] == list(range(8))
        assert len(ring.read(0, 100)) == 8


def double(number: tf.Tensor) -> tf.Tensor:
    return number * 2


def random(number: tf.Tensor) -> tf.Tensor:
    return tf.cast(number, tf.float32) + tf.random.uniform([])


def python(number: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.numpy_function(lambda value: value, [number], tf.int64), [])


def one(number: tf.Tensor) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(number)


def optimization(**switches: bool) -> tf.data.Options:
    options = tf.data.Options()
    for name, value in switches.items():
        setattr(options.experimental_optimization, name, value)
    return options


PIPELINES: dict[str, Callable[[], tf.data.Dataset]] = {
    "range": numbers,
    "batch": lambda: numbers().batch(2),
    "parallel batch": lambda: numbers().batch(2, num_parallel_calls=2),
    "padded batch": lambda: numbers().padded_batch(2),
    "map": lambda: numbers().map(double),
    "map, synchronous": lambda: numbers().map(double, synchronous=True),
    "map, not made parallel": lambda: numbers().map(double).with_options(optimization(map_parallelization=False)),
    "stateful map": lambda: numbers().map(random),
    "Python map": lambda: numbers().map(python),
    "Python map, then map": lambda: numbers().map(python).map(double),
    "map, then Python map": lambda: numbers().map(double).map(python),
    "parallel map": lambda: numbers().map(double, num_parallel_calls=2),
    "parallel Python map": lambda: numbers().map(python, num_parallel_calls=AUTOTUNE),
    "map and batch": lambda: numbers().map(double).batch(2),
    "stateful map and batch": lambda: numbers().map(random).batch(2),
    "parallel map and batch": lambda: numbers().map(double, num_parallel_calls=2).batch(2),
    "map, options, batch": lambda: numbers().map(double).with_options(optimization(map_fusion=False)).batch(2),
    "map and batch, not fused": lambda: (
        numbers().map(double).batch(2).with_options(optimization(map_and_batch_fusion=False))
    ),
    "map and padded batch": lambda: numbers().map(double).padded_batch(2),
    "batch and map": lambda: numbers().batch(2).map(double),
    "prefetch": lambda: numbers().batch(2).prefetch(3),
    "prefetch, automatic": lambda: numbers().batch(2).prefetch(AUTOTUNE),
    "prefetch below": lambda: numbers().prefetch(3).batch(2),
    "prefetch, options": lambda: numbers().prefetch(3).with_options(tf.data.Options()),
    "options": lambda: numbers().batch(2).with_options(tf.data.Options()),
    "interleave": lambda: numbers().interleave(one),
    "parallel interleave": lambda: numbers().interleave(one, num_parallel_calls=2),
    "flat map": lambda: numbers().flat_map(one),
    "shuffle": lambda: numbers().shuffle(4),
    "cache": lambda: numbers().cache(),
    "filter": lambda: numbers().filter(lambda number: number > 1),
    "take": lambda: numbers().take(5),
    "parallel map and take": lambda: numbers().map(double, num_parallel_calls=2).take(5),
    "repeat": lambda: numbers().batch(2).repeat(),
    "zip": lambda: tf.data.Dataset.zip((numbers(), numbers())),
    "zip of prefetches": lambda: tf.data.Dataset.zip((numbers().prefetch(1), numbers().prefetch(1))),
    "concatenate": lambda: numbers().concatenate(numbers()),
    "enumerate": lambda: numbers().enumerate(),
    "unbatch": lambda: numbers().batch(2).unbatch(),
    "generator": lambda: tf.data.Dataset.from_generator(
        lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int64)
    ),
    "no injection": lambda: numbers().batch(2).with_options(optimization(inject_prefetch=False)),
    "no optimization": lambda: numbers().batch(2).with_options(optimization(apply_default_optimizations=False)),
    "injection only": lambda: (
        numbers().batch(2).with_options(optimization(apply_default_optimizations=False, inject_prefetch=True))
    ),
}


def root_stage(iterator: Any) -> str:
    """Name of the last stage that TensorFlow really runs."""
    model = tf.data.experimental.get_model_proto(iterator)
    root = model.nodes[model.output]
    return str(model.nodes[root.inputs[0]].name)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_prefetch_is_wanted_exactly_where_tensorflow_injects_one(name: str) -> None:
    dataset = PIPELINES[name]()
    iterator = iter(dataset)
    next(iterator)
    injected = root_stage(iterator) == "Prefetch" and name not in (
        "prefetch",
        "prefetch, automatic",
        "prefetch, options",
    )
    assert needs_prefetch(dataset) == injected


def test_no_prefetch_is_wanted_without_autotuning() -> None:
    options = tf.data.Options()
    options.autotune.enabled = False
    assert not needs_prefetch(numbers().batch(2).with_options(options))


@pytest.mark.parametrize("name", ["batch", "map and batch", "prefetch", "generator"])
def test_stamps_are_the_last_stage_on_the_consumers_own_thread(name: str, build: str) -> None:
    stamped, _ = Stamper(PIPELINES[name]()).iterator()
    iterator = iter(stamped)
    next(iterator)
    assert root_stage(iterator) == "Map"


def test_a_snapshot_below_the_stamps_keeps_its_elements(build: str, tmp_path: Path) -> None:
    dataset = numbers().snapshot(str(tmp_path / "snapshot"))
    for _ in range(2):
        stamped, _ = Stamper(dataset).iterator()
        assert [int(number) for number in stamped] == list(range(8))
