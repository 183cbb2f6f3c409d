# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import json
import logging
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from ground_truth import sleeping_dataset
from trainings import BATCH, tiny_model
from trainings import dataset as training_dataset

from keras_gpu_watch import GPUWatch, watch
from keras_gpu_watch.probes import stamp
from keras_gpu_watch.probes.stamp import Stamper
from keras_gpu_watch.probes.stamp_source import INDEX, STAMPS_ATTRIBUTE

Policy = tf.data.experimental.ExternalStatePolicy


def numbers(count: int = 8) -> tf.data.Dataset:
    return tf.data.Dataset.range(count)


def plain_values(element: Any) -> Any:
    """An element as nested lists and numbers, which compare."""
    if isinstance(element, tf.RaggedTensor):
        return ("ragged", element.to_list())
    if isinstance(element, tf.SparseTensor):
        return ("sparse", tf.sparse.to_dense(element).numpy().tolist())
    if isinstance(element, dict):
        return {key: plain_values(value) for key, value in element.items()}
    if isinstance(element, tuple | list):
        return tuple(plain_values(value) for value in element)
    return element if element is None else (element.dtype.name, element.numpy().tolist())


def values(dataset: Any) -> list[Any]:
    return [plain_values(element) for element in dataset]


def rows(iterator: Any) -> np.ndarray:
    stamps: np.ndarray = getattr(iterator, STAMPS_ATTRIBUTE).read(0, 1000)
    return stamps


