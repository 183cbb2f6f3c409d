# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator

import pytest

from keras_gpu_watch.guard import Guard
from keras_gpu_watch.records import EpochSummary, StepArray
from keras_gpu_watch.samples import GpuSamples, HostSamples
from keras_gpu_watch.sinks import fanout as fanout_module
from keras_gpu_watch.sinks.fanout import THREAD_NAME, BackgroundFanout
from keras_gpu_watch.sinks.sink import Sink

MakeSteps = Callable[..., StepArray]
MakeEpoch = Callable[..., EpochSummary]
MakeGpus = Callable[..., GpuSamples]
MakeHost = Callable[..., HostSamples]


class Recording:
    """A sink that notes its calls, waits before each while `gate` is closed, and raises `error` if it has one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[object] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.error = error

    def _note(self, call: object) -> None:
        self.entered.set()
        self.gate.wait(10)
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error

    def steps(self, chunk: StepArray) -> None:
        self._note(int(chunk["step"][0]))

    def samples(self, gpus: GpuSamples, host: HostSamples) -> None:
        self._note(("samples", len(gpus), len(host)))

    def epoch(self, summary: EpochSummary, report_json: str) -> None:
        self._note(("epoch", summary.epoch, report_json))

    def close(self, report_json: str) -> None:
        self._note(("close", report_json))


def _no_tick() -> None:
    pass


class Made:
    """Makes fanouts that are closed when the test ends, and keeps what they report."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.write_errors: list[str] = []
        self.fanouts: list[BackgroundFanout] = []

    def __call__(
        self, on_tick: Callable[[], None] = _no_tick, queue_size: int = 256, **sinks: Sink
    ) -> BackgroundFanout:
        fanout = BackgroundFanout(
            sinks, Guard(self.failures.append), on_tick, queue_size, on_write_error=self.write_errors.append
        )
        self.fanouts.append(fanout)
        return fanout


@pytest.fixture
def make() -> Iterator[Made]:
    made = Made()
    yield made
    for fanout in made.fanouts:
        fanout.close("")


def test_everything_arrives_in_order_at_each_sink_from_the_writer_thread(
    make: Made, make_steps: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost, make_epoch: MakeEpoch
) -> None:
    first, second = Recording(), Recording()
    fanout = make(first=first, second=second)
    fanout.start()
    fanout.start()
    for step in (1, 2):
        fanout.steps(make_steps(1, first_step=step))
    fanout.samples(make_gpu_samples(1.0, gpus=3), make_host_samples(1.0))
    fanout.epoch(make_epoch(7), "so far")
    fanout.close("final")
    for sink in (first, second):
        assert sink.calls == [1, 2, ("samples", 3, 1), ("epoch", 7, "so far"), ("close", "final")]
        assert sink.threads == {THREAD_NAME}
    assert fanout.dropped == 0


def test_a_disk_that_hangs_is_waited_for_once(
    make: Made, make_steps: MakeSteps, make_epoch: MakeEpoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout_module, "_EPOCH_WAIT_SECONDS", 0.2)
    sink = Recording()
    sink.gate.clear()
    fanout = make(sink=sink, queue_size=1)
    fanout.start()
    fanout.steps(make_steps(1))
    assert sink.entered.wait(5)
    fanout.steps(make_steps(1))
    waits = []
    for number in range(4):
        begin = time.monotonic()
        fanout.epoch(make_epoch(number), "")
        waits.append(time.monotonic() - begin)
    sink.gate.set()
    fanout.close("")
    assert waits[0] >= 0.2
    assert max(waits[1:]) < waits[0] / 2
    assert fanout.dropped == 4


def test_steps_and_samples_are_dropped_and_counted_when_the_queue_is_full_and_an_epoch_waits_for_room(
    make: Made, make_steps: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost, make_epoch: MakeEpoch
) -> None:
    sink = Recording()
    sink.gate.clear()
    fanout = make(sink=sink, queue_size=2)
    fanout.start()
    fanout.steps(make_steps(1, first_step=1))
    assert sink.entered.wait(5)
    for step in (2, 3, 4, 5):
        fanout.steps(make_steps(1, first_step=step))
    fanout.samples(make_gpu_samples(1.0), make_host_samples(1.0))
    assert fanout.dropped == 3
    opener = threading.Timer(0.1, sink.gate.set)
    opener.start()
    fanout.epoch(make_epoch(0), "")
    fanout.close("")
    opener.join()
    assert sink.calls == [1, 2, 3, ("epoch", 0, ""), ("close", "")]
    assert fanout.dropped == 3


def test_closing_passes_on_what_is_queued_even_when_the_queue_is_full(make: Made, make_steps: MakeSteps) -> None:
    sink = Recording()
    sink.gate.clear()
    fanout = make(sink=sink, queue_size=3)
    fanout.start()
    fanout.steps(make_steps(1, first_step=1))
    assert sink.entered.wait(5)
    for step in (2, 3, 4):
        fanout.steps(make_steps(1, first_step=step))
    opener = threading.Timer(0.1, sink.gate.set)
    opener.start()
    fanout.close("end")
    opener.join()
    assert sink.calls == [1, 2, 3, 4, ("close", "end")]


def test_closing_gives_up_on_a_sink_that_hangs(make: Made, make_steps: MakeSteps) -> None:
    sink = Recording()
    sink.gate.clear()
    fanout = make(sink=sink)
    fanout.start()
    fanout.steps(make_steps(1))
    fanout.close("", timeout_seconds=0.05)
    assert sink.calls == []
    sink.gate.set()


