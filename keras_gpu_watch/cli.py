# SPDX-License-Identifier: Apache-2.0
"""The command `keras-gpu-watch`: parses arguments and hands over."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from keras_gpu_watch._version import __version__


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments.

    Returns:
        A parser whose result has `command`, and for `demo` also `log_dir` and `keep`.
    """
    parser = argparse.ArgumentParser(
        prog="keras-gpu-watch", description="Shows where every second of a Keras training goes."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    demo = commands.add_parser(
        "demo",
        help="train from JPEG files with a starved and with a good input pipeline, and compare the accounts",
        description="Makes JPEG files, trains on them with a starved and with a good input pipeline, and prints both "
        "accounts side by side. Takes about a minute. Needs TensorFlow, but neither a GPU nor a download.",
    )
    demo.add_argument("--log-dir", type=Path, help="where the logs go. Defaults to a new temporary folder")
    demo.add_argument("--keep", action="store_true", help="keep the pictures instead of deleting them at the end")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: List of str. The arguments after the command's name. Defaults to those of the process.

    Returns:
        The exit status: 0, or 1 with one sentence on stderr when something needed is not installed.
    """
    arguments = build_parser().parse_args(argv)
    if find_spec("tensorflow") is None:
        print("The demo needs TensorFlow: pip install 'keras-gpu-watch[tensorflow]'", file=sys.stderr)
        return 1
    # Both are read once, at import: TensorFlow's start-up messages would bury the demo's output.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    from keras_gpu_watch.demo import run_demo

    run_demo(log_dir=arguments.log_dir, keep_pictures=arguments.keep)
    return 0
