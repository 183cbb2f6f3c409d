# SPDX-License-Identifier: Apache-2.0
"""Machines with GPUs, as scenarios for the stub of NVML in `nvml_stub/`, which stands behind the real binding.

A scenario is a list of lines (`scenario.c` reads them):

- `card.<i>.<number or text> = <value>`: what card `i` answers; `slice_of` makes it a MIG slice of another card.
- `card.<i>.metric.<id> = <value>`, `card.<i>.metric_error.<id> = <code>`: GPM.
- `card.<i>.error.<function> = <code>`: of one card. `error.<function> = <code>`: of all, and of functions without one.
- `slow_ms.<function> = <ms>`, `hang.<function> = 1`: of all cards. A hanging call comes back when it is set to 0.
- A `<function>` of `*` stands for all but init and shutdown.
- `@<n> <line>`: `line` holds from the `n`-th call for a card's memory on. The first one asks for its
  size, so that `@3` is in the second sample.

`busy_seconds` and `idle_seconds`, or `busy_samples` and `idle_samples`, make a duty cycle; GPM and energy follow it.
A card that is `stale` answers "invalid argument" until its handle is looked up again.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parent / "nvml_stub"
GIB = 2**30
ALL_BITS = 2**32 - 1
ALL_BITS_64 = 2**64 - 1
HEALTHY: Mapping[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "memory_used": 20 * GIB,
    "memory_total": 80 * GIB,
    "utilization": 87,
    "power_mw": 412_000,
    "idle_power_mw": 70_000,
    "power_limit_mw": 700_000,
    "energy_mj": 5_000_000,
    "temperature": 61,
    "sm_clock": 1755,
    "pcie_generation": 5,
    "pcie_width": 16,
    "gpm_supported": 1,
    "pids": "self",
}
METRICS = {2: 55.5, 3: 31.25, 5: 18.0, 10: 44.0, 20: 1200.0, 21: 2400.0, 60: 300.0, 61: 600.0}
"""GPM of a healthy card, by NVML's numbers."""


def uuid_of(number: int) -> str:
    """UUID of a card; the second half of it is the same for all."""
    return f"GPU-{0xA0000000 + number:08x}-1111-2222-3333-444444444444"


def bus_id_of(number: int) -> str:
    """PCI bus id of a card, as NVML writes it."""
    return f"00000000:{0x10 + number:02X}:00.0"


def card(number: int = 0, **changes: Any) -> list[str]:
    """A healthy card, but for the changes."""
    values = {**HEALTHY, "uuid": uuid_of(number), "bus_id": bus_id_of(number), **changes}
    lines = [f"card.{number}.{name} = {value}" for name, value in values.items()]
    return lines + [f"card.{number}.metric.{metric} = {value}" for metric, value in METRICS.items()]


def cards(count: int, **changes: Any) -> list[str]:
    """Healthy cards."""
    return [line for number in range(count) for line in card(number, **changes)]


def mig_slice(number: int, of: int, instance: int, **changes: Any) -> list[str]:
    """A MIG slice; `number` is one that no card has."""
    values = {
        "name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "uuid": uuid_of(number).replace("GPU-", "MIG-"),
        "bus_id": bus_id_of(of),
        "memory_used": 10 * GIB,
        "memory_total": 40 * GIB,
        "slice_of": of,
        "instance": instance,
        "gpm_supported": 1,
        "pids": "self",
        **changes,
    }
    lines = [f"card.{number}.{name} = {value}" for name, value in values.items()]
    return lines + [f"card.{number}.metric.{metric} = {value / 2}" for metric, value in METRICS.items()]


def split_card() -> list[str]:
    """One card, split into two slices."""
    return [*card(0, mig=1), *mig_slice(8, of=0, instance=1), *mig_slice(9, of=0, instance=2, memory_used=2 * GIB)]


def all_zero_card() -> list[str]:
    """A card whose every function succeeds and answers nothing."""
    changes = {name: "" if isinstance(value, str) else 0 for name, value in HEALTHY.items()}
    return card(0, **changes, uuid="", bus_id="")


