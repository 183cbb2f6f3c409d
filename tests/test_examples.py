# SPDX-License-Identifier: Apache-2.0
"""Every example runs, in a process of its own as a user would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_example(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_digits_from_disk_learns_and_leaves_a_report(log_dir):
    printed = run_example("digits_from_disk.py", "--log-dir", log_dir)
    accuracy = re.search(r"Test accuracy: ([\d.]+)", printed)
    assert accuracy is not None, printed
    assert float(accuracy[1]) > 0.9
    assert (Path(log_dir) / "gpu_watch" / "report.json").is_file()


def test_the_index_names_every_example_and_a_test_runs_it():
    index = (EXAMPLES / "README.md").read_text()
    own_source = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f"| `{path.name}` |" in index
        assert f'run_example("{path.name}"' in own_source
