# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from known_epochs import a_batch, a_context, a_map, a_pipeline, a_source, an_epoch, find_by

from keras_gpu_watch.diagnosis.rules.first_epoch import COLD_CACHE, COMPILE


def compiling(seconds, steps, *earlier, **changes):
    stages = a_pipeline(a_source(), a_batch())
    epoch = an_epoch(compile_seconds=seconds, compile_steps=steps, pipeline=stages, **changes)
    return find_by(COMPILE, a_context(epoch, *earlier))


def test_many_compilations_come_from_changing_shapes():
    verdict = compiling(1.0, 10)

    assert (verdict.kind, verdict.cause, verdict.severity) == ("compile_bound", "changing_shapes", "warning")
    assert verdict.suggestions[0].code == "ds = ds.batch(32, drop_remainder=True)"
    assert verdict.suggestions[0].expected_speedup == pytest.approx(2.0)


def test_compiling_once_is_a_note_without_a_cause():
    verdict = compiling(1.0, 1)

    assert (verdict.cause, verdict.severity, verdict.suggestions) == (None, "info", ())
    assert "once" in verdict.headline


@pytest.mark.parametrize(("steps", "severity"), [(3, "info"), (4, "warning")])
def test_a_short_batch_and_a_short_call_may_be_compiled_besides(steps, severity):
    assert compiling(1.0, steps).severity == severity


def test_compilations_that_cost_little_are_no_finding():
    assert compiling(0.05, 10) is None
    assert compiling(0.0, 0) is None


def cold(first, later, **changes):
    """Waits a batch of the first and of the later epochs, in seconds."""
    return find_by(COLD_CACHE, a_context(an_epoch(epoch=1, wait=later, **changes), an_epoch(wait=first)))


def test_a_first_epoch_that_alone_waited_had_a_cold_cache():
    verdict = cold(0.150, 0.0)

    assert (verdict.kind, verdict.cause, verdict.severity) == ("input_bound", "cold_cache", "info")
    assert verdict.evidence["first_epoch_seconds_per_batch"] == pytest.approx(0.160)
    # 15 s of 17 s.
    assert verdict.lost_share == pytest.approx(15 / 17)


@pytest.mark.parametrize(
    ("first", "later"),
    [(0.150, 0.140), (0.0, 0.0), (None, 0.0), (0.150, None), (0.005, 0.0)],
    ids=["all wait", "none waits", "first not known", "later not known", "a little longer only"],
)
def test_epochs_that_are_alike_or_not_known_had_none(first, later):
    assert cold(first, later) is None


def test_a_cache_of_the_pipelines_own_explains_a_slow_first_epoch():
    stages = a_pipeline(a_source(), a_map(0.001, op="cache"))

    assert cold(0.150, 0.0, pipeline=stages) is None


def test_a_single_epoch_can_not_be_compared():
    assert find_by(COLD_CACHE, a_context(an_epoch(wait=0.150))) is None


def test_a_first_epoch_with_slower_steps_and_no_wait_to_speak_of_had_a_warm_cache():
    slow_steps = an_epoch(wait=0.001, compute=0.050)

    assert find_by(COLD_CACHE, a_context(an_epoch(epoch=1), slow_steps)) is None


def test_a_first_epoch_that_waited_a_little_is_a_moderate_case():
    first, later = an_epoch(wait=0.004, compute=0.030), an_epoch(epoch=1)

    assert find_by(COLD_CACHE, a_context(later, first)).kind == "moderately_input_bound"


def test_host_time_belongs_to_a_batchs_seconds():
    # 30 ms against 25 ms with it, 30 ms against 10 ms without.
    first, later = an_epoch(wait=0.020), an_epoch(epoch=1, hooks=0.015)

    assert find_by(COLD_CACHE, a_context(later, first)) is None
