# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from known_epochs import a_context, a_host, an_epoch, find_by

from keras_gpu_watch.diagnosis.rules.host import RULE
from keras_gpu_watch.findings import CallbackSeconds


def find(**changes):
    return find_by(RULE, a_context(an_epoch(**changes)))


def test_a_slow_callback_after_each_step_is_named_with_its_seconds():
    slow = CallbackSeconds(name="Plotter", step_seconds=0.9)
    quick = CallbackSeconds(name="CSVLogger", step_seconds=0.01)

    verdict = find(hooks=0.010, callbacks=(quick, slow))

    assert (verdict.kind, verdict.cause, verdict.severity) == ("host_bound", "callback:Plotter", "critical")
    assert verdict.evidence["Plotter_seconds"] == 0.9
    assert verdict.lost_share == pytest.approx(0.5)
    assert verdict.suggestions[0].expected_speedup == pytest.approx(2 / 1.1)


def test_a_checkpoint_at_the_epochs_end_is_named():
    saver = CallbackSeconds(name="ModelCheckpoint", epoch_seconds=1.0)

    verdict = find(epoch_end_seconds=1.0, callbacks=(saver,))

    assert verdict.cause == "callback:ModelCheckpoint"
    assert "save_weights_only" in verdict.suggestions[0].code


def test_a_callback_at_the_epochs_begin_is_host_time_too():
    assert find(first_batch_seconds=1.0, callbacks=(CallbackSeconds(name="Mailer", epoch_seconds=1.0),)).cause == (
        "callback:Mailer"
    )


def test_keras_own_progress_bar_is_called_by_its_name():
    verdict = find(hooks=0.010, callbacks=(CallbackSeconds(name="ProgbarLogger", step_seconds=0.9),))

    assert verdict.cause == "progress_bar"
    assert "verbose=2" in verdict.suggestions[0].code


@pytest.mark.parametrize("callbacks", [(), (CallbackSeconds(name="Quick", step_seconds=0.1),)])
def test_time_that_callbacks_do_not_explain_is_nobodys(callbacks):
    verdict = find(hooks=0.010, callbacks=callbacks)

    assert verdict.cause is None
    assert "steps_per_execution" in verdict.suggestions[0].code


@pytest.mark.parametrize(("lock", "cause"), [(95.0, "python_lock"), (5.0, None), (None, None)])
def test_threads_that_hold_the_interpreter_lock_hold_up_what_is_between_steps(lock, cause):
    assert find(hooks=0.010, host=a_host(lock=lock)).cause == cause


def test_a_callbacks_time_in_validation_is_not_host_time():
    assert find(hooks=0.010, callbacks=(CallbackSeconds(name="Plotter", validation_seconds=9.0),)).cause is None


def test_little_host_time_is_no_finding():
    assert find(hooks=0.0001, callbacks=(CallbackSeconds(name="Quick", step_seconds=0.01),)) is None


def test_a_few_steps_host_time_is_no_finding():
    assert find(steps=10, hooks=0.010) is None


def test_slow_input_does_not_hide_a_slower_callback():
    assert find(wait=0.002, hooks=0.010) is not None


@pytest.mark.parametrize(("seconds", "cause"), [(0.49, None), (0.50, "callback:Plotter")])
def test_callbacks_must_explain_half_of_the_host_time(seconds, cause):
    # 1 s between 100 steps.
    assert find(hooks=0.010, callbacks=(CallbackSeconds(name="Plotter", step_seconds=seconds),)).cause == cause


@pytest.mark.parametrize(("seconds", "severity"), [(0.019, "warning"), (0.020, "critical")])
def test_a_fifth_of_the_epoch_is_critical(seconds, severity):
    # Steps of 80 ms.
    assert find(compute=0.080, hooks=seconds * 1.0000001).severity == severity
