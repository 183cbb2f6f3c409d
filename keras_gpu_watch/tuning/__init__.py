# SPDX-License-Identifier: Apache-2.0
"""Tunes an input pipeline: pure, from an epoch's account to the settings of the next one (docs/tuning.md)."""

from __future__ import annotations

from keras_gpu_watch.tuning.evidence import Observation
from keras_gpu_watch.tuning.limits import AutoTune
from keras_gpu_watch.tuning.state_file import dump_state, load_state
from keras_gpu_watch.tuning.tuner import Tuner

__all__ = ["AutoTune", "Observation", "Tuner", "dump_state", "load_state"]
