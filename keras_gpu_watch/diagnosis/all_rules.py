# SPDX-License-Identifier: Apache-2.0
"""All rules; of two that lose the same share the first one is the verdict."""

from __future__ import annotations

from keras_gpu_watch.diagnosis.rule import Rule
from keras_gpu_watch.diagnosis.rules import compute, epoch_parts, first_epoch, gpu, host, input_bound, lock

RULES: tuple[Rule, ...] = (
    input_bound.RULE,
    lock.RULE,
    epoch_parts.EPOCH_START,
    host.RULE,
    epoch_parts.VALIDATION,
    first_epoch.COMPILE,
    gpu.UNDERUSED,
    gpu.THROTTLED,
    compute.RULE,
    compute.INSUFFICIENT,
    gpu.SHARED,
)
RUN_RULES: tuple[Rule, ...] = (first_epoch.COLD_CACHE,)
"""They compare the first epoch with those after it."""
