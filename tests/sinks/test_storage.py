# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from keras_gpu_watch.sinks import storage


def test_replacing_creates_a_file_and_then_overwrites_it(tmp_path: Path) -> None:
    path = str(tmp_path / "report.json")
    storage.replace_text(path, "a longer first text")
    storage.replace_text(path, "größer")
    assert storage.read_text(path) == "größer"
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_reader_sees_the_old_text_or_the_new_one_but_never_a_part(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    texts = {"a" * 300_000, "b" * 300_000}
    path.write_text("a" * 300_000)
    done = threading.Event()

    def write() -> None:
        for _ in range(15):
            for text in sorted(texts, reverse=True):
                storage.replace_text(str(path), text)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(path.read_text())
    writer.join()
    assert seen <= texts


def test_a_failed_replacement_keeps_the_old_file_and_leaves_no_temporary_one(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.mkdir()
    with pytest.raises(OSError, match=r"report\.json"):
        storage.replace_text(str(target), "text")
    assert os.listdir(tmp_path) == ["report.json"]


def test_writing_into_a_missing_directory_is_an_os_error_that_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        storage.replace_text(str(tmp_path / "nowhere" / "report.json"), "text")


def test_a_directory_is_made_for_one_caller_only(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    assert storage.make_directory(path)
    assert not storage.make_directory(path)


def test_a_missing_directory_lists_as_empty(tmp_path: Path) -> None:
    assert storage.list_directory(str(tmp_path / "nowhere")) == []


def test_names_are_listed_without_their_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "file").touch()
    assert sorted(storage.list_directory(str(tmp_path))) == ["file", "sub"]


def test_an_object_store_is_told_from_a_local_path() -> None:
    assert storage.is_remote("gs://bucket/logs")
    assert not storage.is_remote("/home/user/logs")
    assert storage.join("gs://bucket/logs/", "run") == "gs://bucket/logs/run"


def test_a_text_longer_than_allowed_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("x" * 11)
    assert storage.read_text(str(path), 11) == "x" * 11
    with pytest.raises(ValueError, match="11 bytes, at most 10"):
        storage.read_text(str(path), 10)
