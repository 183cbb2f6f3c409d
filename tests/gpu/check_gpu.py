# SPDX-License-Identifier: Apache-2.0
"""Compares what is sampled on a real NVIDIA GPU with a load of known duty cycle, and measures what sampling costs.

From the repository's root, in under 3 minutes: `PYTHONPATH=. python tests/gpu/check_gpu.py --out gpu.json`. It needs
NumPy, psutil, nvidia-ml-py and PyTorch or JAX, and a GPU that nobody else uses.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gpu_load import LOADS, Load, make_load  # type: ignore[import-not-found, unused-ignore]
from gpu_verdicts import Check, Phase, Slowdown, judge, judge_costs  # type: ignore[import-not-found, unused-ignore]

from keras_gpu_watch.device_accounting import SampleFrame, summarize_gpus
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.probes.cuda import cuda_devices
from keras_gpu_watch.probes.nvml import Handle, Nvml, load_binding
from keras_gpu_watch.probes.nvml_errors import NvmlError
from keras_gpu_watch.probes.sampler import Sampler
from keras_gpu_watch.samples import GPU_SAMPLE_DTYPE, Devices, GpuDevice, GpuSamples

INTERVAL_SECONDS = 0.1
SETTLING_SECONDS = 1.0
"""NVML's means reach back so far."""
STEP_SECONDS = 0.002
"""Work between two waits while the slowdown is measured: the shorter, the more a sampler can disturb."""


@dataclass(frozen=True)
class Plan:
    """How long to look."""

    idle_seconds: float = 10.0
    full_seconds: float = 15.0
    duty_seconds: float = 20.0
    rounds: int = 200
    pairs: int = 6
    block_seconds: float = 1.2


QUICK = Plan(idle_seconds=4, full_seconds=4, duty_seconds=9, rounds=10, pairs=2)


@dataclass
class Kept:
    """What a sampler handed on."""

    chunks: list[GpuSamples] = field(default_factory=list)
    thread_seconds: list[tuple[float, float]] = field(default_factory=list)
    """At each sample the time, and the processor time of the sampling thread."""
    failures: list[str] = field(default_factory=list)
    devices: Devices = field(default_factory=Devices)

    @property
    def rows(self) -> GpuSamples:
        """Samples of the GPU under load."""
        rows = np.concatenate([np.zeros(0, GPU_SAMPLE_DTYPE), *self.chunks])
        return rows[rows["gpu"] == 0]


class TimedBinding:
    """The module `pynvml`, with a stopwatch at each function of NVML."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._binding, name)
        if not name.startswith("nvml"):
            return value

        def timed(*arguments: Any) -> Any:
            begin = time.perf_counter()
            try:
                return value(*arguments)
            finally:
                self.seconds[name].append(time.perf_counter() - begin)

        return timed


@contextmanager
def sampling(interval_seconds: float) -> Iterator[Kept]:
    """Sample CUDA's first device for the time of the block, from the first sample on."""
    kept = Kept()

    def take(gpus: GpuSamples, _: Any) -> None:
        kept.chunks.append(gpus)
        kept.thread_seconds.append((time.perf_counter(), time.thread_time()))

    sampler = Sampler(interval_seconds, Guard(kept.failures.append), take, kept.failures.append)
    sampler.start((0,))
    try:
        deadline = time.perf_counter() + 10
        while not len(kept.rows) and time.perf_counter() < deadline:
            time.sleep(0.01)
        yield kept
    finally:
        sampler.stop(5.0)
        kept.devices = sampler.devices


def run_phase(load: Load, duty: float, period_seconds: float, seconds: float) -> tuple[Phase, Kept]:
    with sampling(INTERVAL_SECONDS) as kept:
        begin = time.perf_counter()
        busy_share = load.cycle(duty, period_seconds, seconds)
        end = time.perf_counter()
    rows = kept.rows
    within = rows[(rows["seconds"] >= begin) & (rows["seconds"] < end)]
    summaries = summarize_gpus(within, SampleFrame(begin, end, begin, end))
    if not summaries:
        raise SystemExit(f"No sample of the GPU came: {kept.devices.reason or kept.failures}")
    settled = within[within["seconds"] >= begin + SETTLING_SECONDS]
    joules, at = settled["energy_joules"], settled["seconds"]
    counter_watts = (joules[-1] - joules[0]) / (at[-1] - at[0]) if len(settled) > 1 else np.nan
    phase = Phase(
        busy_share=busy_share,
        samples_share=len(within) * INTERVAL_SECONDS / (end - begin),
        counter_watts=float(counter_watts) if np.isfinite(counter_watts) else None,
        summary=summaries[0],
    )
    return phase, kept


def find_costs(load: Load, uuid: str | None, rounds: int) -> dict[str, dict[str, float]]:
    """What each call of NVML takes, in us, while the GPU computes."""
    binding = TimedBinding(load_binding())
    nvml = Nvml(binding)
    handle = next(found for found in nvml.handles() if isinstance(found, Handle) and found.describe().uuid == uuid)
    binding.seconds.clear()
    reads = [handle.describe, handle.other_processes, handle.utilization_percent, handle.memory_bytes]
    reads += [handle.power_watts, handle.energy_joules, handle.temperature_celsius, handle.sm_clock_mhz]
    reads += [handle.throttle_reasons, nvml.handles, nvml.driver_version]
    gpm = None
    with suppress(NvmlError):
        gpm = handle.gpm()
        reads.append(gpm.read)
    for _ in range(rounds):
        load.enqueue(INTERVAL_SECONDS)
        for read in reads:
            with suppress(NvmlError):
                read()
        load.wait()
    if gpm is not None:
        gpm.close()
    nvml.close()
    return {
        name: {"median": 1e6 * float(np.median(took)), "p95": 1e6 * float(np.percentile(took, 95)), "calls": len(took)}
        for name, took in sorted(binding.seconds.items())
    }


