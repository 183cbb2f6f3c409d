# SPDX-License-Identifier: Apache-2.0
"""Live pipelines whose work is known by construction, or by a stopwatch inside of it."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from workloads import crunch

from keras_gpu_watch import watch
from keras_gpu_watch.findings import PipelineSummary, Stage
from keras_gpu_watch.pipeline.dataset_objects import read_stages
from keras_gpu_watch.pipeline.stages import NO_MODEL, PipelineProbe

pytestmark = pytest.mark.timed

TOLERANCE = 0.15


@dataclass
class Timed:
    """Work in a map function, with a stopwatch in it."""

    work: Callable[[], Any]
    seconds: list[float] = field(default_factory=list)

    def __call__(self, element: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(self._run, [element], element.dtype), element.shape)

    def _run(self, element: np.ndarray) -> np.ndarray:
        begin = time.perf_counter()
        self.work()
        self.seconds.append(time.perf_counter() - begin)
        return element

    @property
    def seconds_per_call(self) -> float:
        """Mean of all but the first calls, which the probe leaves out too."""
        return float(np.mean(self.seconds[len(self.seconds) // 5 :]))


def nap(seconds: float) -> Timed:
    return Timed(lambda: time.sleep(seconds))


def spin(seconds: float) -> Timed:
    def work() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return Timed(work)


@dataclass(frozen=True)
class Run:
    """An epoch as the probe saw it, and as a stopwatch outside of the pipeline did."""

    summary: PipelineSummary
    seconds_per_batch: float
    """Between the first look and the last."""
    wait_seconds_per_batch: float

    def stage(self, op: str) -> Stage:
        (found,) = (stage for stage in self.summary.stages if stage.op == op)
        return found

    @property
    def most_blamed(self) -> Stage:
        return max(self.summary.stages, key=lambda stage: stage.wait_share or 0.0)


def run(
    dataset: tf.data.Dataset,
    batches: int,
    *,
    step_seconds: float = 0.0,
    looks: int = 4,
    probe: PipelineProbe | None = None,
    iterator: Any = None,
) -> Run:
    """An epoch: looks after the first batch, now and then, and after the last."""
    probe = probe or PipelineProbe()
    iterator = iter(dataset) if iterator is None else iterator
    look_at = {round(number) for number in np.linspace(1, batches, looks)}
    next(iterator)
    probe.poll(iterator)
    wait = 0.0
    first = time.perf_counter()
    for number in range(2, batches + 1):
        time.sleep(step_seconds)
        begin = time.perf_counter()
        next(iterator)
        wait += time.perf_counter() - begin
        if number in look_at:
            probe.poll(iterator)
    seconds, wait = (each / (batches - 1) for each in (time.perf_counter() - first, wait))
    summary = probe.take_epoch(seconds - wait, wait)
    assert summary is not None
    return Run(summary, seconds, wait)


def numbers(count: int = 100_000) -> tf.data.Dataset:
    return tf.data.Dataset.range(count)


def assert_shares_add_up(summary: PipelineSummary) -> None:
    assert sum(stage.wait_share or 0.0 for stage in summary.stages) == pytest.approx(1.0)


def test_elements_are_exact_and_work_is_as_the_stopwatch_says():
    first, second = nap(0.012), nap(0.006)
    dataset = numbers().map(first).map(second).padded_batch(3).prefetch(1)
    seen = run(dataset, 16)
    stages = seen.summary.stages
    assert [stage.op for stage in stages] == ["range", "map", "map", "padded_batch", "prefetch"]
    assert [stage.elements_per_batch for stage in stages] == [3, 3, 3, 1, 1]
    assert stages[1].busy_seconds_per_batch == pytest.approx(3 * first.seconds_per_call, rel=TOLERANCE)
    assert stages[2].busy_seconds_per_batch == pytest.approx(3 * second.seconds_per_call, rel=TOLERANCE)
    assert seen.most_blamed.index == 1
    assert_shares_add_up(seen.summary)
    assert seen.summary.polls == 4
    assert stages[3].bytes_per_element == 24


def test_the_slowest_part_tells_the_time_between_two_batches():
    seen = run(numbers().map(nap(0.01)).padded_batch(2).prefetch(1), 20)
    assert seen.summary.slowest_seconds_per_batch == pytest.approx(seen.seconds_per_batch, rel=0.2)
    assert 1 / (seen.stage("map").capacity_batches_per_second or 0) == pytest.approx(seen.seconds_per_batch, rel=0.2)
    assert seen.summary.serial_seconds_per_batch == 0.0


def test_a_capacity_counts_the_calls_that_there_are_threads_for():
    work = nap(0.015)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 3
    seen = run(numbers().map(work, num_parallel_calls=16).batch(4).with_options(options), 30)
    mapped = seen.stage("map")
    assert (mapped.parallelism, mapped.parallelism_max, mapped.num_parallel_calls) == (3, 3, 16)
    assert mapped.busy_seconds_per_batch == pytest.approx(4 * work.seconds_per_call, rel=TOLERANCE)
    assert 1 / (mapped.capacity_batches_per_second or 0) == pytest.approx(seen.seconds_per_batch, rel=0.2)
    assert seen.most_blamed.op == "map"
    assert seen.summary.private_threadpool_size == 3


def test_a_map_fused_with_its_batch_has_the_work():
    work = nap(0.008)
    seen = run(numbers().map(work).batch(4), 15)
    mapped, batched = seen.stage("map"), seen.stage("batch")
    assert (mapped.fused_with, batched.fused_with) == ((2,), (1,))
    assert (mapped.elements_per_batch, batched.elements_per_batch) == (4, 1)
    assert mapped.busy_seconds_per_batch == pytest.approx(4 * work.seconds_per_call, rel=TOLERANCE)
    assert batched.busy_seconds_per_batch is None
    assert batched.reason
    assert seen.most_blamed.op == "map"


def test_calls_that_wait_for_the_interpreter_lock_count_the_waiting():
    # Two calls at a time take twice as long each: busy time over parallelism is the truth all the same.
    work = spin(0.004)
    seen = run(numbers().map(work, num_parallel_calls=2).batch(4), 25)
    capacity = seen.stage("map").capacity_batches_per_second
    assert 1 / (capacity or 0) == pytest.approx(seen.seconds_per_batch, rel=0.3)


def test_work_in_tensorflow_is_measured():
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    seen = run(numbers().map(crunch(0.006)).padded_batch(2).with_options(options), 30)
    mapped = seen.stage("map")
    assert seen.most_blamed is mapped
    assert mapped.parallelism is None
    assert mapped.busy_seconds_per_batch == pytest.approx(seen.seconds_per_batch, rel=0.2)


def test_tensorflows_own_prefetch_is_marked():
    seen = run(numbers().map(nap(0.002)).shuffle(4), 20)
    last = seen.summary.stages[-1]
    assert (last.op, last.added_by, last.inputs) == ("prefetch", "tensorflow", (2,))
    assert last.elements_per_batch == 1


def test_without_a_prefetch_all_work_is_serial():
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    seen = run(numbers().map(nap(0.008)).padded_batch(2).with_options(options), 16, step_seconds=0.008)
    assert seen.summary.slowest_seconds_per_batch is None
    assert seen.summary.serial_seconds_per_batch == pytest.approx(seen.wait_seconds_per_batch, rel=0.2)
    assert seen.most_blamed.op == "map"
    assert_shares_add_up(seen.summary)


def test_a_pipeline_that_keeps_up_is_not_blamed():
    options = tf.data.Options()
    options.threading.private_threadpool_size = 8
    dataset = numbers().map(nap(0.002), num_parallel_calls=8).prefetch(8).with_options(options)
    probe, iterator = PipelineProbe(), iter(dataset)
    for _ in range(20):
        next(iterator)
        probe.poll(iterator)
    summary = probe.take_epoch(step_seconds=0.02, input_wait_seconds=0.0001)
    assert summary is not None
    assert all(stage.wait_share is None for stage in summary.stages)
    assert summary.slowest_seconds_per_batch is not None
    assert summary.slowest_seconds_per_batch < 0.02


def test_branches_of_a_zip_are_blamed_by_their_work():
    slow, fast = nap(0.018), nap(0.006)
    dataset = tf.data.Dataset.zip((numbers().map(slow), numbers().map(fast)))
    seen = run(dataset, 25)
    left, right = (stage for stage in seen.summary.stages if stage.op == "map")
    assert left.busy_seconds_per_batch == pytest.approx(slow.seconds_per_call, rel=TOLERANCE)
    assert right.busy_seconds_per_batch == pytest.approx(fast.seconds_per_call, rel=TOLERANCE)
    assert (left.wait_share or 0) / (right.wait_share or 1) == pytest.approx(
        slow.seconds_per_call / fast.seconds_per_call, rel=2 * TOLERANCE
    )


def test_a_filter_that_drops_half_doubles_the_work_below_it():
    work = nap(0.006)
    seen = run(numbers().map(work).filter(lambda number: number % 2 == 0).padded_batch(2), 30)
    assert seen.stage("map").elements_per_batch == pytest.approx(4, rel=0.1)
    assert seen.stage("map").busy_seconds_per_batch == pytest.approx(4 * work.seconds_per_call, rel=2 * TOLERANCE)


def test_a_generator_is_measured_whole():
    def produce() -> Any:
        while True:
            begin = time.perf_counter()
            time.sleep(0.008)
            taken.append(time.perf_counter() - begin)
            yield np.int64(1)

    taken: list[float] = []
    source = tf.data.Dataset.from_generator(produce, output_signature=tf.TensorSpec([], tf.int64))
    seen = run(source.batch(2), 20)
    generator = seen.stage("from_generator")
    assert generator.elements_per_batch == 2
    assert generator.busy_seconds_per_batch == pytest.approx(2 * float(np.mean(taken)), rel=2 * TOLERANCE)
    assert seen.most_blamed is generator


@pytest.mark.parametrize("kind", ["flat_map", "interleave", "parallel interleave"])
def test_the_work_of_opened_datasets_is_their_openers(kind):
    work = nap(0.006)

    def opened(_: tf.Tensor) -> tf.data.Dataset:
        return numbers(20).map(work)

    if kind == "flat_map":
        dataset = numbers().flat_map(opened)
    else:
        calls = 2 if "parallel" in kind else None
        dataset = numbers().interleave(opened, cycle_length=2, num_parallel_calls=calls)
    seen = run(dataset.padded_batch(2), 70, looks=9)
    opener = seen.stage(kind.split()[-1])
    assert opener.busy_seconds_per_batch == pytest.approx(2 * work.seconds_per_call, rel=2 * TOLERANCE)
    assert seen.most_blamed is opener
    assert 1 / (opener.capacity_batches_per_second or 0) == pytest.approx(seen.seconds_per_batch, rel=0.3)


def test_a_repeated_pipeline_is_measured_across_its_turns():
    work = nap(0.006)
    seen = run(numbers(7).map(work).repeat().padded_batch(3), 30, looks=9)
    assert [stage.elements_per_batch for stage in seen.summary.stages] == [3, 3, 3, 1, 1]
    assert seen.stage("map").busy_seconds_per_batch == pytest.approx(3 * work.seconds_per_call, rel=TOLERANCE)


def test_a_filled_cache_leaves_the_stages_below_it_idle():
    below, above = nap(0.006), nap(0.006)
    dataset = numbers(48).map(below).cache().shuffle(8).map(above).padded_batch(4)
    probe = PipelineProbe()
    first = run(dataset, 12, probe=probe, looks=9)
    second = run(dataset, 12, probe=probe, looks=9)
    assert first.summary.stages[1].busy_seconds_per_batch == pytest.approx(4 * below.seconds_per_call, rel=0.4)
    for stage in second.summary.stages[:2]:
        assert (stage.elements, stage.elements_per_batch, stage.busy_seconds_per_batch) == (0, 0, 0)
        assert not stage.wait_share
    # The last of the buffer came after the first look.
    mapped = second.summary.stages[4]
    assert mapped.busy_seconds_per_batch == pytest.approx(4 * above.seconds_per_call, rel=TOLERANCE)
    assert second.most_blamed is mapped


def test_a_cache_inside_a_repeat_is_filled_once():
    dataset = numbers(20).map(nap(0.002)).cache().padded_batch(4).repeat()
    probe, iterator = PipelineProbe(), iter(dataset)
    run(dataset, 10, probe=probe, iterator=iterator)
    later = run(dataset, 30, probe=probe, iterator=iterator)
    assert later.summary.stages[1].elements_per_batch == 0
    assert later.stage("cache").elements_per_batch == 4


def test_a_watched_pipeline_shows_the_users_stages_only():
    work = nap(0.008)
    dataset = numbers().map(work).shuffle(4).padded_batch(2)
    seen = run(watch(dataset), 20)
    assert [(stage.op, stage.added_by) for stage in seen.summary.stages] == [
        ("range", "user"),
        ("map", "user"),
        ("shuffle", "user"),
        ("padded_batch", "user"),
        ("prefetch", "tensorflow"),
    ]
    assert seen.stage("map").function is not None
    assert seen.stage("map").busy_seconds_per_batch == pytest.approx(2 * work.seconds_per_call, rel=TOLERANCE)
    assert seen.most_blamed.op == "map"


def test_an_iterator_without_a_dataset_is_told_by_its_nodes():
    iterator = iter(numbers().map(nap(0.002)).padded_batch(2))
    del iterator._dataset
    seen = run(None, 10, iterator=iterator)
    assert [stage.op for stage in seen.summary.stages] == ["range", "map", "padded_batch", "prefetch"]
    assert seen.most_blamed.op == "map"
    assert seen.summary.input_kind == "unknown"


def test_each_dataset_is_read_once():
    read: list[Any] = []

    def count(dataset: Any) -> PipelineSummary:
        read.append(weakref.ref(dataset))
        return read_stages(dataset)

    probe = PipelineProbe(count)
    first, second = numbers().batch(2), numbers().shuffle(3)
    for dataset in (first, first, second):
        seen = run(dataset, 4, probe=probe)
    assert len(read) == 2
    assert [stage.op for stage in seen.summary.stages] == ["range", "shuffle", "prefetch"]


def test_the_counters_of_another_iterator_are_not_taken_for_growth():
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    dataset = numbers().padded_batch(2).with_options(options)
    probe = PipelineProbe()
    for batches in (2, 5):
        iterator = iter(dataset)
        for _ in range(batches):
            next(iterator)
        probe.poll(iterator)
    summary = probe.take_epoch(1.0, 1.0)
    assert summary is not None
    assert [stage.elements for stage in summary.stages] == [10, 5]


def test_neither_dataset_nor_iterator_is_kept_alive():
    probe = PipelineProbe()
    dataset = numbers().shuffle(2).batch(2)
    iterator = iter(dataset)
    next(iterator)
    probe.poll(iterator)
    kept = [weakref.ref(iterator), weakref.ref(dataset)]
    del iterator, dataset
    gc.collect()
    assert [reference() for reference in kept] == [None, None]


def test_an_epoch_without_a_look_has_no_summary():
    probe = PipelineProbe()
    assert probe.take_epoch(1.0, 1.0) is None
    probe.poll(iter(numbers().batch(2)))
    assert probe.take_epoch(1.0, 1.0) is not None
    assert probe.take_epoch(1.0, 1.0) is None


def test_without_a_model_the_stages_are_as_written_with_the_reason():
    options = tf.data.Options()
    options.autotune.enabled = False
    iterator = iter(numbers().map(nap(0.0)).batch(2).with_options(options))
    next(iterator)
    probe = PipelineProbe()
    probe.poll(iterator)
    summary = probe.take_epoch(1.0, 1.0)
    assert summary is not None
    assert [stage.op for stage in summary.stages] == ["range", "map", "batch"]
    assert (summary.polls, summary.reason) == (0, NO_MODEL)
    assert all(stage.elements is None and stage.wait_share is None for stage in summary.stages)


@pytest.mark.parametrize("iterator", [iter([1]), None, 3])
def test_what_is_no_iterator_of_tf_data_is_let_pass(iterator):
    probe = PipelineProbe()
    probe.poll(iterator)
    summary = probe.take_epoch(1.0, 1.0)
    assert summary is not None
    assert (summary.stages, summary.polls, summary.input_kind) == ((), 0, "unknown")
