# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from keras_gpu_watch.probes.host_limits import (
    affinity,
    cpu_quota_cores,
    free_memory_bytes,
    memory_limit,
    online_cores,
    usable_cores,
)

GIB = 2**30
V1_NO_LIMIT = "9223372036854771712"


def _tree(root: Path, files: Mapping[str, str]) -> Path:
    """A machine of these files; what lies in a cgroup begins with `cg/`."""
    for name, text in files.items():
        path = root / name.replace("cg/", "sys/fs/cgroup/", 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


QUOTAS: dict[str, tuple[dict[str, str], float | None]] = {
    "v2: half a core": ({"proc/self/cgroup": "0::/job", "cg/job/cpu.max": "50000 100000"}, 0.5),
    "v2: max is no quota": ({"proc/self/cgroup": "0::/job", "cg/job/cpu.max": "max 100000"}, None),
    "v2: the parent's is smaller": (
        {
            "proc/self/cgroup": "0::/a/b/c",
            "cg/a/cpu.max": "150000 100000",
            "cg/a/b/cpu.max": "max 100000",
            "cg/a/b/c/cpu.max": "400000 100000",
        },
        1.5,
    ),
    "v2: its own is smaller": (
        {"proc/self/cgroup": "0::/a/b", "cg/a/cpu.max": "400000 100000", "cg/a/b/cpu.max": "25000 50000"},
        0.5,
    ),
    "v2: only a sibling has one": ({"proc/self/cgroup": "0::/a/b", "cg/a/other/cpu.max": "50000 100000"}, None),
    "v2: in a container the mount itself has it": ({"proc/self/cgroup": "0::/", "cg/cpu.max": "300000 100000"}, 3.0),
    "v2: the host's path does not exist": (
        {"proc/self/cgroup": "0::/kubepods/pod1/c1", "cg/cpu.max": "200000 100000"},
        2.0,
    ),
    "v2: outside of its namespace": (
        {"proc/self/cgroup": "0::/../../other", "cg/cpu.max": "200000 100000", "sys/other/cpu.max": "1 100000"},
        2.0,
    ),
    "v2: a colon in the path": ({"proc/self/cgroup": "0::/a:b", "cg/a:b/cpu.max": "50000 100000"}, 0.5),
    "v1: half a core": (
        {
            "proc/self/cgroup": "3:memory:/job\n2:cpu,cpuacct:/job\n1:name=systemd:/job",
            "cg/cpu,cpuacct/job/cpu.cfs_quota_us": "50000",
            "cg/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
        },
        0.5,
    ),
    "v1: -1 is no quota": (
        {
            "proc/self/cgroup": "2:cpu:/job",
            "cg/cpu/job/cpu.cfs_quota_us": "-1",
            "cg/cpu/job/cpu.cfs_period_us": "100000",
        },
        None,
    ),
    "v1: mounted under the controller's own name": (
        {
            "proc/self/cgroup": "2:cpu,cpuacct:/job",
            "cg/cpu/job/cpu.cfs_quota_us": "70000",
            "cg/cpu/job/cpu.cfs_period_us": "100000",
        },
        0.7,
    ),
    "v1: the parent's is smaller": (
        {
            "proc/self/cgroup": "2:cpu:/a/b",
            "cg/cpu/a/cpu.cfs_quota_us": "100000",
            "cg/cpu/a/cpu.cfs_period_us": "50000",
            "cg/cpu/a/b/cpu.cfs_quota_us": "300000",
            "cg/cpu/a/b/cpu.cfs_period_us": "100000",
        },
        2.0,
    ),
    "v1: the host's path does not exist": (
        {
            "proc/self/cgroup": "2:cpu:/docker/0123abcd",
            "cg/cpu/cpu.cfs_quota_us": "50000",
            "cg/cpu/cpu.cfs_period_us": "100000",
        },
        0.5,
    ),
    "v1: cpuset is another controller": (
        {
            "proc/self/cgroup": "2:cpuset:/job",
            "cg/cpuset/job/cpu.cfs_quota_us": "1",
            "cg/cpuset/job/cpu.cfs_period_us": "2",
        },
        None,
    ),
    "hybrid: v1 has the controller": (
        {
            "proc/self/cgroup": "2:cpu:/job\n0::/job",
            "cg/cpu/job/cpu.cfs_quota_us": "50000",
            "cg/cpu/job/cpu.cfs_period_us": "100000",
            "cg/unified/job/cgroup.procs": "1",
        },
        0.5,
    ),
    "hybrid: v2 has the controller": (
        {"proc/self/cgroup": "2:memory:/job\n0::/job", "cg/unified/job/cpu.max": "50000 100000"},
        0.5,
    ),
    "absent: no cgroups": ({"proc/self/status": "x"}, None),
    "absent: no files": ({"proc/self/cgroup": "0::/job"}, None),
    "garbage: words": ({"proc/self/cgroup": "0::/job", "cg/job/cpu.max": "many cores"}, None),
    "garbage: empty": ({"proc/self/cgroup": "0::/job", "cg/job/cpu.max": ""}, None),
    "garbage: no period": ({"proc/self/cgroup": "0::/job", "cg/job/cpu.max": "50000"}, None),
    "garbage: a period of 0": ({"proc/self/cgroup": "0::/job", "cg/job/cpu.max": "50000 0"}, None),
    "garbage: a quota of 0": ({"proc/self/cgroup": "0::/job", "cg/job/cpu.max": "0 100000"}, None),
    "garbage: one level only": (
        {"proc/self/cgroup": "0::/a/b", "cg/a/cpu.max": "50000 100000", "cg/a/b/cpu.max": "?"},
        0.5,
    ),
    "garbage: the process's cgroup": ({"proc/self/cgroup": "\n0:\nnothing\n2:cpu\n\0:cpu:\0", "cg/x": ""}, None),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_the_smallest_cpu_quota_on_the_way_up_counts(tmp_path, case):
    files, expected = QUOTAS[case]
    assert cpu_quota_cores(_tree(tmp_path, files)) == expected


def test_a_limit_file_that_is_a_directory_is_no_limit(tmp_path):
    root = _tree(tmp_path, {"proc/self/cgroup": "0::/job", "cg/job/cpu.max/x": "", "cg/job/memory.max/x": ""})
    assert cpu_quota_cores(root) is None
    assert memory_limit(root) is None


LIMITS: dict[str, tuple[dict[str, str], int | None]] = {
    "v2": ({"proc/self/cgroup": "0::/job", "cg/job/memory.max": str(2 * GIB)}, 2 * GIB),
    "v2: max is no limit": ({"proc/self/cgroup": "0::/job", "cg/job/memory.max": "max"}, None),
    "v2: the parent's is smaller": (
        {"proc/self/cgroup": "0::/a/b", "cg/a/memory.max": str(GIB), "cg/a/b/memory.max": str(3 * GIB)},
        GIB,
    ),
    "v2: the host's path does not exist": (
        {"proc/self/cgroup": "0::/docker/0123", "cg/memory.max": str(3 * GIB)},
        3 * GIB,
    ),
    "v1": ({"proc/self/cgroup": "2:memory:/job", "cg/memory/job/memory.limit_in_bytes": str(GIB)}, GIB),
    "v1: absurdly large is no limit": (
        {"proc/self/cgroup": "2:memory:/job", "cg/memory/job/memory.limit_in_bytes": V1_NO_LIMIT},
        None,
    ),
    "v1: the mount's limit": (
        {
            "proc/self/cgroup": "2:memory:/docker/0123",
            "cg/memory/memory.limit_in_bytes": str(4 * GIB),
        },
        4 * GIB,
    ),
    "hybrid": (
        {
            "proc/self/cgroup": "2:memory:/job\n0::/job",
            "cg/memory/job/memory.limit_in_bytes": str(GIB),
            "cg/unified/job/cgroup.procs": "1",
        },
        GIB,
    ),
    "absent": ({"proc/self/status": "x"}, None),
    "garbage": ({"proc/self/cgroup": "0::/job", "cg/job/memory.max": "1.5 GiB"}, None),
    "a limit of 0": ({"proc/self/cgroup": "0::/job", "cg/job/memory.max": "0"}, None),
}


@pytest.mark.parametrize("case", LIMITS)
def test_the_smallest_memory_limit_on_the_way_up_counts(tmp_path, case):
    files, expected = LIMITS[case]
    limit = memory_limit(_tree(tmp_path, files))
    assert (limit and limit.limit_bytes) == expected


V2_USAGE = {
    "proc/self/cgroup": "0::/job/step",
    "cg/job/memory.max": "1000000",
    "cg/job/memory.current": "700000",
    "cg/job/memory.stat": "anon 1\ninactive_anon 9\ntotal_inactive_file 5\ninactive_file 200000\nslab 3",
    "cg/job/step/memory.max": "max",
    "cg/job/step/memory.current": "1",
}
V1_USAGE = {
    "proc/self/cgroup": "2:memory:/job",
    "cg/memory/job/memory.limit_in_bytes": "1000000",
    "cg/memory/job/memory.usage_in_bytes": "700000",
    "cg/memory/job/memory.stat": "inactive_file 5\ntotal_inactive_file 200000",
}


@pytest.mark.parametrize("files", [V2_USAGE, V1_USAGE], ids=["v2", "v1"])
def test_used_memory_is_that_of_the_limited_cgroup_without_page_cache_that_can_go(tmp_path, files):
    limit = memory_limit(_tree(tmp_path, files))
    assert limit is not None
    assert limit.used_bytes() == 500_000


def test_used_memory_is_read_anew_each_time(tmp_path):
    limit = memory_limit(_tree(tmp_path, V2_USAGE))
    assert limit is not None
    limit.used_bytes()
    _tree(tmp_path, {"cg/job/memory.current": "900000"})
    assert limit.used_bytes() == 700_000


def test_a_cache_larger_than_the_usage_leaves_nothing_used(tmp_path):
    # The two files are not read at the same moment.
    limit = memory_limit(_tree(tmp_path, {**V2_USAGE, "cg/job/memory.current": "100"}))
    assert limit is not None
    assert limit.used_bytes() == 0


@pytest.mark.parametrize("text", ["", "anon 5", "inactive_file", "xinactive_file 3"])
def test_usage_without_its_page_cache_is_not_known(tmp_path, text):
    limit = memory_limit(_tree(tmp_path, {**V2_USAGE, "cg/job/memory.stat": text}))
    assert limit is not None
    with pytest.raises(ValueError, match="no inactive_file"):
        limit.used_bytes()


def test_usage_that_can_not_be_read_raises(tmp_path):
    limit = memory_limit(_tree(tmp_path, {k: v for k, v in V2_USAGE.items() if not k.endswith("current")}))
    assert limit is not None
    with pytest.raises(FileNotFoundError):
        limit.used_bytes()


def test_without_a_quota_the_usable_cores_are_those_of_the_affinity(tmp_path):
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


def test_a_quota_above_the_affinity_does_not_count(tmp_path):
    root = _tree(tmp_path, {"proc/self/cgroup": "0::/", "cg/cpu.max": "100000000 100000"})
    assert usable_cores(root) == len(os.sched_getaffinity(0))


def test_a_quota_below_the_affinity_counts(tmp_path):
    root = _tree(tmp_path, {"proc/self/cgroup": "0::/", "cg/cpu.max": "25000 100000"})
    assert usable_cores(root) == 0.25


def test_a_process_that_is_pinned_to_one_core_may_use_one():
    core = max(os.sched_getaffinity(0))
    script = f"""
import os
from pathlib import Path
os.sched_setaffinity(0, {{{core}}})
from keras_gpu_watch.probes.host_limits import affinity, usable_cores
print(sorted(affinity()), usable_cores(Path("/nowhere")))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[0] == f"[{core}] 1.0"


def test_a_system_without_affinity_counts_its_cores(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert affinity() is None
    assert usable_cores(tmp_path) == os.cpu_count()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("0,2-3,8", (0, 2, 3, 8)),
        ("", ()),
        ("all", ()),
    ],
)
def test_the_list_of_switched_on_cores_is_read_with_its_gaps(tmp_path, text, expected):
    assert online_cores(_tree(tmp_path, {"sys/devices/system/cpu/online": text})) == expected


def test_the_list_of_switched_on_cores_is_empty_where_there_is_none(tmp_path):
    assert online_cores(tmp_path) == ()


def test_the_limits_of_this_machine_are_read_without_harm():
    quota, limit = cpu_quota_cores(), memory_limit()
    assert quota is None or quota > 0
    assert limit is None or 0 <= limit.used_bytes() <= limit.limit_bytes


def test_free_memory_is_what_the_cgroup_leaves_or_the_machine_where_that_is_less(tmp_path):
    root = _tree(tmp_path, V2_USAGE)
    assert free_memory_bytes(root) == 500_000.0
    _tree(root, {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:     300 kB\nBuffers: 1 kB"})
    assert free_memory_bytes(root) == 300 * 1024.0


def test_free_memory_that_nobody_tells_is_not_known(tmp_path):
    assert free_memory_bytes(tmp_path) is None


def test_this_machine_has_free_memory():
    free = free_memory_bytes()
    assert free is not None
    assert free > 1e6
