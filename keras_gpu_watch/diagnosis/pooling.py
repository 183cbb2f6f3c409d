# SPDX-License-Identifier: Apache-2.0
"""Several epochs as one: seconds add up, shares and statistics are weighted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras_gpu_watch.findings import CallbackSeconds, PipelineSummary
from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.samples import Distribution, GpuSummary, HostSummary

_Pair = tuple[float, Any]
"""A weight, and what has it."""


def pool(epochs: Sequence[EpochSummary]) -> EpochSummary:
    """Add epochs up.

    Args:
        epochs: At least one.

    Returns:
        An account with what rules look at. Its pipeline is the newest one with a stage to blame, since stages' figures
        are per batch. The epoch number is the newest one's.
    """
    newest = epochs[-1]
    validations = [each.validation_seconds for each in epochs if each.validation_seconds is not None]
    share = _wait_share(epochs)
    return EpochSummary(
        epoch=newest.epoch,
        last_step=newest.last_step,
        steps=sum(each.steps for each in epochs),
        steady_steps=sum(each.steady_steps for each in epochs),
        # A storm of compilations must not be made of the few that each epoch is allowed.
        compile_steps=max(each.compile_steps for each in epochs),
        batches=sum(each.batches for each in epochs),
        wall_seconds=sum(each.wall_seconds for each in epochs),
        first_batch_seconds=sum(each.first_batch_seconds for each in epochs),
        compile_seconds=sum(each.compile_seconds for each in epochs),
        step_seconds=sum(each.step_seconds for each in epochs),
        input_wait_seconds=_sum(epochs, lambda each: each.input_wait_seconds),
        compute_seconds=_sum(epochs, lambda each: each.compute_seconds),
        host_seconds=sum(each.host_seconds for each in epochs),
        validation_seconds=sum(validations) if validations else None,
        epoch_end_seconds=sum(each.epoch_end_seconds for each in epochs),
        input_wait_share=share,
        input_wait_p50_seconds=_mean([(each.steady_steps, each.input_wait_p50_seconds) for each in epochs]),
        input_wait_p95_seconds=_mean([(each.steady_steps, each.input_wait_p95_seconds) for each in epochs]),
        input_wait_max_seconds=max(
            (each.input_wait_max_seconds for each in epochs if each.input_wait_max_seconds is not None), default=None
        ),
        ceiling_speedup=None if share is None or share >= 1 else 1 / (1 - share),
        batches_per_second=_rate(epochs),
        gpus=_gpus(epochs),
        process_cpu_seconds=_sum(epochs, lambda each: each.process_cpu_seconds),
        host=_host([each.host for each in epochs if each.host is not None]),
        pipeline=_pipeline(epochs),
        callbacks=_callbacks(epochs),
        notes=tuple(dict.fromkeys(note for each in epochs for note in each.notes)),
    )


def _steady_seconds(epoch: EpochSummary) -> float:
    """Time of the steady steps, up to the batches in a step, which don't change within a run."""
    return epoch.steady_steps / epoch.batches_per_second if epoch.batches_per_second else 0.0


def _wait_share(epochs: Sequence[EpochSummary]) -> float | None:
    return _mean([(_steady_seconds(each), each.input_wait_share) for each in epochs])


def _rate(epochs: Sequence[EpochSummary]) -> float | None:
    return _mean([(_steady_seconds(each), each.batches_per_second) for each in epochs])


def _mean(pairs: Sequence[_Pair]) -> float | None:
    known = [(weight, value) for weight, value in pairs if value is not None and weight > 0]
    total = sum(weight for weight, _ in known)
    return sum(weight / total * value for weight, value in known) if known else None


def _sum(epochs: Sequence[EpochSummary], seconds: Callable[[EpochSummary], float | None]) -> float | None:
    """`None` where one of them is not known: a part must not look smaller than it is."""
    known = [value for value in map(seconds, epochs) if value is not None]
    return sum(known) if len(known) == len(epochs) else None


def _distribution(parts: Sequence[tuple[float, Distribution | None]]) -> Distribution | None:
    known = [(weight, part) for weight, part in parts if part is not None and weight > 0]
    if not known:
        return None

    def mean(name: str) -> float:
        return _mean([(weight, getattr(part, name)) for weight, part in known]) or 0.0

    return Distribution(mean("mean"), mean("p5"), mean("p50"), mean("p95"))


def _host(hosts: Sequence[HostSummary]) -> HostSummary | None:
    if not hosts:
        return None

    def pooled(name: str) -> Distribution | None:
        return _distribution([(each.samples, getattr(each, name)) for each in hosts])

    memory = [each.memory_max_percent for each in hosts if each.memory_max_percent is not None]
    return HostSummary(
        samples=sum(each.samples for each in hosts),
        cpu_percent=pooled("cpu_percent"),
        process_cpu_percent=pooled("process_cpu_percent"),
        iowait_percent=pooled("iowait_percent"),
        memory_max_percent=max(memory, default=None),
        interpreter_busy_percent=pooled("interpreter_busy_percent"),
    )


def _gpus(epochs: Sequence[EpochSummary]) -> tuple[GpuSummary, ...]:
    by_gpu: dict[int, list[GpuSummary]] = {}
    for epoch in epochs:
        for gpu in epoch.gpus:
            by_gpu.setdefault(gpu.gpu, []).append(gpu)
    return tuple(_gpu(number, by_gpu[number]) for number in sorted(by_gpu))


def _gpu(number: int, parts: Sequence[GpuSummary]) -> GpuSummary:
    def share(name: str) -> float | None:
        return _mean([(each.samples, getattr(each, name)) for each in parts])

    def pooled(name: str) -> Distribution | None:
        return _distribution([(each.samples, getattr(each, name)) for each in parts])

    return GpuSummary(
        gpu=number,
        samples=sum(each.samples for each in parts),
        utilization_percent=pooled("utilization_percent"),
        sm_activity_percent=pooled("sm_activity_percent"),
        thermal_throttle_share=share("thermal_throttle_share"),
        power_cap_share=share("power_cap_share"),
        hardware_slowdown_share=share("hardware_slowdown_share"),
    )


def _pipeline(epochs: Sequence[EpochSummary]) -> PipelineSummary | None:
    known = [each.pipeline for each in reversed(epochs) if each.pipeline is not None]
    blamed = [each for each in known if any(stage.wait_share for stage in each.stages)]
    return next(iter(blamed or known), None)


def _callbacks(epochs: Sequence[EpochSummary]) -> tuple[CallbackSeconds, ...]:
    by_name: dict[str, CallbackSeconds] = {}
    for each in (callback for epoch in epochs for callback in epoch.callbacks):
        so_far = by_name.get(each.name, CallbackSeconds(name=each.name))
        by_name[each.name] = CallbackSeconds(
            name=each.name,
            step_seconds=so_far.step_seconds + each.step_seconds,
            epoch_seconds=so_far.epoch_seconds + each.epoch_seconds,
            validation_seconds=so_far.validation_seconds + each.validation_seconds,
        )
    return tuple(by_name.values())
