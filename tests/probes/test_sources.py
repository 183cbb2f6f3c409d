# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from keras_gpu_watch import watch
from keras_gpu_watch.probes.gap_source import GapSource
from keras_gpu_watch.probes.sources import DISTRIBUTED, NOT_LAST, choose_source
from keras_gpu_watch.probes.stamp_source import StampSource
from keras_gpu_watch.probes.wait_source import UnknownWaits, WaitSource


def choose(iterator: Any) -> tuple[WaitSource | None, list[str]]:
    notes: list[str] = []
    return choose_source(iterator, 1, notes.append), notes


def numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(8).batch(2)


def test_a_watched_dataset_is_read_by_its_stamps() -> None:
    source, notes = choose(iter(watch(numbers())))
    assert isinstance(source, StampSource)
    assert notes == []


def test_any_other_dataset_is_read_by_its_gaps() -> None:
    source, notes = choose(iter(numbers()))
    assert isinstance(source, GapSource)
    assert notes == []


@pytest.mark.parametrize(
    "above",
    [
        lambda watched: watched.prefetch(2),
        lambda watched: watched.map(lambda number: number).take(3),
        lambda watched: watched.with_options(tf.data.Options()),
        lambda watched: tf.data.Dataset.zip((numbers(), watched)),
        lambda watched: numbers().concatenate(watched),
    ],
    ids=["prefetch", "map and take", "options", "zip", "concatenate"],
)
def test_a_watched_dataset_below_something_else_is_read_by_its_gaps_and_the_user_told(above: Any) -> None:
    source, notes = choose(iter(above(watch(numbers()))))
    assert isinstance(source, GapSource)
    assert notes == [NOT_LAST]


def test_a_distributed_iterator_is_not_measured_and_says_so() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    source, _ = choose(iter(strategy.experimental_distribute_dataset(numbers())))
    assert isinstance(source, UnknownWaits)
    assert source.reason == DISTRIBUTED


@pytest.mark.parametrize("iterator", [iter([1]), (number for number in range(1)), None, object()])
def test_what_is_no_iterator_of_a_dataset_has_no_source(iterator: Any) -> None:
    assert choose(iterator) == (None, [])
