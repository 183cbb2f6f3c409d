# SPDX-License-Identifier: Apache-2.0
"""Keeps `report.json` up to date in the run's directory."""

from __future__ import annotations

from keras_gpu_watch.records import EpochSummary, StepArray
from keras_gpu_watch.samples import GpuSamples, HostSamples
from keras_gpu_watch.sinks import storage
from keras_gpu_watch.tags import REPORT_FILE


class JsonReport:
    """A sink that replaces `report.json` at the end of each epoch and of the run.

    Args:
        run_dir: Directory of the run; must exist.
    """

    def __init__(self, run_dir: str) -> None:
        self._path = storage.join(run_dir, REPORT_FILE)

    def begin(self, report_json: str) -> None:
        """Write the report as it is before the first epoch.

        Raises:
            OSError: If it cannot be written.
        """
        storage.replace_text(self._path, report_json)

    def steps(self, chunk: StepArray) -> None:
        """Nothing: the report is about epochs."""

    def samples(self, gpus: GpuSamples, host: HostSamples) -> None:
        """Nothing: an epoch's account has their statistics."""

    def epoch(self, summary: EpochSummary, report_json: str) -> None:
        """Write the report so far.

        Raises:
            OSError: If it cannot be written.
        """
        storage.replace_text(self._path, report_json)

    def close(self, report_json: str) -> None:
        """Write the final report; where it could not be made, the last one stays.

        Raises:
            OSError: If it cannot be written.
        """
        if report_json:
            storage.replace_text(self._path, report_json)
