# SPDX-License-Identifier: Apache-2.0
"""The records of what was found: the pipeline's stages, seconds of callbacks, and verdicts.

Units stand in the names; "not known" is `None`, never 0. "Per batch" is per batch that the training takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

AUTOTUNE = -1
"""A knob that is left to tf.data, as in `tf.data.AUTOTUNE`."""

Kind = Literal[
    "input_bound",
    "moderately_input_bound",
    "bursty_input",
    "epoch_start_bound",
    "host_bound",
    "compile_bound",
    "validation_bound",
    "compute_bound",
    "gpu_underused",
    "insufficient_data",
]
Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of an input pipeline, in the user's words, and what it did in one epoch.

    The first half is read from the dataset objects (or named after tf.data's own iterators where there are none), the
    second from tf.data's model of the live iterator; `reason` tells why that half is missing.
    """

    index: int
    """Position in `PipelineSummary.stages`: sources first, the stage that `fit` reads from last."""
    op: str
    """tf.data's word for it: `"map"`, `"batch"`, `"prefetch"`, `"from_generator"`, ..."""
    inputs: tuple[int, ...] = ()
    """Indices of the stages that it reads from."""
    function: str | None = None
    """Name of the user's function."""
    source: str | None = None
    """Where that function is written: `"train.py:42"`."""
    python: str | None = None
    """What runs Python code in it: `"py_function"`, `"numpy_function"`, `"from_generator"`, ...; `None`: nothing."""
    is_stateful: bool | None = None
    is_random: bool | None = None
    """Whether it draws random numbers from a shared state, so that its calls may not change places."""
    batch_size: int | None = None
    buffer_size: int | None = None
    """As written, of `prefetch` and `shuffle`; -1: left to AUTOTUNE."""
    num_parallel_calls: int | None = None
    """As written, or a `PyDataset`'s workers; `None`: one call at a time, -1: left to AUTOTUNE."""
    cycle_length: int | None = None
    deterministic: bool | None = None
    added_by: Literal["user", "keras", "tensorflow", "keras-gpu-watch"] = "user"
    fused_with: tuple[int, ...] = ()
    """Stages that tf.data runs together with this one as a single stage; the measurements stand at one of them."""

    elements: float | None = None
    """Elements that it gave while it was watched in this epoch."""
    elements_per_batch: float | None = None
    busy_seconds_per_batch: float | None = None
    """Its own work for one batch, without what it waits for, all its parallel calls together."""
    is_estimated: bool = False
    """Whether its work is what the waits leave unexplained: tf.data did not count it."""
    parallelism: float | None = None
    """Calls that may run at a time: the knob's value now (AUTOTUNE's choice), never more than there are threads."""
    parallelism_max: float | None = None
    """The most that AUTOTUNE may choose, or that there are threads for."""
    buffer_limit: float | None = None
    """Elements that its buffer may hold now."""
    buffered_elements: float | None = None
    """Mean of what was in its buffer at the polls."""
    buffered_bytes: float | None = None
    bytes_per_element: float | None = None
    is_waiting: bool | None = None
    """Whether its calls wait for something else than the CPU (a disk, a network) for most of their time."""
    capacity_batches_per_second: float | None = None
    """What it could give at this parallelism if nothing else held it up."""
    wait_share: float | None = None
    """Its share in the input wait; the shares of all stages add up to 1. `None` where there was nothing to share."""
    reason: str | None = None
    """Why it has no measurements."""

    @property
    def label(self) -> str:
        """How it is called in sentences, as `map(decode)`."""
        return f"{self.op}({self.function})" if self.function else self.op

    @property
    def tag_name(self) -> str:
        """Its part of a scalar's name: digits, letters and `_` only, and no other stage's."""
        return _tag_part(f"{self.index}_{self.label}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSummary:
    """The input pipeline in one epoch."""

    input_kind: str = "tf.data"
    """What `fit` was given: `"tf.data"`, `"PyDataset"`, `"generator"`, `"arrays"`, or `"unknown"`."""
    stages: tuple[Stage, ...] = ()
    private_threadpool_size: int | None = None
    """As set by the user's options; `None`: the shared pool, with a thread for each core."""
    cpu_budget: float | None = None
    """What tf.data's autotuning may use."""
    ram_budget_bytes: float | None = None
    serial_seconds_per_batch: float | None = None
    """Work that is done on the training's own thread when it asks for a batch: nothing fetches it ahead."""
    slowest_seconds_per_batch: float | None = None
    """Time a batch of the slowest part that runs ahead: nothing comes out faster than that."""
    polls: int = 0
    """Looks at the live iterator on which this rests."""
    reason: str | None = None
    """Why its stages have no measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackSeconds:
    """What one callback's hooks took in one epoch."""

    name: str
    """Its class; with a number where there are several."""
    step_seconds: float = 0.0
    """In hooks of training batches: part of the host time."""
    epoch_seconds: float = 0.0
    """In `on_epoch_begin` and `on_epoch_end`."""
    validation_seconds: float = 0.0
    """In hooks of tests and their batches."""

    @property
    def seconds(self) -> float:
        """All together."""
        return self.step_seconds + self.epoch_seconds + self.validation_seconds

    @property
    def tag_name(self) -> str:
        """Its part of a scalar's name: digits, letters and `_` only."""
        return _tag_part(self.name)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step of the typical stretch that the picture shows."""

    host_seconds: float
    input_wait_seconds: float
    compute_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One thing to try."""

    what: str
    """Imperative, one line."""
    why: str
    code: str | None = None
    """Python that fits this pipeline."""
    expected_speedup: float | None = None
    """At most so many times faster, for input bounded by the ceiling; `None` where it can't be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why the training does not go faster, the numbers that say so, and what to change."""

    kind: Kind
    cause: str | None = None
    """A stable label, as `"latency"` or `"callback:ModelCheckpoint"`."""
    stage: str | None = None
    """The `label` of the stage to blame."""
    stage_index: int | None = None
    severity: Severity = "info"
    headline: str = ""
    """One sentence."""
    evidence: dict[str, float] = field(default_factory=dict)
    """Numbers with their units in their names."""
    suggestions: tuple[Suggestion, ...] = ()
    lost_share: float | None = None
    """Share of the wall time that the cure could give back at most."""


def _tag_part(text: str) -> str:
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
