# SPDX-License-Identifier: Apache-2.0
"""The records of the sampler: one reading of a GPU or of the host, what a device is, and an epoch's statistics.

Units stand in the names; percents are 0..100, as NVML gives them. "Not measured" is `None` in a dataclass and NaN in
an array, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

GpuSamples = NDArray[np.void]
"""A structured array of `GPU_SAMPLE_DTYPE`: one row for each device at each sample, in the order of time."""
HostSamples = NDArray[np.void]
"""A structured array of `HOST_SAMPLE_DTYPE`."""

GPU_SAMPLE_DTYPE = np.dtype(
    [
        # In the middle of the reading, on the clock of `time.perf_counter`.
        ("seconds", np.float64),
        # Position in the report's list of GPUs.
        ("gpu", np.int32),
        # Share of NVML's own sample period (1/6 to 1 s) in which some kernel ran.
        ("utilization_percent", np.float64),
        ("memory_used_bytes", np.float64),
        ("memory_used_percent", np.float64),
        ("power_watts", np.float64),
        # The driver's counter, since it was loaded.
        ("energy_joules", np.float64),
        ("temperature_celsius", np.float64),
        ("sm_clock_mhz", np.float64),
        # 1 or 0: clocks held down by heat, by the power limit, by a hardware signal (which may be either of them).
        ("thermal_throttle", np.float64),
        ("power_cap", np.float64),
        ("hardware_slowdown", np.float64),
        # GPM (Hopper and newer): means since the reading before; at a pace of 0.1 s every second sample has none.
        ("sm_activity_percent", np.float64),
        ("sm_occupancy_percent", np.float64),
        ("tensor_activity_percent", np.float64),
        ("dram_activity_percent", np.float64),
        ("pcie_transmit_mib_per_second", np.float64),
        ("pcie_receive_mib_per_second", np.float64),
        ("nvlink_transmit_mib_per_second", np.float64),
        ("nvlink_receive_mib_per_second", np.float64),
    ]
)
GPU_FIELDS: tuple[str, ...] = (GPU_SAMPLE_DTYPE.names or ())[2:]
"""The readings of a sample."""

HOST_SAMPLE_DTYPE = np.dtype(
    [
        ("seconds", np.float64),
        # Of the cores that this process may use, busy with whatever runs on them.
        ("cpu_percent", np.float64),
        # Of the same cores, busy with this process: 100 is all of them.
        ("process_cpu_percent", np.float64),
        # Of the same cores, idle while something waits for a disk.
        ("iowait_percent", np.float64),
        # Resident set of this process.
        ("process_memory_bytes", np.float64),
        # Used share of the memory that this process may use: of its cgroup's limit, else of the machine.
        ("memory_percent", np.float64),
        # Read from storage by this process; what came from the page cache does not count.
        ("disk_read_bytes_per_second", np.float64),
        # Share of some short looks at which Python code of another thread held the interpreter lock.
        ("interpreter_busy_percent", np.float64),
    ]
)
HOST_FIELDS: tuple[str, ...] = (HOST_SAMPLE_DTYPE.names or ())[1:]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of an epoch's samples."""

    mean: float
    p5: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSummary:
    """One GPU in one epoch (`None` = not measured; `GpuDevice.unavailable` tells why).

    Statistics are over the samples between the epoch's first and last step, compiling left out; energy and the
    samples' number are of the whole epoch.
    """

    gpu: int
    """Position in the report's list of GPUs."""
    samples: int = 0
    utilization_percent: Distribution | None = None
    idle_share: float | None = None
    """Share of the samples with a utilization of 0."""
    memory_used_percent: Distribution | None = None
    power_watts: Distribution | None = None
    energy_joules: float | None = None
    joules_per_example: float | None = None
    temperature_max_celsius: float | None = None
    sm_clock_mhz: Distribution | None = None
    thermal_throttle_share: float | None = None
    """Share of the samples; likewise the next two."""
    power_cap_share: float | None = None
    hardware_slowdown_share: float | None = None
    sm_activity_percent: Distribution | None = None
    sm_occupancy_percent: Distribution | None = None
    tensor_activity_percent: Distribution | None = None
    dram_activity_percent: Distribution | None = None
    swings: bool | None = None
    """Whether it goes from idle to busy and back (a sawtooth); `None` with too few samples to say."""
    swing_period_seconds: float | None = None
    """Time from one rise to the next; `None` where it does not swing, or too fast to be told from the samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSummary:
    """The host in one epoch, over the same samples as `GpuSummary`."""

    samples: int = 0
    cpu_percent: Distribution | None = None
    process_cpu_percent: Distribution | None = None
    iowait_percent: Distribution | None = None
    process_memory_max_bytes: float | None = None
    memory_max_percent: float | None = None
    disk_read_bytes_per_second: Distribution | None = None
    interpreter_busy_percent: Distribution | None = None
    """How often Python code of other threads held the interpreter lock: near 100, Python is the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """What is known of one GPU, or of one MIG slice of a GPU."""

    name: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    is_mig_slice: bool = False
    memory_total_bytes: int | None = None
    power_limit_watts: float | None = None
    pcie_generation: int | None = None
    """As negotiated when the run began; cards fall back to a lower one while idle."""
    pcie_width: int | None = None
    other_processes: int | None = None
    """Further processes with a context on it when the run began: its numbers are of all of them together."""
    status: Literal["sampled", "lost"] = "sampled"
    reason: str | None = None
    """Why it is lost."""
    unavailable: tuple[tuple[str, str], ...] = ()
    """Fields that it does not give, each with the reason."""

    @property
    def label(self) -> str:
        """Its name with the end of its UUID, which tells two cards of one kind apart."""
        return f"{self.name} ({self.uuid[-8:]})" if self.uuid else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDevice:
    """What this process may use of the machine: affinity and cgroup limits count, not what is built in."""

    usable_cores: float
    """May be a fraction under a CPU quota."""
    machine_cores: int | None = None
    usable_memory_bytes: int | None = None
    machine_memory_bytes: int | None = None
    unavailable: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices of a run, and whether they are sampled."""

    status: Literal["not started", "sampled", "lost", "no gpu", "not sampled"] = "not started"
    """`"no gpu"`: there is none; `"not sampled"`: there may be one, but NVML can't be asked."""
    reason: str | None = None
    """Why GPUs are not, or no longer, sampled."""
    identity: str | None = None
    """How it is known which GPUs this training uses; or why it is not, and all of them are shown."""
    driver_version: str | None = None
    gpus: tuple[GpuDevice, ...] = ()
    host: HostDevice | None = None
