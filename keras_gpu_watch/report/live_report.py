# SPDX-License-Identifier: Apache-2.0
"""The report of a run under way: several threads change it, and it can be read at any time."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from keras_gpu_watch.report.run_report import RunReport


class LiveReport:
    """Holds the newest `RunReport`."""

    def __init__(self) -> None:
        self.newest = RunReport()
        self._lock = threading.Lock()

    def update(self, **changes: Any) -> None:
        """Change some fields."""
        with self._lock:
            self.newest = dataclasses.replace(self.newest, **changes)

    def add_note(self, text: str) -> bool:
        """Add a note; `False` if it was there already."""
        with self._lock:
            if text in self.newest.notes:
                return False
            self.newest = dataclasses.replace(self.newest, notes=(*self.newest.notes, text))
        return True
