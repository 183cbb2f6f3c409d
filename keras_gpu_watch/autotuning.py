# SPDX-License-Identifier: Apache-2.0
"""Tunes the input pipeline between epochs: tells the tuner how each one went, and turns the watched dataset's knobs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from keras_gpu_watch.guard import Guard
from keras_gpu_watch.knobs import Knobs, TuningSummary
from keras_gpu_watch.probes.epoch_iterator import FitInput
from keras_gpu_watch.probes.host_limits import free_memory_bytes
from keras_gpu_watch.probes.stamp_source import KNOBS_ATTRIBUTE, TUNABLE_ATTRIBUTE
from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.samples import Devices
from keras_gpu_watch.tuning import AutoTune, Observation, Tuner, dump_state, load_state

TUNING = "tuning of the input pipeline"
MAX_STATE_BYTES = 2**20


class AutoTuning:
    """The tuning of one `fit`; without limits it does nothing.

    Args:
        limits: What the user allows; `None`: no tuning.
        guard: When we fail, the user's own pipeline is put back, and the training goes on.
        warn: Takes a sentence that the user must see.
        previous: The tuning of this callback's earlier `fit`; what it found is used again.
    """

    def __init__(
        self,
        limits: AutoTune | None,
        guard: Guard,
        warn: Callable[[str], None],
        previous: AutoTuning | None = None,
    ) -> None:
        self._limits = limits or AutoTune()
        self._is_on = limits is not None
        self._guard = guard
        self._warn = warn
        self._tuner: Tuner = Tuner(self._limits) if previous is None else previous._tuner
        self._kept = Knobs()
        """What the next run would begin with."""
        self._dataset: Any = None
        """The watched dataset."""
        self._iterator: Any = None
        self._knobs_seen: list[Knobs | None] = []
        """Of the epoch's iterators."""
        self._epochs = 0
        self._missed_epochs = 0
        """In a row, whose iterators were made with other knobs than asked for."""

    @property
    def summary(self) -> TuningSummary | None:
        """What was tried and found; `None` where nothing is tuned."""
        return None if self._dataset is None else self._tuner.summary

    def begin(self, given: FitInput) -> list[str]:
        """Prepare for a `fit` that has not made its first iterator yet.

        Args:
            given: What `fit` was given.

        Returns:
            Lines for the console.
        """
        lines: list[str] = []
        with self._guarded():
            if self._is_on and given.reason is not None:
                self._is_on = False
                self._warn(f"nothing is tuned: {given.reason}")
            elif self._is_on and given.dataset is not None:
                lines = self._adopt(given.dataset)
        return lines

    def see(self, iterator: Any) -> None:
        """Note what the newest steps fetched from."""
        if self._is_on and iterator is not None and (iterator is not self._iterator or not self._knobs_seen):
            self._iterator = iterator
            self._knobs_seen.append(getattr(iterator, KNOBS_ATTRIBUTE, None))

    def end_epoch(self, summary: EpochSummary, devices: Devices) -> tuple[EpochSummary, list[str]]:
        """Judge the epoch, and choose the knobs of the next one.

        Args:
            summary: The epoch's account.
            devices: The machine.

        Returns:
            The account with the knobs that it ran with, and lines for the console.
        """
        lines: list[str] = []
        with self._guarded():
            if self._is_on and self._dataset is None:
                lines += self._adopt(getattr(self._iterator, TUNABLE_ATTRIBUTE, None))
            if self._is_on:
                summary = dataclasses.replace(summary, knobs=self._knobs_of_epoch())
                lines += self._judge(summary, devices)
        return summary, lines

    def raised(self, error: BaseException) -> list[str]:
        """Put the user's own pipeline back if a step failed while knobs were turned; the cause can't be told for sure.

        Args:
            error: What the step raised. It reaches the user unchanged.

        Returns:
            Lines for the console.
        """
        lines: list[str] = []
        turned = getattr(self._iterator, KNOBS_ATTRIBUTE, None)
        if self._is_on and isinstance(error, Exception) and turned is not None and not turned.is_empty:
            with self._guarded():
                lines = self._tuner.failed(f"a step raised {type(error).__name__}")
                self._turn()
        return lines

    def finish(self) -> None:
        """Let go of the iterator. The dataset keeps its knobs, and is used with them if `fit` is called again."""
        self._iterator = None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._guard(TUNING):
            yield
        if self._is_on and not self._guard.ok(TUNING):
            self._is_on = False
            if self._dataset is not None:
                self._dataset.set_knobs(Knobs())

    def _adopt(self, dataset: Any) -> list[str]:
        if dataset is None:
            self._is_on = False
            self._warn("nothing is tuned: what `fit` reads from could not be found")
            return []
        tunable = dataset.tunable(parallel_python=self._limits.parallel_python)
        lines = self._tuner.begin(tunable, free_memory_bytes(), self._load(tunable.shape))
        # Settings that do not suit today stay in the file until there are better ones.
        self._kept = self._tuner.summary.best
        self._dataset = dataset
        self._turn()
        return lines

    def _turn(self) -> None:
        self._dataset.set_knobs(self._tuner.knobs, parallel_python=self._limits.parallel_python)

    def _judge(self, summary: EpochSummary, devices: Devices) -> list[str]:
        if self._dataset.failure is not None:
            lines = self._tuner.failed(self._dataset.failure)
        else:
            host = summary.host
            observation = Observation(
                summary=summary,
                knobs=summary.knobs,
                is_first=self._epochs == 0,
                usable_cores=devices.host.usable_cores if devices.host else None,
                process_memory_bytes=host.process_memory_max_bytes if host else None,
                free_memory_bytes=free_memory_bytes(),
            )
            lines = self._tuner.judge(observation)
        self._epochs += 1
        self._turn()
        self._save()
        return lines

    def _knobs_of_epoch(self) -> Knobs | None:
        """With which all batches of the epoch were made; `None`: it is not clear, or not yet those asked for.

        Keras may make an epoch's iterator at the end of the epoch before, so one that comes late is no news.
        """
        seen, self._knobs_seen = self._knobs_seen, []
        if not seen or any(each != seen[0] for each in seen):
            return None
        is_late = seen[0] != self._tuner.knobs
        self._missed_epochs = self._missed_epochs + 1 if is_late else 0
        return None if self._missed_epochs == 1 else seen[0]

    def _load(self, shape: str) -> Knobs | None:
        path = self._state_path()
        if path is None:
            return None
        # Here, because with another backend than TensorFlow this package must not load it.
        from keras_gpu_watch.sinks import storage

        try:
            if not storage.exists(path):
                return None
            knobs, message = load_state(storage.read_text(path, MAX_STATE_BYTES), shape)
        except (OSError, ValueError) as error:
            knobs, message = None, f"it can't be read: {error}"
        if message is not None:
            self._warn(f"the tuned settings in {path!r} are not used: {message}")
        return knobs

    def _save(self) -> None:
        """Keep the best settings for the next run, whenever they have changed."""
        path, best = self._state_path(), self._tuner.summary.best
        if path is None or best == self._kept:
            return
        from keras_gpu_watch.sinks import storage

        self._kept = best
        try:
            before = storage.read_text(path, MAX_STATE_BYTES) if storage.exists(path) else None
        except ValueError:
            before = None
        try:
            storage.replace_text(path, dump_state(before, self._tuner.shape, best))
        except OSError as error:
            self._warn(f"the tuned settings can't be kept in {path!r}: {error}")

    def _state_path(self) -> str | None:
        return None if self._limits.state is None else os.fspath(self._limits.state)
