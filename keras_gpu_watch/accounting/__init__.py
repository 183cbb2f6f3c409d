# SPDX-License-Identifier: Apache-2.0
"""Pure arithmetic: an epoch's steps and boundaries in, its account out (docs/measuring.md)."""

from __future__ import annotations

from keras_gpu_watch.accounting.summary import EpochFrame, summarize
from keras_gpu_watch.accounting.totals import StepTotals, measure, merge

__all__ = ["EpochFrame", "StepTotals", "measure", "merge", "summarize"]
