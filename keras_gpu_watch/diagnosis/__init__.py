# SPDX-License-Identifier: Apache-2.0
"""Says why a training does not go faster: pure, from an epoch's account to verdicts (docs/verdicts.md)."""

from __future__ import annotations

from keras_gpu_watch.diagnosis.diagnose import diagnose, diagnose_run, mark_waiting
from keras_gpu_watch.diagnosis.verdicts_page import verdicts_markdown

__all__ = ["diagnose", "diagnose_run", "mark_waiting", "verdicts_markdown"]
