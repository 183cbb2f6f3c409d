# SPDX-License-Identifier: Apache-2.0
"""Threads that hold the interpreter lock for a share of the time that they log themselves."""

from __future__ import annotations

import hashlib
import math
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from keras_gpu_watch.guard import Guard
from keras_gpu_watch.probes import interpreter_lock
from keras_gpu_watch.probes.host_sampler import HostSampler
from keras_gpu_watch.probes.interpreter_lock import NO_LOCK, NOT_COUNTED, InterpreterLock
from keras_gpu_watch.probes.sampler import Sampler
from keras_gpu_watch.samples import HostSamples

pytestmark = pytest.mark.timed

CORES = len(os.sched_getaffinity(0))
WATCHED_SECONDS = 2.0


@pytest.fixture
def _many_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many in seconds as a run has in a minute."""
    monkeypatch.setattr(interpreter_lock, "LONGEST_PAUSE_SECONDS", 0.03)


@contextmanager
def threads(count: int, work: Callable[[], object]) -> Iterator[None]:
    """Threads that do a piece of work again and again."""
    stopping = threading.Event()

    def run() -> None:
        while not stopping.is_set():
            work()

    running = [threading.Thread(target=run) for _ in range(count)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in running:
            thread.join()


def watched_percent(seconds: float = WATCHED_SECONDS) -> float:
    lock = InterpreterLock()
    lock.wait(threading.Event(), seconds)
    return lock.take_percent()


class Spinner:
    """Pure Python for a while, then sleep; `share` is what the one took of both."""

    def __init__(self, busy_seconds: float, sleep_seconds: float) -> None:
        self._busy_seconds, self._sleep_seconds = busy_seconds, sleep_seconds
        self.busy = self.asleep = 0.0

    def __call__(self) -> None:
        begin = time.perf_counter()
        while time.perf_counter() < begin + self._busy_seconds:
            pass
        middle = time.perf_counter()
        time.sleep(self._sleep_seconds)
        self.busy += middle - begin
        self.asleep += time.perf_counter() - middle

    @property
    def percent(self) -> float:
        return 100 * self.busy / (self.busy + self.asleep)


DIGESTED = bytes(2**22)
MATRIX = np.ones((500, 500))
WITHOUT_THE_LOCK: dict[str, Callable[[], object]] = {
    "sleeping": lambda: time.sleep(1e-3),
    "digesting": lambda: hashlib.sha256(DIGESTED),
    "multiplying": lambda: MATRIX @ MATRIX,
}


@pytest.mark.usefixtures("_many_looks")
def test_nobody_holds_the_lock_where_nothing_runs() -> None:
    assert watched_percent() < 10


@pytest.mark.usefixtures("_many_looks")
@pytest.mark.parametrize("work", WITHOUT_THE_LOCK)
def test_a_machine_full_of_work_that_gave_the_lock_away_leaves_it_free(work: str) -> None:
    with threads(CORES + 2, WITHOUT_THE_LOCK[work]):
        assert watched_percent() < 20


@pytest.mark.usefixtures("_many_looks")
@pytest.mark.parametrize("count", [1, 3])
def test_pure_python_holds_it_all_the_time(count: int) -> None:
    with threads(count, lambda: sum(range(100_000))):
        assert watched_percent() > 85


@pytest.mark.usefixtures("_many_looks")
@pytest.mark.parametrize(
    ("busy_seconds", "sleep_seconds"),
    [
        pytest.param(0.05, 0.05, id="half"),
        # Nobody is late by as much as the 5 ms after which Python makes a thread give the lock away.
        pytest.param(0.002, 0.0005, id="two milliseconds at a time"),
        pytest.param(0.001, 0.01, id="seldom"),
    ],
)
def test_a_share_of_the_time_is_that_share_of_the_looks(busy_seconds: float, sleep_seconds: float) -> None:
    spinner = Spinner(busy_seconds, sleep_seconds)
    with threads(1, spinner):
        measured = watched_percent(2 * WATCHED_SECONDS)
    assert measured == pytest.approx(spinner.percent, abs=20)


def test_without_a_look_nothing_is_known_and_a_free_lock_is_zero() -> None:
    lock = InterpreterLock()
    assert math.isnan(lock.take_percent())
    while (percent := lock.take_percent()) != 0.0:
        lock.wait(threading.Event(), 0.01)
        assert math.isnan(percent) or percent == 100.0
    assert math.isnan(lock.take_percent())


def test_the_wait_ends_with_its_event_and_not_before_its_time() -> None:
    lock, event = InterpreterLock(), threading.Event()
    begin = time.perf_counter()
    lock.wait(event, 0.25)
    assert time.perf_counter() - begin >= 0.25
    lock.take_percent()
    threading.Timer(0.02, event.set).start()
    begin = time.perf_counter()
    lock.wait(event, 60.0)
    assert time.perf_counter() - begin < 5
    event.set()
    lock.wait(event, 60.0)
    lock.wait(event, -1.0)
    # A wait that was cut short is no look.
    assert math.isnan(lock.take_percent())


def test_the_users_random_numbers_stay_what_they_are() -> None:
    random.seed(3)
    expected = [random.random() for _ in range(3)]
    random.seed(3)
    watched_percent(0.01)
    assert [random.random() for _ in range(3)] == expected


def _without_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)


def _without_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(resource, "RUSAGE_THREAD")


def _with_a_counter_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_nvcsw=0))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_without_lock, NO_LOCK),
        (_without_counter, NOT_COUNTED),
        (_with_a_counter_that_stands_still, NOT_COUNTED),
    ],
)
def test_where_it_can_not_be_told_it_is_unknown_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None], reason: str
) -> None:
    change(monkeypatch)
    lock = InterpreterLock()
    sampler = HostSampler(interpreter=lock)
    lock.wait(threading.Event(), 0.01)
    (row,) = sampler.sample()
    assert math.isnan(row["interpreter_busy_percent"])
    assert reason in dict(sampler.device.unavailable)["interpreter_busy_percent"]


def test_a_sample_has_the_looks_since_the_sample_before() -> None:
    lock = InterpreterLock()
    sampler = HostSampler(interpreter=lock)
    with threads(1, lambda: sum(range(100_000))):
        for _ in range(10):
            lock.wait(threading.Event(), 0.01)
        assert sampler.sample()["interpreter_busy_percent"][0] > 60
    for _ in range(10):
        lock.wait(threading.Event(), 0.01)
    assert sampler.sample()["interpreter_busy_percent"][0] < 40
    assert "interpreter_busy_percent" not in dict(sampler.device.unavailable)


def test_the_sampling_thread_looks_between_its_samples() -> None:
    samples: list[HostSamples] = []
    sampler = Sampler(0.5, Guard(pytest.fail), lambda gpus, host: samples.append(host), lambda note: None)
    with threads(1, lambda: sum(range(100_000))):
        sampler.start()
        time.sleep(1.8)
        sampler.stop()
    percents = np.concatenate(samples)["interpreter_busy_percent"]
    # Before the first sample there was no pause.
    assert np.isnan(percents).tolist() == [True, *[False] * (len(percents) - 1)]
    assert np.nanmean(percents) > 70
