# SPDX-License-Identifier: Apache-2.0
"""Samples the GPUs that a training uses, whatever NVML does: a failure leaves a gap and a reason, never zeros."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from keras_gpu_watch.clock import Clock, monotonic
from keras_gpu_watch.probes.cuda import cuda_devices
from keras_gpu_watch.probes.gpu_card import Card
from keras_gpu_watch.probes.gpu_identity import choose_gpus
from keras_gpu_watch.probes.nvml import Handle, Nvml
from keras_gpu_watch.probes.nvml_errors import UNINITIALIZED, NvmlError
from keras_gpu_watch.samples import GPU_FIELDS, GPU_SAMPLE_DTYPE, Devices, GpuSamples

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
NO_DEVICE = "the NVIDIA driver lists no GPU"


class Retry:
    """When to ask again what has failed: after 1, 2, 4, ... 60 s."""

    def __init__(self) -> None:
        self._due_seconds = float("-inf")
        self._pause_seconds = FIRST_RETRY_SECONDS

    def is_due(self, now: float) -> bool:
        """Whether to ask now."""
        return now >= self._due_seconds

    def failed(self, now: float) -> None:
        """Wait, twice as long as the last time."""
        self._due_seconds = now + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_RETRY_SECONDS)

    def succeeded(self) -> None:
        """Start from the shortest pause the next time."""
        self._pause_seconds = FIRST_RETRY_SECONDS


class GpuSampler:
    """Samples GPUs; one thread drives it, `devices` may be asked from any.

    States: new -> sampling -> (NVML or all GPUs fail) -> lost -> (a retry succeeds) -> sampling. From new also to
    "no gpu" and "not sampled", for good.

    Args:
        binding: What `load_binding` gave.
        ordinals: CUDA ordinals of the GPUs that the framework uses; `None` when it can't be asked.
        note: Takes a sentence for the user.
        step: Gives the training step under way, to tell when data was lost.
        is_stopping: Asked between two GPUs, whose calls may be slow: whether to leave the others out.
        environment: The process's environment variables.
        clock: The monotonic clock.
    """

    def __init__(
        self,
        binding: Any,
        ordinals: Sequence[int] | None,
        note: Callable[[str], None],
        step: Callable[[], int] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        environment: Mapping[str, str] = os.environ,
        clock: Clock = monotonic,
    ) -> None:
        self._binding = binding
        self._ordinals = ordinals
        self._note = note
        self._step = step
        self._is_stopping = is_stopping
        self._environment = environment
        self._clock = clock
        self._nvml: Nvml | None = None
        self._cards: list[Card] = []
        self._retries: list[Retry] = []
        """One for each card."""
        self._retry = Retry()
        self._state = Devices()
        self._is_final = False
        self._said: set[str] = set()

    @property
    def devices(self) -> Devices:
        """What is known of the GPUs by now."""
        return dataclasses.replace(self._state, gpus=tuple(card.device for card in self._cards))

    def sample(self) -> GpuSamples:
        """Read all GPUs.

        Returns:
            One row for each GPU that answers; none in a gap.
        """
        nothing = np.zeros(0, GPU_SAMPLE_DTYPE)
        if self._is_final or not self._retry.is_due(self._clock()):
            return nothing
        try:
            rows = self._open_and_read()
        except NvmlError as error:
            self._fail(error)
            return nothing
        if len(rows) and self._state.status != "sampled":
            self._state = dataclasses.replace(self._state, status="sampled", reason=None)
        self._retry.succeeded()
        return rows

    def close(self) -> None:
        """Give everything back to the driver."""
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        self._close_cards(self._cards)
        with suppress(NvmlError):
            nvml.close()

    @staticmethod
    def _close_cards(cards: Iterable[Card]) -> None:
        # Whatever fails here is gone already.
        for card in cards:
            with suppress(NvmlError):
                card.close()

    def _open_and_read(self) -> GpuSamples:
        if self._nvml is None:
            self._open()
        try:
            return self._read()
        except NvmlError as error:
            if not error.is_stale:
                raise
            if error.code == UNINITIALIZED:
                # Somebody else shut NVML down. It may be initialized any number of times.
                self._nvml = None
        self._close_cards(self._cards)
        self._open()
        return self._read(is_fresh=True)

    def _open(self) -> None:
        """Initialize NVML where it is not, and look the GPUs up."""
        nvml = self._nvml = self._nvml or Nvml(self._binding)
        try:
            self._look_up(nvml)
        except NvmlError:
            # Each retry initializes it once more.
            self._nvml = None
            with suppress(NvmlError):
                nvml.close()
            raise

    def _look_up(self, nvml: Nvml) -> None:
        handles = nvml.handles()
        silent = [error for error in handles if isinstance(error, NvmlError)]
        if silent and len(silent) == len(handles):
            raise silent[0]
        found = [Card(handle, self._clock) for handle in handles if isinstance(handle, Handle)]
        if self._cards:
            self._replace(found)
        else:
            self._choose(found, nvml, is_complete=not silent)
            for error in silent:
                self._say(f"a GPU is not sampled: {error.reason}")
        self._close_cards([card for card in found if card not in self._cards])

    def _replace(self, found: Sequence[Card]) -> None:
        """Take new doors to the same cards; one that does not show up again keeps its old one."""
        # The slices of one card share its bus id, and old drivers give no UUID.
        doors = {(card.device.uuid, card.device.pci_bus_id): card for card in found}
        for index, older in enumerate(self._cards):
            newer = doors.get((older.device.uuid, older.device.pci_bus_id))
            if newer is not None:
                newer.take_over(older)
                self._cards[index] = newer

    def _choose(self, found: Sequence[Card], nvml: Nvml, is_complete: bool) -> None:
        devices = [card.device for card in found]
        choice = choose_gpus(devices, cuda_devices(), self._ordinals, self._environment, is_complete=is_complete)
        version = None
        with suppress(NvmlError, UnicodeDecodeError):
            version = nvml.driver_version()
        self._state = Devices(identity=choice.proof, driver_version=version)
        if not found or not choice.positions:
            self._end("no gpu", choice.proof if found else NO_DEVICE)
            return
        if not choice.proven:
            self._say(f"GPUs: {choice.proof}")
        self._cards = [found[position] for position in choice.positions]
        self._retries = [Retry() for _ in self._cards]
        for card in self._cards:
            card.count_processes()

    def _read(self, is_fresh: bool = False) -> GpuSamples:
        rows = np.zeros(len(self._cards), GPU_SAMPLE_DTYPE)
        answered: list[int] = []
        lost: list[tuple[int, NvmlError]] = []
        for index, (card, retry) in enumerate(zip(self._cards, self._retries, strict=True)):
            begin = self._clock()
            if self._is_stopping() or not retry.is_due(begin):
                continue
            try:
                values = card.read()
            except NvmlError as error:
                if error.is_stale and not is_fresh:
                    raise
                lost.append((index, error))
                retry.failed(begin)
            else:
                retry.succeeded()
                answered.append(index)
                seconds = (begin + self._clock()) / 2
                rows[index] = (seconds, index, *(values.get(name, np.nan) for name in GPU_FIELDS))
        if lost and not answered:
            raise lost[0][1]
        for index, why in lost:
            self._say_lost(f"no more data of GPU {index} ({self._cards[index].device.label})", why)
        return rows[answered]

    def _fail(self, error: NvmlError) -> None:
        self._retry.failed(self._clock())
        if self._cards:
            self._state = dataclasses.replace(self._state, status="lost", reason=error.reason)
            self._say_lost("no more GPU data", error)
        elif error.is_no_gpu:
            self._end("no gpu", error.reason)
        elif error.is_final:
            self._end("not sampled", error.reason)
        else:
            self._state = dataclasses.replace(self._state, status="not sampled", reason=error.reason)
            self._say(f"no GPU is sampled: {error.reason}")

    def _end(self, status: Literal["no gpu", "not sampled"], reason: str) -> None:
        self._is_final = True
        self._state = dataclasses.replace(self._state, status=status, reason=reason)
        self._say(f"no GPU is sampled: {reason}")

    def _say_lost(self, what: str, why: NvmlError) -> None:
        # Once for each outage would be a line for each retry.
        if what in self._said:
            return
        self._said.add(what)
        since = "" if self._step is None else f" from step {self._step()} on"
        self._note(f"{what}{since}: {why.reason}")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._note(text)
