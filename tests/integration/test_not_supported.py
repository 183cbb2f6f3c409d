# SPDX-License-Identifier: Apache-2.0
"""What is not supported yet trains as if we were not there, and one line says what is not measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainings import BATCHES, dataset, examples, read_report, tiny_model

from keras_gpu_watch import GPUWatch

STRATEGY = """
import json, sys
sys.path.insert(0, {tests!r})
import conftest
import keras
import numpy as np
import tensorflow as tf

cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from trainings import dataset, tiny_model
from keras_gpu_watch import GPUWatch, watch

def train(callbacks, wrap):
    keras.utils.set_random_seed(0)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = tiny_model(jit_compile=False)
    history = model.fit(wrap(dataset()), epochs=2, verbose=0, callbacks=callbacks)
    return history.history, [weight.tolist() for weight in model.get_weights()]

alone = train([], lambda data: data)
for wrap in (lambda data: data, watch):
    ours = GPUWatch({log_dir!r}, console=True)
    assert train([ours], wrap) == alone
    assert ours.report.status == "finished"
    assert [epoch.batches for epoch in ours.report.epochs] == [10, 10]
    assert [epoch.input_wait_seconds for epoch in ours.report.epochs] == [None, None]
    assert all(epoch.step_seconds > 0 for epoch in ours.report.epochs)
"""


@pytest.mark.slow
def test_under_a_strategy_of_two_devices_steps_are_timed_and_waits_are_not(log_dir: str):
    code = STRATEGY.format(tests=str(Path(__file__).parents[1]), log_dir=log_dir)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("GPU Watch: ")]
    said = [line for line in lines if "not measured under a distribution strategy" in line]
    assert len(said) == 2


def _legacy_fit(callbacks: list[Any]) -> tuple[Any, Any]:
    import tf_keras

    tf_keras.utils.set_random_seed(0)
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
    history = model.fit(examples(), examples(), epochs=2, verbose=0, callbacks=callbacks, validation_split=0.5)
    return history.history, [weight.tolist() for weight in model.get_weights()]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_tf_keras_model_trains_as_if_we_were_not_there_and_is_told_why(log_dir: str, capfd: Any):
    alone = _legacy_fit([])
    watch = GPUWatch(log_dir)
    assert _legacy_fit([watch]) == alone
    assert watch.report.status == "not measured"
    assert watch.report.epochs == ()
    lines = capfd.readouterr().out.splitlines()
    assert len([line for line in lines if "tf_keras model" in line and "nothing is measured" in line]) == 1
    assert not Path(log_dir).exists()


def test_a_callback_that_was_declined_measures_the_next_keras_3_model(log_dir: str):
    watch = GPUWatch(log_dir, console=False)
    watch.set_model(object())
    watch.on_train_begin()
    watch.on_epoch_begin(0)
    watch.on_train_end()
    assert [note for note in watch.report.notes if "nothing is measured" in note]
    tiny_model().fit(dataset(), verbose=0, callbacks=[watch])
    assert watch.report.status == "finished"
    assert watch.report.epochs[0].batches == BATCHES
    assert np.all(watch.batches()["batches"] == 1)
    assert not [note for note in read_report(Path(log_dir) / "gpu_watch")["notes"] if "nothing is measured" in note]
