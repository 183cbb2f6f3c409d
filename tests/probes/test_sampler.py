# SPDX-License-Identifier: Apache-2.0
"""The sampling thread, over the real binding: it keeps its pace, ends at once, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from nvml_scenarios import card, cards, split_card, write

from keras_gpu_watch.guard import Guard
from keras_gpu_watch.probes.nvml import load_binding
from keras_gpu_watch.probes.sampler import (
    CALL_HANGS,
    GPU_SAMPLING,
    SAMPLES,
    THREAD_NAME,
    TOO_SHORT,
    Pace,
    Sampler,
)
from keras_gpu_watch.samples import GPU_FIELDS, GPU_SAMPLE_DTYPE, GpuSamples, HostSamples

ROOT = Path(__file__).parents[2]
INTERVAL_SECONDS = 0.02
FOREVER_SECONDS = 3600.0
PATIENCE_SECONDS = 20.0
FORK = """
import ctypes, os, sys, threading, time

ctypes.CDLL(sys.argv[1])
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.probes.sampler import Sampler

def wait_for(count):
    deadline = time.monotonic() + 20
    while len(taken) < count and time.monotonic() < deadline:
        time.sleep(0.01)

taken = []
failures = []
sampler = Sampler(0.02, Guard(failures.append), lambda gpus, host: taken.append(len(gpus)), failures.append)
sampler.start()
wait_for(3)
child = os.fork()
if not child:
    before = len(taken)
    time.sleep(0.3)
    sampler.stop()
    silent = len(taken) == before and threading.active_count() == 1 and not failures
    os._exit(0 if silent else 1)
