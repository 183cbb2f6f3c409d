# SPDX-License-Identifier: Apache-2.0
"""What is shipped: the wheel, the changelog, the README's generated parts and commands."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from keras_gpu_watch import __version__, tags

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    package = ROOT / "keras_gpu_watch"
    source = {path.relative_to(ROOT).as_posix() for path in package.rglob("*") if path.is_file()}
    source = {name for name in source if "__pycache__" not in name}
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert "keras_gpu_watch/py.typed" in shipped
    assert shipped == source


def test_the_wheels_version_is_the_packages(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    assert f"\nVersion: {__version__}\n" in wheel.read(name).decode()


def test_the_changelog_starts_with_this_version():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    # A development version has no heading of its own yet: its entries are under "Unreleased".
    if ".dev" not in __version__:
        assert headings[1] == __version__


def test_the_changelog_has_no_empty_heading():
    text = (ROOT / "CHANGELOG.md").read_text()
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        assert "\n- " in section, section


def test_tensorflow_is_an_extra_so_that_other_builds_of_it_are_left_alone():
    requirements = metadata.requires("keras-gpu-watch") or []
    hard = {re.split(r"[^\w.-]", line)[0] for line in requirements if "extra ==" not in line}
    assert hard == {"keras", "numpy", "nvidia-ml-py", "psutil", "rich", "tensorboard"}
    assert any(line.startswith("tensorflow>=2.18") and "extra ==" in line for line in requirements)


def test_no_requirement_has_an_upper_bound():
    assert not [line for line in metadata.requires("keras-gpu-watch") or [] if re.search(r"<|==[^ '\"]|~=", line)]


def test_the_readmes_scalar_table_is_current():
    table = README.split("<!-- scalars:begin -->\n")[1].split("<!-- scalars:end -->")[0]
    assert table == tags.markdown_table()


@pytest.mark.parametrize("marker", ["demo-command", "test-command"])
def test_the_readmes_commands_are_one_line_each(marker):
    found = re.findall(rf"<!-- {marker} -->\n```bash\n(.+)\n```", README)
    assert len(found) == 1


def test_every_extra_and_command_the_readme_names_exists():
    named_extras = {extra for group in re.findall(r"\[([a-z,]+)\]'", README) for extra in group.split(",")}
    assert named_extras
    assert named_extras <= set(metadata.metadata("keras-gpu-watch").get_all("Provides-Extra") or [])
    scripts = {entry.name for entry in metadata.distribution("keras-gpu-watch").entry_points}
    assert "keras-gpu-watch" in scripts


def test_no_table_of_figures_is_left_empty() -> None:
    for name in ("README.md", "docs/measuring.md"):
        text = (ROOT / name).read_text()
        blocks = re.findall(r"<!-- (\w+):begin -->(.*?)<!-- \1:end -->", text, flags=re.DOTALL)
        assert blocks
        assert [marker for marker, content in blocks if len(content.strip()) < 100] == []
