# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a training uses, whatever `CUDA_VISIBLE_DEVICES` says: where that is not proved, all are shown."""

from __future__ import annotations

import pytest
from nvml_scenarios import ask_cuda, bus_id_of, uuid_of, write

from keras_gpu_watch.probes.cuda import CudaDevice
from keras_gpu_watch.probes.framework_gpus import tensorflow_gpu_ordinals
from keras_gpu_watch.probes.gpu_identity import choose_gpus
from keras_gpu_watch.samples import GpuDevice

GPUS = [GpuDevice(name="A100", uuid=uuid_of(number), pci_bus_id=bus_id_of(number)) for number in range(4)]
EVERYONE = (0, 1, 2, 3)
PCI = "PCI_BUS_ID"

# The variable, the order, the GPUs that CUDA shows, and whether the variable alone proves it. CUDA's own order is the
# bus's turned round.
MATRIX = [
    (None, None, [3, 2, 1, 0], False),
    (None, PCI, [0, 1, 2, 3], False),
    ("", None, [], True),
    (" ", None, [], True),
    ("-1", None, [], True),
    ("none", PCI, [], True),
    ("0", None, [3], False),
    ("0", "FASTEST_FIRST", [3], False),
    ("0", PCI, [0], True),
    ("1", None, [2], False),
    ("1", PCI, [1], True),
    ("1,0", None, [2, 3], False),
    ("1,0", PCI, [1, 0], True),
    ("0,9", None, [3], False),
    ("0,9", PCI, [0], True),
    ("9,0", PCI, [], True),
    ("2,-1,0", PCI, [2], True),
    ("3,1,0,2", PCI, [3, 1, 0, 2], True),
    (uuid_of(2), None, [2], True),
    (f"{uuid_of(2)},{uuid_of(0)}", None, [2, 0], True),
    ("GPU-a0000001", None, [1], True),
    ("GPU-a0000001", PCI, [1], True),
    ("GPU-a", None, [], True),
    ("GPU-a0000001,GPU-a", None, [1], True),
    ("GPU-ffffffff", None, [], True),
    ("GPU-a0000001,0", PCI, [1, 0], True),
    ("GPU-a0000001,0", None, [1, 3], False),
    ("MIG-a0000001-1111-2222-3333-444444444444", None, [], True),
]


def environment_of(visible: str | None, order: str | None) -> dict[str, str]:
    variables = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}
    return {name: value for name, value in variables.items() if value is not None}


def cuda_of(*numbers: int) -> list[CudaDevice]:
    """CUDA writes neither NVML's prefix nor its long domain."""
    return [CudaDevice(uuid_of(n).removeprefix("GPU-"), bus_id_of(n).removeprefix("0000")) for n in numbers]


@pytest.fixture(scope="module")
def shown_by_cuda(cuda_library, tmp_path_factory):
    """What the stub of CUDA shows, by row of the matrix."""
    lines = (f"{uuid_of(number)} {bus_id_of(number).removeprefix('0000')} {number}" for number in range(4))
    machine = write(tmp_path_factory.mktemp("cuda_machine") / "machine.txt", lines)
    answers = ask_cuda(cuda_library, machine, [environment_of(*row[:2]) for row in MATRIX])[2:]
    devices = [answer and [CudaDevice(*device) for device in answer] for answer in answers]
    return dict(zip((row[:2] for row in MATRIX), devices, strict=True))


# Also with what the framework may use of what CUDA shows to it.
CASES = [
    (*row, ordinals) for row in MATRIX for ordinals in (None, (0,), (1,), (0, 1)) if len(row[2]) > max(ordinals or [-1])
]


@pytest.mark.parametrize(("visible", "order", "shown", "_proves", "ordinals"), CASES)
def test_cuda_proves_which_gpus_are_used(shown_by_cuda, visible, order, shown, _proves, ordinals):
    choice = choose_gpus(GPUS, shown_by_cuda[visible, order], ordinals, environment_of(visible, order))
    used = [number for ordinal, number in enumerate(shown) if ordinals is None or ordinal in ordinals]
    assert (list(choice.positions), choice.proven) == (used, True)


@pytest.mark.parametrize(("visible", "order", "shown", "proves", "ordinals"), CASES)
def test_the_environment_alone_proves_it_or_all_are_shown(visible, order, shown, proves, ordinals):
    choice = choose_gpus(GPUS, None, ordinals, environment_of(visible, order))
    used = shown if ordinals is None else [shown[ordinal] for ordinal in ordinals]
    assert choice.proven == proves
    assert list(choice.positions) == (used if proves else list(EVERYONE))
    assert len(choice.proof) > 10


@pytest.mark.parametrize(("visible", "order", "shown", "_proves"), MATRIX)
def test_a_framework_without_gpus_shows_all_or_none(shown_by_cuda, visible, order, shown, _proves):
    choice = choose_gpus(GPUS, shown_by_cuda[visible, order], (), environment_of(visible, order))
    if not choice.proven:
        assert choice.positions == EVERYONE
        assert "the training runs on the CPU" in choice.proof
    else:
        assert (choice.positions, shown) == ((), [])


