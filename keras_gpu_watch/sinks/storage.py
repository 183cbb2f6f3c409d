# SPDX-License-Identifier: Apache-2.0
"""The one door to `tf.io.gfile`: local paths and `gs://` alike, with plain `OSError` for whatever goes wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import tensorflow as tf


def is_remote(path: str) -> bool:
    """Whether `path` names an object store (`gs://...`) rather than a file of this machine."""
    return "://" in path


def join(directory: str, name: str) -> str:
    """`name` inside `directory`, with the forward slash that every file system here understands."""
    return f"{directory.rstrip('/')}/{name}"


@contextmanager
def os_errors() -> Iterator[None]:
    """Turn TensorFlow's own file errors into `OSError`, which they don't derive from.

    Raises:
        OSError: In place of a `tf.errors.OpError` raised in the body; its text names the path.
    """
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from error


def exists(path: str) -> bool:
    """Whether a file or directory is there.

    Raises:
        OSError: If the file system cannot be asked.
    """
    with os_errors():
        return bool(tf.io.gfile.exists(path))


def list_directory(path: str) -> list[str]:
    """Names in a directory; empty when there is no such directory.

    Raises:
        OSError: If the directory cannot be read.
    """
    with os_errors():
        if not tf.io.gfile.isdir(path):
            return []
        # An object store ends the name of a directory in a slash.
        return [name.rstrip("/") for name in tf.io.gfile.listdir(path)]


def make_directory(path: str) -> bool:
    """Create one directory for this process alone.

    Atomic on local file systems. An object store offers nothing atomic: there, two processes that ask within the same
    fraction of a second may both be told yes.

    Returns:
        False if something is there already.

    Raises:
        OSError: If it cannot be created.
    """
    if not is_remote(path):
        # `gfile.mkdir` reports success when the directory exists.
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        return True
    with os_errors():
        if tf.io.gfile.exists(path):
            return False
        tf.io.gfile.mkdir(path)
    return True


def make_directories(path: str) -> None:
    """Create a directory and its parents; fine if they are there.

    Raises:
        OSError: If it cannot be created.
    """
    with os_errors():
        tf.io.gfile.makedirs(path)


def read_text(path: str, max_bytes: int | None = None) -> str:
    """Content of a UTF-8 file.

    Args:
        path: The file.
        max_bytes: The longest that it may be; `None`: any length.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is longer, or no UTF-8 (then it is a `UnicodeDecodeError`).
    """
    with os_errors():
        if max_bytes is not None and (length := tf.io.gfile.stat(path).length) > max_bytes:
            raise ValueError(f"it has {length:,} bytes, at most {max_bytes:,} were expected")
        with tf.io.gfile.GFile(path, "r") as file:
            return str(file.read())


def replace_text(path: str, text: str) -> None:
    """Put `text` in place of a file's content at one stroke: a reader sees the old content or the new, never half.

    Args:
        path: File to replace or create; its directory must exist.
        text: New content, written as UTF-8.

    Raises:
        OSError: If it cannot be written; the old content is still there then.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    with os_errors():
        try:
            with tf.io.gfile.GFile(temporary, "w") as file:
                file.write(text)
            tf.io.gfile.rename(temporary, path, overwrite=True)
        except tf.errors.OpError:
            with suppress(tf.errors.OpError):
                tf.io.gfile.remove(temporary)
            raise
