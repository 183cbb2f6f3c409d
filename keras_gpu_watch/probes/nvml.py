# SPDX-License-Identifier: Apache-2.0
"""The door to NVML, the management library of NVIDIA's driver, through the package `nvidia-ml-py`."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from keras_gpu_watch.probes.nvml_errors import FUNCTION_NOT_FOUND, NOT_SUPPORTED, NvmlError
from keras_gpu_watch.samples import GpuDevice

NO_BINDING = "the package nvidia-ml-py is not installed: pip install nvidia-ml-py"
NO_PROCESS_IDS = "this process is not in the driver's list, which in a container has other ids"
NO_TEXT = "the driver answers with something that is no text"
GPM_METRICS = {
    "sm_activity_percent": 2,
    "sm_occupancy_percent": 3,
    "tensor_activity_percent": 5,
    "dram_activity_percent": 10,
    "pcie_transmit_mib_per_second": 20,
    "pcie_receive_mib_per_second": 21,
    "nvlink_receive_mib_per_second": 60,
    "nvlink_transmit_mib_per_second": 61,
}
"""Fields of a sample that GPM gives, with NVML's numbers of the metrics (nvml.h, `nvmlGpmMetricId_t`)."""

T = TypeVar("T")


def load_binding() -> Any:
    """The module `pynvml`, which `nvidia-ml-py` provides.

    The package of the module's own name warns at import that it is deprecated; who has it installed did not ask for
    that here. Call this on the main thread: warning filters belong to all threads.

    Raises:
        NvmlError: If it is not installed, or broken.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pynvml
    except ImportError as error:
        raise NvmlError(None, f"{NO_BINDING} ({error})") from error
    except Exception as error:
        raise NvmlError(None, f"the package nvidia-ml-py can't be loaded: {error}") from error
    return pynvml


class Nvml:
    """NVML, initialized; each call raises `NvmlError` where NVML does not answer.

    Args:
        binding: What `load_binding` gave.

    Raises:
        NvmlError: If it can't be initialized.
    """

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self._call("nvmlInit")

    def driver_version(self) -> str:
        """Version of the driver."""
        return str(self._call("nvmlSystemGetDriverVersion"))

    def handles(self) -> list[Handle | NvmlError]:
        """All GPUs in NVML's order, each one that is split replaced by its MIG slices.

        Returns:
            An error in place of a GPU that does not answer.
        """
        found: list[Handle | NvmlError] = []
        for index in range(self._call("nvmlDeviceGetCount")):
            try:
                gpu = self._call("nvmlDeviceGetHandleByIndex", index)
            except NvmlError as error:
                found.append(error)
            else:
                found += self._slices(gpu) or [Handle(self._binding, gpu)]
        return found

    def close(self) -> None:
        """Give NVML back."""
        self._call("nvmlShutdown")

    def _slices(self, gpu: Any) -> list[Handle]:
        slices: list[Handle] = []
        try:
            if not self._call("nvmlDeviceGetMigMode", gpu)[0]:
                return []
            count = self._call("nvmlDeviceGetMaxMigDeviceCount", gpu)
        except NvmlError:
            return []
        for index in range(count):
            # The places of slices that were not made are empty.
            try:
                slices.append(Handle(self._binding, self._call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index), gpu))
            except NvmlError:
                continue
        return slices

    def _call(self, name: str, *arguments: Any) -> Any:
        return call(self._binding, name, *arguments)


class Handle:
    """One GPU, or one MIG slice of a GPU. Every method raises `NvmlError` for what it does not give.

    Args:
        binding: The module `pynvml`.
        handle: NVML's own handle.
        parent: Of a slice, the handle of its GPU.
    """

    def __init__(self, binding: Any, handle: Any, parent: Any = None) -> None:
        self._binding = binding
        self._handle = handle
        self._parent = parent

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG slice."""
        return self._parent is not None

    def describe(self) -> GpuDevice:
        """What does not change during a run, as the driver tells it; `None` with a reason for what it does not."""
        missing: dict[str, str] = {}

        def ask(field: str, name: str, read: Callable[[Any], T], of_gpu: bool = False) -> T | None:
            try:
                return read(self._ask(name, of_gpu=of_gpu))
            except NvmlError as error:
                missing[field] = error.reason
            except UnicodeDecodeError:
                # The binding decodes for itself.
                missing[field] = NO_TEXT
            return None

        return GpuDevice(
            name=ask("name", "nvmlDeviceGetName", _text) or "GPU",
            uuid=ask("uuid", "nvmlDeviceGetUUID", _text) or None,
            pci_bus_id=ask("pci_bus_id", "nvmlDeviceGetPciInfo", lambda pci: _text(pci.busId), of_gpu=True) or None,
            is_mig_slice=self.is_slice,
            memory_total_bytes=ask("memory_total_bytes", "nvmlDeviceGetMemoryInfo", lambda memory: int(memory.total)),
            # NVML answers for a slice with its GPU's, which is not its own.
            power_limit_watts=None
            if self.is_slice
            else ask("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", lambda limit: limit / 1e3),
            pcie_generation=ask("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", int, of_gpu=True),
            pcie_width=ask("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", int, of_gpu=True),
            unavailable=tuple(missing.items()),
        )

    def other_processes(self) -> int:
        """Further processes with a context on the GPU. Takes milliseconds and holds up other users of the driver."""
        pids = {process.pid for process in self._ask("nvmlDeviceGetComputeRunningProcesses")}
        # A container's list may also be empty.
        if os.getpid() not in pids:
            raise NvmlError(None, NO_PROCESS_IDS)
        return len(pids) - 1

    def utilization_percent(self) -> float:
        """Share of the driver's sample period in which some kernel ran."""
        return float(self._ask("nvmlDeviceGetUtilizationRates").gpu)

    def memory_bytes(self) -> tuple[float, float]:
        """Used and total memory."""
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        return float(memory.used), float(memory.total)

    def power_watts(self) -> float:
        """Power draw; on most cards the driver's mean over the last second."""
        return float(self._ask("nvmlDeviceGetPowerUsage")) / 1e3

    def energy_joules(self) -> float:
        """Energy since the driver was loaded."""
        return float(self._ask("nvmlDeviceGetTotalEnergyConsumption")) / 1e3

    def temperature_celsius(self) -> float:
        """Temperature of the chip."""
        return float(self._ask("nvmlDeviceGetTemperature", 0))

    def sm_clock_mhz(self) -> float:
        """Clock of the streaming multiprocessors."""
        return float(self._ask("nvmlDeviceGetClockInfo", 1))

    def throttle_reasons(self) -> int:
        """Bits that tell why clocks are held down (nvml.h, `nvmlClocksThrottleReason...`)."""
        # Newer drivers call them events, and will drop the older name.
        names = ("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetCurrentClocksEventReasons")
        try:
            return int(self._ask(names[0]))
        except NvmlError as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
        return int(self._ask(names[1]))

    def gpm(self) -> Gpm:
        """Its profiling counters (Hopper and newer)."""
        if not self._ask("nvmlGpmQueryDeviceSupport", of_gpu=True).isSupportedDevice:
            raise NvmlError(NOT_SUPPORTED)
        instance = self._ask("nvmlDeviceGetGpuInstanceId") if self.is_slice else None
        return Gpm(self._binding, self._parent if self.is_slice else self._handle, instance)

    def _ask(self, name: str, *arguments: Any, of_gpu: bool = False) -> Any:
        handle = self._parent if of_gpu and self.is_slice else self._handle
        return call(self._binding, name, handle, *arguments)


