# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf

from keras_gpu_watch.knobs import END, Knobs
from keras_gpu_watch.pipeline import hidden_settings
from keras_gpu_watch.pipeline.rebuild import CannotRebuild, rebuild
from keras_gpu_watch.pipeline.tunable import read_tunable

Dataset = tf.data.Dataset


def double(number: tf.Tensor) -> tf.Tensor:
    return number * 2


def values(dataset: tf.data.Dataset) -> list[int]:
    return [int(number) for number in dataset]


def shuffled() -> tf.data.Dataset:
    return Dataset.range(20).map(double).shuffle(20)


CHANGED = Knobs(parallel_calls={1: 3})


def test_unseeded_orders_differ_from_epoch_to_epoch_and_have_all_elements() -> None:
    dataset = shuffled()
    orders = [values(dataset)]
    orders += [values(rebuild(dataset, Knobs(parallel_calls={1: calls}))) for calls in (1, 2, 3)]
    orders += [values(dataset)]
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(0, 40, 2))}
    assert len({tuple(order) for order in orders}) == len(orders)


def test_the_users_dataset_and_those_built_from_it_draw_from_one_sequence_of_orders() -> None:
    expected = []
    for turns in ([False] * 6, [True, False, True, True, False, True]):
        dataset = Dataset.range(20).map(double).shuffle(20, seed=3)
        rebuilt = rebuild(dataset, CHANGED)
        expected.append([values(rebuilt if is_turned else dataset) for is_turned in turns])
    assert expected[0] == expected[1]


def test_a_shuffle_lives_as_long_as_what_was_built_from_it() -> None:
    rebuilt = rebuild(Dataset.range(20).map(double).shuffle(20, seed=3), CHANGED)
    gc.collect()
    assert values(rebuilt) != values(rebuilt)


def test_no_function_is_traced_again() -> None:
    traces = []

    def trace(number: tf.Tensor) -> tf.Tensor:
        traces.append(1)
        return number

    dataset = Dataset.range(4).map(trace).filter(lambda number: trace(number) > 0).map(trace)
    before = len(traces)
    assert values(rebuild(dataset, CHANGED)) == [1, 2, 3]
    assert len(traces) == before


def test_what_lies_below_the_deepest_change_is_the_users_own() -> None:
    calls = []

    def count(number: np.ndarray) -> np.ndarray:
        calls.append(int(number))
        return number

    cached = Dataset.range(4).map(lambda number: tf.numpy_function(count, [number], tf.int64)).cache()
    dataset = cached.map(double)
    index = read_tunable(dataset).knobs[0].index
    for size in (1, 2, 3):
        assert values(rebuild(dataset, Knobs(parallel_calls={index: size}))) == [0, 2, 4, 6]
    assert calls == [0, 1, 2, 3]


def test_options_stay_and_the_threadpool_is_set_beside_them() -> None:
    options = tf.data.Options()
    options.deterministic = False
    options.threading.max_intra_op_parallelism = 1
    options.autotune.ram_budget = 123_456_789
    dataset = Dataset.range(4).map(double).with_options(options)
    for threads in (None, 3):
        found = rebuild(dataset, Knobs(parallel_calls={1: 2}, private_threadpool_size=threads)).options()
        assert found.deterministic is False
        assert found.threading.max_intra_op_parallelism == 1
        assert found.autotune.ram_budget == 123_456_789
        assert found.threading.private_threadpool_size == threads


def prefetches(dataset: tf.data.Dataset) -> list[tuple[float, bool]]:
    """Size of each prefetch that TensorFlow runs, and whether it chooses the size."""
    iterator = iter(dataset)
    next(iterator)
    nodes = tf.data.experimental.get_model_proto(iterator).nodes.values()
    buffers = [node.parameters[0] for node in nodes if node.name.startswith("Prefetch")]
    return [(buffer.value, buffer.tunable) for buffer in buffers]


def test_a_prefetch_is_put_behind_whatever_is_last() -> None:
    dataset = Dataset.range(4).map(double).cache()
    rebuilt = rebuild(dataset, Knobs(buffer_sizes={END: 3}))
    assert prefetches(rebuilt) == [(3, False)]
    assert values(rebuilt) == values(dataset)


@pytest.mark.parametrize(("written", "turned", "expected"), [(-1, 3, (3, False)), (5, 3, (3, False))])
def test_a_prefetch_gets_another_size(written: int, turned: int, expected: Any) -> None:
    dataset = Dataset.range(4).prefetch(written)
    assert prefetches(rebuild(dataset, Knobs(buffer_sizes={1: turned}))) == [expected]


def test_a_prefetch_of_a_fixed_size_can_be_left_to_tensorflow() -> None:
    dataset = Dataset.range(4).prefetch(5)
    ((_, is_automatic),) = prefetches(rebuild(dataset, Knobs(buffer_sizes={1: -1})))
    assert is_automatic


def python_in_between() -> tf.data.Dataset:
    def work(number: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(lambda each: each, [number], tf.int64), [])

    return (
        Dataset.range(4).map(work).interleave(lambda number: Dataset.from_tensors(number), cycle_length=2).prefetch(1)
    )


