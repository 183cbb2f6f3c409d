# SPDX-License-Identifier: Apache-2.0
"""Tiny real trainings, callbacks that sleep, and the checks that every account must pass."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_gpu_watch import GPUWatch
from keras_gpu_watch.records import EpochSummary

BATCH = 4
BATCHES = 10
CLOSES_WITHIN_SHARE, CLOSES_WITHIN_SECONDS = 0.01, 5e-3


def examples(count: int = BATCHES * BATCH) -> np.ndarray:
    """Rows of one number, all different."""
    return np.linspace(0.0, 1.0, count, dtype=np.float32).reshape(-1, 1)


def dataset(batches: int = BATCHES) -> tf.data.Dataset:
    """Inputs and equal targets in full batches."""
    values = examples(batches * BATCH)
    return tf.data.Dataset.from_tensor_slices((values, values)).batch(BATCH)


def tiny_model(kind: type[keras.Model] | None = None, optimizer: Any = "sgd", **compile_arguments: Any) -> keras.Model:
    """One dense layer, compiled; `kind` is a subclass of `keras.Model`."""
    inputs = keras.Input((1,))
    model = (kind or keras.Model)(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer, "mse", **compile_arguments)
    return model


class Sleeper(keras.callbacks.Callback):
    """Sleeps in some hooks: `Sleeper(on_epoch_end=0.1)`."""

    def __init__(self, **seconds: float) -> None:
        super().__init__()
        self.slept_seconds = 0.0
        for hook, duration in seconds.items():
            setattr(self, hook, self._sleeping(duration))

    def _sleeping(self, duration: float) -> Any:
        def hook(*arguments: Any, **keywords: Any) -> None:
            begin = time.perf_counter()
            time.sleep(duration)
            self.slept_seconds += time.perf_counter() - begin

        return hook


def parts_seconds(epoch: EpochSummary) -> float:
    """Sum of an epoch's parts; wait and compute as one where they could not be told apart."""
    steps = epoch.step_seconds
    if epoch.input_wait_seconds is not None and epoch.compute_seconds is not None:
        steps = epoch.input_wait_seconds + epoch.compute_seconds
    validation = epoch.validation_seconds or 0.0
    before = epoch.first_batch_seconds + epoch.compile_seconds
    return before + steps + epoch.host_seconds + validation + epoch.epoch_end_seconds


def assert_closed(epoch: EpochSummary) -> None:
    """The parts of one epoch add up to its wall time, and none is negative."""
    tolerance = max(CLOSES_WITHIN_SHARE * epoch.wall_seconds, CLOSES_WITHIN_SECONDS)
    assert abs(epoch.unattributed_seconds) <= tolerance
    assert abs(epoch.wall_seconds - parts_seconds(epoch) - epoch.unattributed_seconds) < 1e-9
    times = (
        epoch.first_batch_seconds,
        epoch.compile_seconds,
        epoch.step_seconds,
        epoch.host_seconds,
        epoch.epoch_end_seconds,
        epoch.input_wait_seconds or 0.0,
        epoch.compute_seconds or 0.0,
        epoch.validation_seconds or 0.0,
    )
    assert min(times) > -1e-9


def assert_account_closes(watch: GPUWatch, fit_seconds: float) -> None:
    """Startup and epochs are the whole run, and the run is what a stopwatch outside says."""
    report = watch.report
    assert report.status == "finished"
    assert report.wall_seconds is not None
    assert report.startup_seconds is not None
    for epoch in report.epochs:
        assert_closed(epoch)
    total = report.startup_seconds + sum(parts_seconds(epoch) for epoch in report.epochs)
    tolerance = max(CLOSES_WITHIN_SHARE * fit_seconds, CLOSES_WITHIN_SECONDS)
    assert abs(report.wall_seconds - total) <= tolerance
    assert abs(report.wall_seconds - fit_seconds) <= tolerance


def read_report(run_dir: str | Path) -> dict[str, Any]:
    """What `report.json` says, refusing NaN and Infinity, which are no JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    text = (Path(run_dir) / "report.json").read_text()
    report: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return report
