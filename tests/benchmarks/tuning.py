# SPDX-License-Identifier: Apache-2.0
"""What tuning gains: pipelines as written, left to AUTOTUNE, with the best of many settings, and as we tune them.

Run by hand: `python tests/benchmarks/tuning.py` (ten minutes); `--quick` for a short form; words after it choose the
pipelines whose names contain them.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import tensorflow as tf
from known_trainings import PacedModel
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from tuned_pipelines import PIPELINES, Pipeline, Settings

from keras_gpu_watch import GPUWatch, watch
from keras_gpu_watch.knobs import TuningSummary

QUICK = ("reads of 5 ms", "fixed bad numbers")
WRITTEN, AUTOMATIC, GRID, OURS = "as written", "AUTOTUNE", "best of grid", "ours"
SKIPPED_STEPS = 5
"""At an epoch's begin, when all buffers are empty."""
READ_AHEAD_BATCHES = 80
"""That a measured epoch leaves unread: at the end of the data, calls and buffers would run empty."""
SEARCH_STEPS = 20
FINALISTS = 3
FINAL_ROUNDS = 3
HOPELESS = 1.5
"""Settings that took so many times as long as the best are not looked at to the end."""
OBSERVED_EPOCHS = 2
MAX_TRIALS = 3
GRID_GOAL = 0.95
WRITTEN_GOAL = 0.98
AUTOTUNE_GOAL = 10.0
AUTOTUNE_ROW = "reads of 50 ms"


class SteadyRate(keras.callbacks.Callback):
    """Batches per second of an epoch's steady steps.

    Args:
        limit_seconds: The training is stopped when its steady steps have taken so long.
    """

    def __init__(self, limit_seconds: float) -> None:
        super().__init__()
        self._limit_seconds = limit_seconds
        self._ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self._ends.append(time.perf_counter())
        if batch >= SKIPPED_STEPS and self.seconds > self._limit_seconds:
            self.model.stop_training = True

    @property
    def seconds(self) -> float:
        """Duration of the steady steps."""
        return self._ends[-1] - self._ends[SKIPPED_STEPS - 1]

    @property
    def batches_per_second(self) -> float:
        """Their rate; of a training that was stopped, that of the steps it did."""
        return (len(self._ends) - SKIPPED_STEPS) / self.seconds


@dataclass(frozen=True)
class Outcome:
    """What was found for one pipeline."""

    rates: dict[str, NDArray[np.float64]]
    """Batches per second by variant, one a turn."""
    best: Settings
    """Of the grid."""
    tuning: TuningSummary

    def ratios(self, variant: str, reference: str) -> NDArray[np.float64]:
        """Rates of one variant to those of another in the same turn."""
        return self.rates[variant] / self.rates[reference]


def make_model(pipeline: Pipeline) -> keras.Model:
    """One that has nothing left to compile."""
    model = PacedModel(pipeline.step_seconds)
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(pipeline.build(pipeline.written, 2), verbose=0)
    return model