HOSTILE: dict[str, Knobs] = {
    "a stage that keeps a state": Knobs(parallel_calls={1: 2}),
    "more calls than the cycle has": Knobs(parallel_calls={2: 3}),
    "no such stage": Knobs(parallel_calls={17: 2}),
    "a negative index": Knobs(parallel_calls={-2: 2}),
    "the end as a map": Knobs(parallel_calls={END: 2}),
    "a stage without a knob": Knobs(buffer_sizes={0: 2}),
    "calls of a prefetch": Knobs(parallel_calls={3: 2}),
    "a second prefetch at the end": Knobs(buffer_sizes={END: 2}),
    "no calls": Knobs(parallel_calls={2: 0}),
    "minus two": Knobs(buffer_sizes={3: -2}),
    "a huge buffer": Knobs(buffer_sizes={3: 2**40}),
    "a huge threadpool": Knobs(private_threadpool_size=10**6),
    "no threads": Knobs(private_threadpool_size=0),
    "a text": Knobs(buffer_sizes={3: "2"}),  # type: ignore[dict-item]
    "a fraction": Knobs(buffer_sizes={3: 2.0}),  # type: ignore[dict-item]
    "a truth": Knobs(buffer_sizes={3: True}),
    "one of two": Knobs(buffer_sizes={3: 2}, parallel_calls={1: 2}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_knobs_that_do_not_fit_the_pipeline_are_refused(name: str) -> None:
    dataset = python_in_between()
    with pytest.raises(CannotRebuild):
        rebuild(dataset, HOSTILE[name])
    assert values(rebuild(dataset, Knobs(buffer_sizes={3: 2}, parallel_calls={2: 2}))) == values(dataset)


def test_what_this_tensorflow_lacks_is_a_refusal() -> None:
    dataset = Dataset.range(4).map(double)
    del dataset._preserve_cardinality
    with pytest.raises(CannotRebuild, match="_preserve_cardinality"):
        rebuild(dataset, CHANGED)


def test_an_order_that_cannot_be_looked_up_leaves_what_is_before_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_settings, "MAX_HELD_BYTES", 1000)
    large = Dataset.from_tensor_slices(np.zeros(1001, np.uint8)).map(double).shuffle(9, seed=1).map(double)
    (fixed,) = read_tunable(large).fixed
    assert fixed.index == 1
    assert "too large" in fixed.reason
    assert [knob.index for knob in read_tunable(large).knobs] == [3, END]
    small = Dataset.from_tensor_slices(np.zeros(900, np.uint8)).map(double).shuffle(9, seed=1)
    assert read_tunable(small).fixed == ()


CAPTURED_DATASET = Dataset.range(3)
CAPTURED = tf.constant(np.zeros(1001, np.uint8))
HOLDERS: dict[str, Callable[[], tf.data.Dataset]] = {
    "slices": lambda: Dataset.from_tensor_slices({"a": np.zeros(501, np.uint8), "b": np.zeros(501, np.uint8)}),
    "one tensor": lambda: Dataset.from_tensors(np.zeros(1001, np.uint8)),
    "a list": lambda: tf.data.experimental.from_list([np.zeros(501, np.uint8)] * 2),
    "strings": lambda: Dataset.from_tensor_slices(["x" * 1001]),
    "ragged": lambda: Dataset.from_tensor_slices(tf.ragged.constant([[1] * 100, [2] * 60])),
    "sparse": lambda: Dataset.from_tensor_slices(tf.sparse.from_dense(np.ones((9, 9)))),
    "captured by a function": lambda: Dataset.range(9).map(lambda number: CAPTURED[number]),
    "constant of a function": lambda: Dataset.range(9).map(lambda number: tf.constant(list(range(301)))[number]),
    "constant of a nested function": lambda: Dataset.range(9).flat_map(
        lambda number: Dataset.from_tensors(number).map(lambda inner: tf.constant(list(range(301)))[inner])
    ),
    "captured dataset": lambda: Dataset.range(9).flat_map(lambda _: CAPTURED_DATASET),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_data_is_found_wherever_it_is_held(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_settings, "MAX_HELD_BYTES", 1000)
    assert hidden_settings.why_hidden(HOLDERS[name]().shuffle(9)) is not None


def test_no_data_is_copied() -> None:
    dataset = Dataset.from_tensor_slices(np.ones((2**17, 2**10), np.uint8)).map(double).batch(2**10)
    knobs = [Knobs(parallel_calls={1: 1, 2: calls}) for calls in (1, 2, 1)]
    next(iter(rebuild(dataset, knobs[0])))
    before = psutil.Process().memory_info().rss
    for each in knobs:
        next(iter(rebuild(dataset, each)))
    assert psutil.Process().memory_info().rss - before < 2**26


def sleeping(seconds: float) -> Callable[[tf.Tensor], tf.Tensor]:
    def sleep(number: np.ndarray) -> np.ndarray:
        time.sleep(seconds)
        return number

    return lambda number: tf.numpy_function(sleep, [number], tf.int64, stateful=False)


def seconds_of(dataset: Any) -> float:
    begin = time.perf_counter()
    values(dataset)
    return time.perf_counter() - begin


@pytest.mark.timed
def test_a_knob_changes_how_fast_batches_come() -> None:
    dataset = Dataset.range(40).map(sleeping(0.01), num_parallel_calls=1)
    fast = rebuild(dataset, Knobs(parallel_calls={1: 8}, private_threadpool_size=8))
    assert seconds_of(dataset) > 2 * seconds_of(fast)


@pytest.mark.timed
def test_what_ran_one_call_at_a_time_runs_several_if_its_user_allows_it() -> None:
    def sleep(number: np.ndarray) -> np.ndarray:
        time.sleep(0.01)
        return number

    dataset = Dataset.range(40).map(lambda number: tf.numpy_function(sleep, [number], tf.int64))
    knobs = Knobs(parallel_calls={1: 8}, private_threadpool_size=8)
    with pytest.raises(CannotRebuild, match="parallel_python"):
        rebuild(dataset, knobs)
    fast = rebuild(dataset, knobs, parallel_python=True)
    assert values(fast) == list(range(40))
    assert seconds_of(dataset) > 2 * seconds_of(fast)
