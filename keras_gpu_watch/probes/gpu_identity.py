# SPDX-License-Identifier: Apache-2.0
"""Which of the machine's GPUs a training uses. Pure: what NVML, CUDA, the framework and the environment say goes in.

NVML numbers GPUs by their place on the PCI bus, CUDA by default the fastest one first, so a number proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_gpu_watch.probes.cuda import CudaDevice
from keras_gpu_watch.samples import GpuDevice

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True)
class Choice:
    """The GPUs to watch."""

    positions: tuple[int, ...]
    """In NVML's list, in the framework's order; empty when the training uses none."""
    proof: str
    """How this is known, or why it is not."""
    proven: bool = True
    """False: which ones are used is not known, and all are watched."""


def choose_gpus(
    gpus: Sequence[GpuDevice],
    cuda: Sequence[CudaDevice] | None,
    ordinals: Sequence[int] | None,
    environment: Mapping[str, str],
    is_complete: bool = True,
) -> Choice:
    """Choose the GPUs that the training uses; all of them where that can't be proved.

    Args:
        gpus: NVML's list, with a MIG slice in place of each card that is split.
        cuda: What CUDA shows to this process; `None` when it can't be asked.
        ordinals: Those of them that the framework uses; `None` when it can't be asked.
        environment: The process's environment variables.
        is_complete: False when `gpus` lacks one that does not answer, so that places in the list are no numbers.
    """
    visible = environment.get(VISIBLE)
    if cuda is None and visible is not None and not _entries(visible):
        return Choice((), f"{VISIBLE}={visible} hides every GPU from this training")
    if ordinals is not None and not ordinals:
        return _all(gpus, "the framework uses none, the training runs on the CPU; shown are all GPUs of the machine")
    if cuda is not None:
        return _by_cuda(gpus, cuda, ordinals)
    if visible is not None:
        has_numbers = is_complete and not any(gpu.is_mig_slice for gpu in gpus)
        return _by_environment(gpus, _entries(visible), ordinals, environment.get(ORDER), has_numbers)
    if len(gpus) == 1 and is_complete:
        return Choice((0,), "it is the only GPU")
    return _all(gpus, "CUDA can't be asked which GPUs it uses; shown are all GPUs of the machine")


def _all(gpus: Sequence[GpuDevice], why: str) -> Choice:
    return Choice(tuple(range(len(gpus))), why, proven=False)


def _by_cuda(gpus: Sequence[GpuDevice], cuda: Sequence[CudaDevice], ordinals: Sequence[int] | None) -> Choice:
    if not cuda:
        return Choice((), "CUDA shows no GPU to this process")
    used = [device for ordinal, device in enumerate(cuda) if ordinals is None or ordinal in ordinals]
    found = [_position(gpus, device) for device in used]
    positions = tuple(position for position in found if position is not None)
    if len(positions) < len(used) or len(set(positions)) < len(positions):
        return _all(gpus, "some GPU that CUDA shows is not in the driver's list; shown are all GPUs of the machine")
    return Choice(positions, "matched by UUID or PCI bus id with what CUDA shows to this process")


def _position(gpus: Sequence[GpuDevice], device: CudaDevice) -> int | None:
    by_uuid = [i for i, gpu in enumerate(gpus) if device.uuid and _same_uuid(gpu.uuid, device.uuid)]
    # The slices of one card share its bus id.
    by_bus = [i for i, gpu in enumerate(gpus) if device.pci_bus_id and _same_bus(gpu.pci_bus_id, device.pci_bus_id)]
    for found in (by_uuid, by_bus):
        if len(found) == 1:
            return found[0]
    return None


def _same_uuid(nvml: str | None, cuda: str) -> bool:
    return nvml is not None and nvml.lower().removeprefix("gpu-").removeprefix("mig-") == cuda.lower()


def _same_bus(nvml: str | None, cuda: str) -> bool:
    # NVML writes the domain with eight digits, CUDA with four.
    return nvml is not None and nvml.lower().lstrip("0") == cuda.lower().lstrip("0")


def _entries(visible: str) -> list[str]:
    """The entries that CUDA accepts: an invalid one hides itself and all after it."""
    entries: list[str] = []
    for entry in (part.strip() for part in visible.split(",")):
        if not (entry.isdecimal() or entry.upper().startswith(("GPU-", "MIG-"))):
            break
        entries.append(entry)
    return entries


def _by_environment(
    gpus: Sequence[GpuDevice],
    entries: Sequence[str],
    ordinals: Sequence[int] | None,
    order: str | None,
    has_numbers: bool,
) -> Choice:
    everyone = range(len(gpus))
    names_all = has_numbers and ordinals is None and sorted(entries) == sorted(map(str, everyone))
    if names_all and order != "PCI_BUS_ID":
        return Choice(tuple(everyone), f"{VISIBLE} names all GPUs of the machine")
    # A single GPU is number 0 in every order.
    has_numbers = has_numbers and (order == "PCI_BUS_ID" or len(gpus) == 1)
    positions: list[int] = []
    for entry in entries:
        if entry.isdecimal() and not has_numbers:
            return _all(gpus, f"{VISIBLE} gives numbers, {_why_not_by_number(order)}")
        matches = [int(entry)] if entry.isdecimal() else _with_prefix(gpus, entry)
        # CUDA does not look at what follows an entry that is wrong.
        if len(matches) != 1 or matches[0] not in everyone or matches[0] in positions:
            break
        positions += matches
    if ordinals is not None:
        positions = [positions[ordinal] for ordinal in ordinals if ordinal < len(positions)]
    if not positions:
        return Choice((), f"{VISIBLE} names no GPU of this machine, so the training sees none")
    return Choice(tuple(positions), f"named by {VISIBLE}")


def _why_not_by_number(order: str | None) -> str:
    if order != "PCI_BUS_ID":
        return f"and without {ORDER}=PCI_BUS_ID CUDA has an order of its own; shown are all GPUs of the machine"
    return "but the driver's list has MIG slices or lacks a GPU; shown are all GPUs of the machine"


def _with_prefix(gpus: Sequence[GpuDevice], prefix: str) -> list[int]:
    return [i for i, gpu in enumerate(gpus) if gpu.uuid is not None and gpu.uuid.lower().startswith(prefix.lower())]
