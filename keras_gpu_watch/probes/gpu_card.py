# SPDX-License-Identifier: Apache-2.0
"""Reads one GPU, field by field: what it does not give is found once, and what can't be true is not believed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from keras_gpu_watch.clock import Clock, monotonic
from keras_gpu_watch.probes.nvml import GPM_METRICS, Gpm, Handle
from keras_gpu_watch.probes.nvml_errors import GPU_IS_LOST, UNINITIALIZED, NvmlError
from keras_gpu_watch.samples import GPU_FIELDS, GpuDevice

FAILURES_BORNE = 3
"""A field that fails so often in a row, while others come, is given up."""
GPM_LEAST_SECONDS = 0.15
"""Readings of GPM less than 0.1 s apart say nothing (nvml.h, `nvmlGpmMetricsGet`).

At a pace of 0.1 s every second sample has one, whatever the jitter, so that all means are over equal times.
"""
NO_MEMORY_SIZE = "the driver reports a memory of 0 bytes, so none of its numbers is believed"
NOT_THIS_GPU = "this GPU does not give it"
NOT_FOR_A_SLICE = "NVML has no such number for a MIG slice"
GPM_IS_YOUNGER = "only Hopper and newer GPUs give it"

# What a reading must lie in to be believed. Drivers answer unknown values with 0 or with all bits set.
_PLAUSIBLE: dict[str, tuple[float, float]] = {
    "memory_used_bytes": (0.0, 1e14),
    "power_watts": (0.1, 20_000.0),
    "energy_joules": (1e-3, 1e15),
    "temperature_celsius": (1.0, 150.0),
    "sm_clock_mhz": (1.0, 20_000.0),
}
# GPM's means may overshoot by rounding.
_PERCENT = (0.0, 100.5)
_RATE = (0.0, 1e8)
_PLAUSIBLE_DESCRIPTION: dict[str, tuple[float, float]] = {
    "memory_total_bytes": (1.0, 1e14),
    "power_limit_watts": (0.1, 20_000.0),
    "pcie_generation": (1.0, 99.0),
    "pcie_width": (1.0, 64.0),
}

# nvml.h, `nvmlClocksThrottleReason...`
_POWER_CAP = 0x4
# The power brake is pulled from outside of the card.
_HARDWARE_SLOWDOWN = 0x8 | 0x80
_THERMAL = 0x20 | 0x40


@dataclass(slots=True)
class _Reader:
    """Some fields that come together."""

    fields: tuple[str, ...]
    read: Callable[[], Mapping[str, float]]
    failures: int = 0
    """In a row."""
    error: NvmlError | None = None
    """Of the last reading, if it failed."""


class Card:
    """One GPU or MIG slice.

    Args:
        handle: Its door.
        clock: The monotonic clock.
    """

    def __init__(self, handle: Handle, clock: Clock = monotonic) -> None:
        self._handle = handle
        self._clock = clock
        self._device = handle.describe()
        self._lost_reason: str | None = None
        self._unavailable: dict[str, str] = dict(self._device.unavailable)
        self._doubted: dict[str, str] = {}
        """Fields whose last value could not be true."""
        self._gpm: Gpm | None = None
        self._gpm_due_seconds = float("-inf")
        self._readers: list[_Reader] = []
        if self._device.memory_total_bytes == 0:
            self._give_up(GPU_FIELDS, NO_MEMORY_SIZE)
            self._doubt_description()
            return
        self._doubt_description()
        self._bounds = {name: _bounds(name) for name in GPU_FIELDS}
        if self._device.memory_total_bytes:
            self._bounds["memory_used_bytes"] = (0.0, float(self._device.memory_total_bytes))
        self._readers = self._general_readers()
        self._add_gpm()

    @property
    def device(self) -> GpuDevice:
        """What is known of it by now."""
        return dataclasses.replace(
            self._device,
            status="sampled" if self._lost_reason is None else "lost",
            reason=self._lost_reason,
            unavailable=tuple({**self._doubted, **self._unavailable}.items()),
        )

    def take_over(self, older: Card) -> None:
        """Take over what was asked only once, from an older door to the same GPU."""
        self._device = dataclasses.replace(self._device, other_processes=older.device.other_processes)
        if "other_processes" in older._unavailable:
            self._give_up(("other_processes",), older._unavailable["other_processes"])

    def count_processes(self) -> None:
        """Note how many other processes use it. A dear call: once."""
        try:
            self._device = dataclasses.replace(self._device, other_processes=self._handle.other_processes())
        except NvmlError as error:
            self._give_up(("other_processes",), error.reason)

    def read(self) -> dict[str, float]:
        """What it gives now, by field; a field that is missing was not measured.

        Raises:
            NvmlError: If nothing comes although it should: the card or NVML is lost.
        """
        values: dict[str, float] = {}
        for reader in tuple(self._readers):
            try:
                found = reader.read()
                # GPM's turn may not have come.
                if found:
                    values.update(found)
                    reader.failures, reader.error = 0, None
            except NvmlError as error:
                if error.code == UNINITIALIZED:
                    raise
                # Without a code it comes from here: the card has no memory any more.
                if error.code in (GPU_IS_LOST, None):
                    self._lost_reason = error.reason
                    raise
                reader.failures, reader.error = reader.failures + 1, error
                if error.is_absence:
                    self._drop(reader, error)
        errors = [reader.error for reader in self._readers if reader.error is not None]
        if errors and not values:
            self._lost_reason = errors[0].reason
            raise errors[0]
        self._lost_reason = None
        for reader in tuple(self._readers):
            if reader.failures >= FAILURES_BORNE and reader.error is not None:
                self._drop(reader, reader.error)
        return self._believed(values)

    def close(self) -> None:
        """Free what it holds in the driver."""
        gpm, self._gpm = self._gpm, None
        if gpm is not None:
            gpm.close()

    def _general_readers(self) -> list[_Reader]:
        handle = self._handle
        memory = _Reader(("memory_used_bytes", "memory_used_percent"), self._memory)
        if handle.is_slice:
            given = {*memory.fields, *GPM_METRICS}
            missing = [name for name in GPU_FIELDS if name not in given]
            self._give_up(["power_limit_watts", *missing], NOT_FOR_A_SLICE)
            return [memory]
        single: dict[str, Callable[[], float]] = {
            "utilization_percent": handle.utilization_percent,
            "power_watts": handle.power_watts,
            "energy_joules": handle.energy_joules,
            "temperature_celsius": handle.temperature_celsius,
            "sm_clock_mhz": handle.sm_clock_mhz,
        }
        throttle = _Reader(("thermal_throttle", "power_cap", "hardware_slowdown"), self._throttle)
        return [memory, throttle, *(_single_reader(name, read) for name, read in single.items())]

    def _memory(self) -> dict[str, float]:
        used, total = self._handle.memory_bytes()
        if not total:
            raise NvmlError(None, NO_MEMORY_SIZE)
        return {"memory_used_bytes": used, "memory_used_percent": 100.0 * used / total}

    def _throttle(self) -> dict[str, float]:
        bits = self._handle.throttle_reasons()
        return {
            "thermal_throttle": float(bool(bits & _THERMAL)),
            "power_cap": float(bool(bits & _POWER_CAP)),
            "hardware_slowdown": float(bool(bits & _HARDWARE_SLOWDOWN)),
        }

    def _add_gpm(self) -> None:
        try:
            self._gpm = self._handle.gpm()
        except NvmlError as error:
            self._give_up(GPM_METRICS, GPM_IS_YOUNGER if error.is_absence else error.reason)
        else:
            self._readers.append(_Reader(tuple(GPM_METRICS), self._read_gpm))

    def _read_gpm(self) -> dict[str, float]:
        now = self._clock()
        if self._gpm is None or now < self._gpm_due_seconds:
            return {}
        self._gpm_due_seconds = now + GPM_LEAST_SECONDS
        values = self._gpm.read()
        if values is None:
            return {}
        for name in GPM_METRICS:
            if name in values:
                self._unavailable.pop(name, None)
            else:
                self._give_up((name,), NOT_THIS_GPU)
        return values

    def _doubt_description(self) -> None:
        given = {name: getattr(self._device, name) for name in _PLAUSIBLE_DESCRIPTION}
        doubted = {
            name: value
            for name, value in given.items()
            if value is not None and not _is_within(value, _PLAUSIBLE_DESCRIPTION[name])
        }
        unknown: dict[str, Any] = dict.fromkeys(doubted)
        self._device = dataclasses.replace(self._device, **unknown)
        self._unavailable.update({name: _doubt(value) for name, value in doubted.items()})

    def _believed(self, values: Mapping[str, float]) -> dict[str, float]:
        believed: dict[str, float] = {}
        for name, value in values.items():
            low, high = self._bounds[name]
            if low <= value <= high:
                believed[name] = value
            else:
                self._doubted[name] = _doubt(value)
        if self._doubted:
            self._doubted = {name: reason for name, reason in self._doubted.items() if name not in believed}
        return believed

    def _drop(self, reader: _Reader, error: NvmlError) -> None:
        self._readers.remove(reader)
        self._give_up(reader.fields, error.reason)

    def _give_up(self, fields: Iterable[str], reason: str) -> None:
        self._unavailable.update(dict.fromkeys(fields, reason))


def _single_reader(name: str, read: Callable[[], float]) -> _Reader:
    return _Reader((name,), lambda: {name: read()})


def _bounds(name: str) -> tuple[float, float]:
    return _PLAUSIBLE.get(name) or (_RATE if "per_second" in name else _PERCENT)


def _is_within(value: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= value <= bounds[1]


def _doubt(value: float) -> str:
    return f"the driver answers {value:g}, which can't be true"
