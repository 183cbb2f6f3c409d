# SPDX-License-Identifier: Apache-2.0
"""How true the input wait is: measured against pipelines whose wait is known by construction.

Run by hand: `python tests/benchmarks/truth.py` (two minutes); `--quick` for a short form.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from ground_truth import find_truth, sleeping_dataset, sleeping_model
from rich.console import Console
from rich.table import Table

from keras_gpu_watch import GPUWatch, watch
from keras_gpu_watch.records import StepKind

STEP_SECONDS = 0.010
SHARES = (0.0, 0.1, 0.5, 0.9)
GOAL_SHARE, GOAL_SECONDS = 0.02, 0.3e-3


def measure(
    share: float, is_bursty: bool, batches_per_call: int, wrapped: bool, batches: int
) -> tuple[float, float, float]:
    """Mean input wait as measured, as constructed, and the mean duration of a steady step, per batch, in seconds."""
    fetch_seconds = STEP_SECONDS * share / (1 - share)
    if batches_per_call > 1:
        # Fetches overlap the steps within a call: a fetch must outlast the step to be waited for.
        fetch_seconds = STEP_SECONDS / (1 - share) if share else 0.0
    dataset = sleeping_dataset(fetch_seconds, batches, is_bursty=is_bursty)
    model = sleeping_model(STEP_SECONDS, batches_per_call)
    truth = find_truth(fetch_seconds, batches, model, is_bursty=is_bursty)
    with tempfile.TemporaryDirectory() as log_dir:
        callback = GPUWatch(log_dir, console=False)
        model.fit(watch(dataset) if wrapped else dataset, epochs=1, verbose=0, callbacks=[callback])
    steps = callback.batches()
    used = (steps["kind"] == StepKind.STEADY) & ~np.isnan(steps["input_wait_seconds"])
    steady = steps[used]
    true = truth.wait_seconds(batches_per_call)[used].sum()
    count = steady["batches"].sum()
    seconds = (steady["done_seconds"] - steady["call_seconds"]).sum()
    return steady["input_wait_seconds"].sum() / count, true / count, seconds / count


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer batches and cases")
    quick = parser.parse_args().quick
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    table = Table(title=f"Mean input wait a batch, in ms ({STEP_SECONDS * 1e3:.0f} ms steps)")
    for column in ("wait", "fetches", "spe", "watch()", "true", "measured", "error", "of the step", "goal"):
        table.add_column(column, justify="right")
    missed = 0
    cases = itertools.product(SHARES[1:3] if quick else SHARES, (False, True), (1, 8), (True, False))
    for share, is_bursty, batches_per_call, wrapped in cases:
        if is_bursty and batches_per_call > 1 and not wrapped:
            continue
        measured, true, step = measure(share, is_bursty, batches_per_call, wrapped, 48 if quick else 160)
        error = measured - true
        met = abs(error) <= max(GOAL_SHARE * step, GOAL_SECONDS)
        missed += not met
        numbers = (f"{true * 1e3:.3f}", f"{measured * 1e3:.3f}", f"{error * 1e3:+.3f}", f"{error / step:+.2%}")
        words = (f"{share:.0%}", "bursty" if is_bursty else "fixed", str(batches_per_call), "yes" if wrapped else "no")
        table.add_row(*words, *numbers, "met" if met else "missed")
    Console(width=110).print(table)
    print(
        f"goal: within {GOAL_SHARE:.0%} of the step or {GOAL_SECONDS * 1e3} ms, whichever is larger; missed: {missed}"
    )


if __name__ == "__main__":
    main()
