# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from keras_gpu_watch.probes.host_sampler import CORES_UNCLEAR, NOT_COUNTED, REFUSED, HostSampler

CORES = sorted(os.sched_getaffinity(0))
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
MIB = 2**20
# Paths below `proc`, `{pid}` standing for this process.
FILES = {
    "cpu_percent": "stat",
    "iowait_percent": "stat",
    "process_cpu_percent": "{pid}/stat",
    "process_memory_bytes": "{pid}/statm",
    "memory_percent": "meminfo",
    "disk_read_bytes_per_second": "{pid}/io",
}
IO = "rchar: 1\nwchar: 1\nsyscr: 1\nsyscw: 1\nread_bytes: {}\nwrite_bytes: 1\ncancelled_write_bytes: 0\n"
OTHER_MEMORY = "Buffers: 1 kB\nCached: 1 kB\nShmem: 1 kB\nActive: 1 kB\nInactive: 1 kB\nSlab: 1 kB\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root whose `proc` shows this machine, file by file, so that a test may change one of them."""
    proc = tmp_path / "proc"
    for name in {name.format(pid=os.getpid()) for name in FILES.values()}:
        (proc / name).parent.mkdir(parents=True, exist_ok=True)
        (proc / name).symlink_to(Path("/proc") / name)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(proc))
    return tmp_path


