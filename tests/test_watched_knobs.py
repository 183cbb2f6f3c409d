# SPDX-License-Identifier: Apache-2.0
"""A watched dataset whose knobs are turned."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from keras_gpu_watch import watch, watched
from keras_gpu_watch.knobs import END, Knobs
from keras_gpu_watch.pipeline.rebuild import rebuild
from keras_gpu_watch.probes.stamp import Stamper
from keras_gpu_watch.probes.stamp_source import (
    DATASET_ATTRIBUTE,
    INDEX,
    KNOBS_ATTRIBUTE,
    STAMPS_ATTRIBUTE,
    TUNABLE_ATTRIBUTE,
)

CALLS = Knobs(parallel_calls={1: 2})
WRONG = Knobs(parallel_calls={0: 2})


def double(number: tf.Tensor) -> tf.Tensor:
    return number * 2


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(8).map(double).shuffle(8, seed=3).batch(2)


def values(dataset: Any) -> list[Any]:
    return [batch.numpy().tolist() for batch in dataset]


def knobs_of(iterator: Any) -> Knobs:
    found: Knobs = getattr(iterator, KNOBS_ATTRIBUTE)
    return found


def test_the_next_iterator_has_the_knobs_and_says_so() -> None:
    dataset = watch(numbers())
    assert dataset.knobs == Knobs()
    for knobs in (Knobs(), CALLS, Knobs()):
        dataset.set_knobs(knobs)
        iterator = iter(dataset)
        assert knobs_of(iterator) == dataset.knobs == knobs
        assert getattr(iterator, TUNABLE_ATTRIBUTE) is dataset
        assert getattr(iterator, DATASET_ATTRIBUTE) is dataset._user_dataset


def stage_names(iterator: Any) -> list[str]:
    next(iterator)
    return [node.name.partition("(")[0] for node in tf.data.experimental.get_model_proto(iterator).nodes.values()]


def test_turned_batches_are_stamped_and_as_they_were() -> None:
    expected = [values(dataset) for dataset in [numbers()] for _ in range(3)]
    dataset = watch(numbers())
    dataset.set_knobs(CALLS)
    assert [values(dataset) for _ in range(3)] == expected
    iterator: Any = iter(dataset)
    rest = values(iterator)
    assert getattr(iterator, STAMPS_ATTRIBUTE).read(0, 100)[:, INDEX].tolist() == list(range(len(rest)))


def test_the_pipeline_that_runs_is_another_one() -> None:
    dataset = watch(tf.data.Dataset.range(8).batch(2).prefetch(1))
    own = stage_names(iter(dataset))
    dataset.set_knobs(CALLS)
    assert "ParallelBatch" in stage_names(iter(dataset))
    assert "ParallelBatch" not in own
    dataset.set_knobs(Knobs())
    assert stage_names(iter(dataset)) == own


PREFETCHES: dict[str, tuple[Callable[[], tf.data.Dataset], Knobs, int]] = {
    "as TensorFlow would": (numbers, CALLS, 1),
    "one of its own": (lambda: numbers().prefetch(1), CALLS, 1),
    "another size": (numbers, Knobs(buffer_sizes={END: 3}), 1),
    "fetches ahead by itself": (lambda: tf.data.Dataset.range(8).map(double, num_parallel_calls=1), CALLS, 0),
}


@pytest.mark.parametrize("name", PREFETCHES)
def test_a_turned_pipeline_fetches_ahead_as_before(name: str) -> None:
    build, knobs, count = PREFETCHES[name]
    dataset = watch(build())
    for each in (Knobs(), knobs):
        dataset.set_knobs(each)
        assert stage_names(iter(dataset)).count("Prefetch") == count


def test_knobs_that_do_not_fit_leave_the_users_own_dataset(caplog: pytest.LogCaptureFixture) -> None:
    expected = [values(dataset) for dataset in [numbers()] for _ in range(3)]
    dataset = watch(numbers())
    with caplog.at_level(logging.ERROR, "keras_gpu_watch"):
        seen = []
        for knobs in (WRONG, Knobs(buffer_sizes={1: 2}), CALLS):
            dataset.set_knobs(knobs)
            iterator = iter(dataset)
            seen.append(values(iterator))
            assert (knobs_of(iterator) == knobs) == (dataset.failure is None) == (knobs == CALLS)
    assert seen == expected
    assert [record.exc_info for record in caplog.records] == [None]
    assert "stage 0" in caplog.text


def test_setting_the_same_knobs_again_does_not_forget_their_failure() -> None:
    dataset = watch(numbers())
    for _ in range(2):
        dataset.set_knobs(WRONG)
        iter(dataset)
        assert dataset.failure is not None


def test_whatever_else_goes_wrong_leaves_the_users_own_dataset_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise RuntimeError("not today")

    monkeypatch.setattr(watched, "rebuild", fail)
    dataset = watch(numbers())
    dataset.set_knobs(CALLS)
    with caplog.at_level(logging.ERROR, "keras_gpu_watch"):
        assert [values(dataset) for _ in range(2)] == [values(each) for each in [numbers()] for _ in range(2)]
    assert dataset.failure == "not today"
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_without_stamps_there_are_no_knobs_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any) -> Any:
        raise RuntimeError("no stamps today")

    monkeypatch.setattr(Stamper, "iterator", fail)
    dataset = watch(numbers())
    dataset.set_knobs(CALLS)
    assert len(values(dataset)) == 4
    assert "could not be stamped" in dataset.failure
    dataset.set_knobs(Knobs())
    assert dataset.failure is not None


def test_nothing_is_built_again_while_the_knobs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def count(*args: Any, **options: Any) -> Any:
        built.append(args[1])
        return rebuild(*args, **options)

    monkeypatch.setattr(watched, "rebuild", count)
    dataset = watch(numbers().prefetch(1))
    for knobs in (Knobs(), CALLS, CALLS, Knobs(), CALLS):
        dataset.set_knobs(knobs)
        iter(dataset)
        iter(dataset)
    assert built == [CALLS, CALLS]


def test_of_many_knobs_only_the_newest_are_kept() -> None:
    dataset = watch(numbers())
    kept = []
    for calls in (1, 2, 3, 4):
        dataset.set_knobs(Knobs(parallel_calls={1: calls}))
        kept.append(weakref.ref(dataset._tuned()))
        values(dataset)
    gc.collect()
    assert [each() is None for each in kept] == [True, True, True, False]


def test_what_may_be_changed_is_read_once() -> None:
    dataset = watch(numbers())
    assert dataset.tunable() is dataset.tunable()
    assert dataset.tunable(parallel_python=True) is not dataset.tunable()


def test_the_users_word_on_python_is_handed_on() -> None:
    def call(number: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(lambda each: each, [number], tf.int64)

    dataset = watch(tf.data.Dataset.range(8).map(call))
    for parallel_python in (False, True):
        dataset.set_knobs(CALLS, parallel_python=parallel_python)
        assert sorted(values(dataset)) == list(range(8))
        assert (dataset.failure is None) == parallel_python


def test_what_is_built_on_top_is_built_on_the_users_own() -> None:
    dataset = watch(numbers())
    dataset.set_knobs(CALLS)
    assert not hasattr(iter(dataset.take(2)), KNOBS_ATTRIBUTE)

    @tf.function
    def total() -> tf.Tensor:
        result = tf.constant(0, tf.int64)
        for batch in dataset:
            result += tf.reduce_sum(batch)
        return result

    assert int(total()) == 56


def test_an_iterator_with_other_knobs_is_restored_to_its_exact_position(tmp_path: Path) -> None:
    dataset = watch(numbers())
    dataset.set_knobs(CALLS)
    iterator: Any = iter(dataset)
    next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "iterator"))
    rest = values(iterator)
    restored: Any = iter(dataset)
    tf.train.Checkpoint(iterator=restored).read(saved).assert_consumed()
    assert values(restored) == rest
