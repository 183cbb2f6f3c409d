# SPDX-License-Identifier: Apache-2.0
"""What an output must offer."""

from __future__ import annotations

from typing import Protocol

from keras_gpu_watch.records import EpochSummary, StepArray
from keras_gpu_watch.samples import GpuSamples, HostSamples


class Sink(Protocol):
    """Receives records; calls come from one thread at a time, in order, and `close` comes once, last.

    A sink may raise: whoever drives it catches that, reports it once and doesn't call it again.
    """

    def steps(self, chunk: StepArray) -> None:
        """Take some steps, oldest first (rows of `STEP_DTYPE`, read-only)."""

    def samples(self, gpus: GpuSamples, host: HostSamples) -> None:
        """Take some samples, oldest first; either may be empty. They may be newer than the last steps taken."""

    def epoch(self, summary: EpochSummary, report_json: str) -> None:
        """Take a finished epoch's account, and the whole report so far as JSON."""

    def close(self, report_json: str) -> None:
        """Take the final report ("" if it could not be made), finish the output and release everything."""