def test_closing_again_changes_nothing_and_later_records_are_ignored(make: Made, make_steps: MakeSteps) -> None:
    sink = Recording()
    fanout = make(sink=sink)
    fanout.start()
    fanout.close("first")
    fanout.close("second")
    fanout.steps(make_steps(1))
    fanout.start()
    assert sink.calls == [("close", "first")]


def test_a_fanout_that_was_never_started_still_writes_when_it_is_closed(make: Made, make_steps: MakeSteps) -> None:
    sink = Recording()
    fanout = make(sink=sink)
    fanout.steps(make_steps(1))
    fanout.close("end")
    fanout.close("again")
    assert sink.calls == [1, ("close", "end")]


def test_closing_does_not_wait_for_the_next_tick(make: Made) -> None:
    ticks: list[None] = []
    fanout = make(on_tick=lambda: ticks.append(None))
    fanout.start()
    fanout.close("", timeout_seconds=10)
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]
    assert ticks == []


def test_a_sink_that_fails_is_dropped_and_the_others_go_on(
    make: Made, make_steps: MakeSteps, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Recording(error=ValueError("broken")), Recording()
    fanout = make(bad=bad, good=good)
    fanout.start()
    for step in (1, 2):
        fanout.steps(make_steps(1, first_step=step))
    with caplog.at_level(logging.ERROR):
        fanout.close("")
    assert bad.calls == [1]
    assert good.calls == [1, 2, ("close", "")]
    assert make.failures == ["bad failed and was switched off: ValueError: broken"]
    assert make.write_errors == []


def test_a_disk_that_cannot_be_written_gives_one_warning_that_names_the_path(make: Made, make_steps: MakeSteps) -> None:
    fanout = make(
        events=Recording(error=PermissionError(13, "Permission denied", "/data/logs/events")),
        report=Recording(error=PermissionError(13, "Permission denied", "/data/logs/report.json")),
    )
    fanout.start()
    fanout.steps(make_steps(1))
    with pytest.warns(RuntimeWarning) as caught:
        fanout.close("")
    assert [str(item.message) for item in caught] == [
        "keras-gpu-watch: events cannot be written any more: [Errno 13] Permission denied: '/data/logs/events'; "
        "training goes on."
    ]
    assert len(make.write_errors) == 2
    assert make.failures == []


def test_warnings_made_errors_do_not_end_the_thread(
    make: Made, make_steps: MakeSteps, caplog: pytest.LogCaptureFixture
) -> None:
    good = Recording()
    fanout = make(bad=Recording(error=OSError("disk full")), good=good)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fanout.start()
        fanout.steps(make_steps(1))
        fanout.close("")
    assert good.calls == [1, ("close", "")]
    assert "disk full" in caplog.text
    assert make.failures == []


def test_the_tick_comes_again_and_again_from_the_writer_thread(make: Made) -> None:
    ticks: list[str] = []
    enough = threading.Event()

    def tick() -> None:
        ticks.append(threading.current_thread().name)
        if len(ticks) == 2:
            enough.set()

    make(on_tick=tick).start()
    assert enough.wait(10)
    assert set(ticks) == {THREAD_NAME}


def test_the_tick_also_comes_while_records_keep_arriving(make: Made, make_steps: MakeSteps) -> None:
    ticked = threading.Event()
    fanout = make(on_tick=ticked.set)
    fanout.start()
    deadline_seconds = time.monotonic() + 10
    while not ticked.is_set() and time.monotonic() < deadline_seconds:
        fanout.steps(make_steps(1))
        time.sleep(0.001)
    assert ticked.is_set()


def test_a_tick_that_fails_is_switched_off_and_the_sinks_go_on(make: Made, make_steps: MakeSteps) -> None:
    failed = threading.Event()
    calls: list[None] = []

    def tick() -> None:
        calls.append(None)
        failed.set()
        raise ValueError("tick")

    sink = Recording()
    fanout = make(on_tick=tick, sink=sink)
    fanout.start()
    assert failed.wait(10)
    time.sleep(0.7)
    fanout.steps(make_steps(1))
    fanout.close("")
    assert sink.calls == [1, ("close", "")]
    assert len(calls) == len(make.failures) == 1


def test_it_can_be_closed_from_its_own_thread(make: Made) -> None:
    sink = Recording()
    closed = threading.Event()

    def tick() -> None:
        fanout.close("from the tick")
        closed.set()

    fanout = make(on_tick=tick, sink=sink)
    fanout.start()
    assert closed.wait(10)
    assert sink.calls == [("close", "from the tick")]
    fanout.close("from outside")
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]
    assert sink.calls == [("close", "from the tick")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_neither_writes_nor_waits(
    make: Made, make_steps: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost, make_epoch: MakeEpoch
) -> None:
    sink = Recording()
    fanout = make(sink=sink, queue_size=1)
    fanout.start()
    child = os.fork()
    if child == 0:
        fanout.steps(make_steps(1))
        fanout.samples(make_gpu_samples(1.0), make_host_samples(1.0))
        fanout.epoch(make_epoch(), "")
        fanout.epoch(make_epoch(), "")
        fanout.close("child")
        os._exit(0 if sink.calls == [] and fanout.dropped == 0 else 1)
    _, status = os.waitpid(child, 0)
    fanout.close("parent")
    assert os.waitstatus_to_exitcode(status) == 0
    assert sink.calls == [("close", "parent")]