@contextmanager
def collected() -> Iterator[None]:
    """What was left before must not go on reading ahead, nor be collected in the middle of an epoch."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def epoch_rate(model: keras.Model, dataset: tf.data.Dataset, steps: int, limit_seconds: float = float("inf")) -> float:
    """Batches per second of one epoch, from a new iterator."""
    rate = SteadyRate(limit_seconds)
    with collected():
        model.fit(dataset, steps_per_epoch=steps, verbose=0, callbacks=[rate])
    return rate.batches_per_second


def search(model: keras.Model, pipeline: Pipeline, candidates: list[Settings], rounds: int) -> Settings:
    """The fastest of some settings: each for one short epoch, then the fastest of them in turn, for some more."""
    steps = SKIPPED_STEPS + SEARCH_STEPS

    def dataset(settings: Settings) -> tf.data.Dataset:
        return pipeline.build(settings, steps + READ_AHEAD_BATCHES)

    rates: list[float] = []
    for settings in candidates:
        limit_seconds = HOPELESS * SEARCH_STEPS / max(rates) if rates else float("inf")
        rates.append(epoch_rate(model, dataset(settings), steps, limit_seconds))
    finalists = [candidates[index] for index in np.argsort(rates)[::-1][:FINALISTS]]
    again = [[epoch_rate(model, dataset(settings), pipeline.steps) for settings in finalists] for _ in range(rounds)]
    return finalists[int(np.argmax(np.median(again, axis=0)))]


def tune(model: keras.Model, pipeline: Pipeline) -> TuningSummary:
    """Train as a user does who wants his pipeline tuned, as written, for some epochs."""
    with tempfile.TemporaryDirectory() as log_dir:
        watcher = GPUWatch(log_dir, autotune=True, console=False)
        dataset = watch(pipeline.build(pipeline.written, pipeline.steps))
        with collected():
            model.fit(dataset, epochs=OBSERVED_EPOCHS + MAX_TRIALS, verbose=0, callbacks=[watcher])
    tuning = watcher.report.tuning
    assert tuning is not None
    return tuning


def compare(pipeline: Pipeline, turns: int, quick: bool) -> Outcome:
    """Find the settings, and let the variants train in turn, in another order each time."""
    model = make_model(pipeline)
    grid = pipeline.grid.corners() if quick else pipeline.grid
    best = search(model, pipeline, [*grid.points(), pipeline.written, pipeline.automatic], 1 if quick else FINAL_ROUNDS)
    tuning = tune(model, pipeline)
    batches = pipeline.steps + READ_AHEAD_BATCHES
    settings = {WRITTEN: pipeline.written, AUTOMATIC: pipeline.automatic, GRID: best}
    datasets = {variant: pipeline.build(chosen, batches) for variant, chosen in settings.items()}
    datasets[OURS] = watch(pipeline.build(pipeline.written, batches))
    datasets[OURS].set_knobs(tuning.best)
    rates: dict[str, list[float]] = {variant: [] for variant in datasets}
    for _ in range(turns):
        for variant in random.sample(list(datasets), len(datasets)):
            rates[variant].append(epoch_rate(model, datasets[variant], pipeline.steps))
    return Outcome({variant: np.array(each) for variant, each in rates.items()}, best, tuning)


def results(outcomes: dict[str, Outcome], turns: int) -> Table:
    """All outcomes."""
    table = Table(title=f"Throughput of steady steps, ratio to as written (median of {turns}, quartiles)")
    for column in (
        "pipeline",
        f"{WRITTEN}\nbatches/s",
        AUTOMATIC,
        GRID,
        OURS,
        f"{OURS} /\n{GRID}",
        "trials",
        "cost\ns",
    ):
        table.add_column(column)
    for name, outcome in outcomes.items():
        table.add_row(
            name,
            f"{np.median(outcome.rates[WRITTEN]):.1f}",
            *(_spread(outcome.ratios(variant, WRITTEN)) for variant in (AUTOMATIC, GRID, OURS)),
            _spread(outcome.ratios(OURS, GRID)),
            _trials(outcome.tuning),
            f"{outcome.tuning.exploration_seconds:.2f}",
        )
    return table


def choices(outcomes: dict[str, Outcome]) -> Table:
    """The settings that were found."""
    table = Table(title="Settings")
    for column in ("pipeline", GRID, OURS):
        table.add_column(column)
    for name, outcome in outcomes.items():
        best = outcome.best
        grid = f"calls {', '.join(map(str, best.calls))}; prefetch {best.prefetch}; pool {best.pool}"
        code = (outcome.tuning.code or outcome.tuning.headline).strip()
        table.add_row(name, grid, code, end_section=True)
    return table


def _spread(ratios: NDArray[np.float64]) -> str:
    low, median, high = np.percentile(ratios, (25, 50, 75))
    return f"{median:.2f}\n{low:.2f} .. {high:.2f}"


def _trials(tuning: TuningSummary) -> str:
    return f"{len(tuning.trials)}\n{tuning.state}"


def _goal(what: str, goal: float, ratios: dict[str, NDArray[np.float64]]) -> str:
    """Whether a goal was reached: it is missed where not even the upper quartile is as high."""
    missed = [name for name, each in ratios.items() if np.percentile(each, 75) < goal]
    return f"goal: {what} >= {goal}: {'missed by ' + ', '.join(missed) if missed else 'reached'}"


def goals(outcomes: dict[str, Outcome]) -> list[str]:
    """Each goal, and whether it was reached."""
    to_grid = {name: outcome.ratios(OURS, GRID) for name, outcome in outcomes.items()}
    to_written = {name: outcome.ratios(OURS, WRITTEN) for name, outcome in outcomes.items()}
    to_automatic = {name: outcome.ratios(OURS, AUTOMATIC) for name, outcome in outcomes.items() if name == AUTOTUNE_ROW}
    slow = [
        name
        for name, outcome in outcomes.items()
        if outcome.tuning.state != "settled" or len(outcome.tuning.trials) > MAX_TRIALS
    ]
    return [
        _goal(f"{OURS} / {GRID}", GRID_GOAL, to_grid),
        _goal(f"{OURS} / {AUTOMATIC} of {AUTOTUNE_ROW}", AUTOTUNE_GOAL, to_automatic) if to_automatic else "",
        _goal(f"{OURS} / {WRITTEN}", WRITTEN_GOAL, to_written),
        f"goal: at most {MAX_TRIALS} epochs of tuning: {'missed by ' + ', '.join(slow) if slow else 'reached'}",
    ]


def main() -> None:
    """Print the table of ratios, the settings found, and the goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two pipelines, few turns and settings")
    parser.add_argument("--turns", type=int, help="epochs of each variant (9)")
    parser.add_argument("words", nargs="*", help="choose pipelines")
    options = parser.parse_args()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    # What the libraries hold need not be looked through before each epoch.
    gc.freeze()
    turns = options.turns or (2 if options.quick else 9)
    chosen = [name for name in (QUICK if options.quick else PIPELINES) if all(word in name for word in options.words)]
    outcomes = {name: compare(PIPELINES[name], turns, options.quick) for name in chosen}
    console = Console(width=150)
    console.print(results(outcomes, turns))
    console.print(choices(outcomes))
    for line in filter(None, goals(outcomes)):
        print(line)


if __name__ == "__main__":
    main()
