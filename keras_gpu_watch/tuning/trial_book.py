# SPDX-License-Identifier: Apache-2.0
"""The trials of a run, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keras_gpu_watch.knobs import Knobs, Trial


class TrialBook:
    """Notes each trial when it begins and when it is judged."""

    def __init__(self) -> None:
        self._trials: list[Trial] = []

    @property
    def trials(self) -> tuple[Trial, ...]:
        """In the order of time."""
        return tuple(self._trials)

    @property
    def cost_seconds(self) -> float:
        """What all of them took longer than the best settings known before."""
        return sum(trial.cost_seconds or 0.0 for trial in self._trials)

    @property
    def count_in_words(self) -> str:
        """How many there were: "after 1 trial"."""
        count = len(self._trials)
        return f"after {count} {'trial' if count == 1 else 'trials'}"

    def begin(self, epoch: int, knobs: Knobs, hypothesis: str) -> None:
        """Note a trial that runs from `epoch` on."""
        self._trials.append(Trial(epoch=epoch, knobs=knobs, hypothesis=hypothesis))

    def end(self, **fields: Any) -> None:
        """Note how the trial went that is under way, if one is.

        Args:
            **fields: Of `Trial`.
        """
        if self._trials and self._trials[-1].outcome == "running":
            self._trials[-1] = replace(self._trials[-1], **fields)
