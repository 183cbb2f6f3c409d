# SPDX-License-Identifier: Apache-2.0
"""One epoch in a line: how much of it was input wait, and what the rest went to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.sinks.wording import duration, percent

# A part is named in an epoch's line from this share of its wall time on.
_NAMED_SHARE = 0.01

Seconds = Callable[[EpochSummary], "float | None"]
STEP_PARTS: tuple[tuple[str, Seconds], ...] = (
    ("input wait", lambda epoch: epoch.input_wait_seconds),
    ("compute", lambda epoch: epoch.compute_seconds),
)
WHOLE_STEP: tuple[str, Seconds] = ("train steps", lambda epoch: epoch.step_seconds)
"""Where the two are not told apart."""
OTHER_PARTS: tuple[tuple[str, Seconds], ...] = (
    ("first batch", lambda epoch: epoch.first_batch_seconds),
    ("compile", lambda epoch: epoch.compile_seconds),
    ("host", lambda epoch: epoch.host_seconds),
    ("validation", lambda epoch: epoch.validation_seconds),
    ("epoch end", lambda epoch: epoch.epoch_end_seconds),
    # Below what is promised it is noise.
    ("unattributed", lambda epoch: epoch.unattributed_seconds if _is_much(epoch.unattributed_seconds, epoch) else 0.0),
)


def epoch_line(epoch: EpochSummary) -> str:
    """An epoch's line."""
    # Keras counts epochs from 1 in what it prints, from 0 in its hooks.
    head = f"GPU Watch epoch {epoch.epoch + 1}: {_wait_words(epoch)}"
    parts = _known_parts(epoch)
    main, main_seconds = max(parts, key=lambda part: part[1])
    others = [
        f"{name} {duration(seconds)}"
        for name, seconds in parts
        if name != main and seconds >= _NAMED_SHARE * epoch.wall_seconds and seconds > 0
    ]
    share = percent(main_seconds / epoch.wall_seconds) if epoch.wall_seconds > 0 else "-"
    spent = f"mostly {main}: {duration(main_seconds)} of {duration(epoch.wall_seconds)} ({share})"
    return " | ".join([head, spent, *([", ".join(others)] if others else []), *_gpu_words(epoch)])


def gpu_means(epochs: Sequence[EpochSummary]) -> list[float]:
    """Mean utilization in percent of each GPU whose utilization was measured, each epoch weighted by its samples."""
    weighted: dict[int, list[tuple[float, int]]] = {}
    for epoch in epochs:
        for gpu in epoch.gpus:
            if gpu.utilization_percent is not None and gpu.samples:
                weighted.setdefault(gpu.gpu, []).append((gpu.utilization_percent.mean, gpu.samples))
    return [
        sum(mean * samples for mean, samples in gpu) / sum(samples for _, samples in gpu) for gpu in weighted.values()
    ]


def busy(means: Sequence[float]) -> str:
    """From the least busy GPU to the busiest one."""
    if not means:
        return "-"
    low, high = min(means), max(means)
    if f"{low:.0f}" == f"{high:.0f}":
        return percent((low + high) / 2e2)
    return f"{low:.0f}-{high:.0f} %"


def _is_much(unattributed_seconds: float, epoch: EpochSummary) -> bool:
    return unattributed_seconds > max(0.005, 0.01 * epoch.wall_seconds)


def _wait_words(epoch: EpochSummary) -> str:
    if epoch.input_wait_share is None:
        return "input wait not measured"
    share = percent(epoch.input_wait_share)
    estimated = {"input_wait_share", "input_wait_seconds"} & set(epoch.estimated)
    words = f"input wait {'about ' if estimated and share[0] != '<' else ''}{share} of the step"
    return words if epoch.ceiling_speedup is None else f"{words}, ceiling {epoch.ceiling_speedup:.2f}x"


def _gpu_words(epoch: EpochSummary) -> list[str]:
    """How busy the GPUs were; nothing where that was not measured."""
    means = gpu_means([epoch])
    if not means:
        return []
    swings = len(epoch.gpus) == 1 and epoch.gpus[0].swings is True
    return [f"{'GPU' if len(means) == 1 else 'GPUs'} {busy(means)} busy{' in swings' if swings else ''}"]


def _known_parts(epoch: EpochSummary) -> list[tuple[str, float]]:
    """Parts of the epoch's wall time, without those that were not measured."""
    together = epoch.input_wait_seconds is None or epoch.compute_seconds is None
    columns = ((WHOLE_STEP,) if together else STEP_PARTS) + OTHER_PARTS
    readings = ((name, seconds(epoch)) for name, seconds in columns)
    return [(name, seconds) for name, seconds in readings if seconds is not None]
