# SPDX-License-Identifier: Apache-2.0
"""What sampling costs: CPU time of the sampling thread, with stand-ins for the cards that answer at once.

Run by hand: `python tests/benchmarks/sampler.py` (two minutes); `--quick` for a short form. Needs a C compiler.
A real driver's calls take longer, but mostly without the interpreter's lock; `tests/gpu` measures them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from nvml_scenarios import NvmlStub, cards, compile_library
from rich.console import Console
from rich.table import Table

from keras_gpu_watch.guard import Guard
from keras_gpu_watch.probes.sampler import THREAD_NAME, Sampler

GOAL_PERCENT = 1.0
ROUNDS = 5
CASES = ((1, 0.5), (1, 0.1), (8, 0.5), (8, 0.1))
"""Cards, and seconds between two samples."""


def thread_cpu_seconds(thread: threading.Thread) -> float:
    """CPU time of another thread of this process."""
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def cpu_percent(interval_seconds: float, seconds: float) -> tuple[float, float]:
    """Share of one core that the sampling thread takes, and samples a second."""
    samples: list[float] = []
    sampler = Sampler(interval_seconds, Guard(print), lambda gpus, host: samples.append(len(gpus)), lambda note: None)
    sampler.start()
    # Initializing and describing the cards is no part of the steady cost.
    time.sleep(1.0)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == THREAD_NAME)
    begin, cpu_begin, count = time.perf_counter(), thread_cpu_seconds(thread), len(samples)
    time.sleep(seconds)
    duration = time.perf_counter() - begin
    share = (thread_cpu_seconds(thread) - cpu_begin) / duration
    rate = (len(samples) - count) / duration
    sampler.stop()
    return 100 * share, rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and short rounds")
    quick = parser.parse_args().quick
    rounds, seconds = (1, 1.0) if quick else (ROUNDS, 5.0)
    table = Table(title=f"CPU of the sampling thread, % of one core (median of {rounds} rounds)")
    for column in ("cards", "interval", "samples/s", "GPUs and host", "goal"):
        table.add_column(column)
    with tempfile.TemporaryDirectory() as folder:
        stub = NvmlStub(compile_library(Path(folder), "libnvidia-ml.so.1", "nvml.c", "scenario.c"), Path(folder))
        for count, interval_seconds in CASES:
            stub.load(*cards(count))
            found = np.array([cpu_percent(interval_seconds, seconds) for _ in range(rounds)])
            share, rate = np.median(found, axis=0)
            goal = f"< {GOAL_PERCENT} %" if (count, interval_seconds) == CASES[-1] else ""
            table.add_row(str(count), f"{interval_seconds} s", f"{rate:.1f}", f"{share:.2f} %", goal)
        stub.unload()
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
