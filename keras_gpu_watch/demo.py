# SPDX-License-Identifier: Apache-2.0
"""The demo: one model, trained from JPEG files over a starved and over a good input pipeline."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from keras_gpu_watch import GPUWatch, watch

CLASSES = ("rows", "columns", "checks")
HEIGHT, WIDTH = 480, 640
SIDE = 64
"""Height and width of the pictures that the model sees."""
BATCH_SIZE = 16
# Without validation: the demo has none.
PARTS = (
    ("First batch", "first_batch_seconds"),
    ("Compile", "compile_seconds"),
    ("Input wait", "input_wait_seconds"),
    ("Compute", "compute_seconds"),
    ("Host", "host_seconds"),
    ("Epoch end", "epoch_end_seconds"),
    ("Unattributed", "unattributed_seconds"),
)
MISSING = "not measured"
EXPLANATION = (
    "The starved pipeline decodes each picture in every epoch, while the model waits.\n"
    "The good one decodes each picture once, on all cores, before its first batch,\n"
    "and keeps the small pictures in memory."
)


@dataclass(frozen=True, slots=True)
class Account:
    """One training of the demo."""

    name: str
    report: Any
    """A `RunReport`."""
    stopwatch_seconds: float


class Stopwatch(keras.callbacks.Callback):  # type: ignore[misc]
    """Times `fit` by itself, so that the account can be held against something independent."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self._start_seconds = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start."""
        self._start_seconds = time.perf_counter()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop."""
        self.seconds = time.perf_counter() - self._start_seconds


def run_demo(
    log_dir: Path | None = None, keep_pictures: bool = False, pictures: int = 480, epochs: int = 3
) -> list[Account]:
    """Make the pictures, train twice, print both accounts side by side.

    Args:
        log_dir: Path or None. Where TensorBoard's logs go. Defaults to a new temporary folder.
        keep_pictures: Boolean. Whether the pictures outlive the demo. Defaults to False.
        pictures: Int. How many pictures to make. Defaults to 480.
        epochs: Int. Epochs of each training. Defaults to 3.

    Returns:
        The accounts, starved one first.
    """
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="keras-gpu-watch-pictures-"))
    logs = log_dir.expanduser() if log_dir else Path(tempfile.mkdtemp(prefix="keras-gpu-watch-logs-"))
    try:
        paths, labels = write_pictures(folder, pictures)
        accounts = []
        for name, pipeline in (("starved", starved_pipeline), ("good", good_pipeline)):
            console.print(f"\nTraining over the {name} pipeline ...", highlight=False)
            accounts.append(train(name, pipeline(paths, labels), logs / name, epochs))
    finally:
        if keep_pictures:
            console.print(f"Pictures: {folder}", soft_wrap=True, highlight=False, markup=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    console.print()
    console.print(comparison(accounts))
    console.print(EXPLANATION, highlight=False, markup=False)
    console.print("\nSee the curves in your browser:", highlight=False)
    console.print(f"  {tensorboard_command(logs)}", soft_wrap=True, highlight=False, markup=False)
    return accounts


def tensorboard_command(logs: Path) -> str:
    """The line to paste into this shell.

    Args:
        logs: Path of the logs.

    Returns:
        The command; with its full path where the plain name would not start this environment's TensorBoard.
    """
    ours = Path(sys.executable).with_name("tensorboard")
    program = str(ours) if ours.exists() and shutil.which("tensorboard") != str(ours) else "tensorboard"
    return shlex.join([program, "--logdir", str(logs)])


def write_pictures(folder: Path, count: int) -> tuple[list[str], list[int]]:
    """Write textured JPEG files, always the same ones.

    Args:
        folder: Path of an existing folder.
        count: Int. How many files.

    Returns:
        Their paths, and their classes as indices into `CLASSES`.
    """
    rng = np.random.default_rng(0)
    # Drawing noise anew for each picture would take longer than both trainings.
    noises = [rng.standard_normal((HEIGHT, WIDTH, 3), dtype=np.float32) * 24 for _ in range(4)]
    paths: list[str] = []
    labels: list[int] = []
    for index in track(range(count), description=f"Writing {count} JPEG files"):
        label = index % len(CLASSES)
        path = folder / f"{index:04d}-{CLASSES[label]}.jpg"
        pixels = _texture(rng, label) + noises[rng.integers(len(noises))]
        path.write_bytes(tf.io.encode_jpeg(np.clip(pixels, 0, 255).astype(np.uint8), quality=95).numpy())
        paths.append(str(path))
        labels.append(label)
    return paths, labels


def _texture(rng: np.random.Generator, label: int) -> NDArray[np.float32]:
    wavelength, phase = rng.uniform(40, 120), rng.uniform(0, 2 * np.pi)
    rows = np.sin(np.arange(HEIGHT, dtype=np.float32) * 2 * np.pi / wavelength + phase)[:, None, None]
    columns = np.sin(np.arange(WIDTH, dtype=np.float32) * 2 * np.pi / wavelength + phase)[None, :, None]
    pattern = (rows, columns, rows * columns)[label]
    low, high = rng.uniform(20, 110, 3), rng.uniform(140, 235, 3)
    return np.asarray(low + (high - low) * (pattern + 1) / 2, dtype=np.float32)


def _read(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    picture = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.image.resize(picture, (SIDE, SIDE)) / 255.0, label


def starved_pipeline(paths: Sequence[str], labels: Sequence[int]) -> tf.data.Dataset:
    """Read and decode one picture after the other.

    Args:
        paths: List of str.
        labels: List of int.

    Returns:
        A dataset of `(pictures, labels)` batches.
    """
    dataset = tf.data.Dataset.from_tensor_slices((list(paths), list(labels)))
    dataset = dataset.shuffle(len(paths), seed=0).map(_read).batch(BATCH_SIZE)
    options = tf.data.Options()
    # Left alone, TensorFlow makes the map parallel and appends a prefetch: it would mend what is to be shown.
    options.experimental_optimization.map_parallelization = False
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def good_pipeline(paths: Sequence[str], labels: Sequence[int]) -> tf.data.Dataset:
    """Decode on all cores, keep the small pictures in memory, have the next batch ready.

    Args:
        paths: List of str.
        labels: List of int.

    Returns:
        A dataset of `(pictures, labels)` batches, the same ones in the same order as the starved pipeline's.
    """
    dataset = tf.data.Dataset.from_tensor_slices((list(paths), list(labels)))
    dataset = dataset.map(_read, num_parallel_calls=tf.data.AUTOTUNE).cache()
    return dataset.shuffle(len(paths), seed=0).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def make_model() -> keras.Model:
    """A small convolutional classifier.

    Returns:
        The compiled model, with the same weights each time.
    """
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Input((SIDE, SIDE, 3)),
            keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.GlobalMaxPooling2D(),
            keras.layers.Dense(len(CLASSES)),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return model


def train(name: str, dataset: tf.data.Dataset, log_dir: Path, epochs: int) -> Account:
    """Train with `GPUWatch`, and a stopwatch beside it.

    Args:
        name: Str. What the pipeline is called in the table.
        dataset: A `tf.data.Dataset` of `(pictures, labels)` batches.
        log_dir: Path of the run's logs.
        epochs: Int.

    Returns:
        The account and the stopwatch's reading.
    """
    model = make_model()
    gpu_watch, stopwatch = GPUWatch(log_dir), Stopwatch()
    # The default `shuffle=True` makes Keras warn about every dataset.
    model.fit(watch(dataset), epochs=epochs, verbose=0, shuffle=False, callbacks=[stopwatch, gpu_watch])
    return Account(name, gpu_watch.report, stopwatch.seconds)


def comparison(accounts: Sequence[Account]) -> Table:
    """The accounts side by side.

    Args:
        accounts: List of `Account`.

    Returns:
        A rich table: parts in rows, accounts in columns.
    """
    table = Table(title="Where the seconds went", title_justify="left")
    table.add_column("")
    for account in accounts:
        table.add_column(account.name, justify="right")

    def row(label: str, cell: Callable[[Account], str], last: bool = False) -> None:
        table.add_row(label, *(cell(account) for account in accounts), end_section=last)

    row("Startup", lambda account: _seconds(account.report.startup_seconds))
    for label, field in PARTS:
        row(label, partial(_total, field=field), last=label == PARTS[-1][0])
    row("All of these together", lambda account: _seconds(whole_seconds(account)))
    row("An independent stopwatch", lambda account: _seconds(account.stopwatch_seconds), last=True)
    row("Input wait share, last epoch", lambda account: _last(account, "input_wait_share", "{:.1%}").replace("%", " %"))
    row("Ceiling (speedup if input were free)", lambda account: _last(account, "ceiling_speedup", "{:.2f}x"))
    row("Examples per second, last epoch", lambda account: _last(account, "examples_per_second", "{:,.0f}"))
    return table


def whole_seconds(account: Account) -> float | None:
    """What an account adds up to.

    Args:
        account: An `Account`.

    Returns:
        Start-up and all epochs, in seconds; None where the start-up was not measured.
    """
    startup_seconds: float | None = account.report.startup_seconds
    if startup_seconds is None:
        return None
    return sum((epoch.wall_seconds for epoch in account.report.epochs), start=startup_seconds)


def _total(account: Account, field: str) -> str:
    values = [value for epoch in account.report.epochs if (value := getattr(epoch, field)) is not None]
    return _seconds(sum(values) if values else None)


def _last(account: Account, field: str, form: str) -> str:
    value = getattr(account.report.epochs[-1], field)
    return MISSING if value is None else form.format(value)


def _seconds(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f} s"