_, status = os.waitpid(child, 0)
wait_for(len(taken) + 3)
sampler.stop()
print(status, sum(taken) >= 6, sampler.devices.status, failures, threading.active_count())
"""


class Run:
    """A sampler and what came of it."""

    def __init__(self, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self.gpus: list[GpuSamples] = []
        self.host: list[HostSamples] = []
        self.notes: list[str] = []
        self.failures: list[str] = []
        self.guard = Guard(self.failures.append)
        self.sampler = Sampler(interval_seconds, self.guard, self._take, self.notes.append)

    def _take(self, gpus: GpuSamples, host: HostSamples) -> None:
        self.gpus.append(gpus)
        self.host.append(host)

    def wait_for_samples(self, more: int = 3) -> None:
        """Until samples of GPUs came, so many more of them than now."""
        wanted = self.samples_taken + more
        wait_until(lambda: self.samples_taken >= wanted)

    @property
    def samples_taken(self) -> int:
        return sum(len(rows) > 0 for rows in list(self.gpus))

    @property
    def rows(self) -> GpuSamples:
        return np.concatenate([np.zeros(0, GPU_SAMPLE_DTYPE), *self.gpus])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_seconds = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline_seconds
        time.sleep(0.005)


def is_running() -> bool:
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def _all_gpus_are_used(monkeypatch):
    # With more than one card it would else be noted that nothing proves which ones are used.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


@pytest.fixture
def make_run(nvml):
    """Runs that are stopped at the end, and must then have given NVML back."""
    runs = []

    def make(*lines: str, interval_seconds: float = INTERVAL_SECONDS) -> Run:
        nvml.load(*lines)
        runs.append(Run(interval_seconds))
        runs[-1].sampler.start()
        return runs[-1]

    yield make
    nvml.set("hang.* = 0", "error.* = 0")
    for run in runs:
        run.sampler.stop(PATIENCE_SECONDS)
        assert run.failures == []
    assert not is_running()
    assert nvml.references == 0
    assert nvml.gpm_samples == 0


def test_all_cards_are_sampled_again_and_again(make_run):
    run = make_run(*cards(2))
    run.wait_for_samples(15)
    run.sampler.stop()
    assert all(rows["gpu"].tolist() == [0, 1] for rows in run.gpus if len(rows))
    assert (np.diff(run.rows["seconds"][::2]) > 0).all()
    # Readings of GPM that came too close together are left out.
    assert not any(np.isnan(run.rows[name]).all() for name in GPU_FIELDS)
    assert run.sampler.devices.status == "sampled"
    assert run.notes == []


def test_the_host_is_sampled_beside_the_gpus(make_run):
    run = make_run(*card())
    run.wait_for_samples()
    wait_until(lambda: any(len(rows) for rows in list(run.host)))
    run.sampler.stop()
    assert run.sampler.devices.host is not None
    # Twice a second at most, however short the interval is.
    assert sum(len(rows) for rows in run.host) < len(run.gpus)


def test_the_host_is_sampled_where_there_is_no_gpu(nvml):
    nvml.unload()
    run = Run()
    run.sampler.start()
    wait_until(lambda: len(run.host) > 0)
    run.sampler.stop()
    devices = run.sampler.devices
    assert devices.status == "no gpu"
    assert run.notes == [f"no GPU is sampled: {devices.reason}"]
    assert len(run.rows) == 0
    assert devices.host is not None


def test_nvml_is_only_asked_by_the_thread(nvml):
    nvml.load(*card(), "hang.nvmlInitWithFlags = 1")
    run = Run()
    run.sampler.start()
    assert run.sampler.devices.status == "not started"
    nvml.set("hang.nvmlInitWithFlags = 0")
    run.wait_for_samples()
    run.sampler.stop()
    assert nvml.threads == 1
    assert nvml.references == 0


def test_a_duty_cycle_shows_in_utilization_and_power(make_run):
    run = make_run(*card(busy_samples=3, idle_samples=2))
    run.wait_for_samples(20)
    run.sampler.stop()
    rows = run.rows[:20]
    assert rows["utilization_percent"].tolist() == [87, 87, 87, 0, 0] * 4
    assert rows["power_watts"].tolist() == [412, 412, 412, 70, 70] * 4
    assert (np.diff(rows["energy_joules"]) > 0).all()


def test_stopping_does_not_wait_for_the_next_sample(make_run):
    run = make_run(*card(), interval_seconds=FOREVER_SECONDS)
    wait_until(lambda: run.samples_taken > 0)
    run.sampler.stop(PATIENCE_SECONDS)
    # Else this test would have taken all its patience.
    assert not is_running()


def test_stopping_twice_and_before_the_start_does_no_harm(make_run):
    Run().sampler.stop()
    run = make_run(*card())
    run.sampler.stop()
    run.sampler.stop()
    assert not is_running()


def test_nothing_is_handed_on_after_the_end(make_run):
    run = make_run(*card())
    run.wait_for_samples()
    run.sampler.stop()
    taken = len(run.gpus)
    time.sleep(5 * INTERVAL_SECONDS)
    assert len(run.gpus) == taken


def test_slow_calls_are_waited_for_and_samples_left_out(make_run, nvml):
    run = make_run(*card(), "slow_ms.* = 50")
    begin = time.monotonic()
    run.wait_for_samples(2)
    calls = nvml.calls("nvmlDeviceGetPowerUsage")
    taken_seconds = time.monotonic() - begin
    run.sampler.stop(PATIENCE_SECONDS)
    # No queue builds up: what is missed is left out.
    assert calls <= 3
    assert taken_seconds > 2 * 8 * 0.05
    assert not is_running()
    assert run.notes == []


def test_a_call_that_never_comes_back_does_not_hold_up_the_end(make_run, nvml):
    run = make_run(*card())
    run.wait_for_samples()
    nvml.set("hang.nvmlDeviceGetPowerUsage = 1")
    before = nvml.calls("nvmlDeviceGetPowerUsage")
    wait_until(lambda: nvml.calls("nvmlDeviceGetPowerUsage") > before)
    stopping = threading.Thread(target=run.sampler.stop, args=(0.2,))
    stopping.start()
    stopping.join(PATIENCE_SECONDS)
    assert not stopping.is_alive()
    assert is_running()
    taken = len(run.gpus)
    nvml.set("hang.nvmlDeviceGetPowerUsage = 0")
    wait_until(lambda: not is_running())
    assert len(run.gpus) == taken
    assert nvml.references == 0


def test_somebody_elses_shutdown_is_survived(nvml):
    nvml.load(*card(gpm_supported=0))
    run = Run()
    run.sampler.start()
    for _ in range(3):
        run.wait_for_samples()
        load_binding().nvmlShutdown()
    run.wait_for_samples()
    run.sampler.stop()
    assert run.sampler.devices.status == "sampled"
    assert (run.notes, run.failures) == ([], [])
    assert nvml.references == 0


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([*card(), "error.nvmlInitWithFlags = 9"], "no gpu"),
        ([*card(), "error.nvmlInitWithFlags = 18"], "not sampled"),
        ([*card(), "error.nvmlInitWithFlags = 999"], "not sampled"),
        ([*card(), "error.* = 999"], "not sampled"),
        ([*card(), "@4 error.* = 999"], "lost"),
        ([*card(), "@4 error.* = 15"], "lost"),
        ([*cards(4), "@4 card.2.error.* = 15"], "sampled"),
        (["driver_version = 1"], "no gpu"),
    ],
)
def test_a_failure_is_one_note_with_a_reason_and_the_host_goes_on(make_run, lines, status):
    run = make_run(*lines)
    wait_until(lambda: len(run.notes) > 0)
    wait_until(lambda: sum(len(rows) for rows in list(run.host)) >= 2)
    devices = run.sampler.devices
    assert devices.status == status
    (note,) = run.notes
    assert (devices.reason or devices.gpus[2].reason) in note
    rows = run.rows
    assert not any((rows[name] == 0).any() for name in ("utilization_percent", "memory_used_bytes", "power_watts"))


def test_slices_are_sampled_without_utilization(make_run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a0000009-1111-2222-3333-444444444444")
    run = make_run(*split_card())
    run.wait_for_samples()
    run.sampler.stop()
    (device,) = run.sampler.devices.gpus
    assert device.is_mig_slice
    assert np.isnan(run.rows["utilization_percent"]).all()
    assert set(run.rows["memory_used_percent"]) == {5}
    assert run.notes == []


def test_a_call_that_comes_back_after_the_end_says_nothing_more(nvml):
    nvml.load(*card(), "hang.nvmlInitWithFlags = 1", "error.nvmlInitWithFlags = 999")
    run = Run()
    run.sampler.start()
    wait_until(lambda: nvml.calls("nvmlInitWithFlags") > 0)
    run.sampler.stop(0.1)
    assert run.sampler.devices.reason == CALL_HANGS
    nvml.set("hang.nvmlInitWithFlags = 0")
    wait_until(lambda: not is_running())
    assert run.notes == []


def test_a_run_without_a_sample_tells_the_reason(nvml):
    sampler = Sampler(INTERVAL_SECONDS, Guard(print), lambda gpus, host: None, print)
    sampler.stop()
    assert (sampler.devices.status, sampler.devices.reason) == ("not started", TOO_SHORT)


def test_an_interrupt_right_after_the_thread_was_started_leaves_no_thread(nvml, monkeypatch):
    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    nvml.load(*card())
    run = Run()
    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.sampler.start()
    run.sampler.stop()
    wait_until(lambda: not is_running())


def test_many_short_runs_leave_nothing(make_run, nvml):
    threads = threading.active_count()
    for number in range(30):
        run = Run()
        if not number:
            nvml.load(*card())
        run.sampler.start()
        if number % 3:
            run.wait_for_samples(1)
        run.sampler.stop(PATIENCE_SECONDS)
        assert (run.failures, nvml.references, nvml.gpm_samples) == ([], 0, 0)
    assert threading.active_count() == threads


def test_two_samplers_at_once_do_not_disturb_each_other(make_run, nvml):
    run, other = make_run(*card()), Run()
    other.sampler.start()
    run.wait_for_samples()
    other.wait_for_samples()
    other.sampler.stop(PATIENCE_SECONDS)
    run.wait_for_samples()
    assert (run.sampler.devices.status, other.sampler.devices.status) == ("sampled", "sampled")
    assert nvml.calls("nvmlInitWithFlags") == 2
    assert nvml.references == 1
    assert run.notes == other.notes == []


def test_a_failure_of_our_own_switches_only_the_gpus_off(nvml, caplog, monkeypatch):
    def broken(handle: object) -> int:
        raise TypeError("no error of NVML's")

    monkeypatch.setattr(load_binding(), "nvmlDeviceGetPowerUsage", broken)
    nvml.load(*card())
    run = Run()
    run.sampler.start()
    wait_until(lambda: sum(len(rows) for rows in list(run.host)) >= 2)
    run.sampler.stop()
    assert not run.guard.ok(GPU_SAMPLING)
    assert len(run.failures) == 1
    assert len(caplog.records) == 1
    assert nvml.references == 0


def test_a_taker_that_fails_is_asked_once(nvml, caplog):
    nvml.load(*card())
    asked = []

    def take(gpus: GpuSamples, host: HostSamples) -> None:
        asked.append(len(gpus))
        raise ValueError("no place for it")

    failures: list[str] = []
    guard = Guard(failures.append)
    sampler = Sampler(INTERVAL_SECONDS, guard, take, failures.append)
    sampler.start()
    wait_until(lambda: nvml.calls("nvmlDeviceGetPowerUsage") >= 5)
    sampler.stop()
    assert asked == [1]
    assert not guard.ok(SAMPLES)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("now", "next_seconds"), [(10.0, 10.5), (10.4, 10.5), (11.1, 11.5), (9.9995, 10.5)])
def test_the_pace_is_kept_whatever_a_sample_takes(now, next_seconds):
    pace = Pace(0.5, 10.0)
    assert pace.take_turn(now)
    assert pace.due_seconds == pytest.approx(next_seconds)
    assert not pace.take_turn(now)


def test_the_host_is_sampled_and_looked_after_twice_a_second_however_seldom_the_gpus_are(nvml):
    nvml.load(*card())
    taken: list[tuple[int, int]] = []
    ticks: list[int] = []
    sampler = Sampler(
        60.0, Guard(print), lambda gpus, host: taken.append((len(gpus), len(host))), print, lambda: ticks.append(1)
    )
    sampler.start()
    wait_until(lambda: len(ticks) >= 3)
    sampler.stop()
    assert taken[:3] == [(1, 1), (0, 1), (0, 1)]


def test_a_forked_child_is_silent_and_its_parent_goes_on(nvml_library, tmp_path):
    scenario = write(tmp_path / "scenario.txt", card())
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NVML_STUB_SCENARIO": str(scenario)}
    command = [sys.executable, "-c", FORK, str(nvml_library)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=3) == ["0", "True", "sampled", "[] 1\n"]


def test_without_the_binding_the_host_is_sampled_and_a_note_says_what_to_install():
    code = """
import sys, time
sys.modules["pynvml"] = None
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.probes.sampler import Sampler
taken, notes = [], []
sampler = Sampler(0.02, Guard(notes.append), lambda gpus, host: taken.append(len(host)), notes.append)
sampler.start()
deadline = time.monotonic() + 20
while not taken and time.monotonic() < deadline:
    time.sleep(0.01)
sampler.stop()
print(sampler.devices.status, sum(taken) > 0, len(notes), "pip install nvidia-ml-py" in notes[0])
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("not sampled True 1 True", "")
