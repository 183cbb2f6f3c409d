# SPDX-License-Identifier: Apache-2.0
"""Python to paste, in the names of the user's pipeline.

Names come from the user's program and may hold anything. What is no name in Python is made one, so that the code
parses.
"""

from __future__ import annotations

import keyword
import re

from keras_gpu_watch.findings import AUTOTUNE, PipelineSummary, Stage

READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
PARALLEL_OPS = ("map", "interleave", "batch", "padded_batch", "ragged_batch")
"""Stages that take `num_parallel_calls`."""


def number(calls: int) -> str:
    """A knob's value as it is written."""
    return "tf.data.AUTOTUNE" if calls == AUTOTUNE else str(calls)


def function_name(stage: Stage) -> str:
    """The stage's function as a name: `augmenter.flip`; `function` where it has none (a lambda)."""
    parts = (stage.function or "").split(".")
    if all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        return ".".join(parts)
    name = re.sub(r"\W+", "_", stage.function or "", flags=re.ASCII).strip("_")
    return name if name.isidentifier() and not keyword.iskeyword(name) else "function"


def comment(stage: Stage) -> str:
    """A comment that tells where the stage is written; empty where that is not known."""
    source = re.sub(r"[^\w.:+-]+", "_", stage.source or "", flags=re.ASCII)
    return f"  # {source}" if source else ""


def with_parallel_calls(stage: Stage, calls: int) -> str | None:
    """The stage with that many calls at a time; `None` where tf.data has no such knob.

    Args:
        stage: The stage to write.
        calls: -1 leaves it to AUTOTUNE.
    """
    name, value = function_name(stage), number(calls)
    if stage.op == "map":
        return f"ds = ds.map({name}, num_parallel_calls={value}){comment(stage)}"
    if stage.op in ("interleave", "flat_map"):
        cycle = "" if calls == AUTOTUNE else f"cycle_length={max(calls, stage.cycle_length or 0)}, "
        return f"ds = ds.interleave({name}, {cycle}num_parallel_calls={value}){comment(stage)}"
    if stage.op in READERS:
        return f"ds = tf.data.{stage.op}(files, num_parallel_reads={value})"
    if stage.op in PARALLEL_OPS:
        size = stage.batch_size if stage.batch_size and stage.batch_size > 0 else "batch_size"
        return f"ds = ds.{stage.op}({size}, num_parallel_calls={value})"
    return None


def with_threads(code: str, pipeline: PipelineSummary, threads: int) -> str:
    """The same code with a pool of its own threads; calls beyond the shared pool's threads would only queue.

    Args:
        code: What uses the threads.
        pipeline: The pipeline, for the size that is set now.
        threads: How many are needed.
    """
    size = max(threads, pipeline.private_threadpool_size or 0)
    return (
        f"{code}\noptions = tf.data.Options()\n"
        f"options.threading.private_threadpool_size = {size}\nds = ds.with_options(options)"
    )


def cached(stage: Stage) -> str:
    """The stage with a cache right behind it."""
    if stage.op == "map":
        calls = number(stage.num_parallel_calls or AUTOTUNE)
        return f"ds = ds.map({function_name(stage)}, num_parallel_calls={calls}).cache(){comment(stage)}"
    return f"ds = ds.cache()  # right after {re.sub(r'[^A-Za-z0-9_.]+', '_', stage.label)}"


def with_drop_remainder(pipeline: PipelineSummary) -> str:
    """The batching without a short last batch."""
    sizes = [stage.batch_size for stage in pipeline.stages if stage.batch_size and stage.batch_size > 0]
    return f"ds = ds.batch({sizes[-1] if sizes else 'batch_size'}, drop_remainder=True)"