@pytest.mark.parametrize("visible", ["0,1,2,3", "3,2,1,0"])
def test_a_variable_that_names_all_proves_it_in_any_order(visible):
    choice = choose_gpus(GPUS, None, None, environment_of(visible, None))
    assert (choice.positions, choice.proven) == (EVERYONE, True)
    assert not choose_gpus(GPUS, None, (1,), environment_of(visible, None)).proven


def test_a_single_gpu_needs_no_proof():
    choice = choose_gpus(GPUS[:1], None, None, {})
    assert (choice.positions, choice.proven) == ((0,), True)
    # There may be another one, which does not answer.
    assert not choose_gpus(GPUS[:1], None, None, {}, is_complete=False).proven


@pytest.mark.parametrize(
    ("visible", "positions"), [("0", (0,)), ("1", ()), (uuid_of(0), (0,)), (uuid_of(1), ()), ("0,1", (0,))]
)
def test_a_single_gpu_may_still_be_hidden(visible, positions):
    choice = choose_gpus(GPUS[:1], None, None, environment_of(visible, None))
    assert (choice.positions, choice.proven) == (positions, True)


@pytest.mark.parametrize("visible", ["2,2", f"2,{uuid_of(2)}", f"{uuid_of(2)},{uuid_of(2)}"])
def test_no_gpu_is_shown_twice(visible):
    assert choose_gpus(GPUS, None, None, environment_of(visible, PCI)).positions == (2,)


def test_reversed_numbers_are_matched_by_uuid():
    assert choose_gpus(GPUS, cuda_of(3, 2, 1, 0), None, {}).positions == (3, 2, 1, 0)


def test_reversed_numbers_are_matched_by_bus_id_where_there_are_no_uuids():
    gpus = [GpuDevice(name="K80", pci_bus_id=bus_id_of(number)) for number in range(4)]
    cuda = [CudaDevice(None, device.pci_bus_id) for device in cuda_of(3, 1)]
    assert choose_gpus(gpus, cuda_of(3, 2, 1, 0), None, {}).positions == (3, 2, 1, 0)
    assert choose_gpus(GPUS, cuda, None, {}).positions == (3, 1)


def test_bus_ids_beyond_the_first_domain_are_told_apart():
    gpus = [GpuDevice(name="H100", pci_bus_id=f"{domain:08X}:01:00.0") for domain in (0x1, 0x10, 0x100)]
    cuda = [CudaDevice(None, f"{domain:04X}:01:00.0") for domain in (0x100, 0x1, 0x10)]
    assert choose_gpus(gpus, cuda, None, {}).positions == (2, 0, 1)


@pytest.mark.parametrize(
    "cuda",
    [
        cuda_of(0, 7),
        [*cuda_of(0), CudaDevice(None, None)],
        [*cuda_of(0), CudaDevice("00000000-0000-0000-0000-000000000000", None)],
        cuda_of(0, 0),
    ],
)
def test_a_gpu_that_can_not_be_matched_proves_nothing(cuda):
    choice = choose_gpus(GPUS, cuda, None, {})
    assert (choice.positions, choice.proven) == (EVERYONE, False)
    assert "not in the driver's list" in choice.proof


def test_cuda_without_devices_is_no_gpu():
    choice = choose_gpus(GPUS, [], None, {})
    assert (choice.positions, choice.proof) == ((), "CUDA shows no GPU to this process")


MIG_UUIDS = [f"MIG-b000000{number}-1111-2222-3333-444444444444" for number in range(2)]
# The first card is split into two slices; the second one is number 1 for CUDA, but at place 2 here.
SPLIT = [
    *(GpuDevice(name="MIG", uuid=uuid, pci_bus_id=bus_id_of(0), is_mig_slice=True) for uuid in MIG_UUIDS),
    GPUS[1],
]


def test_a_slice_is_named_by_its_uuid():
    choice = choose_gpus(SPLIT, None, None, environment_of(MIG_UUIDS[1], None))
    assert (choice.positions, choice.proven) == ((1,), True)


def test_a_slice_is_matched_by_its_uuid():
    cuda = [CudaDevice(MIG_UUIDS[1].removeprefix("MIG-"), bus_id_of(0))]
    assert choose_gpus(SPLIT, cuda, None, {}).positions == (1,)


def test_a_bus_id_does_not_tell_two_slices_apart():
    choice = choose_gpus(SPLIT, [CudaDevice(None, bus_id_of(0))], None, {})
    assert (choice.positions, choice.proven) == ((0, 1, 2), False)


@pytest.mark.parametrize("visible", ["0", "1", "2", "0,1,2"])
def test_numbers_prove_nothing_among_slices(visible):
    choice = choose_gpus(SPLIT, None, None, environment_of(visible, PCI))
    assert (choice.positions, choice.proven) == ((0, 1, 2), False)


@pytest.mark.parametrize("visible", ["0", "2", "0,1,2,3"])
def test_numbers_prove_nothing_where_a_gpu_is_silent(visible):
    choice = choose_gpus(GPUS, None, None, environment_of(visible, PCI), is_complete=False)
    assert (choice.positions, choice.proven) == (EVERYONE, False)
    named = choose_gpus(GPUS, None, None, environment_of(uuid_of(2), PCI), is_complete=False)
    assert (named.positions, named.proven) == ((2,), True)


def test_the_framework_names_its_gpus_by_number():
    import tensorflow as tf

    assert tensorflow_gpu_ordinals() == tuple(range(len(tf.config.list_physical_devices("GPU"))))
