# SPDX-License-Identifier: Apache-2.0
"""`AutoTune`: what the user allows the tuner, and the numbers that its decisions rest on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoTune:
    """Limits of the tuner: `GPUWatch("logs", autotune=AutoTune(max_memory=2**30))`.

    Args:
        max_memory: Integer, bytes. What all buffers that the tuner sets may hold together. Defaults to a tenth of what
            the machine or the container has left when `fit` begins.
        max_parallel_calls: Positive integer. The most calls of one stage at a time. Defaults to 128.
        parallel_python: Boolean. Your word that the Python functions in your pipeline may run several at a time, in any
            order. Defaults to `False`: they run as you wrote them.
        state: String or path of a JSON file that carries the best settings to the next run; `~` is expanded and `gs://`
            works. Defaults to none.

    Raises:
        ValueError, TypeError: If an argument is not one of the above.
    """

    max_memory: int | None = None
    max_parallel_calls: int | None = None
    parallel_python: bool = False
    state: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        _check_count("max_memory", self.max_memory)
        _check_count("max_parallel_calls", self.max_parallel_calls)
        if not isinstance(self.parallel_python, bool):
            _refuse(TypeError, "parallel_python", self.parallel_python, "True or False")
        if self.state is not None:
            if not isinstance(self.state, str | Path) or not str(self.state):
                _refuse(TypeError, "state", self.state, "a string or a path")
            object.__setattr__(self, "state", os.path.expanduser(os.fspath(self.state)))


def _check_count(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(TypeError, name, value, "a positive integer or None")
    if value < 1:
        _refuse(ValueError, name, value, "a positive integer or None")


def _refuse(kind: type[Exception], name: str, received: Any, expected: str) -> None:
    raise kind(f"Invalid value for argument `{name}`. Received: {name}={received!r}. Expected: {expected}.")


def _number(value: float, source: str) -> Any:
    return field(default=value, metadata={"source": source})


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Every number that the tuner's decisions rest on; a field's metadata name the `source`. Shares are 0..1."""

    input_bound_share: float = _number(0.05, "XProf: a step that waits less of its time is not input-bound")
    explained_share: float = _number(
        0.50, "Ours, as in the diagnosis: waits are bursts if the usual one, and what the mean work explains, are less"
    )
    min_steady_steps: int = _number(20, "TraceML: fewer steps allow no strong claim")
    assumed_noise: float = _number(0.03, "Ours: of an epoch's rate, where its steps were too few to tell")
    least_gain: float = _number(0.03, "Ours: less is not worth other settings, whatever the noise")
    noise_factor: float = _number(2.0, "Two standard errors: chance alone exceeds them in one of twenty comparisons")
    least_of_written: float = _number(0.98, "The tuner's promise: never slower than as written by more than this")
    spare: float = _number(1.2, "Ours: more than the mean work needs, because calls differ")
    max_parallel_calls: int = _number(
        128, "Ours: each call has a thread and an element in memory; disks and networks serve no more at a time"
    )
    min_prefetch: int = _number(2, "One batch in the making while another one is taken")
    max_prefetch: int = _number(512, "Ours: longer stalls are no bursts")
    unknown_prefetch: int = _number(8, "Ours: elements of unknown size, of which more might fill the memory")
    memory_share: float = _number(0.1, "Of what is free; the rest is the training's and other people's")
    most_noise: float = _number(0.15, "Ours: a gain of more is worth having even where chance might have made it")
    trimming_loss: float = _number(0.02, "Ours: what fewer threads and smaller buffers may cost")
    max_trials: int = _number(6, "Ours: whoever is not better after that many epochs will not get better")
    max_unjudged: int = _number(3, "Ours: epochs in a row too short or too odd to be judged")
    max_awakenings: int = _number(3, "Ours: a training whose pace changes more often can't be tuned for")
    risen_share: float = _number(0.10, "Ours: so much more input wait than when it was settled is news")
    news_epochs: int = _number(2, "Ours: in a row; one may be an accident")
    rich_factor: float = _number(1.5, "Ours: calls or buffers are cut back when they are so many times what is needed")


NUMBERS = Numbers()
