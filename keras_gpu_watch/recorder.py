# SPDX-License-Identifier: Apache-2.0
"""Holds the steps of a run: one epoch's for its account, the newest of the whole run for the user."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from keras_gpu_watch.records import STEP_DTYPE, StepArray

RUN_STEPS = 200_000
"""Steps of the whole run that are kept: 15 MB."""


class Recorder:
    """Thread-safe and bounded: the oldest steps of a long run are let go."""

    def __init__(self, run_steps: int = RUN_STEPS) -> None:
        self._lock = threading.Lock()
        self._run_steps = run_steps
        self._run: deque[StepArray] = deque()
        self._kept = 0
        self._epoch: list[StepArray] = []
        self._epoch_steps = 0

    @property
    def epoch_steps(self) -> int:
        """Steps that `take_epoch` would give."""
        return self._epoch_steps

    def add(self, chunk: StepArray) -> None:
        """Take some steps, newest last."""
        with self._lock:
            self._epoch.append(chunk)
            self._epoch_steps += len(chunk)
            self._run.append(chunk)
            self._kept += len(chunk)
            while self._kept - len(self._run[0]) >= self._run_steps:
                self._kept -= len(self._run.popleft())

    def take_epoch(self) -> StepArray:
        """The steps since the last call, which are forgotten as an epoch's (they stay in `run`)."""
        with self._lock:
            chunks, self._epoch, self._epoch_steps = self._epoch, [], 0
        return _joined(chunks)

    def run(self) -> StepArray:
        """The newest steps of the whole run."""
        with self._lock:
            chunks = list(self._run)
        return _joined(chunks)[-self._run_steps :]


def _joined(chunks: list[StepArray]) -> StepArray:
    return np.concatenate(chunks) if chunks else np.zeros(0, STEP_DTYPE)
