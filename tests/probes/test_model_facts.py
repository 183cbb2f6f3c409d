# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import keras
import pytest
from trainings import dataset, tiny_model

from keras_gpu_watch.probes.model_facts import read_model, worker_index


def test_the_step_is_what_the_optimizer_has_counted() -> None:
    model = tiny_model()
    assert read_model(model).step == 0
    model.fit(dataset(7), verbose=0)
    assert read_model(model).step == 7


def test_gradient_accumulation_counts_batches_and_not_updates() -> None:
    model = tiny_model(optimizer=keras.optimizers.SGD(gradient_accumulation_steps=4))
    model.fit(dataset(12), verbose=0)
    assert read_model(model).step == 12


def test_a_model_without_an_optimizer_begins_at_zero() -> None:
    model = tiny_model(optimizer=None)
    assert read_model(model).step == 0


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_steps_per_execution_is_read(steps_per_execution: int) -> None:
    assert read_model(tiny_model(steps_per_execution=steps_per_execution)).steps_per_execution == steps_per_execution


@pytest.mark.parametrize(
    ("arguments", "compiled"),
    [({"jit_compile": True}, True), ({"jit_compile": False}, False), ({"run_eagerly": True}, False)],
    ids=["jit", "no jit", "eager"],
)
def test_whether_the_step_is_compiled_is_read(arguments: dict[str, Any], compiled: bool) -> None:
    assert read_model(tiny_model(**arguments)).jit_compile is compiled


def test_weights_on_the_cpu_are_not_on_an_accelerator() -> None:
    import tensorflow as tf

    with tf.device("/CPU:0"):
        assert not read_model(tiny_model()).on_accelerator


def test_a_model_without_weights_is_not_on_an_accelerator() -> None:
    inputs = keras.Input((1,))
    model = keras.Model(inputs, inputs)
    model.compile("sgd", "mse")
    assert not read_model(model).on_accelerator


TWO_WORKERS = {"worker": ["a:1", "b:1"]}
WITH_CHIEF = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}


@pytest.mark.parametrize(
    ("config", "index"),
    [
        (None, None),
        ("", None),
        ("not json", None),
        ("[]", None),
        ({}, None),
        ({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}, None),
        ({"cluster": TWO_WORKERS, "task": {"type": "worker", "index": 0}}, 0),
        ({"cluster": TWO_WORKERS, "task": {"type": "worker", "index": 1}}, 1),
        ({"cluster": TWO_WORKERS, "task": {"type": "worker", "index": "1"}}, 1),
        ({"cluster": WITH_CHIEF, "task": {"type": "chief", "index": 0}}, 0),
        ({"cluster": WITH_CHIEF, "task": {"type": "worker", "index": 0}}, 1),
        ({"cluster": WITH_CHIEF, "task": {"type": "worker", "index": 1}}, 2),
        ({"cluster": WITH_CHIEF, "task": {"type": "worker", "index": None}}, None),
    ],
)
def test_the_worker_index_tells_each_worker_apart(
    config: dict[str, Any] | str | None, index: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))
    assert worker_index() == index
