# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from keras_gpu_watch.probes.host_sampler import HostSampler
from keras_gpu_watch.probes.interpreter_lock import InterpreterLock
from keras_gpu_watch.samples import HOST_FIELDS, HOST_SAMPLE_DTYPE

pytestmark = pytest.mark.timed

RATES = {
    "cpu_percent",
    "process_cpu_percent",
    "iowait_percent",
    "disk_read_bytes_per_second",
    "interpreter_busy_percent",
}
CORES = sorted(os.sched_getaffinity(0))
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
MIB = 2**20


def _spin(cpu_seconds: float, share: float = 1.0, period_seconds: float = 0.05) -> None:
    """Use so much processor time in this thread, as that share of the time where nothing else runs."""
    for _ in range(round(cpu_seconds / (share * period_seconds))):
        busy = time.thread_time() + share * period_seconds
        while time.thread_time() < busy:
            pass
        time.sleep((1 - share) * period_seconds)


@contextmanager
def _measured(root: Path = Path("/")) -> Iterator[dict[str, float]]:
    """The second sample's fields, and `elapsed` seconds between the two; filled in at the end of the block."""
    sampler = HostSampler(root=root)
    result: dict[str, float] = {}
    (first,) = sampler.sample()
    yield result
    (second,) = sampler.sample()
    result.update({name: float(second[name]) for name in HOST_FIELDS})
    result["elapsed"] = float(second["seconds"] - first["seconds"])
    result["usable_cores"] = sampler.device.usable_cores


def _quota(root: Path, cores: float) -> Path:
    for name, text in (("proc/self/cgroup", "0::/"), ("sys/fs/cgroup/cpu.max", f"{round(cores * 1e5)} 100000")):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    return root


def test_a_sample_is_one_row_on_the_given_clock():
    readings = iter([10.0, 11.0, 12.0, 14.0])
    sampler = HostSampler(clock=lambda: next(readings, 14.0))
    rows = sampler.sample()
    assert rows.dtype == HOST_SAMPLE_DTYPE
    assert len(rows) == 1
    assert rows["seconds"][0] == 12.0


def test_the_first_sample_has_no_rates_and_the_second_has_all():
    interpreter = InterpreterLock()
    sampler = HostSampler(interpreter=interpreter)
    (first,) = sampler.sample()
    assert {name for name in HOST_FIELDS if np.isnan(first[name])} == RATES
    _spin(5 * TICK_SECONDS)
    interpreter.wait(threading.Event(), 0.01)
    (second,) = sampler.sample()
    assert {name for name in HOST_FIELDS if np.isnan(second[name])} == set()
    assert sampler.device.unavailable == ()


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_process_cpu_is_the_processor_time_that_this_process_used(share):
    before_seconds = time.process_time()
    with _measured() as sample:
        _spin(1.5 * share, share)
    used_seconds = time.process_time() - before_seconds
    measured_seconds = sample["process_cpu_percent"] / 100 * sample["usable_cores"] * sample["elapsed"]
    # User and system time are counted in whole ticks, each time rounded down.
    assert measured_seconds == pytest.approx(used_seconds, rel=0.1, abs=4 * TICK_SECONDS)
    assert used_seconds > 1.4 * share


def test_under_a_quota_the_usable_cores_are_the_whole(tmp_path):
    before_seconds = time.process_time()
    with _measured(_quota(tmp_path, 0.5)) as sample:
        _spin(0.3, 0.2)
    used_seconds = time.process_time() - before_seconds
    expected_percent = 100 * used_seconds / (0.5 * sample["elapsed"])
    assert sample["usable_cores"] == 0.5
    assert sample["process_cpu_percent"] == pytest.approx(expected_percent, rel=0.1, abs=5)


def test_process_cpu_never_exceeds_all_of_the_usable_cores(tmp_path):
    with _measured(_quota(tmp_path, 0.01)) as sample:
        _spin(0.3)
    assert sample["process_cpu_percent"] == 100.0


def test_another_process_counts_for_the_cores_but_not_for_this_process():
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        other = psutil.Process(burner.pid)
        other_before, own_before = other.cpu_times(), time.process_time()
        with _measured() as sample:
            while sum(other.cpu_times()[:2]) < sum(other_before[:2]) + 0.7:
                time.sleep(0.02)
            other_after = other.cpu_times()
        own_seconds = time.process_time() - own_before
    finally:
        burner.kill()
        burner.wait()
    other_seconds = sum(other_after[:2]) - sum(other_before[:2])
    # Other people's load may only add to it.
    assert sample["cpu_percent"] / 100 * len(CORES) * sample["elapsed"] > 0.9 * other_seconds
    measured_seconds = sample["process_cpu_percent"] / 100 * sample["usable_cores"] * sample["elapsed"]
    assert measured_seconds < own_seconds + 4 * TICK_SECONDS


def test_a_pinned_process_sees_its_own_core_only():
    script = f"""
import os, time
os.sched_setaffinity(0, {{{CORES[-1]}}})
from keras_gpu_watch.probes.host_sampler import HostSampler
sampler = HostSampler()
first, begin = sampler.sample()[0], time.process_time()
end = time.perf_counter() + 1
while time.perf_counter() < end: pass
used = time.process_time() - begin
second = sampler.sample()[0]
elapsed = second["seconds"] - first["seconds"]
print(sampler.device.usable_cores, second["process_cpu_percent"], second["cpu_percent"], 100 * used / elapsed)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    usable_cores, process_percent, core_percent, truth_percent = map(float, run.stdout.split())
    assert usable_cores == 1
    assert process_percent == pytest.approx(truth_percent, abs=10)
    assert core_percent > truth_percent - 10


@pytest.fixture
def big_file(tmp_path: Path) -> Path:
    """16 MiB that are not in the page cache, where there is one."""
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.write(os.urandom(16 * MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def _blocks_read_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * 512


@pytest.mark.parametrize("is_cached", [False, True])
def test_disk_read_is_what_came_from_storage_and_not_from_the_page_cache(big_file, is_cached):
    if is_cached:
        big_file.read_bytes()
    outer_begin = _blocks_read_bytes()
    with _measured() as sample:
        inner_begin = _blocks_read_bytes()
        big_file.read_bytes()
        # The kernel's own count is the truth: a file system in memory reads nothing.
        inner_bytes = _blocks_read_bytes() - inner_begin
        time.sleep(0.1)
    outer_bytes = _blocks_read_bytes() - outer_begin
    measured_bytes = sample["disk_read_bytes_per_second"] * sample["elapsed"]
    assert 0.9 * inner_bytes <= measured_bytes <= 1.1 * outer_bytes
    if is_cached:
        assert measured_bytes < 4 * MIB


def test_process_memory_grows_by_what_is_touched():
    sampler = HostSampler()
    (before,) = sampler.sample()
    held = np.ones(64 * MIB, np.uint8)
    (after,) = sampler.sample()
    grown = after["process_memory_bytes"] - before["process_memory_bytes"]
    assert grown == pytest.approx(held.nbytes, rel=0.1)


def test_two_samplers_on_two_threads_do_not_disturb_each_other():
    results: list[float] = []

    def measure() -> None:
        before_seconds = time.process_time()
        with _measured() as sample:
            _spin(0.3, 0.3)
        used_seconds = time.process_time() - before_seconds
        measured = sample["process_cpu_percent"] / 100 * sample["usable_cores"] * sample["elapsed"]
        results.append(measured / used_seconds)

    threads = [threading.Thread(target=measure) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == pytest.approx([1, 1], abs=0.15)