class Gpm:
    """The profiling counters of one GPU or slice: means between two readings, at least 0.1 s apart.

    Args:
        binding: The module `pynvml`.
        gpu: NVML's handle of the GPU.
        instance: Of a slice, the number of its GPU instance.
    """

    def __init__(self, binding: Any, gpu: Any, instance: int | None) -> None:
        self._binding = binding
        self._gpu = gpu
        self._instance = instance
        self._older: Any = None
        self._newer: Any = call(binding, "nvmlGpmSampleAlloc")
        self._spare: Any = call(binding, "nvmlGpmSampleAlloc")
        self._request = binding.c_nvmlGpmMetricsGet_t()
        self._request.version = binding.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(GPM_METRICS)
        for place, metric in enumerate(GPM_METRICS.values()):
            self._request.metrics[place].metricId = metric
        self._results = _results(self._request.metrics)

    def read(self) -> dict[str, float] | None:
        """Means since the reading before, without what this GPU does not have; `None` the first time."""
        self._take(self._newer)
        older, self._older = self._older, self._newer
        self._newer = older if older is not None else self._spare
        if older is None:
            return None
        self._request.sample1, self._request.sample2 = older, self._older
        call(self._binding, "nvmlGpmMetricsGet", self._request)
        codes, values = self._results["code"].tolist(), self._results["value"].tolist()
        return {field: value for field, code, value in zip(GPM_METRICS, codes, values, strict=True) if code == 0}

    def close(self) -> None:
        """Free the driver's buffers."""
        for sample in {id(sample): sample for sample in (self._older, self._newer, self._spare) if sample}.values():
            call(self._binding, "nvmlGpmSampleFree", sample)

    def _take(self, sample: Any) -> None:
        if self._instance is None:
            call(self._binding, "nvmlGpmSampleGet", self._gpu, sample)
        else:
            call(self._binding, "nvmlGpmMigSampleGet", self._gpu, self._instance, sample)


def _results(metrics: Any) -> NDArray[np.void]:
    """A view of the structures that NVML fills: eight times as fast to read as one by one."""
    kind = type(metrics)._type_
    layout = {
        "names": ["code", "value"],
        "formats": [np.uint32, np.float64],
        "offsets": [kind.nvmlReturn.offset, kind.value.offset],
        "itemsize": ctypes.sizeof(kind),
    }
    dtype: Any = np.dtype(layout)  # type: ignore[call-overload]
    view: NDArray[np.void] = np.frombuffer(metrics, dtype, len(GPM_METRICS))
    return view


def call(binding: Any, name: str, *arguments: Any) -> Any:
    """Call a function of the binding.

    Raises:
        NvmlError: If NVML answers with an error, or the installed binding has no such function.
    """
    function = getattr(binding, name, None)
    if function is None:
        raise NvmlError(FUNCTION_NOT_FOUND)
    try:
        return function(*arguments)
    except binding.NVMLError as error:
        raise NvmlError(getattr(error, "value", None), str(error)) from error
    except getattr(binding, "NVMLLibraryMismatchError", ()) as error:
        # No subclass of `NVMLError`: what the binding makes of a driver that lacks a function's newest version.
        raise NvmlError(FUNCTION_NOT_FOUND) from error


def _text(value: str | bytes) -> str:
    # Older versions of the binding give bytes.
    return value.decode(errors="replace") if isinstance(value, bytes) else value
