# SPDX-License-Identifier: Apache-2.0
"""How the cases are judged: a real `fit`, and the verdict on it."""

from __future__ import annotations

from typing import Any

import pytest
from known_trainings import KNOWN, Training

from keras_gpu_watch.findings import Stage, Verdict
from keras_gpu_watch.report.run_report import RunReport

WITHIN = 0.25
"""Of a time that was constructed: two busy cores stretch every sleep a little."""
PIPELINE_WORDS = ("prefetch", "num_parallel_calls", "private_threadpool_size")


def judge(case: str | Training, log_dir: str) -> RunReport:
    """Train, and give the report."""
    training = KNOWN[case].make() if isinstance(case, str) else case
    return training.run(log_dir).report


def verdict_of(report: RunReport) -> Verdict:
    """The run's verdict, which must exist."""
    assert report.verdict is not None
    return report.verdict


def stage_named(report: RunReport, name: str) -> Stage:
    """The newest epoch's only stage with this function or operation."""
    (stage,) = [stage for stage in report.stages if name in (stage.function, stage.op)]
    return stage


def assert_blames(report: RunReport, case: str) -> None:
    """The verdict is what is known of the case."""
    known, verdict = KNOWN[case], verdict_of(report)
    assert verdict.kind in known.kinds, verdict
    if known.cause is not None:
        assert verdict.cause == known.cause, verdict
    if known.stage is not None:
        assert known.stage in (verdict.stage or ""), verdict


def assert_not_the_input(report: RunReport) -> None:
    """Nothing says that the input is to blame, and nothing sends the user to the pipeline."""
    verdicts = [verdict_of(report), *(epoch.verdict for epoch in report.epochs if epoch.verdict is not None)]
    for verdict in verdicts:
        assert "input" not in verdict.kind, verdict
        words = " ".join(f"{suggestion.what} {suggestion.code}" for suggestion in verdict.suggestions)
        assert not any(word in words for word in PIPELINE_WORDS), words


def assert_speedups_stay_below_the_ceiling(report: RunReport) -> None:
    """No suggestion promises more than free input would give."""
    for epoch in report.epochs:
        if epoch.verdict is None or epoch.ceiling_speedup is None or "input" not in epoch.verdict.kind:
            continue
        gains = [suggestion.expected_speedup for suggestion in epoch.verdict.suggestions]
        assert all(gain is None or gain <= epoch.ceiling_speedup * (1 + 1e-9) for gain in gains)


def about(seconds: float) -> Any:
    """A time that was constructed, as it may be measured."""
    return pytest.approx(seconds, rel=WITHIN)
