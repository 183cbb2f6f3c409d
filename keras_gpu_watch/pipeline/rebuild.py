# SPDX-License-Identifier: Apache-2.0
"""Builds a pipeline again with other knobs: the same elements in the same order, from the same objects.

Only what lies on the way from a changed stage to the end is built anew, with the functions that were traced for it and
what they captured. All below stays the user's own: sources, caches, shuffles, tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from keras_gpu_watch.findings import AUTOTUNE
from keras_gpu_watch.knobs import END, Knob, Knobs
from keras_gpu_watch.pipeline.object_chain import is_wrapper, objects_below, objects_up_to
from keras_gpu_watch.pipeline.reissue import add_prefetch, reissue
from keras_gpu_watch.pipeline.tunable import Survey, survey

MAX_CALLS = 4_096
"""Calls or threads; a wrong number must not bring the machine down."""
MAX_BUFFERED = 2**31 - 1


class CannotRebuild(Exception):  # noqa: N818
    """The pipeline stays as it is; the message tells why."""


def rebuild(dataset: tf.data.Dataset, knobs: Knobs, *, parallel_python: bool = False) -> tf.data.Dataset:
    """Build a pipeline again with other knobs.

    Args:
        dataset: The user's dataset, which must live as long as the new one is used: it holds the functions.
        knobs: What to change; not empty.
        parallel_python: As for `read_tunable`.

    Returns:
        A dataset of the same elements, with the same options but for the threadpool.

    Raises:
        CannotRebuild: If one of the knobs may not be turned, or TensorFlow refuses. Nothing has changed then.
    """
    found = survey(dataset, parallel_python=parallel_python)
    _check(knobs, found)
    settings = {id(found.objects[index]): size for index, size in _settings(knobs).items()}
    try:
        with tf.init_scope(), tf.device("/CPU:0"):
            variant = _variant(dataset, settings)
            if END in knobs.buffer_sizes:
                variant = add_prefetch(dataset, variant, knobs.buffer_sizes[END])
            rebuilt = tf.data.experimental.from_variant(variant, dataset.element_spec)
            return _with_options(rebuilt, dataset, knobs.private_threadpool_size)
    # What is private to TensorFlow may be missing or differ in another version.
    except (AttributeError, KeyError, TypeError, ValueError, tf.errors.OpError) as error:
        raise CannotRebuild(f"TensorFlow did not build the pipeline again: {error}") from error


def _settings(knobs: Knobs) -> dict[int, int]:
    return {index: size for index, size in {**knobs.parallel_calls, **knobs.buffer_sizes}.items() if index != END}


def _variant(dataset: Any, settings: Mapping[int, int]) -> tf.Tensor:
    """The pipeline's variant with new settings, given by the `id` of their objects."""
    variants: dict[int, tf.Tensor] = {}
    for current in objects_up_to(dataset):
        below = objects_below(current)
        inputs = [variants[id(each)] for each in below]
        is_untouched = all(new is each._variant_tensor for new, each in zip(inputs, below, strict=True))
        if is_untouched and id(current) not in settings:
            variants[id(current)] = current._variant_tensor
        elif is_wrapper(current):
            # Options, which are put on top in the end, or a name.
            variants[id(current)] = inputs[0]
        else:
            variants[id(current)] = reissue(current, inputs, settings.get(id(current)))
    return variants[id(dataset)]


def _with_options(rebuilt: tf.data.Dataset, dataset: tf.data.Dataset, threads: int | None) -> tf.data.Dataset:
    options = tf.data.Options()
    # Not put on top of each other: TensorFlow warns of options that change another's.
    options._from_proto(dataset.options()._to_proto())
    if threads is not None:
        options.threading.private_threadpool_size = threads
    return rebuilt.with_options(options)


def _check(knobs: Knobs, found: Survey) -> None:
    tunable = found.tunable
    turnable: dict[tuple[str, int], Knob] = {(knob.kind, knob.index): knob for knob in tunable.knobs}
    reasons = {stage.index: stage.reason for stage in tunable.fixed}
    for kind, sizes in (("parallel_calls", knobs.parallel_calls), ("buffer_size", knobs.buffer_sizes)):
        for index, size in sizes.items():
            knob = turnable.get((kind, index))
            if knob is None:
                raise CannotRebuild(f"the {kind} of stage {index} can't be set: {reasons.get(index, 'it has none')}")
            _check_size(size, knob)
    threads = knobs.private_threadpool_size
    if threads is not None and not (tunable.threadpool_is_tunable and _is_count(threads, MAX_CALLS)):
        raise CannotRebuild(f"the threadpool can't have {threads!r} threads")


def _check_size(size: int, knob: Knob) -> None:
    most = knob.limit or MAX_CALLS if knob.kind == "parallel_calls" else MAX_BUFFERED
    if not (_is_count(size, most) or (type(size) is int and size == AUTOTUNE)):
        raise CannotRebuild(f"the {knob.kind} of `{knob.label}` can't be {size!r}: the most is {most}")


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 1 <= value <= most
