# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits, read as PNG files from disk: a small real training with GPUWatch.

Needs the extras `tensorflow` and `examples`. Run: python examples/digits_from_disk.py --epochs 8 --log-dir logs
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from keras_gpu_watch import GPUWatch, watch


def write_digits(folder):
    """Write scikit-learn's 1,797 digits as `<digit>/<number>.png`; return all paths."""
    digits = load_digits()
    for number, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / str(digit) / f"{number:04d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray((pixels / 16 * 255).astype(np.uint8)).save(path)
    return sorted(folder.glob("*/*.png"))


def read_digit(path, label):
    pixels = tf.io.decode_png(tf.io.read_file(path), channels=1)
    pixels.set_shape((8, 8, 1))
    return tf.cast(pixels, tf.float32) / 255.0, label


def make_dataset(paths, shuffle):
    """Batches of `(pixels, digit)`; the digit is the name of the file's folder."""
    digits = [int(path.parent.name) for path in paths]
    dataset = tf.data.Dataset.from_tensor_slices(([str(path) for path in paths], digits))
    if shuffle:
        dataset = dataset.shuffle(len(paths), seed=0)
    return dataset.map(read_digit, num_parallel_calls=tf.data.AUTOTUNE).batch(32).prefetch(tf.data.AUTOTUNE)


def make_model():
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return model


def main(argv=None):
    parser = argparse.ArgumentParser(description="Train on handwritten digits from PNG files, with GPUWatch.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--log-dir", default="logs")
    arguments = parser.parse_args(argv)
    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        train_paths, test_paths = train_test_split(write_digits(Path(folder)), test_size=0.2, random_state=0)
        model = make_model()
        model.fit(
            watch(make_dataset(train_paths, shuffle=True)),
            epochs=arguments.epochs,
            verbose=2,
            shuffle=False,  # make_dataset shuffles; Keras warns about its default `shuffle=True`.
            callbacks=[GPUWatch(arguments.log_dir)],
        )
        _, accuracy = model.evaluate(make_dataset(test_paths, shuffle=False), verbose=0)
    print(f"Test accuracy: {accuracy:.3f}")


if __name__ == "__main__":
    main()
