# SPDX-License-Identifier: Apache-2.0
"""Samples the host: its cores, this process, memory and disk. A reading that fails leaves the others alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import psutil

from keras_gpu_watch.clock import Clock, monotonic
from keras_gpu_watch.probes.host_limits import ROOT, affinity, memory_limit, online_cores, usable_cores
from keras_gpu_watch.probes.interpreter_lock import InterpreterLock
from keras_gpu_watch.samples import HOST_FIELDS, HOST_SAMPLE_DTYPE, HostDevice, HostSamples

REFUSED = "the system does not let this process read it; containers often do not"
NOT_COUNTED = "this operating system does not count it"
CORES_UNCLEAR = "the list of cores does not tell which ones this process may use"

# What psutil raises. It warns of missing memory fields, and the user may have made errors of warnings.
_FAILURES = (psutil.Error, OSError, ValueError, RuntimeError, LookupError, TypeError, RuntimeWarning)
# Contained in `user` and `nice` already.
_COUNTED_TWICE = ("guest", "guest_nice")
_IDLE = ("idle", "iowait")


class HostSampler:
    """Samples the host; one thread drives it, `device` may be asked from any.

    Args:
        clock: The monotonic clock.
        root: Where `proc` and `sys` are.
        interpreter: What the thread that samples pauses with; without it, the interpreter lock is not looked at.
    """

    def __init__(self, clock: Clock = monotonic, root: Path = ROOT, interpreter: InterpreterLock | None = None) -> None:
        self._clock = clock
        self._unavailable: dict[str, str] = {}
        machine_memory_bytes = None
        try:
            machine_memory_bytes = int(psutil.virtual_memory().total)
        except _FAILURES as error:
            self._unavailable["machine_memory_bytes"] = _reason(error)
        limit = memory_limit(root)
        if limit is not None and machine_memory_bytes is not None and limit.limit_bytes >= machine_memory_bytes:
            limit = None
        self._memory_limit = limit
        self._device = HostDevice(
            usable_cores=usable_cores(root),
            machine_cores=psutil.cpu_count(),
            usable_memory_bytes=machine_memory_bytes if limit is None else limit.limit_bytes,
            machine_memory_bytes=machine_memory_bytes,
        )
        self._process = psutil.Process()
        self._process_cpu = _Rate()
        self._disk_read = _Rate()
        self._readers = self._choose_readers(root)
        if interpreter is not None:
            field = "interpreter_busy_percent"
            self._readers.append(((field,), lambda: {field: interpreter.take_percent()}))

    @property
    def device(self) -> HostDevice:
        """What this process may use, and what can't be read of it by now."""
        return dataclasses.replace(self._device, unavailable=tuple(self._unavailable.items()))

    def sample(self) -> HostSamples:
        """Read everything. Rates are means since the sample before, so the first one has none.

        Returns:
            One row; none when nothing could be read.
        """
        begin = self._clock()
        values: dict[str, float] = {}
        for fields, read in self._readers:
            try:
                values.update(read())
            except _FAILURES as error:
                self._unavailable.update(dict.fromkeys(fields, _reason(error)))
            else:
                for name in fields:
                    self._unavailable.pop(name, None)
        seconds = (begin + self._clock()) / 2
        rows = [(seconds, *(values.get(name, math.nan) for name in HOST_FIELDS))]
        return np.array(rows if values else [], HOST_SAMPLE_DTYPE)

    def _choose_readers(self, root: Path) -> list[tuple[tuple[str, ...], Callable[[], Mapping[str, float]]]]:
        """What this system can give, as the fields that come together and what reads them."""
        readers: list[tuple[tuple[str, ...], Callable[[], Mapping[str, float]]]] = [
            (("process_cpu_percent",), self._read_process_cpu),
            (("process_memory_bytes",), self._read_process_memory),
            (("memory_percent",), self._read_memory),
        ]
        try:
            cores = _Cores(_positions(affinity(), len(psutil.cpu_times(percpu=True)), online_cores(root)))
        except _FAILURES as error:
            self._unavailable.update(dict.fromkeys(("cpu_percent", "iowait_percent"), _reason(error)))
        else:
            readers.append((cores.fields, cores.read))
            if "iowait_percent" not in cores.fields:
                self._unavailable["iowait_percent"] = NOT_COUNTED
        if hasattr(self._process, "io_counters"):
            readers.append((("disk_read_bytes_per_second",), self._read_disk))
        else:
            self._unavailable["disk_read_bytes_per_second"] = NOT_COUNTED
        return readers

    def _read_process_cpu(self) -> dict[str, float]:
        times = self._process.cpu_times()
        cores = self._process_cpu.per_second(times.user + times.system, self._clock())
        # Counters that move in ticks may overshoot.
        return {"process_cpu_percent": min(100.0 * cores / self._device.usable_cores, 100.0)}

    def _read_process_memory(self) -> dict[str, float]:
        return {"process_memory_bytes": float(self._process.memory_info().rss)}

    def _read_memory(self) -> dict[str, float]:
        if self._memory_limit is not None:
            share = self._memory_limit.used_bytes() / self._memory_limit.limit_bytes
        else:
            memory = psutil.virtual_memory()
            share = 1 - memory.available / memory.total
        return {"memory_percent": min(100.0 * share, 100.0)}

    def _read_disk(self) -> dict[str, float]:
        read_bytes = self._process.io_counters().read_bytes
        return {"disk_read_bytes_per_second": self._disk_read.per_second(read_bytes, self._clock())}