def write(path: Path, lines: Iterable[str]) -> Path:
    """Write a scenario, to be named by `NVML_STUB_SCENARIO` or loaded."""
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def compile_library(folder: Path, soname: str, *sources: str) -> Path:
    """Compile a stub library with the system's compiler; skips the test where there is none."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("the stub of NVML needs a C compiler (cc, gcc or clang)")
    path = folder / soname
    # Its names must not be bound to those of another library that happens to have the same.
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-O1", "-fPIC", "-shared", "-Wl,-Bsymbolic"]
    command = [compiler, *flags, f"-Wl,-soname,{soname}", "-o", str(path), *(str(SOURCES / name) for name in sources)]
    subprocess.run([*command, "-lm", "-lpthread"], check=True)
    return path


ASK_CUDA = """
import ctypes, dataclasses, json, os, sys
from keras_gpu_watch.probes.cuda import cuda_devices

library, environments = sys.argv[1], json.loads(sys.argv[2])
answers = [cuda_devices()]
cuda = ctypes.CDLL(library)
answers.append(cuda_devices())
for environment in environments:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_STUB_NO_UUID"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    cuda.cuInit(0)
    answers.append(cuda_devices())
print(json.dumps([devices and [dataclasses.astuple(device) for device in devices] for devices in answers]))
"""


def ask_cuda(library: Path, machine: Path, environments: Iterable[Mapping[str, str]]) -> list[Any]:
    """What `cuda_devices` gives in a process that has loaded the stub of CUDA.

    Args:
        library: The stub.
        machine: A file with a line `UUID BUS_ID SPEED` for each GPU, in PCI order.
        environments: In which CUDA is initialized, one after the other.

    Returns:
        Before the library is loaded, before it is initialized, and in each environment.
    """
    command = [sys.executable, "-c", ASK_CUDA, str(library), json.dumps(list(environments))]
    variables = {**os.environ, "PYTHONPATH": str(SOURCES.parents[1]), "CUDA_STUB_SCENARIO": str(machine)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


class NvmlStub:
    """The stub, loaded into this process: from then on the name `libnvidia-ml.so.1` means it.

    Without a scenario it answers as if there were no driver, so that it may stay for other tests.

    Args:
        library: Path of the compiled library.
        folder: Where scenarios are written.
    """

    def __init__(self, library: Path, folder: Path) -> None:
        self.library = library
        self.seconds = 0.0
        """What `set_seconds` has set."""
        self._scenario = folder / "scenario.txt"
        self._functions = ctypes.CDLL(str(library))
        self._functions.nvml_stub_calls.restype = ctypes.c_long
        if not hasattr(ctypes.CDLL(library.name), "nvml_stub_load"):
            pytest.skip("the real NVML is loaded in this process")

    def load(self, *lines: str) -> None:
        """Start afresh with a scenario."""
        bad_line = self._functions.nvml_stub_load(os.fsencode(write(self._scenario, lines)))
        assert not bad_line, lines[bad_line - 1]

    def unload(self) -> None:
        """Be a machine without a driver, and let hanging calls go."""
        self._functions.nvml_stub_load(None)

    def set(self, *lines: str | bytes) -> None:
        """Change the scenario from now on."""
        for line in lines:
            assert self._functions.nvml_stub_set(line.encode() if isinstance(line, str) else line), line

    def set_seconds(self, seconds: float) -> None:
        """Set the clock that energy, duty cycles and GPM go by."""
        self.seconds = seconds
        self._functions.nvml_stub_set_seconds(ctypes.c_double(seconds))

    def calls(self, function: str) -> int:
        """How often a function of NVML was called since the scenario was loaded."""
        count = int(self._functions.nvml_stub_calls(function.encode()))
        assert count >= 0, function
        return count

    @property
    def references(self) -> int:
        """Calls of init less calls of shutdown."""
        return int(self._functions.nvml_stub_references())

    @property
    def gpm_samples(self) -> int:
        """GPM's buffers that were not freed."""
        return int(self._functions.nvml_stub_gpm_samples())

    @property
    def threads(self) -> int:
        """How many threads have called it."""
        return int(self._functions.nvml_stub_threads())
