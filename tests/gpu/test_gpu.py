# SPDX-License-Identifier: Apache-2.0
"""`check_gpu.py` is run by hand on a machine with a GPU; these tests keep it from rotting, over the stub of NVML."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from nvml_scenarios import NvmlStub, card, uuid_of

from keras_gpu_watch.samples import Distribution, GpuSummary

pytestmark = pytest.mark.timed

FOLDER = Path(__file__).parent
PRODUCT_SECONDS = 1e-3
NO_LOAD = "Neither PyTorch nor JAX can use a GPU here."


def _run_script(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parents[1]), **variables}
    command = [sys.executable, str(FOLDER / "check_gpu.py"), "--quick", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_gpu_passes_the_checks_in_their_short_form(tmp_path):
    out = tmp_path / "gpu.json"
    run = _run_script("--out", str(out))
    if NO_LOAD in run.stderr:
        pytest.skip(f"gpu: {run.stderr}")
    assert run.returncode == 0, run.stdout + run.stderr
    assert json.loads(out.read_text())["devices"]["gpus"][0]["uuid"]


def test_without_a_framework_that_can_use_a_gpu_the_script_says_so():
    run = _run_script(CUDA_VISIBLE_DEVICES="-1")
    assert run.returncode == 1
    assert NO_LOAD in run.stderr
    assert "Traceback" not in run.stderr


@pytest.fixture
def check_gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("check_gpu")


def _sleeping_load(stub: NvmlStub) -> Any:
    """A load that sleeps, while the stub answers as a GPU with that duty cycle."""
    load_class = importlib.import_module("gpu_load").Load

    class SleepingLoad(load_class):  # type: ignore[misc, valid-type]
        name = "sleep"
        launched = 0

        def launch(self) -> None:
            self.launched += 1

        def wait(self) -> None:
            time.sleep(self.launched * PRODUCT_SECONDS)
            self.launched = 0

        def cycle(self, duty: float, period_seconds: float, seconds: float) -> float:
            # The stub takes a period of 0 for always busy.
            busy, idle = (0.0, 0.0) if duty == 1 else (duty * period_seconds, (1 - duty) * period_seconds)
            stub.set(f"card.0.busy_seconds = {busy}", f"card.0.idle_seconds = {idle}")
            return float(super().cycle(duty, period_seconds, seconds))

    load = SleepingLoad()
    load.calibrate()
    return load


@pytest.mark.slow
def test_the_checks_pass_on_a_gpu_that_does_what_it_is_told(nvml, check_gpu):
    nvml.load(*card(0, utilization=100))
    # Enough for the swings' three rises, after the first second.
    plan = check_gpu.Plan(2.5, 2.5, 8.0, rounds=3, pairs=1, block_seconds=0.8)
    result = check_gpu.run(_sleeping_load(nvml), plan)
    verdicts = {check["name"]: check["verdict"] for check in result["checks"]}
    # A load of sleeps does not tell how much a sampler disturbs.
    assert [name for name, verdict in verdicts.items() if verdict == "FAIL" and "of the load" not in name] == []
    # There is no CUDA here to ask.
    assert [name for name, verdict in verdicts.items() if verdict == "not given"] == [
        "the GPU sampled is CUDA's first one (1: yes)"
    ]
    assert result["devices"]["gpus"][0]["uuid"] == uuid_of(0)
    costs = result["nvml_microseconds"]
    assert {name: costs[name]["calls"] for name in ("nvmlDeviceGetPowerUsage", "nvmlGpmMetricsGet")} == {
        "nvmlDeviceGetPowerUsage": 3,
        "nvmlGpmMetricsGet": 2,
    }
    text = check_gpu.tell(json.loads(json.dumps(result)))
    assert text.count("PASS") == list(verdicts.values()).count("PASS")
    assert {name for name in (*verdicts, *costs, *result["phases"]) if name not in text} == set()
    assert nvml.references == 0
    assert nvml.gpm_samples == 0


def _phase(busy_share: float, **changes: Any) -> Any:
    """What a GPU that is busy for that share of the time shows."""
    verdicts = importlib.import_module("gpu_verdicts")
    watts = 70 + 300 * busy_share
    means = {"utilization_percent": 100 * busy_share, "power_watts": watts, "sm_activity_percent": 80 * busy_share}
    given: dict[str, Any] = {
        name: None if mean is None else Distribution(mean, 0, 0, 0) for name, mean in {**means, **changes}.items()
    }
    is_duty = 0 < busy_share < 1
    summary = GpuSummary(gpu=0, swings=is_duty, swing_period_seconds=2.0 if is_duty else None, **given)
    return verdicts.Phase(busy_share, 1.0, None if changes.get("power_watts", 0) is None else watts, summary)


def _verdicts(duty: Any, full: Any) -> dict[str, str]:
    phases = {"idle": _phase(0.0), "full": full, "duty 2 s": duty, "duty 0.2 s": duty}
    return {check.name: check.verdict for check in importlib.import_module("gpu_verdicts").judge(phases)}


def test_figures_that_fit_the_duty_cycle_pass(check_gpu):
    assert set(_verdicts(_phase(0.5), _phase(1.0)).values()) == {"PASS"}


@pytest.mark.parametrize(
    ("field", "wrong", "about"),
    [
        ("utilization_percent", 90.0, "utilization less duty"),
        ("utilization_percent", 20.0, "utilization less duty"),
        ("power_watts", 70.0, "power, from idle"),
        ("power_watts", 370.0, "power, from idle"),
        ("sm_activity_percent", 70.0, "SM activity"),
        ("sm_activity_percent", 0.0, "SM activity"),
    ],
)
def test_a_figure_that_does_not_fit_the_duty_cycle_fails(check_gpu, field, wrong, about):
    verdicts = _verdicts(_phase(0.5, **{field: wrong}), _phase(1.0))
    found = [verdict for name, verdict in verdicts.items() if name.startswith("duty") and f": {about}" in name]
    assert found == ["FAIL", "FAIL"]


def test_what_a_gpu_does_not_give_is_not_judged(check_gpu):
    missing = {"sm_activity_percent": None, "power_watts": None}
    verdicts = _verdicts(_phase(0.5, **missing), _phase(1.0, **missing))
    assert {verdict for name, verdict in verdicts.items() if "activity" in name or "power" in name} >= {"not given"}
    assert "FAIL" not in verdicts.values()


@pytest.mark.parametrize(
    ("hertz", "ratio", "core_percent", "expected"),
    [
        (2.0, 1.005, 0.5, ["PASS", "PASS"]),
        (2.0, 1.05, 0.5, ["FAIL", "PASS"]),
        (10.0, 1.0, 5.0, ["PASS", "FAIL"]),
        (10.0, 1.0, None, ["PASS", "not given"]),
    ],
)
def test_a_sampler_that_costs_too_much_fails(check_gpu, hertz, ratio, core_percent, expected):
    verdicts = importlib.import_module("gpu_verdicts")
    checks = verdicts.judge_costs([verdicts.Slowdown(hertz, ratio, ratio, ratio, core_percent)])
    assert [check.verdict for check in checks] == expected
