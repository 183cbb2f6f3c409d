# SPDX-License-Identifier: Apache-2.0
"""Chooses the directory of a run: a new one for a fresh training, the earlier one for a resumed training."""

from __future__ import annotations

import json
import re

from keras_gpu_watch.sinks import storage
from keras_gpu_watch.tags import REPORT_FILE, RUN_NAME

_NUMBERED = re.compile(rf"{re.escape(RUN_NAME)}(?:-([1-9][0-9]*))?")


def choose_run_dir(
    log_dir: str, start_step: int, worker: int | None = None, previous: str | None = None
) -> tuple[str, bool]:
    """Find or create the directory that this training writes to.

    A fresh training gets a directory that did not exist before, so that two trainings never share one. A resumed
    training continues the newest run that began before `start_step`; if there is none, it counts as fresh.

    Args:
        log_dir: Directory that TensorBoard is pointed at, `~` already expanded; created where missing.
        start_step: Optimizer iterations done before this training's first step; 0 for a fresh training.
        worker: Index in a multi-worker job. Workers don't wait for each other: each looks at its own directories only.
        previous: Directory that the same callback used in an earlier `fit`.

    Returns:
        The directory, and whether an earlier run is continued in it.

    Raises:
        OSError: If the directory cannot be created or looked for.
    """
    if start_step > 0:
        if previous is not None and _continues(previous, start_step):
            return previous, True
        for number in sorted(_numbers(log_dir), reverse=True):
            path = _path(log_dir, number, worker)
            if _continues(path, start_step):
                return path, True
    # Nobody else can have taken it: this callback created it and then wrote nothing.
    if previous is not None and storage.exists(previous) and not _used(previous):
        return previous, False
    return _create(log_dir, worker), False


def _path(log_dir: str, number: int, worker: int | None) -> str:
    run = storage.join(log_dir, RUN_NAME if number == 1 else f"{RUN_NAME}-{number}")
    return run if worker is None else storage.join(run, f"worker-{worker}")


def _numbers(log_dir: str) -> list[int]:
    """Numbers of the run directories in `log_dir`; the one without a number is 1."""
    matches = (_NUMBERED.fullmatch(name) for name in storage.list_directory(log_dir))
    return [int(match[1] or 1) for match in matches if match]


def _create(log_dir: str, worker: int | None) -> str:
    # A directory that is there is taken, even an empty one: its owner may be about to write.
    number = 1
    while True:
        path = _path(log_dir, number, worker)
        storage.make_directories(path.rpartition("/")[0])
        if storage.make_directory(path):
            return path
        number += 1


def _used(path: str) -> bool:
    """Whether a run has written something into this directory."""
    return any(name == REPORT_FILE or "tfevents" in name for name in storage.list_directory(path))


def _continues(path: str, start_step: int) -> bool:
    """Whether the run in `path` began before `start_step`, as far as its report can be read.

    One that began there is another training from the same checkpoint.
    """
    try:
        report = json.loads(storage.read_text(storage.join(path, REPORT_FILE)))
        began = report["start_step"]
    except (OSError, ValueError, TypeError, KeyError):
        return False
    return isinstance(began, int) and began < start_step
