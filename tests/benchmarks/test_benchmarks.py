# SPDX-License-Identifier: Apache-2.0
"""The benchmarks are run by hand; this only keeps them from rotting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "last_words"),
    [
        ("overhead", "ratio to no callback"),
        ("truth", "whichever is larger; missed:"),
        ("sampler", "CPU of the sampling thread"),
        ("verdicts", "right kind: 4 of 4"),
        ("tuning", "goal: at most 3 epochs of tuning:"),
    ],
)
def test_a_benchmark_runs_in_its_short_form_and_prints_its_table(name: str, last_words: str) -> None:
    script = Path(__file__).parent / f"{name}.py"

    result = subprocess.run([sys.executable, str(script), "--quick"], capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    assert last_words in result.stdout
