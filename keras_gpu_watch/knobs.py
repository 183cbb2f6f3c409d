# SPDX-License-Identifier: Apache-2.0
"""The records of tuning: an input pipeline's knobs, which of them may be turned, and what was tried.

A knob changes when a batch is ready, never what is in it. Stages are named by their `index` in
`PipelineSummary.stages`. "Not known" is `None`, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

END = -1
"""In place of a stage's index: the prefetch that is added behind the last stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Settings of a pipeline, as far as they differ from what the user wrote. The user's own pipeline has none."""

    parallel_calls: Mapping[int, int] = field(default_factory=dict)
    """Calls at a time by stage index; -1: AUTOTUNE."""
    buffer_sizes: Mapping[int, int] = field(default_factory=dict)
    """Elements by index of a prefetch, or `END`; -1: AUTOTUNE."""
    private_threadpool_size: int | None = None
    """Threads; `None`: as the user has it."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs, so that the user's own pipeline runs."""
        return not self.parallel_calls and not self.buffer_sizes and self.private_threadpool_size is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One knob that may be turned."""

    index: int
    """Of its stage, or `END`."""
    label: str
    """As its stage is called in sentences."""
    kind: Literal["parallel_calls", "buffer_size"]
    written: int | None = None
    """The user's setting: `None`: one call at a time, or no such prefetch; -1: AUTOTUNE."""
    limit: int | None = None
    """More would change nothing, as with an interleave's `cycle_length`; `None`: no limit."""
    element_bytes: float | None = None
    """Of one element that the stage gives, where its shape is known before the pipeline runs."""
    python: str | None = None
    """What runs Python code in its stage, as in `Stage.python`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStage:
    """A stage that has a knob which must not be turned, and why."""

    index: int
    label: str
    reason: str
    """A clause: "it draws random numbers, which would then go to other elements"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunable:
    """What may be changed of one pipeline."""

    shape: str
    """A key of the pipeline's stages without their settings: the same program has the same one in its next run."""
    knobs: tuple[Knob, ...] = ()
    private_threadpool_size: int | None = None
    """The user's setting."""
    threadpool_is_tunable: bool = True
    fixed: tuple[FixedStage, ...] = ()


Outcome = Literal["running", "kept", "rolled back", "not judged", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting of the knobs that was tried, in the epochs that it took to judge it."""

    epoch: int
    """The (last) epoch that ran with it."""
    knobs: Knobs
    hypothesis: str
    """What was changed and why, in one line: "map(decode): 2 -> 32 calls, it waits for a disk or a network"."""
    batches_per_second: float | None = None
    """Over steady steps."""
    speedup: float | None = None
    """Against the best setting before it."""
    noise: float | None = None
    """The relative difference that chance alone may make; a gain must exceed it."""
    outcome: Outcome = "running"
    reason: str | None = None
    """Why it was not judged, or failed."""
    cost_seconds: float | None = None
    """What the epoch took longer than it would have at the best setting known before; 0 where it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSummary:
    """What tuning has done in a run."""

    state: str
    """Of the tuner, as documented there: `"observing"`, `"trying"`, `"settled"`, `"off"`, ..."""
    headline: str = ""
    """Where it stands, in one sentence for the user."""
    knobs: Knobs = field(default_factory=Knobs)
    """Of the next epoch."""
    best: Knobs = field(default_factory=Knobs)
    """The best that was found so far; empty: the user's own settings."""
    baseline_batches_per_second: float | None = None
    """Of the user's own settings, after the first epoch."""
    best_batches_per_second: float | None = None
    speedup: float | None = None
    """The best against the user's own settings."""
    trials: tuple[Trial, ...] = ()
    exploration_seconds: float = 0.0
    """Sum of the trials' costs."""
    code: str | None = None
    """The best settings as Python to paste; `None` while they are the user's own."""
    fixed: tuple[FixedStage, ...] = ()
    max_memory_bytes: float | None = None
    """What all buffers together may hold."""
    notes: tuple[str, ...] = ()