@pytest.fixture(params=["raw ops", "public API"])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to put stamps on a dataset."""
    if request.param == "public API":
        monkeypatch.setattr(stamp, "_flat_specs", lambda dataset: None)
    return str(request.param)


def generated(*elements: Any, spec: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(lambda: iter(elements), output_signature=spec)


def slices(tensors: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(tensors)


STRUCTURES: dict[str, Callable[[], tf.data.Dataset]] = {
    "scalars": numbers,
    "pairs": lambda: slices((np.ones((6, 3)), np.arange(6))).batch(4),
    "dictionary": lambda: slices({"image": np.ones((6, 2, 2)), "more": {"id": np.arange(6)}}).batch(4),
    "nested tuples": lambda: tf.data.Dataset.zip((numbers(), (numbers().batch(1), (numbers(),)))),
    "tuple of dictionary and None": lambda: numbers().batch(2).map(lambda number: ({"number": number}, None)),
    "input and None": lambda: numbers().batch(2).map(lambda number: (number, None)),
    "strings": lambda: slices(["a", "", "größer"]).batch(2),
    "ragged rows": lambda: slices(tf.ragged.constant([[1], [2, 3], [], [4, 5, 6]])),
    "ragged batches": lambda: slices(tf.ragged.constant([[1], [2, 3], [], [4, 5, 6]])).batch(3),
    "ragged with dense": lambda: slices((tf.ragged.constant([[1], [2, 3]]), [7, 8])).batch(2),
    "sparse": lambda: slices(tf.sparse.from_dense(np.eye(4))).batch(3),
    "booleans": lambda: slices([True, False, True]).batch(2),
    "halves": lambda: slices(np.arange(5, dtype=np.float16)).batch(2),
    "brain floats": lambda: slices(tf.cast([1, 2, 3], tf.bfloat16)).batch(2),
    "small integers": lambda: slices((np.arange(5, dtype=np.uint8), np.arange(5, dtype=np.int16))).batch(2),
    "complex": lambda: slices(np.array([1j, 2.0])),
    "unknown rank": lambda: generated(np.ones(2), np.ones((2, 3)), 4.0, spec=tf.TensorSpec(None, tf.float64)),
    "unknown dimensions": lambda: generated(
        np.ones((1, 2)), np.ones((3, 1)), spec=tf.TensorSpec([None, None], tf.float64)
    ),
    "no columns": lambda: slices(np.zeros((5, 0))).batch(2),
    "no elements": lambda: numbers(0).batch(2),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_elements_of_any_structure_come_out_as_they_are(name: str, build: str) -> None:
    dataset = STRUCTURES[name]()
    watched = watch(dataset)
    assert watched.element_spec == dataset.element_spec
    iterator = iter(watched)
    assert values(iterator) == values(dataset)
    assert rows(iterator)[:, INDEX].tolist() == list(range(len(list(dataset))))


@pytest.mark.parametrize("name", STRUCTURES)
def test_iterators_have_the_users_element_spec(name: str) -> None:
    dataset = STRUCTURES[name]()
    assert iter(watch(dataset)).element_spec == iter(dataset).element_spec


@pytest.mark.parametrize(
    ("dataset", "cardinality"),
    [
        (numbers().batch(3), 3),
        (numbers(0), 0),
        (numbers().repeat(), tf.data.INFINITE_CARDINALITY),
        (numbers().filter(lambda number: number > 3), tf.data.UNKNOWN_CARDINALITY),
    ],
    ids=["finite", "empty", "infinite", "unknown"],
)
def test_the_cardinality_stays(dataset: tf.data.Dataset, cardinality: int) -> None:
    assert int(watch(dataset).cardinality()) == cardinality


def test_len_stays_and_is_refused_where_it_was() -> None:
    assert len(watch(numbers().batch(3))) == 3
    with pytest.raises(TypeError, match="infinite"):
        len(watch(numbers().repeat()))


def test_options_stay_and_reach_the_iterator() -> None:
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = 3
    options.threading.max_intra_op_parallelism = 1
    options.experimental_optimization.map_parallelization = False
    options.autotune.ram_budget = 123_456_789
    watched = watch(numbers().batch(2).with_options(options))
    for found in (watched.options(), iter(watched)._dataset.options()):
        assert found.deterministic is False
        assert found.threading.private_threadpool_size == 3
        assert found.threading.max_intra_op_parallelism == 1
        assert found.experimental_optimization.map_parallelization is False
        assert found.autotune.ram_budget == 123_456_789


def test_autotuning_that_is_off_stays_off_and_is_still_stamped() -> None:
    options = tf.data.Options()
    options.autotune.enabled = False
    iterator = iter(watch(numbers().batch(2).with_options(options)))
    next(iterator)
    with pytest.raises(tf.errors.NotFoundError):
        tf.data.experimental.get_model_proto(iterator)
    assert len(rows(iterator)) == 1


def shuffled(**arguments: Any) -> tf.data.Dataset:
    return numbers(20).shuffle(20, **arguments).batch(3)


@pytest.mark.parametrize(
    "arguments",
    [{"seed": 3}, {"seed": 3, "reshuffle_each_iteration": False}, {}],
    ids=["seeded", "same each epoch", "by the global seed"],
)
def test_shuffled_epochs_have_the_order_they_would_have_had(arguments: dict[str, Any]) -> None:
    orders = []
    for wrap in (lambda dataset: dataset, watch):
        tf.random.set_seed(5)
        dataset = wrap(shuffled(**arguments))
        orders.append([values(dataset) for _ in range(4)])
    assert orders[0] == orders[1]
    assert (orders[0][0] == orders[0][1]) == (arguments.get("reshuffle_each_iteration") is False)


def test_watching_draws_from_no_random_stream() -> None:
    drawn = []
    for wrap in (lambda dataset: dataset, watch):
        tf.random.set_seed(5)
        list(wrap(numbers()))
        drawn.append((float(tf.random.uniform([])), values(numbers().shuffle(8))))
    assert drawn[0] == drawn[1]


def test_two_iterators_at_once_go_their_own_way() -> None:
    watched = watch(numbers())
    first, second = iter(watched), iter(watched)
    assert [int(next(first)) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert [int(next(second)) for _ in range(2)] == [0, 1]
    assert [int(next(first)) for _ in range(3)] == [5, 6, 7]
    assert (len(rows(first)), len(rows(second))) == (8, 2)


def test_a_cache_is_filled_once_for_all_iterators() -> None:
    calls = []

    def count(number: np.ndarray) -> np.ndarray:
        calls.append(int(number))
        return number

    watched = watch(numbers().map(lambda number: tf.numpy_function(count, [number], tf.int64)).cache())
    for _ in range(3):
        assert [int(number) for number in watched] == list(range(8))
    assert calls == list(range(8))


def test_a_file_cache_is_filled_once_and_read_again(tmp_path: Path) -> None:
    watched = watch(numbers().cache(str(tmp_path / "cache")))
    assert values(watched) == values(watched) == values(numbers())


def test_a_dataset_is_saved_and_loaded_through_a_watched_one(tmp_path: Path) -> None:
    watch(numbers().batch(3)).save(str(tmp_path / "saved"))
    assert values(watch(tf.data.Dataset.load(str(tmp_path / "saved")))) == values(numbers().batch(3))


def test_snapshots_stand_above_and_below(tmp_path: Path) -> None:
    dataset = watch(watch(numbers()).snapshot(str(tmp_path / "snapshot")))
    assert values(dataset) == values(dataset) == values(numbers())


TRANSFORMATIONS: dict[str, Callable[[tf.data.Dataset], Any]] = {
    "take": lambda dataset: dataset.take(3),
    "skip": lambda dataset: dataset.skip(2),
    "zip": lambda dataset: tf.data.Dataset.zip((dataset, dataset)),
    "batch": lambda dataset: dataset.batch(3),
    "concatenate": lambda dataset: dataset.concatenate(dataset),
    "enumerate": lambda dataset: dataset.enumerate(),
    "map": lambda dataset: dataset.map(lambda number: number + 1),
    "apply": lambda dataset: dataset.apply(lambda inner: inner.repeat(2)),
    "interleave": lambda dataset: tf.data.Dataset.range(2).interleave(lambda _: dataset),
    "options": lambda dataset: dataset.with_options(tf.data.Options()),
    "window": lambda dataset: dataset.window(3).flat_map(lambda window: window.batch(3)),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformations_build_on_it_as_on_the_users_own(name: str) -> None:
    transform = TRANSFORMATIONS[name]
    assert values(transform(watch(numbers()))) == values(transform(numbers()))


def test_numpy_iterators_and_reductions_work() -> None:
    watched = watch(numbers())
    assert list(watched.as_numpy_iterator()) == list(range(8))
    assert int(watched.reduce(np.int64(0), lambda total, number: total + number)) == 28
    assert int(watch(numbers(1)).get_single_element()) == 0


def test_a_loop_in_a_tf_function_runs_over_it_by_closure_and_by_argument() -> None:
    watched = watch(numbers())

    @tf.function
    def total() -> tf.Tensor:
        result = tf.constant(0, tf.int64)
        for number in watched:
            result += number
        return result

    @tf.function
    def total_of(dataset: tf.data.Dataset) -> tf.Tensor:
        result = tf.constant(0, tf.int64)
        for number in dataset:
            result += number
        return result

    @tf.function
    def first() -> tf.Tensor:
        return next(iter(watched))

    assert (int(total()), int(total_of(watched)), int(first())) == (28, 28, 0)


def test_an_iterator_made_outside_is_read_within_a_tf_function_and_stamped() -> None:
    iterator = iter(watch(numbers()))

    @tf.function
    def pull(source: Any) -> tf.Tensor:
        return next(source)

    assert [int(pull(iterator)) for _ in range(3)] == [0, 1, 2]
    assert len(rows(iterator)) == 3


def test_watching_a_watched_dataset_changes_nothing() -> None:
    watched = watch(numbers())
    assert watch(watched) is watched


def test_a_watched_dataset_is_a_dataset() -> None:
    assert isinstance(watch(numbers()), tf.data.Dataset)


@pytest.mark.parametrize("wrong", [np.zeros(3), [1, 2], None, iter([1])], ids=["array", "list", "None", "iterator"])
def test_what_is_no_dataset_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=rf"`dataset`. Received: {type(wrong).__name__}. Expected: a tf.data.Dataset"):
        watch(wrong)


def test_a_distributed_dataset_is_refused_with_the_remedy() -> None:
    distributed = tf.distribute.OneDeviceStrategy("/CPU:0").experimental_distribute_dataset(numbers().batch(2))
    with pytest.raises(TypeError, match="before it is distributed"):
        watch(distributed)


def test_attributes_of_the_users_dataset_stay_readable() -> None:
    dataset = numbers()
    dataset.class_names = ["cat", "dog"]
    watched = watch(dataset)
    assert watched.class_names == ["cat", "dog"]
    dataset.class_names = ["bird"]
    assert watched.class_names == ["bird"]
    with pytest.raises(AttributeError, match="file_paths"):
        _ = watched.file_paths
    with pytest.raises(AttributeError, match="_private"):
        _ = watched._private


def test_an_iterator_is_freed_without_the_garbage_collector() -> None:
    watched = watch(numbers())
    gc.collect()
    gc.disable()
    try:
        iterator = iter(watched)
        next(iterator)
        left = weakref.ref(iterator)
        del iterator
        assert left() is None
    finally:
        gc.enable()


def test_a_stamp_that_cannot_be_made_gives_the_users_iterator_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any) -> Any:
        raise RuntimeError("no stamps today")

    monkeypatch.setattr(Stamper, "iterator", fail)
    watched = watch(numbers().batch(3))
    with caplog.at_level(logging.ERROR, "keras_gpu_watch"):
        assert values(watched) == values(watched) == values(numbers().batch(3))
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_an_error_of_the_users_pipeline_passes_through() -> None:
    def fail(number: np.ndarray) -> np.ndarray:
        raise ValueError("their own")

    watched = watch(numbers().map(lambda number: tf.numpy_function(fail, [number], tf.int64)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="their own"):
        next(iter(watched))


def save(iterator: Any, path: Path) -> str:
    return str(tf.train.Checkpoint(iterator=iterator).write(str(path / "iterator")))


def restored(dataset: tf.data.Dataset, saved: str) -> Any:
    iterator = iter(dataset)
    tf.train.Checkpoint(iterator=iterator).read(saved).assert_consumed()
    return iterator


RESUMABLE: dict[str, Callable[[], tf.data.Dataset]] = {
    "batch": lambda: numbers(20).batch(3),
    "map and batch": lambda: numbers(20).map(lambda number: number * 2).batch(3),
    "shuffle": lambda: shuffled(seed=3),
    "shuffle and prefetch": lambda: shuffled(seed=3).prefetch(2),
    "repeat": lambda: numbers(6).repeat(4).batch(3),
    "cache": lambda: numbers(20).cache().batch(3),
    "interleave": lambda: numbers(6).interleave(lambda number: tf.data.Dataset.range(number), cycle_length=3),
    "symbolic": lambda: numbers(20).batch(3).with_options(symbolic_checkpoints()),
}


def symbolic_checkpoints() -> tf.data.Options:
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = True
    return options


@pytest.mark.parametrize("name", RESUMABLE)
def test_an_iterator_is_restored_to_its_exact_position(name: str, tmp_path: Path) -> None:
    watched = watch(RESUMABLE[name]())
    iterator = iter(watched)
    for _ in range(2):
        next(iterator)
    saved = save(iterator, tmp_path)
    rest = values(iterator)
    assert len(rest) > 3
    assert values(restored(watched, saved)) == rest


def test_saving_an_iterator_leaves_later_epochs_in_the_order_they_would_have_had(tmp_path: Path) -> None:
    """A judge of the user's state that began an iterator of his own drew from his shuffle's seeds."""
    orders = []
    for wrap in (lambda dataset: dataset, watch):
        dataset = wrap(shuffled(seed=3))
        iterator = iter(dataset)
        next(iterator)
        save(iterator, tmp_path)
        orders.append([values(iterator), values(dataset), values(dataset)])
    assert orders[0] == orders[1]


def random(number: tf.Tensor) -> tf.Tensor:
    return tf.cast(number, tf.float32) + tf.random.uniform([])


def random_number(number: tf.Tensor) -> tf.Tensor:
    return number + tf.random.uniform([], maxval=9, dtype=tf.int64)


STATEFUL: dict[str, Callable[[], tf.data.Dataset]] = {
    "map": lambda: numbers().map(random),
    "map below a shuffle": lambda: numbers().map(random).shuffle(3),
    "map below a batch": lambda: numbers().map(random).batch(3),
    "map within an interleave": lambda: numbers().interleave(lambda number: tf.data.Dataset.range(1).map(random)),
    "filter": lambda: numbers().filter(lambda number: tf.random.uniform([]) >= 0.0),
    "Python": lambda: numbers().map(lambda number: tf.numpy_function(lambda value: value, [number], tf.int64)),
    "generator": lambda: generated(1, 2, 3, spec=tf.TensorSpec([], tf.int32)),
    # `Dataset.apply` writes over what a concatenation says of its inputs.
    "concatenated by apply": lambda: numbers(1).apply(lambda first: first.concatenate(numbers().map(random_number))),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_a_stateful_pipeline_is_refused_by_a_checkpoint_as_without_us(name: str, tmp_path: Path) -> None:
    messages = []
    for dataset in (STATEFUL[name](), watch(STATEFUL[name]())):
        iterator = iter(dataset)
        next(iterator)
        with pytest.raises(tf.errors.FailedPreconditionError, match="is stateful") as caught:
            save(iterator, tmp_path)
        messages.append(caught.value.message)
    assert messages[0] == messages[1]


@pytest.mark.parametrize("policy", [Policy.IGNORE, Policy.WARN])
def test_the_users_policy_for_external_state_is_followed(policy: Any, tmp_path: Path) -> None:
    options = tf.data.Options()
    options.experimental_external_state_policy = policy
    watched = watch(numbers().map(random).with_options(options))
    iterator = iter(watched)
    next(iterator)
    saved = save(iterator, tmp_path)
    # The position is exact, though not the random part.
    assert [int(value) for value in restored(watched, saved)] == list(range(1, 8))


def test_stateful_functions_that_tensorflow_lets_pass_do_not_stop_a_checkpoint(tmp_path: Path) -> None:
    initializer = tf.lookup.KeyValueTensorInitializer(tf.range(8, dtype=tf.int64), tf.range(10, 18, dtype=tf.int64))
    table = tf.lookup.StaticHashTable(initializer, -1)

    def look_up(number: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_greater(number, np.int64(-1))
        return table.lookup(number)

    watched = watch(numbers().map(look_up))
    iterator = iter(watched)
    next(iterator)
    saved = save(iterator, tmp_path)
    assert [int(value) for value in restored(watched, saved)] == list(range(11, 18))


class SeesBatches(keras.Model):
    """Notes the batches that its train step is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen: list[list[float]] = []

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.dense(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        def note(batch: np.ndarray) -> np.ndarray:
            self.seen.append(batch.ravel().tolist())
            return batch

        inputs, targets = data
        noted = tf.ensure_shape(tf.numpy_function(note, [inputs], tf.float32), [None, 1])
        return super().train_step((noted, targets))


# Keras says so about an epoch whose length it did not know.
@pytest.mark.filterwarnings("ignore:.*ran out of data:UserWarning")
@pytest.mark.parametrize(
    ("build_dataset", "arguments"),
    [
        (lambda: training_dataset(6), {"epochs": 2}),
        (lambda: training_dataset(6).shuffle(6, seed=1), {"epochs": 3}),
        (lambda: training_dataset(4).repeat(), {"epochs": 3, "steps_per_epoch": 5}),
        (lambda: training_dataset(9), {"epochs": 2, "steps_per_epoch": 4}),
        (lambda: training_dataset(6).filter(lambda inputs, targets: True), {"epochs": 2}),
    ],
    ids=["finite", "shuffled", "endless", "partial epochs", "unknown length"],
)
def test_fit_sees_the_same_batches_and_learns_the_same(
    build_dataset: Callable[[], tf.data.Dataset], arguments: dict[str, Any], log_dir: str
) -> None:
    results = []
    for wrap in (lambda dataset: dataset, watch):
        keras.utils.set_random_seed(1)
        model = SeesBatches()
        model.compile("sgd", "mse", jit_compile=False)
        callbacks = [GPUWatch(log_dir, console=False)] if wrap is watch else []
        history = model.fit(wrap(build_dataset()), verbose=0, callbacks=callbacks, **arguments)
        results.append((model.seen, history.history, [weight.tolist() for weight in model.get_weights()]))
    assert results[0] == results[1]


def test_evaluate_and_predict_give_the_same() -> None:
    model = tiny_model()
    dataset = training_dataset(5)
    assert model.evaluate(watch(dataset), verbose=0) == model.evaluate(dataset, verbose=0)
    np.testing.assert_array_equal(model.predict(watch(dataset), verbose=0), model.predict(dataset, verbose=0))


def test_validation_on_the_same_dataset_does_not_mix_with_training(log_dir: str) -> None:
    fetch_seconds, batches = 0.01, 8
    watched = watch(sleeping_dataset(fetch_seconds, batches))
    callback = GPUWatch(log_dir, console=False)
    tiny_model().fit(watched, epochs=2, validation_data=watched, verbose=0, callbacks=[callback])
    steps = callback.batches()
    assert steps["epoch"].tolist() == [0] * batches + [1] * batches
    assert steps["batches"].tolist() == [1] * (2 * batches)
    assert not np.isnan(steps["input_wait_seconds"]).any()
    assert steps["input_wait_seconds"].min() >= fetch_seconds
    assert np.median(steps["input_wait_seconds"]) < 1.5 * fetch_seconds
    validation_seconds = callback.report.epochs[1].validation_seconds
    assert validation_seconds is not None
    assert validation_seconds >= batches * fetch_seconds


def test_evaluating_the_same_dataset_amid_an_epoch_does_not_mix_either(log_dir: str) -> None:
    fetch_seconds, batches = 0.01, 6
    watched = watch(sleeping_dataset(fetch_seconds, batches))
    other = watch(training_dataset(3))

    class Evaluates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.evaluate(watched.take(1), verbose=0)
            self.model.evaluate(other, verbose=0)
            next(iter(watched))

    callback = GPUWatch(log_dir, console=False)
    tiny_model().fit(watched, verbose=0, callbacks=[callback, Evaluates()])
    waits = callback.batches()["input_wait_seconds"]
    assert len(waits) == batches
    assert waits.min() >= fetch_seconds
    assert np.median(waits) < 1.5 * fetch_seconds


def test_examples_of_each_batch_are_counted(log_dir: str) -> None:
    values = np.zeros((4 * BATCH + 1, 1), np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((values, values)).batch(BATCH)
    callback = GPUWatch(log_dir, console=False)
    tiny_model().fit(watch(dataset), verbose=0, callbacks=[callback])
    assert callback.batches()["examples"].tolist() == [BATCH] * 4 + [1]


def epoch_seconds(dataset: tf.data.Dataset, work_seconds: float) -> float:
    iterator = iter(dataset)
    next(iterator)
    begin = time.perf_counter()
    for _ in iterator:
        time.sleep(work_seconds)
    return time.perf_counter() - begin


def fetches_beside_the_work() -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = True
    return sleeping_dataset(0.01, 30).with_options(options)


def pulls_in_the_background() -> tf.data.Dataset:
    return fetches_beside_the_work().prefetch(2)


def with_options_in_the_middle() -> tf.data.Dataset:
    return fetches_beside_the_work().unbatch().map(lambda x, y: (x, y)).with_options(tf.data.Options()).batch(BATCH)


@pytest.mark.parametrize(
    "make",
    [fetches_beside_the_work, pulls_in_the_background, with_options_in_the_middle],
    ids=lambda make: make.__name__,
)
def test_an_epoch_takes_as_long_as_without_us(make: Callable[[], tf.data.Dataset]) -> None:
    """Fetch and work take 10 ms each: one after the other would take twice as long as side by side."""
    dataset = make()
    watched = watch(dataset)
    pairs = [(epoch_seconds(dataset, 0.01), epoch_seconds(watched, 0.01)) for _ in range(3)]
    assert np.median([ours / theirs for theirs, ours in pairs]) < 1.4


STRATEGY_SCRIPT = """
import json, sys
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
import keras
import numpy as np
from keras_gpu_watch import GPUWatch, watch

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
values = np.linspace(0, 1, 32, dtype=np.float32).reshape(-1, 1)
dataset = tf.data.Dataset.from_tensor_slices((values, values)).batch(8)
result = {}

def elements(source):
    parts = [strategy.experimental_local_results(batch[0]) for batch in source]
    return [[part.numpy().ravel().tolist() for part in each] for each in parts]

result["distributed"] = elements(strategy.experimental_distribute_dataset(dataset))
result["distributed, watched"] = elements(strategy.experimental_distribute_dataset(watch(dataset)))
with strategy.scope():
    watched = watch(dataset)
    result["in scope"] = [batch[0].numpy().ravel().tolist() for batch in watched]
    result["variables"] = len(strategy.experimental_local_results(tf.Variable(1.0)))
result["plain"] = [batch[0].numpy().ravel().tolist() for batch in dataset]
result["watched before, read in scope"] = []
with strategy.scope():
    for batch in watch(dataset):
        result["watched before, read in scope"].append(batch[0].numpy().ravel().tolist())

def train(source, callbacks):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        inputs = keras.Input((1,))
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
    model.fit(source, epochs=2, verbose=0, callbacks=callbacks)
    model.evaluate(source, verbose=0)
    return [model.predict(source, verbose=0).ravel().tolist(), [w.tolist() for w in model.get_weights()]]

result["trained"] = train(dataset, [])
callback = GPUWatch(sys.argv[1], console=False)
result["trained, watched"] = train(watch(dataset), [callback])
result["steps"] = [epoch.steps for epoch in callback.report.epochs]
result["waits"] = [epoch.input_wait_seconds for epoch in callback.report.epochs]
print("RESULT" + json.dumps(result))
"""


@pytest.mark.slow
def test_a_strategy_with_two_devices_gets_the_users_own_dataset(tmp_path: Path, log_dir: str) -> None:
    script = tmp_path / "strategy.py"
    script.write_text(STRATEGY_SCRIPT)
    finished = subprocess.run(
        [sys.executable, str(script), log_dir], capture_output=True, text=True, timeout=100, check=False
    )
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout.rpartition("RESULT")[2])
    assert result["distributed, watched"] == result["distributed"]
    assert [len(parts) for parts in result["distributed"]] == [2] * 4
    assert result["in scope"] == result["plain"]
    assert result["watched before, read in scope"] == result["plain"]
    assert result["variables"] == 2
    assert result["trained, watched"] == result["trained"]
    assert result["steps"] == [4, 4]
    assert result["waits"] == [None, None]
