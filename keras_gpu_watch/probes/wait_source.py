# SPDX-License-Identifier: Apache-2.0
"""What a source of input waits must offer, and the one that knows none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from keras_gpu_watch.records import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Calls:
    """Consecutive calls of the train function with one iterator, oldest first (times on the monotonic clock)."""

    call_seconds: Floats
    done_seconds: Floats
    traced: Bools
    """Calls in which a `tf.function` was traced: fetch and trace cannot be told apart from outside."""
    batches_per_call: int
    """`steps_per_execution`."""
    jit_compile: bool
    ended_call_seconds: float | None = None
    """When a further call was made that found the data used up; `None` if there was none."""
    shapes_seen: set[float] = field(default_factory=set)
    """Batch shapes that the train function was called with before; a source that knows shapes adds to them."""

    def __len__(self) -> int:
        return len(self.call_seconds)

    @property
    def seconds(self) -> Floats:
        """Duration of each call."""
        return self.done_seconds - self.call_seconds


@dataclass(frozen=True, slots=True)
class Waits:
    """What a source knows about the oldest `len(self)` of the calls it was asked about; NaN = not known."""

    input_wait_seconds: Floats
    batches: Ints
    examples: Floats
    new_shape: Bools
    """Calls that brought a batch shape for the first time: under `jit_compile` they compile."""
    estimated: bool = False
    """Whether the waits are an estimate."""
    counted: bool = True
    """Whether `batches` were counted; if not, they are full groups, of which the last one may have been short."""
    disagreement_seconds: float | None = None
    """Median difference to a second source, if one was read."""

    def __len__(self) -> int:
        return len(self.input_wait_seconds)


class WaitSource(Protocol):
    """Tells, some calls later, how long each call waited for its batch."""

    reason: str | None
    """Why waits are not known, in words for the user; `None` while they are."""
    calls_per_read: int
    """`resolve` must be asked at least this often, or readings are lost."""

    def resolve(self, calls: Calls, *, final: bool) -> Waits:
        """Read what is new.

        Args:
            calls: All calls that no earlier answer covered, at least one.
            final: True when no further call will follow: the answer covers all of `calls`.

        Returns:
            Waits of the oldest calls; those not covered yet are to be asked about again.
        """
        ...


class UnknownWaits:
    """A source for input whose waits cannot be seen.

    Args:
        reason: Why, in words for the user.
    """

    calls_per_read = 1024

    def __init__(self, reason: str) -> None:
        self.reason: str | None = reason

    def resolve(self, calls: Calls, *, final: bool) -> Waits:
        """Every call, with unknown wait and full groups of batches."""
        return unknown(calls, final=final)


def unknown(calls: Calls, *, final: bool) -> Waits:
    """Waits that say only that the calls happened.

    Args:
        calls: The calls.
        final: Whether no further call will follow. If one may, the newest call is left for later, because only the last
            call of all can have been a short group.
    """
    count = len(calls) if final or calls.batches_per_call == 1 else len(calls) - 1
    return Waits(
        input_wait_seconds=np.full(count, np.nan),
        batches=np.full(count, calls.batches_per_call, np.int64),
        examples=np.full(count, np.nan),
        new_shape=np.zeros(count, np.bool_),
        counted=calls.batches_per_call == 1,
    )