def find_slowdown(load: Load, hertz: float, plan: Plan) -> Slowdown:
    """Compare the load with and without a sampler, in blocks side by side."""
    ratios, used_seconds, total_seconds = [], 0.0, 0.0
    for pair in range(plan.pairs):
        rates: dict[bool, float] = {}
        for is_sampled in (True, False) if pair % 2 else (False, True):
            if not is_sampled:
                rates[is_sampled] = load.work(plan.block_seconds, STEP_SECONDS)
                continue
            with sampling(1 / hertz) as kept:
                rates[is_sampled] = load.work(plan.block_seconds, STEP_SECONDS)
            # The first reading has opened NVML.
            (begin, used_before), (end, used_after) = kept.thread_seconds[0], kept.thread_seconds[-1]
            used_seconds += used_after - used_before
            total_seconds += end - begin
        ratios.append(rates[False] / rates[True])
    low, median, high = (float(value) for value in np.percentile(ratios, (25, 50, 75)))
    core_percent = 100 * used_seconds / total_seconds if total_seconds else None
    return Slowdown(hertz, median, low, high, core_percent)


def check_identity(load: Load, gpus: tuple[GpuDevice, ...]) -> Check:
    """Whether the one GPU sampled is the one that CUDA, and the framework, name first."""
    cuda = cuda_devices()
    claimed = {_bare(uuid) for uuid in (cuda and cuda[0].uuid, load.uuid) if uuid}
    is_same = float(claimed == {_bare(gpu.uuid or "") for gpu in gpus} and len(gpus) == 1) if claimed else None
    return Check("the GPU sampled is CUDA's first one (1: yes)", is_same, 1, 1)


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def run(load: Load, plan: Plan) -> dict[str, Any]:
    """All checks; what comes back can be written as JSON."""
    begin = time.perf_counter()
    patterns = {
        "idle": (0.0, 1.0, plan.idle_seconds),
        "full": (1.0, 1.0, plan.full_seconds),
        "duty 2 s": (0.5, 2.0, plan.duty_seconds),
        "duty 0.2 s": (0.5, 0.2, plan.duty_seconds),
    }
    phases: dict[str, Phase] = {}
    failures: list[str] = []
    # Kept open, so that the samplers find NVML awake.
    nvml = Nvml(load_binding())
    for name, pattern in patterns.items():
        phases[name], kept = run_phase(load, *pattern)
        failures += kept.failures
    gpu = kept.devices.gpus[0]
    costs = find_costs(load, gpu.uuid, plan.rounds)
    slowdowns = [find_slowdown(load, hertz, plan) for hertz in (2.0, 10.0)]
    nvml.close()
    checks = [check_identity(load, kept.devices.gpus), *judge(phases), *judge_costs(slowdowns)]
    checks.append(Check("failures of the sampler", len(failures), 0, 0))
    return {
        "devices": dataclasses.asdict(kept.devices),
        "system": platform.platform(),
        "load": load.name,
        "phases": {name: dataclasses.asdict(phase) for name, phase in phases.items()},
        "nvml_microseconds": costs,
        "slowdowns": [dataclasses.asdict(slowdown) for slowdown in slowdowns],
        "failures": failures,
        "checks": [{**dataclasses.asdict(check), "verdict": check.verdict} for check in checks],
        "seconds": time.perf_counter() - begin,
    }


def tell(result: dict[str, Any]) -> str:
    """The result as plain text."""
    devices = result["devices"]
    (gpu, *_) = devices["gpus"]
    lines = [f"{gpu['name']}, driver {devices['driver_version']}, {result['load']}; {devices['identity']}", ""]
    columns = ("utilization_percent", "power_watts", "sm_activity_percent", "tensor_activity_percent", "sm_clock_mhz")
    lines.append(f"{'phase (mean)':14}{'busy':>7}" + "".join(f"{name:>25}" for name in columns))
    for name, phase in result["phases"].items():
        means = [(phase["summary"][column] or {}).get("mean") for column in columns]
        cells = "".join(f"{'-' if mean is None else format(mean, '.1f'):>25}" for mean in means)
        lines.append(f"{name:14}{100 * phase['busy_share']:6.1f}%{cells}")
    lines += ["", f"{'call of NVML':46}{'median us':>11}{'p95 us':>11}{'calls':>7}"]
    for name, cost in result["nvml_microseconds"].items():
        lines.append(f"{name:46}{cost['median']:11.1f}{cost['p95']:11.1f}{cost['calls']:7}")
    lines += ["", "not given: " + ("; ".join(f"{name}: {why}" for name, why in gpu["unavailable"]) or "nothing"), ""]
    for check in result["checks"]:
        value = "-" if check["value"] is None else f"{check['value']:.3f}"
        lines.append(f"{check['verdict']:10}{check['name']:56}{value:>9}  in {check['low']:g} .. {check['high']:g}")
    return "\n".join([*lines, *result["failures"], f"{result['seconds']:.0f} s", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write all figures as JSON")
    parser.add_argument("--load", choices=tuple(LOADS), help="what makes the load; default: what is there")
    parser.add_argument("--quick", action="store_true", help="short phases")
    arguments = parser.parse_args()
    result = run(make_load(arguments.load), QUICK if arguments.quick else Plan())
    sys.stdout.write(tell(result))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    return int(any(check["verdict"] == "FAIL" for check in result["checks"]))


if __name__ == "__main__":
    sys.exit(main())
