# SPDX-License-Identifier: Apache-2.0
"""Calls of a train function for the probes' tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from keras_gpu_watch.probes.wait_source import Calls


def _calls(times: Sequence[tuple[float, float]], traced: Sequence[int] = (), **changes: Any) -> Calls:
    fields: dict[str, Any] = {
        "call_seconds": np.array([begin for begin, _ in times]),
        "done_seconds": np.array([end for _, end in times]),
        "traced": np.isin(np.arange(len(times)), traced),
        "batches_per_call": 1,
        "jit_compile": False,
    }
    return Calls(**{**fields, **changes})


@pytest.fixture
def make_calls() -> Callable[..., Calls]:
    """Calls from pairs of begin and end; `traced` holds the numbers of those that traced."""
    return _calls
