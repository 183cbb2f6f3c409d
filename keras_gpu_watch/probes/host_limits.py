# SPDX-License-Identifier: Apache-2.0
"""How much of the machine this process may use: by its affinity, and by the limits of its cgroups (v1 and v2)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_MOUNT = Path("sys/fs/cgroup")
_NO_LIMIT_BYTES = 2**60
"""v1 writes "no limit" as the largest number of pages that it can count."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The smallest memory limit that holds for this process."""

    limit_bytes: int
    directory: Path
    """Of the cgroup that has the limit."""
    usage_file: str
    cache_field: str
    """Field of its `memory.stat` with the page cache that the kernel would drop first."""

    def used_bytes(self) -> int:
        """Memory in use by the cgroup, less what the kernel can take back at once.

        Raises:
            OSError: If a file can't be read.
            ValueError: If it does not hold what it should.
        """
        usage = int((self.directory / self.usage_file).read_bytes())
        statistics = (self.directory / "memory.stat").read_bytes()
        cache = re.search(rb"^%s (\d+)$" % self.cache_field.encode(), statistics, re.MULTILINE)
        if cache is None:
            raise ValueError(f"memory.stat of the cgroup has no {self.cache_field}")
        return max(usage - int(cache[1]), 0)


def affinity() -> frozenset[int] | None:
    """Numbers of the cores that this thread may run on; `None` where the system has no such thing."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def usable_cores(root: Path = ROOT) -> float:
    """Cores that this process may use: those of its affinity, or fewer under a CPU quota.

    Args:
        root: Where `proc` and `sys` are.
    """
    cores = affinity()
    count = float(len(cores) if cores else os.cpu_count() or 1)
    quota = cpu_quota_cores(root)
    return count if quota is None else min(count, quota)


def cpu_quota_cores(root: Path = ROOT) -> float | None:
    """The smallest CPU quota of the process's cgroup and of those above it, in cores.

    Args:
        root: Where `proc` and `sys` are.

    Returns:
        `None` without a quota.
    """
    quotas: list[float] = []
    for directory, is_v2 in _cgroups(root, "cpu"):
        if is_v2:
            quota, _, period = _text(directory / "cpu.max").partition(" ")
        else:
            quota, period = _text(directory / "cpu.cfs_quota_us"), _text(directory / "cpu.cfs_period_us")
        quota_us, period_us = _positive(quota), _positive(period)
        if quota_us and period_us:
            quotas.append(quota_us / period_us)
    return min(quotas, default=None)


def memory_limit(root: Path = ROOT) -> MemoryLimit | None:
    """The smallest memory limit of the process's cgroup and of those above it.

    Args:
        root: Where `proc` and `sys` are.

    Returns:
        `None` without a limit.
    """
    limits: list[MemoryLimit] = []
    for directory, is_v2 in _cgroups(root, "memory"):
        limit_bytes = _positive(_text(directory / ("memory.max" if is_v2 else "memory.limit_in_bytes")))
        if limit_bytes is None or limit_bytes >= _NO_LIMIT_BYTES:
            continue
        files = ("memory.current", "inactive_file") if is_v2 else ("memory.usage_in_bytes", "total_inactive_file")
        limits.append(MemoryLimit(limit_bytes, directory, *files))
    return min(limits, key=lambda limit: limit.limit_bytes, default=None)


def free_memory_bytes(root: Path = ROOT) -> float | None:
    """Memory that this process may still take: what its cgroup leaves, or the machine where that is less.

    Args:
        root: Where `proc` and `sys` are.

    Returns:
        Bytes; `None` where neither can be read.
    """
    left: list[float] = []
    limit = memory_limit(root)
    if limit is not None:
        with suppress(OSError, ValueError):
            left.append(float(max(limit.limit_bytes - limit.used_bytes(), 0)))
    available = re.search(r"^MemAvailable:\s+(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE)
    if available is not None:
        left.append(float(available[1]) * 1024)
    return min(left, default=None)


def online_cores(root: Path = ROOT) -> tuple[int, ...]:
    """Numbers of the cores that are switched on, rising; empty where that is not known.

    Args:
        root: Where `sys` is.
    """
    text = _text(root / "sys/devices/system/cpu/online")
    spans = [span.partition("-") for span in text.split(",")]
    try:
        return tuple(core for first, _, last in spans for core in range(int(first), int(last or first) + 1))
    except ValueError:
        return ()


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Directories that may limit this process, from its own cgroup upwards, each with whether it is of v2.

    In a container the path is often the host's, and the mount begins in the middle of it: directories that do not
    exist have no limits, and the mount's own comes last.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        # Hierarchy, controllers, path: the path may hold colons.
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        is_v2 = line.startswith("0::")
        if not is_v2 and controller not in controllers.split(","):
            continue
        mount = _mount(root / _MOUNT, ("unified", "") if is_v2 else (controllers, controller))
        parts = Path(path.lstrip("/")).parts
        # A process outside of its cgroup namespace sees `/..`; from there on nothing is visible.
        own = mount if ".." in parts else mount.joinpath(*parts)
        while True:
            yield own, is_v2
            if own == mount:
                break
            own = own.parent


def _mount(base: Path, names: tuple[str, ...]) -> Path:
    """The first of the directories that exists, or the last one."""
    return next((base / name for name in names if (base / name).is_dir()), base / names[-1])


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="surrogateescape").strip()
    # What is no path, for all that a file may hold, is a ValueError.
    except (OSError, ValueError):
        return ""


def _positive(text: str) -> int | None:
    """A number above 0; `None` for anything else, which is how "max" and -1 say that there is no limit."""
    return int(text) if text.isdecimal() and int(text) > 0 else None
