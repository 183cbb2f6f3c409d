# SPDX-License-Identifier: Apache-2.0
"""The door to NVML, through the real binding: against a stub of the driver's library, and where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest
from nvml_scenarios import GIB, METRICS, bus_id_of, card, cards, mig_slice, split_card, uuid_of, write

from keras_gpu_watch.probes.nvml import GPM_METRICS, NO_PROCESS_IDS, Handle, Nvml, load_binding
from keras_gpu_watch.probes.nvml_errors import NvmlError

ROOT = Path(__file__).parents[2]
OPEN = "from keras_gpu_watch.probes.nvml import Nvml, load_binding; Nvml(load_binding())"
OPEN_AND_PRINT_THE_REASON = f"""
from keras_gpu_watch.probes.nvml_errors import NvmlError
try:
    {OPEN}
except NvmlError as error:
    print(error.reason)
"""
SHIM = """
import importlib.util
import sys
import warnings

warnings.warn("The pynvml package is deprecated.", FutureWarning, stacklevel=2)
spec = importlib.util.spec_from_file_location("real_pynvml", {path!r})
module = importlib.util.module_from_spec(spec)
sys.modules["real_pynvml"] = module
spec.loader.exec_module(module)
globals().update({{name: value for name, value in vars(module).items() if not name.startswith("__")}})
"""


def open_handles(stub, *lines: str) -> list[Handle | NvmlError]:
    stub.load(*lines)
    return Nvml(load_binding()).handles()


def open_handle(stub, *lines: str) -> Handle:
    (handle,) = open_handles(stub, *lines)
    assert isinstance(handle, Handle)
    return handle


def run_python(code: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, in which nothing was loaded before."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, *flags, "-c", code]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def printed_by(code: str, *flags: str, **environment: str) -> str:
    done = run_python(code, *flags, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_card_is_described(nvml):
    device = open_handle(nvml, *card(3)).describe()
    assert (device.name, device.uuid, device.pci_bus_id) == ("NVIDIA H100 80GB HBM3", uuid_of(3), bus_id_of(3))
    assert (device.memory_total_bytes, device.power_limit_watts) == (80 * GIB, 700.0)
    assert (device.pcie_generation, device.pcie_width) == (5, 16)
    assert (device.is_mig_slice, device.unavailable) == (False, ())


def test_readings_come_in_the_units_of_their_names(nvml):
    handle = open_handle(nvml, *card())
    nvml.set_seconds(10)
    assert handle.utilization_percent() == 87
    assert handle.memory_bytes() == (20 * GIB, 80 * GIB)
    assert handle.power_watts() == 412
    assert handle.energy_joules() == 5_000 + 10 * 412
    assert handle.temperature_celsius() == 61
    assert handle.sm_clock_mhz() == 1755
    assert handle.throttle_reasons() == 0


def test_an_idle_card_reads_zero_utilization(nvml):
    assert open_handle(nvml, *card(utilization=0)).utilization_percent() == 0.0


def test_the_driver_tells_its_version(nvml):
    nvml.load(*card())
    assert Nvml(load_binding()).driver_version() == "580.65.06"


def test_all_cards_are_found_in_nvmls_order(nvml):
    devices = [handle.describe() for handle in open_handles(nvml, *cards(8)) if isinstance(handle, Handle)]
    assert [device.uuid for device in devices] == [uuid_of(number) for number in range(8)]


def test_a_split_card_is_replaced_by_its_slices(nvml):
    handles = open_handles(nvml, *split_card(), *card(1))
    devices = [handle.describe() for handle in handles if isinstance(handle, Handle)]
    assert [device.is_mig_slice for device in devices] == [True, True, False]
    assert [device.memory_total_bytes for device in devices] == [40 * GIB, 40 * GIB, 80 * GIB]
    assert [device.pci_bus_id for device in devices] == [bus_id_of(0), bus_id_of(0), bus_id_of(1)]
    assert [device.power_limit_watts for device in devices] == [None, None, 700.0]


@pytest.mark.parametrize(
    "lines",
    [
        card(0, mig=1),
        [*split_card(), "card.0.error.nvmlDeviceGetMigMode = 3"],
        [*split_card(), "card.0.error.nvmlDeviceGetMaxMigDeviceCount = 999"],
        [*card(0), *mig_slice(8, of=0, instance=1)],
    ],
)
def test_a_card_without_slices_stays_a_card(nvml, lines):
    (handle,) = open_handles(nvml, *lines)
    assert isinstance(handle, Handle)
    assert not handle.is_slice


def test_a_card_that_does_not_answer_is_an_error_in_its_place(nvml):
    handles = open_handles(nvml, *cards(3), "card.1.error.nvmlDeviceGetHandleByIndex_v2 = 15")
    assert [isinstance(handle, NvmlError) for handle in handles] == [False, True, False]
    assert isinstance(handles[1], NvmlError)
    assert "the GPU is lost" in handles[1].reason


@pytest.mark.parametrize(("pids", "others"), [("self", 0), ("self 11 12", 2), ("11 self", 1), ("self self 11", 1)])
def test_other_processes_are_counted_without_this_one(nvml, pids, others):
    assert open_handle(nvml, *card(pids=pids)).other_processes() == others


@pytest.mark.parametrize("pids", ["11 12", ""])
def test_a_list_without_this_process_is_not_counted(nvml, pids):
    # In a container the driver's process ids are the host's, or its list is empty.
    with pytest.raises(NvmlError, match=NO_PROCESS_IDS):
        open_handle(nvml, *card(pids=pids)).other_processes()


def test_a_driver_without_the_newest_list_of_processes_lacks_it(nvml):
    # The binding makes of it an exception that is no NVMLError.
    handle = open_handle(nvml, *card(), "error.nvmlDeviceGetComputeRunningProcesses_v3 = 13")
    with pytest.raises(NvmlError, match="too old") as raised:
        handle.other_processes()
    assert raised.value.is_absence


@pytest.mark.parametrize(
    ("code", "words", "is_no_gpu", "is_final"),
    [
        (9, "the NVIDIA driver is not loaded", True, True),
        (12, "no NVIDIA driver was found", True, True),
        (18, "driver/library version mismatch: reboot", False, True),
        (4, "does not permit", False, False),
        (999, "Unknown Error", False, False),
        (77, "NVML error 77: words of the stub", False, False),
    ],
)
def test_an_error_at_init_tells_cause_and_remedy(nvml, code, words, is_no_gpu, is_final):
    nvml.load(*card(), f"error.nvmlInitWithFlags = {code}")
    with pytest.raises(NvmlError, match=words) as raised:
        Nvml(load_binding())
    assert (raised.value.code, raised.value.is_no_gpu, raised.value.is_final) == (code, is_no_gpu, is_final)
    assert nvml.references == 0


def test_closing_gives_nvml_back(nvml):
    nvml.load(*card())
    door = Nvml(load_binding())
    assert nvml.references == 1
    door.close()
    assert nvml.references == 0


def test_a_handle_tells_that_nvml_was_shut_down(nvml):
    handle = open_handle(nvml, *card())
    load_binding().nvmlShutdown()
    with pytest.raises(NvmlError) as raised:
        handle.power_watts()
    assert raised.value.is_stale


def test_a_function_that_the_binding_lacks_is_an_absence(nvml):
    class OldBinding:
        """The binding, without its newer functions."""

        def __getattr__(self, name: str):
            if "Gpm" in name:
                raise AttributeError(name)
            return getattr(load_binding(), name)

    nvml.load(*card())
    (handle,) = Nvml(OldBinding()).handles()
    assert isinstance(handle, Handle)
    with pytest.raises(NvmlError) as raised:
        handle.gpm()
    assert raised.value.is_absence


def test_gpm_needs_two_readings(nvml):
    gpm = open_handle(nvml, *card()).gpm()
    nvml.set_seconds(1)
    assert gpm.read() is None
    nvml.set_seconds(2)
    assert gpm.read() == {name: METRICS[metric] for name, metric in GPM_METRICS.items()}


def test_the_numbers_of_gpms_metrics_are_the_bindings():
    binding = load_binding()
    names = {
        "sm_activity_percent": "SM_UTIL",
        "sm_occupancy_percent": "SM_OCCUPANCY",
        "tensor_activity_percent": "ANY_TENSOR_UTIL",
        "dram_activity_percent": "DRAM_BW_UTIL",
        "pcie_transmit_mib_per_second": "PCIE_TX_PER_SEC",
        "pcie_receive_mib_per_second": "PCIE_RX_PER_SEC",
        "nvlink_receive_mib_per_second": "NVLINK_TOTAL_RX_PER_SEC",
        "nvlink_transmit_mib_per_second": "NVLINK_TOTAL_TX_PER_SEC",
    }
    assert {field: getattr(binding, f"NVML_GPM_METRIC_{name}") for field, name in names.items()} == GPM_METRICS


def test_gpm_means_over_the_time_since_the_reading_before(nvml):
    gpm = open_handle(nvml, *card(busy_seconds=1, idle_seconds=3)).gpm()
    nvml.set_seconds(0)
    gpm.read()
    # Half a second busy of two, nothing of one, then a whole cycle.
    means = []
    for seconds in (0.5, 2.5, 3.5, 7.5):
        nvml.set_seconds(seconds)
        means.append((gpm.read() or {})["sm_activity_percent"])
    assert means == pytest.approx([55.5 * share for share in (1, 0.25, 0, 0.25)])


def test_a_reading_of_gpm_that_failed_is_bridged_by_the_next(nvml):
    gpm = open_handle(nvml, *card(busy_seconds=1, idle_seconds=1)).gpm()
    nvml.set_seconds(0)
    gpm.read()
    nvml.set("error.nvmlGpmSampleGet = 999")
    with pytest.raises(NvmlError):
        gpm.read()
    nvml.set("error.nvmlGpmSampleGet = 0")
    nvml.set_seconds(4)
    assert (gpm.read() or {})["sm_activity_percent"] == pytest.approx(55.5 / 2)


def test_gpm_of_a_slice_is_the_slices_own(nvml):
    nvml.load(*split_card(), "card.9.metric.2 = 3.5")
    gpms = [handle.gpm() for handle in Nvml(load_binding()).handles() if isinstance(handle, Handle)]
    for seconds in (0, 1):
        nvml.set_seconds(seconds)
        readings = [gpm.read() for gpm in gpms]
    assert [(reading or {})["sm_activity_percent"] for reading in readings] == [55.5 / 2, 3.5]


@pytest.mark.parametrize("readings", [0, 1, 2, 5])
def test_closing_gpm_frees_its_buffers(nvml, readings):
    gpm = open_handle(nvml, *card()).gpm()
    for _ in range(readings):
        gpm.read()
    assert nvml.gpm_samples == 2
    gpm.close()
    assert nvml.gpm_samples == 0


@pytest.mark.skipif(find_library("nvidia-ml") is not None, reason="the driver's library is installed here")
def test_a_missing_library_is_no_gpu():
    reason = "no NVIDIA driver was found (libnvidia-ml.so.1); in a container, start it with GPU support"
    assert printed_by(OPEN_AND_PRINT_THE_REASON) == reason


def test_a_missing_binding_says_what_to_install():
    code = "import sys\nsys.modules['pynvml'] = None\n"
    assert "pip install nvidia-ml-py" in printed_by(code + OPEN_AND_PRINT_THE_REASON)


def test_a_binding_that_does_not_import_says_what_to_install(tmp_path):
    (tmp_path / "pynvml.py").write_text("from no_such_module import something\n")
    printed = printed_by(OPEN_AND_PRINT_THE_REASON, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert "pip install nvidia-ml-py" in printed
    assert "no_such_module" in printed


def test_the_warning_of_the_deprecated_package_does_not_leak(tmp_path, nvml_library):
    (tmp_path / "pynvml.py").write_text(SHIM.format(path=load_binding().__file__))
    scenario = write(tmp_path / "scenario.txt", card())
    code = f"import ctypes\nctypes.CDLL({str(nvml_library)!r})\n{OPEN}\nimport pynvml\nprint(pynvml.__file__)"
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "NVML_STUB_SCENARIO": str(scenario)}
    assert printed_by(code, "-W", "error", **environment) == str(tmp_path / "pynvml.py")
    assert "FutureWarning: The pynvml" in run_python("import pynvml", "-W", "error", **environment).stderr


def test_importing_the_package_loads_neither_binding_nor_library():
    modules = [path.stem for path in (ROOT / "keras_gpu_watch" / "probes").glob("*.py") if path.stem != "__init__"]
    imports = "\n".join(f"import keras_gpu_watch.probes.{name}" for name in sorted(modules))
    code = f"""
import sys
import keras_gpu_watch
import keras_gpu_watch.callback
{imports}
print("pynvml" in sys.modules, "libnvidia-ml" in open("/proc/self/maps").read())
"""
    # TensorFlow writes to standard error.
    assert run_python(code).stdout.strip() == "False False"
