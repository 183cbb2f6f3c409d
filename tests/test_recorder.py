# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import numpy as np

from keras_gpu_watch.recorder import Recorder
from keras_gpu_watch.records import STEP_DTYPE, StepArray
from keras_gpu_watch.samples import GPU_SAMPLE_DTYPE, HOST_SAMPLE_DTYPE, GpuSamples, HostSamples


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


def gpus_at(seconds: float, gpus: int = 2) -> GpuSamples:
    """One sample of some GPUs, which are read one after the other."""
    rows = np.zeros(gpus, GPU_SAMPLE_DTYPE)
    rows["gpu"] = np.arange(gpus)
    rows["seconds"] = seconds + rows["gpu"] / 1024
    return rows


def host_at(seconds: float) -> HostSamples:
    rows = np.zeros(1, HOST_SAMPLE_DTYPE)
    rows["seconds"] = seconds
    return rows


NO_GPU, NO_HOST = np.zeros(0, GPU_SAMPLE_DTYPE), np.zeros(0, HOST_SAMPLE_DTYPE)


def times(samples: GpuSamples) -> list[float]:
    """Of the first GPU, or the host."""
    if "gpu" in (samples.dtype.names or ()):
        samples = samples[samples["gpu"] == 0]
    return samples["seconds"].tolist()


def test_samples_are_handed_out_once_after_the_last_ones_handed_out_before():
    recorder = Recorder()
    for second in range(3):
        recorder.add_samples(gpus_at(second), host_at(second))
    gpus, host = recorder.take_samples()
    assert gpus.tolist() == np.concatenate([gpus_at(0), gpus_at(1), gpus_at(2)]).tolist()
    assert times(host) == [0, 1, 2]
    recorder.add_samples(gpus_at(3), host_at(3))
    gpus, host = recorder.take_samples()
    assert gpus.tolist() == np.concatenate([gpus_at(2), gpus_at(3)]).tolist()
    assert times(host) == [2, 3]


def test_without_new_samples_only_the_last_ones_are_handed_out():
    recorder = Recorder()
    for samples in recorder.take_samples():
        assert len(samples) == 0
    recorder.add_samples(gpus_at(1), host_at(1))
    recorder.take_samples()
    for _ in range(2):
        gpus, host = recorder.take_samples()
        assert gpus.tolist() == gpus_at(1).tolist()
        assert times(host) == [1]


def test_a_gpu_that_did_not_answer_the_last_time_is_preceded_by_its_own_last_sample():
    recorder = Recorder()
    recorder.add_samples(gpus_at(0, gpus=3), NO_HOST)
    recorder.add_samples(gpus_at(1, gpus=3)[1:], NO_HOST)
    recorder.add_samples(NO_GPU, host_at(2))
    recorder.take_samples()
    gpus, host = recorder.take_samples()
    assert gpus.tolist() == [*gpus_at(0)[:1].tolist(), *gpus_at(1, gpus=3)[1:].tolist()]
    assert times(host) == [2]


def test_when_there_are_too_many_samples_they_lie_evenly_wider_apart_and_the_newest_is_kept():
    for count in range(1, 200):
        recorder = Recorder(epoch_samples=40)
        for second in range(count):
            recorder.add_samples(gpus_at(second, gpus=3), host_at(second))
        gpus, host = recorder.take_samples()
        assert len(gpus) <= 40
        assert len(host) <= 40
        for kept in (times(gpus), times(host)):
            assert (kept[0], kept[-1]) == (0, count - 1)
            # The newest one may come before its turn.
            between = set(np.diff(kept[:-1]).tolist())
            assert len(between) <= 1
        # As many as there is room for: more than half, less the newest.
        assert len(times(gpus)) >= min(count, 6)
        # All GPUs of each time.
        assert np.bincount(gpus["gpu"]).tolist() == [len(times(gpus))] * 3


def test_after_a_long_epoch_the_next_one_is_kept_whole():
    recorder = Recorder(epoch_samples=8)
    for second in range(100):
        recorder.add_samples(gpus_at(second, gpus=1), NO_HOST)
    recorder.take_samples()
    for second in range(100, 108):
        recorder.add_samples(gpus_at(second, gpus=1), NO_HOST)
    assert times(recorder.take_samples()[0]) == list(range(99, 108))


def test_no_sample_is_lost_between_the_thread_that_adds_and_the_one_that_takes():
    recorder = Recorder()
    taken: list[float] = []
    done = threading.Event()

    def add() -> None:
        for second in range(3000):
            recorder.add_samples(gpus_at(second, gpus=1), host_at(second))
        done.set()

    adder = threading.Thread(target=add)
    adder.start()
    last = False
    while not last:
        last = done.is_set()
        gpus, host = recorder.take_samples()
        assert times(gpus) == times(host)
        # The first one is known from the time before.
        taken += times(gpus)[1 if taken else 0 :]
    adder.join()
    assert taken == list(range(3000))
