# SPDX-License-Identifier: Apache-2.0
"""What a Keras model tells of itself, read once when training begins."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from keras_gpu_watch.probes.device_values import on_accelerator
from keras_gpu_watch.records import RunInfo


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a compiled model."""

    step: int
    """Batches trained so far, by its optimizer; 0 without one."""
    steps_per_execution: int
    jit_compile: bool
    run_eagerly: bool
    on_accelerator: bool
    """Whether some variable lives on a GPU or TPU."""
    replicas: int
    """Of its distribution strategy, over all workers; 1 without one."""

    def run_info(self, run_dir: str | None, start_step: int, resumed: bool) -> RunInfo:
        """What is known of a run of the model; see `RunInfo` for the arguments."""
        return RunInfo(
            run_dir=run_dir,
            start_step=start_step,
            resumed=resumed,
            steps_per_execution=self.steps_per_execution,
            on_accelerator=self.on_accelerator,
            jit_compile=self.jit_compile,
            run_eagerly=self.run_eagerly,
            replicas=self.replicas,
        )


def read_model(model: Any) -> ModelFacts:
    """Read a model's facts.

    Args:
        model: A compiled Keras 3 model.
    """
    return ModelFacts(
        step=optimizer_step(model),
        steps_per_execution=int(getattr(model, "steps_per_execution", 1) or 1),
        jit_compile=getattr(model, "jit_compile", False) is True and not model.run_eagerly,
        run_eagerly=bool(model.run_eagerly),
        on_accelerator=any(on_accelerator(variable.value) for variable in model.variables),
        replicas=int(getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1)),
    )


def optimizer_step(model: Any) -> int:
    """Batches that a model has been trained on, by its optimizer; 0 without one.

    Args:
        model: A compiled Keras 3 model.
    """
    optimizer = getattr(model, "optimizer", None)
    iterations = getattr(optimizer, "iterations", None)
    if iterations is None:
        return 0
    # With gradient accumulation the optimizer counts its updates, several batches each.
    return int(iterations.numpy()) * int(getattr(optimizer, "gradient_accumulation_steps", None) or 1)


def worker_index() -> int | None:
    """This process's number in a multi-worker job, from `TF_CONFIG`; `None` when it is alone."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        cluster, task = config.get("cluster", {}), config.get("task", {})
        chiefs = len(cluster.get("chief", []))
        if chiefs + len(cluster.get("worker", [])) <= 1:
            return None
        index = int(task.get("index", 0))
        return index if task.get("type") == "chief" else index + chiefs
    except (ValueError, TypeError, AttributeError):
        return None
