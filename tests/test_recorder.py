# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import numpy as np

from keras_gpu_watch.recorder import Recorder
from keras_gpu_watch.records import STEP_DTYPE, StepArray


def chunk(first: int, count: int) -> StepArray:
    steps = np.zeros(count, STEP_DTYPE)
    steps["step"] = np.arange(first, first + count)
    return steps


def test_an_epoch_is_handed_out_once_and_stays_in_the_run():
    recorder = Recorder()
    recorder.add(chunk(1, 2))
    recorder.add(chunk(3, 1))
    assert recorder.epoch_steps == 3
    assert recorder.take_epoch()["step"].tolist() == [1, 2, 3]
    assert recorder.epoch_steps == 0
    assert len(recorder.take_epoch()) == 0
    recorder.add(chunk(4, 2))
    assert recorder.take_epoch()["step"].tolist() == [4, 5]
    assert recorder.run()["step"].tolist() == [1, 2, 3, 4, 5]


def test_an_empty_recorder_gives_empty_arrays_of_the_same_fields():
    recorder = Recorder()
    for steps in (recorder.take_epoch(), recorder.run()):
        assert steps.dtype == STEP_DTYPE
        assert len(steps) == 0


def test_the_oldest_steps_of_a_long_run_are_let_go_but_never_an_epochs():
    recorder = Recorder(run_steps=10)
    for first in range(0, 60, 3):
        recorder.add(chunk(first, 3))
    assert recorder.run()["step"].tolist() == list(range(50, 60))
    assert recorder.take_epoch()["step"].tolist() == list(range(60))
    assert len(recorder._run) <= 5


def test_one_chunk_that_is_longer_than_the_run_is_cut():
    recorder = Recorder(run_steps=4)
    recorder.add(chunk(0, 10))
    assert recorder.run()["step"].tolist() == [6, 7, 8, 9]


def test_nothing_is_lost_between_a_thread_that_adds_and_one_that_takes():
    recorder = Recorder()
    taken: list[int] = []
    done = threading.Event()

    def take() -> None:
        while not done.is_set():
            taken.extend(recorder.take_epoch()["step"].tolist())

    taker = threading.Thread(target=take)
    taker.start()
    for first in range(0, 2000, 2):
        recorder.add(chunk(first, 2))
    done.set()
    taker.join()
    taken.extend(recorder.take_epoch()["step"].tolist())
    assert taken == list(range(2000))
