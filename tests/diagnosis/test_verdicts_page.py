# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import get_args

from keras_gpu_watch.diagnosis import verdicts_markdown
from keras_gpu_watch.findings import Kind

PAGE = Path(__file__).parents[2] / "docs" / "verdicts.md"


def test_the_page_is_made_from_the_rules():
    assert PAGE.read_text() == verdicts_markdown(), "write what verdicts_markdown() gives to docs/verdicts.md"


def test_each_kind_has_its_section():
    headings = [line for line in verdicts_markdown().splitlines() if line.startswith("## ")]

    assert all(any(f"`{kind}`" in heading for heading in headings) for kind in get_args(Kind))
