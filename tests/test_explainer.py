# SPDX-License-Identifier: Apache-2.0
"""When the live pipeline is looked at, and what is left when looking or judging fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keras_gpu_watch import explainer as explainer_module
from keras_gpu_watch.explainer import SAVED_POLLS, Explainer
from keras_gpu_watch.findings import PipelineSummary
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.knobs import Knobs
from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.samples import Devices

EPOCH = EpochSummary(
    epoch=0, wall_seconds=10.0, steps=100, steady_steps=99, batches_per_second=10.0, input_wait_share=0.25
)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Looks:
    """Stands for the pipeline's probe, which `tests/pipeline` covers: it counts."""

    def __init__(self, error: Exception | None = None) -> None:
        self.count = 0
        self.asked: tuple[Any, ...] = ()
        self._error = error

    def poll(self, iterator: object) -> None:
        self.count += 1
        if self._error is not None:
            raise self._error

    def take_epoch(self, *seconds: float | None) -> PipelineSummary:
        self.asked = seconds
        return PipelineSummary(polls=self.count)


def explaining(looks: Looks, notes: list[str] | None = None) -> tuple[Explainer, Clock]:
    clock = Clock()
    explainer = Explainer(Guard(on_failure=(notes if notes is not None else []).append), clock)
    explainer._probe = looks
    return explainer, clock


def test_a_long_epoch_is_looked_at_once_a_second_and_at_its_end():
    looks = Looks()
    explainer, clock = explaining(looks)

    explainer.begin_epoch()
    for _ in range(100):
        explainer.poll(object())
        clock.now += 0.1
    explainer.poll(object(), final=True)

    # At 0, 1, ... 9 s, and at the end.
    assert looks.count == pytest.approx(11, abs=1)


def test_a_short_epoch_is_looked_at_after_its_first_step_and_at_its_end():
    looks = Looks()
    explainer, clock = explaining(looks)

    explainer.begin_epoch()
    for _ in range(10):
        explainer.poll(object())
        clock.now += 0.01
    explainer.poll(object(), final=True)

    assert looks.count == 2


def test_many_short_epochs_are_not_looked_at_more_than_once_a_second():
    looks = Looks()
    explainer, clock = explaining(looks)

    for _ in range(200):
        explainer.begin_epoch()
        explainer.poll(object())
        clock.now += 0.1
        explainer.poll(object(), final=True)

    assert looks.count <= 200 * 0.1 + SAVED_POLLS


def test_nothing_is_looked_at_without_an_iterator():
    looks = Looks()
    explainer, _ = explaining(looks)

    explainer.begin_epoch()
    explainer.poll(None)
    explainer.poll(None, final=True)

    assert looks.count == 0


def test_the_pipeline_is_told_what_a_batch_waits_and_what_the_rest_takes():
    looks = Looks()
    explainer, _ = explaining(looks)

    explained = explainer.explain(EPOCH, (), Devices(), None)

    assert looks.asked == (pytest.approx(0.075), pytest.approx(0.025))
    assert explained.pipeline is not None
    assert explained.verdict is not None
    assert explained.verdict.kind == "input_bound"


def test_a_failing_look_is_not_repeated_and_leaves_the_verdict():
    looks = Looks(ValueError("no such node"))
    notes: list[str] = []
    explainer, clock = explaining(looks, notes)

    for _ in range(3):
        explainer.begin_epoch()
        explainer.poll(object())
        clock.now += 5.0
    explained = explainer.explain(EPOCH, (), Devices(), None)

    assert looks.count == 1
    assert len(notes) == 1
    assert explained.pipeline is None
    assert explained.verdict is not None


def test_a_failing_diagnosis_leaves_the_account(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise ValueError("a rule is wrong")

    monkeypatch.setattr(explainer_module, "diagnose", fail)
    notes: list[str] = []
    explainer, _ = explaining(Looks(), notes)

    explained = explainer.explain(EPOCH, (), Devices(), None)

    assert explained.wall_seconds == EPOCH.wall_seconds
    assert explained.pipeline is not None
    assert explained.verdict is None
    assert explainer.explain_run([explained], Devices(), None) is None
    assert len(notes) == 1


def test_a_run_without_epochs_has_no_verdict():
    explainer, _ = explaining(Looks())

    assert explainer.explain_run([], Devices(), None) is None


def test_a_tuned_run_is_judged_by_the_epochs_with_its_newest_settings():
    explainer, _ = explaining(Looks())
    tuned = Knobs(parallel_calls={1: 8})
    written = [replace(EPOCH, epoch=number, knobs=Knobs()) for number in range(3)]
    fast = [replace(EPOCH, epoch=number, knobs=tuned, input_wait_share=0.0) for number in (3, 4)]

    before = explainer.explain_run(written, Devices(), None)
    after = explainer.explain_run([*written, *fast], Devices(), None)

    assert before is not None
    assert after is not None
    assert (before.kind, after.kind) == ("input_bound", "compute_bound")
