# SPDX-License-Identifier: Apache-2.0
"""The tuner's sentences, and its settings as Python to paste."""

from __future__ import annotations

from keras_gpu_watch.findings import AUTOTUNE, PipelineSummary, Stage
from keras_gpu_watch.knobs import END, Knob, Knobs, Tunable
from keras_gpu_watch.stage_code import number, with_parallel_calls, with_threads


def duration(seconds: float) -> str:
    """A time, with as many digits as tell something."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def changes_in_words(before: Knobs, after: Knobs, tunable: Tunable) -> str:
    """What differs between two settings: `"map(decode) 2 -> 32 calls, a pool of 34 threads"`."""
    words = []
    for knob in tunable.knobs:
        old, new = _value(before, knob), _value(after, knob)
        if old != new and knob.kind == "parallel_calls":
            words.append(f"{knob.label} {_number(old, 1)} -> {_number(new, 1)} calls")
        elif old != new:
            words.append(f"prefetch {_number(old, 0)} -> {_number(new, 0)}" if old else f"a prefetch of {new}")
    if before.private_threadpool_size != after.private_threadpool_size:
        size = after.private_threadpool_size or tunable.private_threadpool_size
        words.append("the shared pool of threads" if size is None else f"a pool of {size} threads")
    return ", ".join(words) or "the same settings"


def _value(knobs: Knobs, knob: Knob) -> int | None:
    values = knobs.parallel_calls if knob.kind == "parallel_calls" else knobs.buffer_sizes
    return values.get(knob.index, knob.written)


def _number(value: int | None, unset: int) -> str:
    return "AUTOTUNE" if value == AUTOTUNE else str(unset if value is None else value)


def as_code(knobs: Knobs, tunable: Tunable, pipeline: PipelineSummary) -> str | None:
    """Settings as Python for the user's own pipeline, one line a stage that differs.

    Args:
        knobs: The settings.
        tunable: What may be changed.
        pipeline: The stages.

    Returns:
        The code; `None` for the user's own settings.
    """
    if knobs.is_empty:
        return None
    stages = {stage.index: stage for stage in pipeline.stages}
    lines = [line for knob in tunable.knobs if (line := _line(knobs, knob, stages.get(knob.index))) is not None]
    code = "\n".join(lines)
    if knobs.private_threadpool_size is None:
        return code
    return with_threads(code, pipeline, knobs.private_threadpool_size).lstrip("\n")


def _line(knobs: Knobs, knob: Knob, stage: Stage | None) -> str | None:
    """A stage with its knob turned; `None`: it is as it was."""
    value = _value(knobs, knob)
    if value is None or value == knob.written:
        return None
    if knob.kind == "buffer_size":
        remark = "  # at the end" if knob.index == END else ""
        return f"ds = ds.prefetch({number(value)}){remark}"
    return None if stage is None else with_parallel_calls(stage, value)


def rate_in_words(rate: float) -> str:
    """Batches per second."""
    return f"{rate:.3g} batches/s"


def speedup(ratio: float) -> str:
    """A ratio of rates: `"12.3x"`."""
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x"


def percent(share: float) -> str:
    """A share, 0..1, as percents."""
    return f"{100 * share:.0f} %"
