# SPDX-License-Identifier: Apache-2.0
"""The GPUs that CUDA shows to this process, asked of the driver library that the framework has loaded.

`CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` are applied there already, in every form that they may take. CUDA is
never initialized from here: that would make a context and take memory.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from dataclasses import dataclass

_LIBRARY = "libcuda.so.1"
_SUCCESS = 0
_BUS_ID_BYTES = 32


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """One device, in CUDA's numbering."""

    uuid: str | None
    """Without NVML's prefix `GPU-` or `MIG-`; `None` where the driver has no such function."""
    pci_bus_id: str | None


def cuda_devices() -> tuple[CudaDevice, ...] | None:
    """The devices that this process sees, by CUDA ordinal.

    Returns:
        `None` when the library is not loaded or not initialized: the framework does not use CUDA, or not yet.
    """
    try:
        # Never loads it: a framework that uses CUDA has done so.
        library = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD)
        count = ctypes.c_int()
        if library.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
            return None
        return tuple(_device(library, ordinal) for ordinal in range(count.value))
    except (OSError, AttributeError):
        return None


def _device(library: ctypes.CDLL, ordinal: int) -> CudaDevice:
    device = ctypes.c_int()
    if library.cuDeviceGet(ctypes.byref(device), ordinal) != _SUCCESS:
        return CudaDevice(None, None)
    return CudaDevice(_uuid(library, device), _bus_id(library, device))


def _uuid(library: ctypes.CDLL, device: ctypes.c_int) -> str | None:
    # Only the second version tells the slices of one GPU apart.
    function = getattr(library, "cuDeviceGetUuid_v2", None) or getattr(library, "cuDeviceGetUuid", None)
    data = (ctypes.c_ubyte * 16)()
    if function is None or function(data, device) != _SUCCESS:
        return None
    return str(uuid.UUID(bytes=bytes(data)))


def _bus_id(library: ctypes.CDLL, device: ctypes.c_int) -> str | None:
    text = ctypes.create_string_buffer(_BUS_ID_BYTES)
    if library.cuDeviceGetPCIBusId(text, _BUS_ID_BYTES, device) != _SUCCESS:
        return None
    return text.value.decode("ascii", "replace")
