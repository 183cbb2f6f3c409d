# SPDX-License-Identifier: Apache-2.0
"""NVML's error codes, and what they mean for a user."""

from __future__ import annotations

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
UNKNOWN = 999

_REASONS = {
    UNINITIALIZED: "NVML was shut down by something else in this process",
    NOT_SUPPORTED: "this GPU or driver does not give it",
    NO_PERMISSION: "the driver does not permit it to this user",
    DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded: run nvidia-smi once, or reboot",
    LIBRARY_NOT_FOUND: "no NVIDIA driver was found (libnvidia-ml.so.1); in a container, start it with GPU support",
    FUNCTION_NOT_FOUND: "this driver is too old to give it",
    GPU_IS_LOST: "the GPU is lost: look for Xid in the kernel log, then reset it or reboot",
    LIB_RM_VERSION_MISMATCH: "driver/library version mismatch: reboot, or load the driver that matches the library",
    ARGUMENT_VERSION_MISMATCH: "this driver is too old to give it",
    UNKNOWN: "NVML answers only 'Unknown Error'; in a container, which loses its devices when the host reloads its "
    "services, restart it",
}
_ABSENT = (NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH)
_NO_GPU = (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED)
_STALE = (UNINITIALIZED, INVALID_ARGUMENT)


class NvmlError(Exception):
    """NVML does not answer.

    Args:
        code: Its error code; `None` where it could not even be asked.
        words: What to say of a code that is not known here.
    """

    def __init__(self, code: int | None, words: str = "") -> None:
        self.code = code
        self.reason: str = words if code is None else _REASONS.get(code, f"NVML error {code}: {words}")
        """Cause and remedy, for the user."""
        super().__init__(self.reason)

    @property
    def is_absence(self) -> bool:
        """Whether it is one reading's, and will be so for the whole run."""
        return self.code in _ABSENT

    @property
    def is_no_gpu(self) -> bool:
        """Whether it says that there is no GPU here."""
        return self.code in _NO_GPU

    @property
    def is_stale(self) -> bool:
        """Whether NVML may answer at once when it is initialized, or its handles are looked up, anew."""
        return self.code in _STALE

    @property
    def is_final(self) -> bool:
        """Whether it is no use to ask again in this run."""
        return self.code is None or self.is_no_gpu or self.code == LIB_RM_VERSION_MISMATCH
