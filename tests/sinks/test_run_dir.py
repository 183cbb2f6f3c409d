# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from keras_gpu_watch.sinks.run_dir import choose_run_dir


def _run(log_dir: Path, name: str, start_step: object) -> str:
    path = log_dir / name
    path.mkdir(parents=True)
    (path / "report.json").write_text(json.dumps({"start_step": start_step}))
    return str(path)


def test_the_first_training_gets_the_plain_name(tmp_path: Path) -> None:
    assert choose_run_dir(str(tmp_path / "deep" / "logs"), 0) == (str(tmp_path / "deep" / "logs" / "gpu_watch"), False)
    assert (tmp_path / "deep" / "logs" / "gpu_watch").is_dir()


def test_a_fresh_training_in_a_used_directory_gets_the_next_number(tmp_path: Path) -> None:
    _run(tmp_path, "gpu_watch", 0)
    assert choose_run_dir(str(tmp_path), 0) == (str(tmp_path / "gpu_watch-2"), False)
    assert choose_run_dir(str(tmp_path), 0) == (str(tmp_path / "gpu_watch-3"), False)


def test_trainings_that_start_at_once_never_share_a_directory(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    chosen = []

    def choose() -> None:
        barrier.wait()
        chosen.append(choose_run_dir(str(tmp_path), 0)[0])

    threads = [threading.Thread(target=choose) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(chosen)) == 8


def test_a_resumed_training_continues_the_newest_run_that_began_before_it(tmp_path: Path) -> None:
    for name, start_step in (("gpu_watch", 0), ("gpu_watch-2", 100), ("gpu_watch-10", 500)):
        _run(tmp_path, name, start_step)
    assert choose_run_dir(str(tmp_path), 501) == (str(tmp_path / "gpu_watch-10"), True)
    assert choose_run_dir(str(tmp_path), 499) == (str(tmp_path / "gpu_watch-2"), True)
    assert choose_run_dir(str(tmp_path), 99) == (str(tmp_path / "gpu_watch"), True)


def test_two_trainings_from_one_checkpoint_do_not_share_a_run(tmp_path: Path) -> None:
    _run(tmp_path, "gpu_watch", 5000)
    assert choose_run_dir(str(tmp_path), 5000) == (str(tmp_path / "gpu_watch-2"), False)


def test_a_resumed_training_that_no_run_fits_gets_a_new_directory(tmp_path: Path) -> None:
    _run(tmp_path, "gpu_watch", 100)
    assert choose_run_dir(str(tmp_path), 50) == (str(tmp_path / "gpu_watch-2"), False)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"{}", b'{"start_step": null}', b'{"start_step": "0"}', b"\xff\xfe"])
def test_a_run_whose_report_is_broken_is_not_continued(tmp_path: Path, content: bytes) -> None:
    _run(tmp_path, "gpu_watch", 0)
    (tmp_path / "gpu_watch" / "report.json").write_bytes(content)
    assert choose_run_dir(str(tmp_path), 100) == (str(tmp_path / "gpu_watch-2"), False)


def test_directories_of_other_writers_are_no_runs(tmp_path: Path) -> None:
    for name in ("train", "gpu_watch_old", "gpu_watch-x", "gpu_watch-02"):
        _run(tmp_path, name, 0)
    assert choose_run_dir(str(tmp_path), 100) == (str(tmp_path / "gpu_watch"), False)


def test_a_second_fit_of_the_same_callback_continues_its_own_run_and_not_a_newer_one(tmp_path: Path) -> None:
    own = _run(tmp_path, "gpu_watch", 0)
    _run(tmp_path, "gpu_watch-2", 0)
    assert choose_run_dir(str(tmp_path), 100, previous=own) == (own, True)


def test_a_second_fit_from_scratch_gets_a_run_of_its_own(tmp_path: Path) -> None:
    own = _run(tmp_path, "gpu_watch", 0)
    assert choose_run_dir(str(tmp_path), 0, previous=own) == (str(tmp_path / "gpu_watch-2"), False)


def test_a_second_fit_reuses_the_directory_in_which_the_first_wrote_nothing(tmp_path: Path) -> None:
    own, _ = choose_run_dir(str(tmp_path), 0)
    assert choose_run_dir(str(tmp_path), 0, previous=own) == (own, False)
    (tmp_path / "gpu_watch" / "events.out.tfevents.1.host.2.0").touch()
    assert choose_run_dir(str(tmp_path), 0, previous=own) == (str(tmp_path / "gpu_watch-2"), False)


def test_an_earlier_run_that_was_deleted_is_not_continued(tmp_path: Path) -> None:
    gone = str(tmp_path / "elsewhere" / "gpu_watch")
    assert choose_run_dir(str(tmp_path), 100, previous=gone) == (str(tmp_path / "gpu_watch"), False)


def test_workers_of_one_job_get_directories_of_their_own_in_the_same_run(tmp_path: Path) -> None:
    assert choose_run_dir(str(tmp_path), 0, worker=0) == (str(tmp_path / "gpu_watch" / "worker-0"), False)
    assert choose_run_dir(str(tmp_path), 0, worker=1) == (str(tmp_path / "gpu_watch" / "worker-1"), False)
    assert choose_run_dir(str(tmp_path), 0, worker=1) == (str(tmp_path / "gpu_watch-2" / "worker-1"), False)


def test_a_resumed_worker_continues_its_own_files(tmp_path: Path) -> None:
    own = _run(tmp_path, "gpu_watch/worker-1", 0)
    _run(tmp_path, "gpu_watch-2/worker-0", 0)
    assert choose_run_dir(str(tmp_path), 10, worker=1) == (own, True)


def test_a_log_directory_that_is_a_file_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(OSError, match="logs"):
        choose_run_dir(str(tmp_path / "logs"), 0)
