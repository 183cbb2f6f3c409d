# SPDX-License-Identifier: Apache-2.0
"""How fast a training went, and whether the difference between two epochs may be chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

from keras_gpu_watch.tuning.evidence import Observation
from keras_gpu_watch.tuning.limits import NUMBERS


@dataclass(frozen=True, slots=True)
class Rate:
    """Of the steady steps of an epoch."""

    batches_per_second: float
    relative_error: float
    """Its standard error."""

    @classmethod
    def of(cls, observation: Observation) -> Rate:
        """An epoch's, which must have one."""
        assert observation.rate is not None
        return cls(observation.rate, observation.noise)

    def gain_over(self, other: Rate) -> float:
        """0.1: a tenth faster."""
        return self.batches_per_second / other.batches_per_second - 1

    def noise_against(self, other: Rate) -> float:
        """The gain that chance alone may make."""
        both = NUMBERS.noise_factor * math.hypot(self.relative_error, other.relative_error)
        return min(max(both, NUMBERS.least_gain), NUMBERS.most_noise)

    def is_below(self, written: Rate | None) -> bool:
        """Whether it is slower than the user's own settings by more than is promised."""
        return written is not None and self.batches_per_second < NUMBERS.least_of_written * written.batches_per_second
