# SPDX-License-Identifier: Apache-2.0
"""GPUs that idle although no step waits for input, that are slowed down, or shared."""

from __future__ import annotations

from collections.abc import Iterator

from keras_gpu_watch.diagnosis.context import Context, clip, mean
from keras_gpu_watch.diagnosis.rule import Cause, Found, Rule
from keras_gpu_watch.diagnosis.rules import step
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.diagnosis.wording import percent
from keras_gpu_watch.findings import Severity, Suggestion, Verdict
from keras_gpu_watch.samples import GpuDevice, GpuSummary


def busiest(context: Context) -> GpuSummary | None:
    """The GPU with the highest utilization: others may belong to other people."""
    known = [gpu for gpu in context.epoch.gpus if gpu.utilization_percent is not None]
    return max(known, key=lambda gpu: mean(gpu.utilization_percent) or 0.0, default=None)


def judge_underused(context: Context) -> Verdict | None:
    """Even the busiest GPU has little to do."""
    gpu = busiest(context)
    if gpu is None or not step.is_the_limit(context) or not _is_underused(gpu):
        return None
    use, activity = gpu.utilization_percent, mean(gpu.sm_activity_percent)
    if use is None:
        return None
    compute_share = context.share_of_wall(context.epoch.compute_seconds or 0.0)
    evidence = {"gpu_utilization_mean_percent": use.mean, "gpu_utilization_p95_percent": use.p95}
    if activity is not None:
        evidence["gpu_sm_activity_mean_percent"] = activity
    if context.times is not None:
        evidence["step_seconds_per_batch"] = context.times.rest_seconds
    busy = f"busy {use.mean:.0f} % of the time"
    if activity is not None and activity < use.mean:
        busy += f", with {activity:.0f} % of its multiprocessors at work"
    return Verdict(
        kind="gpu_underused",
        severity="warning",
        headline=f"GPU underused: {busy}, though steps hardly wait for input ({percent(context.wait_share or 0.0)})",
        evidence=evidence,
        lost_share=clip(1 - (use.mean if activity is None else min(use.mean, activity)) / 100) * compute_share,
    )


def _is_underused(gpu: GpuSummary) -> bool:
    use, activity = gpu.utilization_percent, mean(gpu.sm_activity_percent)
    if use is None:
        return False
    is_idle = use.p95 < LIMITS.gpu_p95_percent or use.mean < LIMITS.gpu_mean_percent
    return is_idle or (activity is not None and activity < LIMITS.sm_activity_percent)


def on_cpu(context: Context) -> Found | None:
    """The model does not live on the GPU."""
    if context.on_accelerator is not False:
        return None
    return Found(
        clause="the model runs on the CPU",
        suggestions=(
            Suggestion(
                what="have TensorFlow find the GPU",
                why="the driver shows one, but the model's variables are not on it",
                code='print(tf.config.list_physical_devices("GPU"))  # empty: pip install "tensorflow[and-cuda]"',
            ),
        ),
    )


def judge_throttled(context: Context) -> Verdict | None:
    """Clocks of a GPU are held down."""
    for gpu, device in _gpus(context):
        heat = max(gpu.thermal_throttle_share or 0.0, gpu.hardware_slowdown_share or 0.0)
        power = gpu.power_cap_share or 0.0
        if max(heat, power) < LIMITS.throttled_share:
            continue
        by_heat = heat >= LIMITS.throttled_share
        # A power limit is how a GPU in full use normally ends.
        severity: Severity = "warning" if by_heat else "info"
        reason = "heat or a signal of the hardware" if by_heat else "its power limit"
        return Verdict(
            kind="compute_bound",
            severity=severity,
            headline=f"GPU {gpu.gpu} ({device.name}) is slowed down by {reason} "
            f"{percent(heat if by_heat else power)} of the time",
            evidence={"slowed_share": heat, "power_cap_share": power},
        )
    return None


def throttled(context: Context) -> Found:
    """What to do about clocks that are held down."""
    del context
    return Found(
        suggestions=(
            Suggestion(
                what="look after its cooling and power: air, fans, neighbours, `nvidia-smi -q -d PERFORMANCE`",
                why="steps take longer at lower clocks, and no pipeline can change that",
            ),
        )
    )


def judge_shared(context: Context) -> Verdict | None:
    """Other processes use the GPU."""
    if context.on_accelerator is False:
        return None
    for gpu, device in _gpus(context):
        if device.other_processes:
            return Verdict(
                kind="compute_bound",
                headline=f"GPU {gpu.gpu} ({device.name}) is shared with {device.other_processes} more processes: its "
                "numbers are of all of them together",
                evidence={"other_processes": float(device.other_processes)},
            )
    return None


def shared(context: Context) -> Found:
    """What to do about a shared GPU."""
    del context
    return Found(
        suggestions=(
            Suggestion(
                what="train on a GPU of its own, or choose another one",
                why="processes take turns on a GPU, so each one's steps get longer",
                code='os.environ["CUDA_VISIBLE_DEVICES"] = "1"  # before TensorFlow is imported',
            ),
        )
    )


def _gpus(context: Context) -> Iterator[tuple[GpuSummary, GpuDevice]]:
    devices = context.devices.gpus
    return ((gpu, devices[gpu.gpu]) for gpu in context.epoch.gpus if 0 <= gpu.gpu < len(devices))


UNDERUSED = Rule(
    kinds=("gpu_underused",),
    when=(
        f"Steps wait for input less than {percent(LIMITS.moderately_input_share)} of their time and are not "
        f"host-bound, yet the busiest GPU's utilization has a 95th percentile below {LIMITS.gpu_p95_percent:.0f} % "
        f"or a mean below {LIMITS.gpu_mean_percent:.0f} %, or its multiprocessors are active less than "
        f"{LIMITS.sm_activity_percent:.0f} % of the time. Full memory says nothing about use."
    ),
    judge=judge_underused,
    causes=(
        Cause(
            name="training_on_cpu",
            when="There is a GPU, and the model's variables are not on it.",
            remedy="A TensorFlow that finds the GPU.",
            find=on_cpu,
        ),
        *step.CAUSES,
    ),
)
THROTTLED = Rule(
    kinds=("compute_bound",),
    when=(
        f"In at least {percent(LIMITS.throttled_share)} of the samples a GPU's clocks are held down: a warning for "
        "heat or a signal of the hardware, a note for the power limit."
    ),
    judge=judge_throttled,
    causes=(Cause(name="throttled", when="In each case.", remedy="Cooling and power.", find=throttled),),
)
SHARED = Rule(
    kinds=("compute_bound",),
    when="A note: further processes had a context on a GPU of this training when the run began.",
    judge=judge_shared,
    causes=(Cause(name="gpu_shared", when="In each case.", remedy="A GPU of its own.", find=shared),),
)
