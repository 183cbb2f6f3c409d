# SPDX-License-Identifier: Apache-2.0
"""What CUDA's driver library shows to a process, in processes of their own: TensorFlow would take the stub for CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nvml_scenarios import ask_cuda, write

ROOT = Path(__file__).parents[2]
UUIDS = [f"GPU-0000000{number}-aaaa-bbbb-cccc-dddddddddddd" for number in range(3)]
BUS_IDS = [f"0000:0{number}:00.0" for number in range(3)]


@pytest.fixture
def machine(tmp_path):
    """Three GPUs, the last one of the bus the fastest."""
    lines = (f"{uuid} {bus} {speed}" for speed, (uuid, bus) in enumerate(zip(UUIDS, BUS_IDS, strict=True)))
    return write(tmp_path / "machine.txt", lines)


def test_devices_come_in_cudas_own_order(cuda_library, machine):
    (devices,) = ask_cuda(cuda_library, machine, [{}])[2:]
    expected = [[uuid.removeprefix("GPU-"), bus] for uuid, bus in zip(UUIDS, BUS_IDS, strict=True)]
    assert devices == expected[::-1]


def test_devices_come_as_the_environment_shows_them(cuda_library, machine):
    environments = [{"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES": f"{UUIDS[1]},0"}]
    by_bus, chosen = ask_cuda(cuda_library, machine, environments)[2:]
    assert [bus for _, bus in by_bus] == BUS_IDS
    assert [bus for _, bus in chosen] == [BUS_IDS[1], BUS_IDS[2]]


def test_asking_does_not_load_the_library(cuda_library):
    code = """
from keras_gpu_watch.probes.cuda import cuda_devices
print(cuda_devices(), "libcuda" in open("/proc/self/maps").read())
import ctypes
ctypes.CDLL("libcuda.so.1")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(cuda_library.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "None False\n"


def test_nothing_is_known_before_cuda_is_loaded_and_initialized(cuda_library, machine):
    # Asking must not initialize it: that would take memory on a GPU that nobody wants to use.
    not_loaded, not_initialized, initialized = ask_cuda(cuda_library, machine, [{}])
    assert not_loaded is None
    assert not_initialized is None
    assert len(initialized) == 3


def test_nothing_is_known_where_cuda_finds_no_device(cuda_library, machine):
    assert ask_cuda(cuda_library, machine, [{"CUDA_VISIBLE_DEVICES": ""}])[2:] == [None]


def test_a_driver_without_uuids_still_gives_bus_ids(cuda_library, machine):
    (devices,) = ask_cuda(cuda_library, machine, [{"CUDA_STUB_NO_UUID": "1"}])[2:]
    assert devices == [[None, bus] for bus in BUS_IDS[::-1]]
