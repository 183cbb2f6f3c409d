# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import os
import threading
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_gpu_watch.pipeline.live_model import read_model
from keras_gpu_watch.pipeline.model_tree import LiveModel, Node

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def look(iterator: Any) -> LiveModel:
    live = read_model(iterator)
    assert live is not None
    return live


def node(live: LiveModel, name: str) -> Node:
    (found,) = (each for each in live.nodes.values() if each.name.startswith(name))
    return found


def fetch(iterator: Any, count: int) -> None:
    for _ in range(count):
        next(iterator)


class Counter:
    """A map function in Python that tells how many of its calls ran at a time, and what they took in all."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.running = self.most = 0
        self.total_seconds = 0.0
        self._lock = threading.Lock()

    def __call__(self, element: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(self._work, [element], element.dtype), element.shape)

    def _work(self, element: np.ndarray) -> np.ndarray:
        begin = time.perf_counter()
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(self.seconds)
        with self._lock:
            self.running -= 1
            self.total_seconds += time.perf_counter() - begin
        return element


def test_the_tree_is_read_from_the_consumers_end():
    iterator = iter(tf.data.Dataset.range(100).padded_batch(4).prefetch(3))
    fetch(iterator, 5)
    live = look(iterator)
    row = [each.name for each in live.subtree(live.output)]
    assert row == ["Root", "Prefetch", "PaddedBatchV2", "Range"]
    assert live.nodes[live.output].elements == 5
    assert node(live, "PaddedBatch").bytes_given == 4 * 8 * node(live, "PaddedBatch").elements
    assert node(live, "Prefetch").knobs["buffer_size"].value == 3
    assert [each.is_asynchronous for each in live.subtree(live.output)] == [False, True, False, False]
    assert live.cpu_budget == CORES
    assert live.ram_budget_bytes is not None
    assert live.ram_budget_bytes > 2**20


def test_inputs_for_an_element_are_told_where_tf_data_knows_them():
    iterator = iter(tf.data.Dataset.range(100).filter(lambda number: number >= 0).padded_batch(4))
    fetch(iterator, 1)
    live = look(iterator)
    assert node(live, "PaddedBatch").inputs_per_element == 4
    assert node(live, "Filter").inputs_per_element is None


def test_time_is_a_nodes_own_in_seconds():
    work = Counter(0.005)
    iterator = iter(tf.data.Dataset.range(100).map(work).filter(lambda number: number >= 0))
    fetch(iterator, 20)
    time.sleep(0.05)
    live = look(iterator)
    assert node(live, "Map").own_seconds == pytest.approx(work.total_seconds, rel=0.25)
    assert node(live, "Filter").own_seconds < 0.25 * work.total_seconds


@pytest.mark.parametrize("pool", [None, 12])
def test_a_parallel_stage_is_limited_by_its_threads(pool):
    work = Counter(0.01)
    options = tf.data.Options()
    if pool:
        options.threading.private_threadpool_size = pool
    iterator = iter(tf.data.Dataset.range(1000).map(work, num_parallel_calls=64).with_options(options))
    fetch(iterator, 40)
    knob = node(look(iterator), "ParallelMap").knobs["parallelism"]
    assert knob.value == 64
    assert knob.limit == work.most == (pool or CORES)


def test_autotunes_choice_is_the_number_of_calls_that_run():
    work = Counter(0.02)
    iterator = iter(tf.data.Dataset.range(1000).map(work, num_parallel_calls=tf.data.AUTOTUNE).batch(4))
    fetch(iterator, 2)
    # It works with several calls from the start, long before the model's first wish.
    assert node(look(iterator), "MapAndBatch").knobs["parallelism"].value == work.most


def test_looking_does_not_move_the_iterator():
    dataset = tf.data.Dataset.range(60).shuffle(10, seed=1).batch(2)
    expected = [batch.numpy().tolist() for batch in iter(dataset)]
    iterator = iter(tf.data.Dataset.range(60).shuffle(10, seed=1).batch(2))
    seen = []
    for batch in iterator:
        seen.append(batch.numpy().tolist())
        look(iterator)
    assert len(seen) == len(expected) == 30
    assert sorted(itertools.chain.from_iterable(seen)) == list(range(60))


def test_an_iterator_that_gave_nothing_yet_has_a_model_of_zeros():
    live = look(iter(tf.data.Dataset.range(10).batch(2)))
    assert all(each.elements == 0 for each in live.nodes.values())


def test_without_autotuning_there_is_no_model():
    options = tf.data.Options()
    options.autotune.enabled = False
    iterator = iter(tf.data.Dataset.range(10).with_options(options))
    next(iterator)
    assert read_model(iterator) is None


@pytest.mark.parametrize("iterator", [iter([1, 2]), None, iter(tf.data.Dataset.range(3).as_numpy_iterator())])
def test_what_is_no_iterator_of_tf_data_has_no_model(iterator):
    assert read_model(iterator) is None


def test_a_tensorflow_without_models_has_none(monkeypatch):
    monkeypatch.delattr(tf.data.experimental, "get_model_proto")
    assert read_model(iter(tf.data.Dataset.range(3))) is None
