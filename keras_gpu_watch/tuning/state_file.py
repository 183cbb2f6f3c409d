# SPDX-License-Identifier: Apache-2.0
"""The best settings as text for the next run, and back. What is read is checked, and never run."""

from __future__ import annotations

import json
from typing import Any

from keras_gpu_watch.findings import AUTOTUNE
from keras_gpu_watch.knobs import END, Knobs

SCHEMA_VERSION = 1
MAX_LETTERS = 2**20
MAX_SHAPES = 20
"""Pipelines whose settings are kept; the oldest make room."""
MAX_VALUE = 10_000
_MAX_ENTRIES = 1_000


def dump_state(before: str | None, shape: str, knobs: Knobs) -> str:
    """Write a pipeline's settings down, and keep those of others.

    Args:
        before: The text so far; `None`: there is none. One that can't be read is replaced.
        shape: The pipeline's key.
        knobs: Its settings.

    Returns:
        JSON.
    """
    try:
        pipelines = _pipelines(before or "")
    except ValueError:
        pipelines = {}
    pipelines.pop(shape, None)
    pipelines[shape] = {
        "parallel_calls": {str(index): value for index, value in knobs.parallel_calls.items()},
        "buffer_sizes": {str(index): value for index, value in knobs.buffer_sizes.items()},
        "private_threadpool_size": knobs.private_threadpool_size,
    }
    kept = dict(list(pipelines.items())[-MAX_SHAPES:])
    return json.dumps({"schema_version": SCHEMA_VERSION, "pipelines": kept}, indent=2) + "\n"


def load_state(text: str, shape: str) -> tuple[Knobs | None, str | None]:
    """Read a pipeline's settings.

    Args:
        text: What `dump_state` gave, or anything else.
        shape: The pipeline's key.

    Returns:
        The settings, and why there are none.
    """
    try:
        pipelines = _pipelines(text)
        if shape not in pipelines:
            return None, "they are of another pipeline, or this one has changed"
        return _read_knobs(pipelines[shape]), None
    except ValueError as error:
        return None, str(error)


def _pipelines(text: str) -> dict[str, Any]:
    if len(text) > MAX_LETTERS:
        raise ValueError(f"it has {len(text):,} letters, at most {MAX_LETTERS:,} were expected")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"it is no file of tuned settings of version {SCHEMA_VERSION}")
    return dict(_object(data.get("pipelines"), "pipelines"))


def _read_knobs(fields: Any) -> Knobs:
    fields = _object(fields, "a pipeline's settings")
    size = fields.get("private_threadpool_size")
    return Knobs(
        parallel_calls=_read_values(fields, "parallel_calls"),
        buffer_sizes=_read_values(fields, "buffer_sizes"),
        private_threadpool_size=None if size is None else _number(size, 1, "private_threadpool_size"),
    )


def _read_values(fields: dict[str, Any], name: str) -> dict[int, int]:
    values = _object(fields.get(name), name)
    return {_index(index, name): _number(value, AUTOTUNE, name) for index, value in values.items()}


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > _MAX_ENTRIES:
        raise ValueError(f"`{name}` is not a JSON object of at most {_MAX_ENTRIES:,} entries")
    return value


def _index(text: str, name: str) -> int:
    number = text.removeprefix("-")
    if not (number.isascii() and number.isdecimal() and len(number) < 6) or int(text) < END:
        raise ValueError(f"`{name}` has an index that is none")
    return int(text)


def _number(value: Any, least: int, name: str) -> int:
    # Exactly: to Python, True is an int.
    if type(value) is not int or not least <= value <= MAX_VALUE or value == 0:
        raise ValueError(f"`{name}` has a value that is no number from 1 to {MAX_VALUE:,}")
    return value
