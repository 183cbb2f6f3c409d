# SPDX-License-Identifier: Apache-2.0
"""On backends that are not supported yet training goes on as if we were not there, and one line says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TRAINING = """
import sys
sys.modules["tensorflow"] = None  # Any import of it fails.
import keras, numpy
from keras_gpu_watch import GPUWatch

def trained(callbacks):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    inputs = numpy.random.random((40, 3)).astype("float32")
    history = model.fit(inputs, inputs[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    return history.history, model.get_weights()

alone = trained([])
callback = GPUWatch(sys.argv[1])
history, weights = trained([callback])
assert history == alone[0]
assert all((ours == theirs).all() for ours, theirs in zip(weights, alone[1]))
assert callback.report.status == "not measured"
print(callback.report.notes)
"""


def run_with_jax(log_dir: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", TRAINING, log_dir]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_jax_trains_the_same_without_tensorflow_and_one_line_says_what_is_not_measured(tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"

    result = run_with_jax(str(log_dir))

    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "GPU Watch: nothing is measured: the jax backend is not supported yet, only tensorflow"
    assert len(lines) == 2
    assert not log_dir.exists()