def _replace(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _write_ticks(root: Path, cores: list[dict[str, int]]) -> None:
    """`proc/stat` with these counters, in ticks, for each core."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
    rows = [[core.get(name, 0) for name in names] for core in cores]
    lines = [["cpu", *map(sum, zip(*rows, strict=True))], *([f"cpu{i}", *row] for i, row in enumerate(rows))]
    _replace(root / "proc/stat", "".join(" ".join(map(str, line)) + "\n" for line in lines) + "btime 1\n")


def _samples_of_ticks(root: Path, before: list[dict[str, int]], after: list[dict[str, int]]) -> np.void:
    _write_ticks(root, before)
    sampler = HostSampler(root=root)
    sampler.sample()
    _write_ticks(root, after)
    (row,) = sampler.sample()
    assert not {"cpu_percent", "iowait_percent"} & set(dict(sampler.device.unavailable))
    return row


TICKS = [
    ({"idle": 100}, 0, 0),
    ({"user": 100}, 100, 0),
    ({"user": 10, "nice": 5, "system": 15, "irq": 4, "softirq": 6, "idle": 60}, 40, 0),
    ({"idle": 50, "iowait": 25, "system": 25}, 25, 25),
    # Time of guests is contained in that of the user.
    ({"user": 50, "guest": 40, "nice": 10, "guest_nice": 10, "idle": 40}, 60, 0),
    # A core that the hypervisor lent to others was not free.
    ({"steal": 30, "idle": 70}, 30, 0),
    # The kernel may set this counter back.
    ({"iowait": -50, "user": 50, "idle": 50}, 50, 0),
]


@pytest.mark.parametrize(("spent", "busy_percent", "iowait_percent"), TICKS)
def test_the_cores_are_as_busy_as_their_counters_say(machine, spent, busy_percent, iowait_percent):
    before = {"user": 1000, "nice": 10, "system": 500, "idle": 90000, "iowait": 300, "steal": 7, "guest": 400}
    after = {name: before.get(name, 0) + spent.get(name, 0) for name in {*before, *spent}}
    row = _samples_of_ticks(machine, [before] * len(CORES), [after] * len(CORES))
    assert row["cpu_percent"] == pytest.approx(busy_percent)
    assert row["iowait_percent"] == pytest.approx(iowait_percent)


def test_cores_that_this_process_may_not_use_do_not_count(machine):
    # Two more cores, listed before ours, and one that is switched off between them.
    _replace(machine / "sys/devices/system/cpu/online", "7000,7002," + ",".join(map(str, CORES)))
    idle, busy, waiting = {"idle": 100}, {"user": 100}, {"iowait": 40, "user": 60}
    row = _samples_of_ticks(machine, [{}] * (len(CORES) + 2), [busy, waiting, *[idle] * len(CORES)])
    assert (row["cpu_percent"], row["iowait_percent"]) == (0, 0)
    row = _samples_of_ticks(machine, [{}] * (len(CORES) + 2), [idle, idle, *[waiting] * len(CORES)])
    assert (row["cpu_percent"], row["iowait_percent"]) == pytest.approx((60, 40))


@pytest.mark.parametrize("online", ["0-9999", f"7000-{7002 + len(CORES)}", "7000-7002", "", "no list"])
def test_a_list_of_cores_that_can_not_be_matched_leaves_them_unknown(machine, online):
    _replace(machine / "sys/devices/system/cpu/online", online)
    _write_ticks(machine, [{"idle": 1}] * (len(CORES) + 3))
    sampler = HostSampler(root=machine)
    sampler.sample()
    _write_ticks(machine, [{"idle": 100}] * (len(CORES) + 3))
    (row,) = sampler.sample()
    assert np.isnan([row["cpu_percent"], row["iowait_percent"]]).all()
    reasons = dict(sampler.device.unavailable)
    assert set(reasons) == {"cpu_percent", "iowait_percent"}
    assert all(CORES_UNCLEAR in reason for reason in reasons.values())


def test_a_list_of_fewer_cores_than_may_be_used_counts_as_all_of_them(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    row = _samples_of_ticks(machine, [{}, {}], [{"user": 100}, {"idle": 100}])
    assert row["cpu_percent"] == pytest.approx(50)


def test_cores_are_unknown_rather_than_idle_while_no_tick_has_passed(machine):
    same = [{"user": 5, "idle": 100}] * len(CORES)
    row = _samples_of_ticks(machine, same, same)
    assert np.isnan(row["cpu_percent"])
    assert np.isnan(row["iowait_percent"])


def test_without_a_limit_memory_is_that_of_the_machine(machine):
    _replace(machine / "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 250 kB\n" + OTHER_MEMORY)
    sampler = HostSampler(root=machine)
    (row,) = sampler.sample()
    assert row["memory_percent"] == pytest.approx(75)
    assert sampler.device.machine_memory_bytes == sampler.device.usable_memory_bytes == 1000 * 1024


def _limit_memory(root: Path, limit_bytes: int) -> None:
    _replace(root / "proc/self/cgroup", "0::/")
    _replace(root / "sys/fs/cgroup/memory.max", str(limit_bytes))
    _replace(root / "sys/fs/cgroup/memory.current", str(600 * MIB))
    _replace(root / "sys/fs/cgroup/memory.stat", f"anon 1\ninactive_file {100 * MIB}")


def test_under_a_limit_memory_is_the_used_share_of_it(tmp_path):
    _limit_memory(tmp_path, 1000 * MIB)
    sampler = HostSampler(root=tmp_path)
    (row,) = sampler.sample()
    assert row["memory_percent"] == pytest.approx(50)
    assert sampler.device.usable_memory_bytes == 1000 * MIB
    assert sampler.device.machine_memory_bytes == psutil.virtual_memory().total


def test_a_limit_above_the_memory_of_the_machine_does_not_count(tmp_path):
    _limit_memory(tmp_path, 2 * psutil.virtual_memory().total)
    sampler = HostSampler(root=tmp_path)
    (row,) = sampler.sample()
    memory = psutil.virtual_memory()
    assert sampler.device.usable_memory_bytes == memory.total
    assert row["memory_percent"] == pytest.approx(memory.percent, abs=10)


def test_a_limit_whose_usage_is_not_given_leaves_memory_unknown(tmp_path):
    _limit_memory(tmp_path, 1000 * MIB)
    (tmp_path / "sys/fs/cgroup/memory.stat").unlink()
    sampler = HostSampler(root=tmp_path)
    (row,) = sampler.sample()
    assert np.isnan(row["memory_percent"])
    assert "memory.stat" in dict(sampler.device.unavailable)["memory_percent"]


def _is_gone(path: Path) -> None:
    path.unlink()


def _is_empty(path: Path) -> None:
    _replace(path, "")


def _is_garbage(path: Path) -> None:
    _replace(path, "what is\nthis: here\n")


def _is_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("happens", [_is_gone, _is_empty, _is_garbage, _is_a_directory])
@pytest.mark.parametrize("file", sorted(set(FILES.values())))
def test_a_reading_that_fails_is_unknown_with_a_reason_and_leaves_the_others_alone(
    machine: Path, file: str, happens: Callable[[Path], None]
) -> None:
    sampler = HostSampler(root=machine)
    sampler.sample()
    path = machine / "proc" / file.format(pid=os.getpid())
    happens(path)
    time.sleep(3 * TICK_SECONDS)
    (row,) = sampler.sample()
    lost = {name for name, its_file in FILES.items() if its_file == file}
    assert {name for name in FILES if np.isnan(row[name])} == lost
    assert set(dict(sampler.device.unavailable)) == lost
    assert all(dict(sampler.device.unavailable).values())
    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(Path("/proc") / file.format(pid=os.getpid()))
    time.sleep(3 * TICK_SECONDS)
    (row,) = sampler.sample()
    assert {name for name in FILES if np.isnan(row[name])} == set()
    assert sampler.device.unavailable == ()


def test_a_rate_after_a_gap_is_the_mean_over_the_gap(machine):
    now = 0.0
    sampler = HostSampler(clock=lambda: now, root=machine)
    io = machine / "proc" / str(os.getpid()) / "io"
    rates = []
    for now, read_bytes in [(0.0, 1000), (1.0, None), (4.0, 9000), (5.0, 8000), (6.0, 8500)]:  # noqa: B007
        _replace(io, IO.format(read_bytes) if read_bytes else "")
        rates.append(sampler.sample()["disk_read_bytes_per_second"][0])
    assert rates == pytest.approx([np.nan, np.nan, 2000, np.nan, 500], nan_ok=True)


def test_there_is_no_row_when_nothing_can_be_read(machine):
    sampler = HostSampler(root=machine)
    for name in FILES.values():
        (machine / "proc" / name.format(pid=os.getpid())).unlink(missing_ok=True)
    assert len(sampler.sample()) == 0
    assert set(dict(sampler.device.unavailable)) == set(FILES)


def test_counters_that_are_refused_from_the_start_have_a_reason():
    script = """
import ctypes, os
from keras_gpu_watch.probes.host_sampler import HostSampler
if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
# From now on its files in /proc belong to root.
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
sampler = HostSampler()
for _ in range(2):
    row = sampler.sample()[0]
print(row["disk_read_bytes_per_second"], row["process_memory_bytes"] > 0, dict(sampler.device.unavailable))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == f"nan True { ({'disk_read_bytes_per_second': REFUSED}) }"


def test_what_the_system_does_not_count_has_a_reason(monkeypatch):
    # As on macOS.
    few = namedtuple("few", "user nice system idle")
    seconds = iter(range(1000))

    def cpu_times(percpu: bool = False) -> object:
        second = next(seconds)
        return [few(0, 0, 0, 0)] * len(CORES) if percpu else few(3.0 * second, 0, 0, 1.0 * second)

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    monkeypatch.delattr(psutil.Process, "io_counters")
    monkeypatch.delattr(os, "sched_getaffinity")
    sampler = HostSampler()
    sampler.sample()
    (row,) = sampler.sample()
    assert row["cpu_percent"] == pytest.approx(75)
    assert np.isnan(row["iowait_percent"])
    assert np.isnan(row["disk_read_bytes_per_second"])
    assert dict(sampler.device.unavailable) == dict.fromkeys(
        ("iowait_percent", "disk_read_bytes_per_second"), NOT_COUNTED
    )


def test_a_warning_of_missing_memory_fields_does_no_harm_where_warnings_are_errors(machine):
    _replace(machine / "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 250 kB\n")
    sampler = HostSampler(root=machine)
    (row,) = sampler.sample()
    assert np.isnan(row["memory_percent"])
    assert sampler.device.machine_memory_bytes is None
    assert set(dict(sampler.device.unavailable)) == {"machine_memory_bytes", "memory_percent"}