class _Rate:
    """Growth of a counter since the reading before."""

    def __init__(self) -> None:
        self._value = self._seconds = math.nan

    def per_second(self, value: float, seconds: float) -> float:
        """The growth per second; NaN the first time, and for a counter that was set back."""
        growth, elapsed = value - self._value, seconds - self._seconds
        self._value, self._seconds = value, seconds
        return growth / elapsed if elapsed > 0 and growth >= 0 else math.nan


class _Cores:
    """How busy some cores are, in the mean over them.

    Args:
        positions: Their places in psutil's list; `None` for all cores, which is much cheaper to read.
    """

    def __init__(self, positions: Sequence[int] | None) -> None:
        self._positions = positions
        names: tuple[str, ...] = psutil.cpu_times()._fields
        self._all = tuple(i for i, name in enumerate(names) if name not in _COUNTED_TWICE)
        self._idle = tuple(i for i, name in enumerate(names) if name in _IDLE)
        self._iowait = names.index("iowait") if "iowait" in names else None
        self._last: Sequence[float] | None = None
        self.fields = ("cpu_percent",) if self._iowait is None else ("cpu_percent", "iowait_percent")

    def read(self) -> dict[str, float]:
        """Percentages since the reading before; NaN the first time, or if no tick has passed.

        Time that a hypervisor gave to others counts as busy, because these cores could not be used.
        """
        last, self._last = self._last, self._times()
        # Some of these counters are estimates that the kernel may set back.
        spent = [max(new - old, 0.0) for new, old in zip(self._last, last or self._last, strict=True)]
        total = sum(spent[i] for i in self._all)
        if total <= 0:
            return dict.fromkeys(self.fields, math.nan)
        values = {"cpu_percent": 100.0 * (1 - sum(spent[i] for i in self._idle) / total)}
        if self._iowait is not None:
            values["iowait_percent"] = 100.0 * spent[self._iowait] / total
        return values

    def _times(self) -> Sequence[float]:
        if self._positions is None:
            times: Sequence[float] = psutil.cpu_times()
            return times
        cores = psutil.cpu_times(percpu=True)
        return [sum(times) for times in zip(*(cores[i] for i in self._positions), strict=True)]


def _positions(usable: frozenset[int] | None, listed: int, online: Sequence[int]) -> tuple[int, ...] | None:
    """Places of the usable cores in a list of the cores that are switched on.

    Returns:
        `None` when the list has no others.

    Raises:
        ValueError: If it is not known which ones they are.
    """
    # Some container runtimes make up a list of what the container may use.
    if usable is None or listed <= len(usable):
        return None
    if len(online) != listed or not usable.issubset(online):
        raise ValueError(CORES_UNCLEAR)
    return tuple(i for i, core in enumerate(online) if core in usable)


def _reason(error: Exception) -> str:
    if isinstance(error, (PermissionError, psutil.AccessDenied)):
        return REFUSED
    return f"it can't be read: {error}"
