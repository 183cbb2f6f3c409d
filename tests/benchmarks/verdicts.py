# SPDX-License-Identifier: Apache-2.0
"""How often the verdict is right: trainings that are slow for a reason known by construction.

Run by hand: `python tests/benchmarks/verdicts.py` (three minutes); `--quick` for a short form; words after it choose
the trainings whose names contain them.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))

from known_trainings import KNOWN, Known
from rich.console import Console
from rich.table import Table

from keras_gpu_watch.findings import Verdict

QUICK = ("a map that waits one call at a time", "a generator that waits", "a callback after each batch", "a slow step")
GOAL = 0.95


def judge(known: Known) -> Verdict:
    """The verdict on one training."""
    with tempfile.TemporaryDirectory() as log_dir:
        verdict = known.make().run(log_dir).report.verdict
    assert verdict is not None
    return verdict


def right_stage(known: Known, verdict: Verdict) -> bool:
    """Whether it blames the stage that it should."""
    return known.stage in (verdict.stage or "") if known.stage else True


def main() -> None:
    """Print each training's verdict, and the confusion table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four trainings only")
    parser.add_argument("words", nargs="*", help="choose trainings")
    options = parser.parse_args()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    names = [name for name in (QUICK if options.quick else KNOWN) if all(word in name for word in options.words)]
    found = {name: judge(KNOWN[name]) for name in names}
    console = Console(width=150)
    console.print(_each(found))
    console.print(_confusion(found))
    kinds = [verdict.kind in KNOWN[name].kinds for name, verdict in found.items()]
    staged = [name for name in found if KNOWN[name].stage]
    stages = [right_stage(KNOWN[name], found[name]) for name in staged]
    caused = [name for name in found if KNOWN[name].cause]
    causes = [found[name].cause == KNOWN[name].cause for name in caused]
    for what, right in (("kind", kinds), ("stage", stages), ("cause", causes)):
        print(f"right {what}: {sum(right)} of {len(right)} ({sum(right) / max(len(right), 1):.0%})")
    print(f"goal: {GOAL:.0%} of the kinds, and of the stages")


def _each(found: dict[str, Verdict]) -> Table:
    table = Table(title="Verdicts", title_justify="left")
    for column in ("training", "kind", "cause", "stage", ""):
        table.add_column(column)
    for name, verdict in found.items():
        known = KNOWN[name]
        wrong = [
            word
            for word, right in (
                ("kind", verdict.kind in known.kinds),
                ("cause", known.cause in (None, verdict.cause)),
                ("stage", right_stage(known, verdict)),
            )
            if not right
        ]
        table.add_row(name, verdict.kind, verdict.cause or "-", verdict.stage or "-", ", ".join(wrong))
    return table


def _confusion(found: dict[str, Verdict]) -> Table:
    pairs = Counter((KNOWN[name].kinds[0], verdict.kind) for name, verdict in found.items())
    rows = sorted({true for true, _ in pairs})
    columns = sorted({said for _, said in pairs} | set(rows))
    table = Table(title="Rows: the truth; columns: the verdict", title_justify="left")
    table.add_column("")
    for column in columns:
        table.add_column(column.replace("_", "\n"), justify="right")
    for row in rows:
        table.add_row(row, *(str(pairs[row, column] or "") for column in columns))
    return table


if __name__ == "__main__":
    main()
