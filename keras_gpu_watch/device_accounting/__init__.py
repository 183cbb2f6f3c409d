# SPDX-License-Identifier: Apache-2.0
"""Pure arithmetic: samples of GPUs and host in; an epoch's statistics, and sentences about them, out."""

from __future__ import annotations

from keras_gpu_watch.device_accounting.sentences import remarks
from keras_gpu_watch.device_accounting.statistics import SampleFrame, summarize_gpus, summarize_host

__all__ = ["SampleFrame", "remarks", "summarize_gpus", "summarize_host"]
