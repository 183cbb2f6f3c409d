# SPDX-License-Identifier: Apache-2.0
"""The one guard: our own failure never reaches the user's training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType

logger = logging.getLogger("keras_gpu_watch")


class Guard:
    """Catches our own failures at the package's doors, logs each part's first one, and remembers the part as broken.

    Whoever drives a part asks `ok` and leaves a broken one alone.

    Only `Exception` is caught: Ctrl-C and interpreter exit pass through.

    Args:
        on_failure: Called once per part with a sentence for the report.
    """

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        self._on_failure = on_failure
        self._broken: set[str] = set()

    def ok(self, part: str) -> bool:
        """Whether `part` still works."""
        return part not in self._broken

    def failed(self, part: str, error: Exception) -> None:
        """Take note of `part`'s failure and switch it off.

        Args:
            part: Name of the part, as shown in the report.
            error: What it raised.
        """
        if part in self._broken:
            return
        self._broken.add(part)
        logger.error("keras-gpu-watch: %s failed and is switched off; training goes on.", part, exc_info=error)
        self._on_failure(f"{part} failed and was switched off: {type(error).__name__}: {error}")

    def __call__(self, part: str) -> _Door:
        """A context manager that runs its body for `part` and swallows our own failure.

        The body runs even when the part is already off; check `ok(part)` where it must not.
        """
        return _Door(self, part)


class _Door:
    __slots__ = ("_guard", "_part")

    def __init__(self, guard: Guard, part: str) -> None:
        self._guard = guard
        self._part = part

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self._guard.failed(self._part, error)
            return True
        return False
