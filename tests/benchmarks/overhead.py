# SPDX-License-Identifier: Apache-2.0
"""What watching costs: whole runs with and without, in turn, and the parts of a step by themselves.

Run by hand: `python tests/benchmarks/overhead.py` (some minutes); `--quick` for a short form.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from keras_gpu_watch import GPUWatch, watch
from keras_gpu_watch.clock import wall_offset
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.probes.device_values import DeviceWait
from keras_gpu_watch.probes.gap_source import ElementSize, GapSource
from keras_gpu_watch.probes.iterator_model import model_reader
from keras_gpu_watch.probes.stamp import StampRing
from keras_gpu_watch.probes.stamp_source import COLUMNS, INDEX, READY, REQUEST, RING_ROWS, StampSource
from keras_gpu_watch.probes.step_timer import StepTimer
from keras_gpu_watch.probes.wait_source import Calls, UnknownWaits, WaitSource
from keras_gpu_watch.recorder import Recorder
from keras_gpu_watch.records import STEP_DTYPE
from keras_gpu_watch.sinks.tensorboard_events import TensorBoardEvents

MakeCallback = Callable[[str], keras.callbacks.Callback]
Run = tuple[tf.data.Dataset, MakeCallback | None]
"""What is trained on, and the callback, which takes its log directory."""

BLOCK_STEPS = 200
SETTLING_STEPS = 8
"""Steps of a block that are not timed: the first one looks at the iterator."""
READ_CALLS = 96
"""Calls that are read at a time."""
GOALS = {"1 ms": 1.03, "5 ms": 1.01}
WIDTHS = {"1 ms": (32, 1), "5 ms": (384, 4)}
"""Units and layers of dense networks whose steps take about so long on two cores."""


def make_model(units: int, layers: int) -> keras.Model:
    hidden = [keras.layers.Dense(units, activation="relu") for _ in range(layers)]
    model = keras.Sequential([keras.layers.Input((units,)), *hidden, keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model


@dataclass
class Comparison:
    """Whole epochs with and without callbacks."""

    ratios: dict[str, NDArray[np.float64]]
    """By callback: duration with it to duration without any, one a round."""
    scatter: NDArray[np.float64]
    """The same of a second run without any callback."""
    step_seconds: float


def run_seconds(model: keras.Model, dataset: tf.data.Dataset, make_callback: MakeCallback | None) -> float:
    """Duration of one epoch."""
    with tempfile.TemporaryDirectory() as path:
        callbacks = [] if make_callback is None else [make_callback(path)]
        begin = time.perf_counter()
        model.fit(dataset, verbose=0, shuffle=False, callbacks=callbacks)
        return time.perf_counter() - begin


def compare_runs(name: str, rounds: int, epoch_milliseconds: int) -> Comparison:
    """Run epochs with each callback and without any, in another order each round."""
    units, layers = WIDTHS[name]
    model = make_model(units, layers)
    steps = epoch_milliseconds // int(name.split()[0])
    inputs = np.random.default_rng(0).random((32 * steps, units), np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((inputs, inputs[:, :1])).batch(32).cache().prefetch(8)
    variants: dict[str, Run] = {
        "GPUWatch": (dataset, lambda path: GPUWatch(path, console=False)),
        "GPUWatch, watch()": (watch(dataset), lambda path: GPUWatch(path, console=False)),
        'Keras TensorBoard "epoch"': (dataset, lambda path: keras.callbacks.TensorBoard(path, write_graph=False)),
        'Keras TensorBoard "batch"': (
            dataset,
            lambda path: keras.callbacks.TensorBoard(path, write_graph=False, update_freq="batch"),
        ),
    }
    runs: dict[str, Run] = {**variants, "bare": (dataset, None), "bare again": (dataset, None)}
    for data, make_callback in runs.values():
        # Traces, caches, imports.
        run_seconds(model, data, make_callback)
    seconds: dict[str, list[float]] = {run: [] for run in runs}
    for _ in range(rounds):
        # A run is slower or faster for what ran before it.
        for run in random.sample(list(runs), len(runs)):
            seconds[run].append(run_seconds(model, *runs[run]))
    table = {run: np.array(durations) for run, durations in seconds.items()}
    bare = (table["bare"] + table["bare again"]) / 2
    return Comparison(
        ratios={variant: table[variant] / bare for variant in variants},
        scatter=table["bare again"] / table["bare"],
        step_seconds=float(np.median(bare)) / steps,
    )


class Alternation(keras.callbacks.Callback):
    """Takes a watcher's wrapper off the train function and puts it back, block of steps by block of steps.

    Two neighbours in one `fit` differ much less than two runs do. Must stand after the watcher in the list.
    """

    def __init__(self, watcher: Unhooked, watched_iterator: tf.data.Iterator | None) -> None:
        super().__init__()
        self.step_seconds: dict[bool, list[float]] = {False: [], True: []}
        self._watcher = watcher
        self._iterator = watched_iterator
        self._watched = False
        self._begin = 0.0

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if batch % BLOCK_STEPS == 0:
            if batch:
                duration = time.perf_counter() - self._begin
                self.step_seconds[self._watched].append(duration / (BLOCK_STEPS - SETTLING_STEPS))
            # In pairs whose order changes, so that a drift cancels out.
            self._switch((batch // BLOCK_STEPS) % 4 in (1, 2))
        elif batch % BLOCK_STEPS == SETTLING_STEPS:
            self._begin = time.perf_counter()

    def _switch(self, watched: bool) -> None:
        session = self._watcher._session
        self._watched = watched
        timed, iterator = session._timed_function._timed, self._iterator
        if not watched:
            self.model.train_function = session._timed_function._own
        else:
            # In place of the iterator that `fit` hands over.
            self.model.train_function = timed if iterator is None else lambda _: timed(iterator)
        # The calls that it did not see must not count as missing.
        session._timer._pending.clear()
        session._timer._iterator = None


class Unhooked(GPUWatch):
    """Leaves alone a train function that was replaced in the middle of an epoch."""

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Nothing."""


