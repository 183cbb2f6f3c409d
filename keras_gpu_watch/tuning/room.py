# SPDX-License-Identifier: Apache-2.0
"""What may be changed of a pipeline, and how far; whether settings that come from outside stay within."""

from __future__ import annotations

from dataclasses import dataclass

from keras_gpu_watch.findings import AUTOTUNE
from keras_gpu_watch.knobs import Knobs, Tunable
from keras_gpu_watch.tuning.limits import NUMBERS, AutoTune
from keras_gpu_watch.tuning.memory import held_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Of one pipeline."""

    tunable: Tunable
    max_calls: int = NUMBERS.max_parallel_calls
    max_bytes: float | None = None
    """That all buffers together may hold; `None`: not known."""

    @classmethod
    def within(cls, limits: AutoTune, tunable: Tunable, free_memory_bytes: float | None) -> Room:
        """What the user allows, or what is sensible.

        Args:
            limits: The user's.
            tunable: The pipeline.
            free_memory_bytes: What the process may still take; `None`: not known.
        """
        share = None if free_memory_bytes is None else NUMBERS.memory_share * free_memory_bytes
        return cls(
            tunable=tunable,
            max_calls=limits.max_parallel_calls or NUMBERS.max_parallel_calls,
            max_bytes=share if limits.max_memory is None else float(limits.max_memory),
        )

    def why_not(self, knobs: Knobs) -> str | None:
        """Why some settings can't be used with the pipeline; `None`: they can."""
        by_place = {(knob.kind, knob.index): knob for knob in self.tunable.knobs}
        for index, calls in knobs.parallel_calls.items():
            knob = by_place.get(("parallel_calls", index))
            if knob is None:
                return f"the calls of stage {index} may not be changed"
            if calls != AUTOTUNE and not 1 <= calls <= min(self.max_calls, knob.limit or self.max_calls):
                return f"{calls} calls of {knob.label} are out of its limits"
        for index, size in knobs.buffer_sizes.items():
            if ("buffer_size", index) not in by_place:
                return f"there is no buffer to change at stage {index}"
            if size != AUTOTUNE and not 1 <= size <= NUMBERS.max_prefetch:
                return f"a buffer of {size} elements is out of its limits"
        if knobs.private_threadpool_size is not None and not self.tunable.threadpool_is_tunable:
            return "its threads may not be changed"
        if self.max_bytes is not None and held_bytes(knobs, self.tunable, {}) > self.max_bytes:
            return "their buffers would hold more memory than is allowed"
        return None
