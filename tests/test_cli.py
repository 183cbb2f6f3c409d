# SPDX-License-Identifier: Apache-2.0
"""The command, and the demo at a small size."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from keras_gpu_watch import __version__
from keras_gpu_watch.cli import main


def run_command(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    program = f"import sys\n{code}\nfrom keras_gpu_watch.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


def test_help_lists_the_demo(capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["--help"])
    assert exit_info.value.code == 0
    assert "demo" in capsys.readouterr().out


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert __version__ in capsys.readouterr().out


def test_without_a_command_it_says_that_one_is_needed(capsys):
    with pytest.raises(SystemExit) as exit_info:
        main([])
    assert exit_info.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_help_imports_neither_tensorflow_nor_keras():
    code = "import atexit; atexit.register(lambda: print('loaded', {'tensorflow', 'keras'} & set(sys.modules)))"
    done = run_command("--help", code=code)
    assert done.returncode == 0, done.stderr
    assert "loaded set()" in done.stdout


def test_without_tensorflow_the_demo_says_in_one_line_what_to_install():
    done = run_command("demo", code="sys.modules['tensorflow'] = None")
    assert done.returncode == 1
    assert done.stderr.strip() == "The demo needs TensorFlow: pip install 'keras-gpu-watch[tensorflow]'"


def test_the_demos_account_agrees_with_its_stopwatch_and_tells_the_pipelines_apart(tmp_path, capsys):
    from keras_gpu_watch.demo import run_demo, whole_seconds

    starved, good = run_demo(log_dir=tmp_path / "logs", pictures=64, epochs=2)

    for account in (starved, good):
        assert len(account.report.epochs) == 2
        assert whole_seconds(account) == pytest.approx(account.stopwatch_seconds, rel=0.02, abs=0.01)
    # The starved pipeline decodes 16 large pictures while the model waits; the good one has them in memory.
    assert starved.report.epochs[-1].input_wait_seconds > 2 * good.report.epochs[-1].input_wait_seconds
    printed = capsys.readouterr().out
    assert "starved" in printed
    assert "Input wait share" in printed
    assert f"tensorboard --logdir {tmp_path / 'logs'}" in printed


def test_demo_pictures_are_real_jpegs_of_all_classes_and_always_the_same(tmp_path):
    from keras_gpu_watch.demo import CLASSES, write_pictures

    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    (first_paths, labels), (second_paths, _) = (write_pictures(folder, 6) for folder in folders)

    assert set(labels) == set(range(len(CLASSES)))
    for first, second in zip(first_paths, second_paths, strict=True):
        assert Path(first).read_bytes()[:2] == b"\xff\xd8"
        assert Path(first).read_bytes() == Path(second).read_bytes()


def test_both_demo_pipelines_hold_the_same_batches(tmp_path):
    from keras_gpu_watch.demo import good_pipeline, starved_pipeline, write_pictures

    paths, labels = write_pictures(tmp_path, 18)
    for starved, good in zip(starved_pipeline(paths, labels), good_pipeline(paths, labels), strict=True):
        np.testing.assert_array_equal(starved[1], good[1])
        np.testing.assert_array_equal(starved[0], good[0])


@pytest.mark.parametrize("keep", [False, True])
def test_demo_pictures_are_kept_only_when_asked_for(tmp_path, monkeypatch, keep):
    from keras_gpu_watch import demo

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    demo.run_demo(log_dir=tmp_path / "logs", keep_pictures=keep, pictures=16, epochs=1)
    assert bool(list(tmp_path.glob("keras-gpu-watch-pictures-*/*.jpg"))) is keep