def compare_blocks(name: str, pairs: int, with_watch: bool) -> tuple[float, float, float]:
    """What watching adds to a step, in microseconds, with its standard error; and a step's duration."""
    units, layers = WIDTHS[name]
    model = make_model(units, layers)
    inputs = np.random.default_rng(0).random((32 * 1000, units), np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((inputs, inputs[:, :1])).batch(32).cache().repeat().prefetch(8)
    with tempfile.TemporaryDirectory() as path:
        watcher = Unhooked(path, console=False)
        alternation = Alternation(watcher, iter(watch(dataset)) if with_watch else None)
        # The last block is not timed.
        steps = BLOCK_STEPS * (2 * pairs + 1)
        model.fit(dataset, steps_per_epoch=steps, verbose=0, callbacks=[watcher, alternation])
    bare, watched = (np.array(alternation.step_seconds[kind]) * 1e6 for kind in (False, True))
    added = watched - bare
    # Of a median, for values that scatter normally.
    error = 1.25 * float(added.std()) / len(added) ** 0.5
    return float(np.median(added)), error, float(np.median(bare))


def microseconds_a_call(function: Callable[[], object], calls: int) -> float:
    """Median over rounds of a call's mean duration."""
    rounds = []
    for _ in range(9):
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        rounds.append((time.perf_counter() - begin) / calls)
    return float(np.median(rounds)) * 1e6


def hook_microseconds(calls: int) -> float:
    """The one hook of a batch, less the one that Keras calls in any case."""
    ours, plain = GPUWatch(console=False), keras.callbacks.Callback()
    with_us = microseconds_a_call(lambda: ours.on_train_batch_begin(0), calls)
    return with_us - microseconds_a_call(lambda: plain.on_train_batch_begin(0), calls)


def wrapper_microseconds(calls: int) -> float:
    """The wrapper around a train function that does nothing, reading aside."""
    result = {"loss": 0.0}

    def function(iterator: object) -> dict[str, float]:
        return result

    def choose(iterator: object, batches_per_call: int) -> WaitSource:
        return UnknownWaits("benchmark")

    timer = StepTimer(Guard(print), choose, lambda chunk: None, print)
    timed, iterator = timer.wrap(function), object()
    return microseconds_a_call(lambda: timed(iterator), calls) - microseconds_a_call(lambda: function(iterator), calls)


def device_wait_microseconds(calls: int) -> float:
    """Waiting for the device, which has nothing left to do."""
    values = {"loss": tf.constant(1.0), "accuracy": tf.constant(0.5)}
    wait = DeviceWait()
    return microseconds_a_call(lambda: wait(values), calls)


def some_calls() -> Calls:
    """As many calls as are read at a time."""
    begins = time.perf_counter() - 1 + np.arange(READ_CALLS) * 1e-3
    traced = np.zeros(READ_CALLS, np.bool_)
    return Calls(np.array(begins), np.array(begins + 9e-4), traced, batches_per_call=1, jit_compile=False)


def ring_microseconds(calls: int) -> float:
    """Reading stamps, a step."""
    ring = StampRing()
    source = StampSource(ring, 1)
    steps = some_calls()
    rows = np.full((RING_ROWS, COLUMNS), -1.0)
    rows[:READ_CALLS, INDEX] = np.arange(READ_CALLS)
    # Each in the middle of its call.
    rows[:READ_CALLS, REQUEST] = rows[:READ_CALLS, READY] = steps.call_seconds + 4e-4 - wall_offset()
    tf.raw_ops.AssignVariableOp(resource=ring.handle, value=rows)

    def read() -> None:
        source._next_row = 0
        source.resolve(steps, final=False)

    return microseconds_a_call(read, calls) / READ_CALLS


def model_poll_microseconds(calls: int) -> float:
    """Reading gaps, a step."""
    iterator = iter(tf.data.Dataset.range(10**6).batch(32).prefetch(2))
    for _ in range(READ_CALLS):
        next(iterator)
    read = model_reader(iterator)
    steps = some_calls()

    def poll() -> None:
        GapSource(read, ElementSize(None, None), 1).resolve(steps, final=False)

    return microseconds_a_call(poll, calls) / READ_CALLS


def stamp_microseconds(batches: int) -> float:
    """What the stamps add to a fetch, within one `tf.function`."""

    @tf.function
    def fetch(iterator: tf.data.Iterator) -> None:
        for _ in tf.range(batches):
            iterator.get_next()

    dataset = tf.data.Dataset.from_tensors((tf.zeros([32, 8]), tf.zeros([32, 1]))).repeat().prefetch(2)
    medians = []
    for data in (dataset, watch(dataset)):
        iterator = iter(data)
        fetch(iterator)
        medians.append(microseconds_a_call(lambda: fetch(iterator), 1) / batches)  # noqa: B023
    return medians[1] - medians[0]


def write_microseconds(chunks: int) -> float:
    """Writing a step's scalars, on the background thread."""
    with tempfile.TemporaryDirectory() as path:
        sink = TensorBoardEvents(path, "batch", 0, False)
        chunk = np.zeros(READ_CALLS, STEP_DTYPE)
        chunk["step"] = np.arange(READ_CALLS)
        microseconds = microseconds_a_call(lambda: sink.steps(chunk), chunks) / READ_CALLS
        sink.close("{}")
    return microseconds


def emit_microseconds(chunks: int) -> float:
    """Making records of a step and keeping them."""
    recorder = Recorder()
    timer = StepTimer(Guard(print), lambda iterator, batches: UnknownWaits("benchmark"), recorder.add, print)
    calls = some_calls()
    waits = UnknownWaits("benchmark").resolve(calls, final=False)

    def emit() -> None:
        recorder.add(timer._chunk(calls, waits))
        recorder.take_epoch()

    return microseconds_a_call(emit, chunks) / READ_CALLS


def iter_milliseconds(calls: int) -> float:
    """What stamps add to one `iter(dataset)`."""
    dataset = tf.data.Dataset.range(100).map(lambda x: x + 1).batch(10)
    watched = watch(dataset)
    iter(watched)
    return (microseconds_a_call(lambda: iter(watched), calls) - microseconds_a_call(lambda: iter(dataset), calls)) / 1e3


def print_runs(rounds: int, epoch_milliseconds: int) -> None:
    table = Table(title=f"Duration of an epoch, ratio to no callback (median of {rounds}, quartiles)")
    for column in ("step", "callback", "ratio", "quartiles", "goal"):
        table.add_column(column)
    for name in WIDTHS:
        found = compare_runs(name, rounds, epoch_milliseconds)
        for variant, ratios in {**found.ratios, "none, against none": found.scatter}.items():
            low, median, high = np.percentile(ratios, (25, 50, 75))
            goal = f"<= {GOALS[name]}" if "GPUWatch" in variant else ""
            step = f"{found.step_seconds * 1e3:.2f} ms"
            table.add_row(step, variant, f"{median:.3f}", f"{low:.3f} .. {high:.3f}", goal)
    Console(width=100).print(table)


def print_blocks(pairs: int) -> None:
    table = Table(title=f"Added to a step: {pairs} pairs of blocks within one fit")
    for column in ("step", "callback", "added", "ratio", "goal"):
        table.add_column(column)
    for name in WIDTHS:
        for variant, with_watch in (("GPUWatch", False), ("GPUWatch, watch()", True)):
            added, error, step = compare_blocks(name, pairs if name == "1 ms" else max(pairs // 4, 1), with_watch)
            ratio = f"{1 + added / step:.3f} +- {error / step:.3f}"
            goal = f"<= {GOALS[name]}"
            table.add_row(f"{step / 1e3:.2f} ms", variant, f"{added:.0f} +- {error:.0f} us", ratio, goal)
    Console(width=100).print(table)


def print_parts(calls: int) -> None:
    thread = {
        "hooks": hook_microseconds(calls * 50),
        "train-function wrapper": wrapper_microseconds(calls * 50),
        "wait for the device": device_wait_microseconds(calls * 50),
        "records": emit_microseconds(calls),
    }
    alone = {"model poll": model_poll_microseconds(calls)}
    watched = {"in-graph stamp": stamp_microseconds(calls * 50), "ring read": ring_microseconds(calls)}
    writer = write_microseconds(calls)
    table = Table(title="Cost of a step, by part")
    for column in ("part", "us a step"):
        table.add_column(column, justify="right" if column.startswith("us") else "left")
    for part, cost in {**thread, **alone, **watched, "writer (background thread)": writer}.items():
        table.add_row(part, f"{cost:.1f}")
    base = sum(thread.values())
    on_thread = {"GPUWatch": base + sum(alone.values()), "GPUWatch, watch()": base + sum(watched.values())}
    for name, cost in on_thread.items():
        table.add_row(f"{name}: on the training thread (goal <= 15)", f"{cost:.1f}")
        table.add_row(f"{name}: in all (goal <= 30)", f"{cost + writer:.1f}")
    Console(width=100).print(table)
    print(
        f"watch() adds {iter_milliseconds(max(calls // 5, 5)):.1f} ms to each iter(dataset); Keras makes two an epoch"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and short runs")
    parser.add_argument("--rounds", type=int, default=25, help="whole epochs with each callback")
    parser.add_argument("--pairs", type=int, default=400, help="pairs of blocks within one fit")
    arguments = parser.parse_args()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    print_parts(20 if arguments.quick else 200)
    print_blocks(2 if arguments.quick else arguments.pairs)
    print_runs(2 if arguments.quick else arguments.rounds, 50 if arguments.quick else 1500)


if __name__ == "__main__":
    main()
