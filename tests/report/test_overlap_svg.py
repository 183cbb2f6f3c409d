# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from typical_steps import ALL, BURSTY, HOST_BOUND, INPUT_BOUND, ONE_STEP, UNKNOWN

from keras_gpu_watch.report.overlap_svg import overlap_svg
from keras_gpu_watch.report.stretch import NO_PICTURE, PREPARE_UNKNOWN, sentence, stretch_of

SVG = "{http://www.w3.org/2000/svg}"
TRAIN_TOP = "48"


def texts(image: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in image.iter(f"{SVG}text")]


@pytest.mark.parametrize("epoch", [*ALL, *UNKNOWN])
def test_the_image_stands_alone(epoch):
    text = overlap_svg(epoch)
    image = ElementTree.fromstring(text)
    assert image.tag == f"{SVG}svg"
    assert {element.tag.removeprefix(SVG) for element in image.iter()} <= {
        *("svg", "title", "desc", "style", "rect", "path", "text")
    }
    assert not re.search(r"href|url\(|@import|\son\w+=", text)
    # Several of them may stand in one page.
    assert not image.findall(".//*[@id]")


@pytest.mark.parametrize("epoch", [*ALL, *UNKNOWN])
def test_a_screen_reader_is_told_what_the_image_shows(epoch):
    image = ElementTree.fromstring(overlap_svg(epoch))
    stretch = stretch_of(epoch)
    assert image.get("role") == "img"
    assert [element.tag for element in image][:2] == [f"{SVG}title", f"{SVG}desc"]
    assert image.findtext(f"{SVG}desc") == (NO_PICTURE if stretch is None else sentence(stretch))


@pytest.mark.parametrize("epoch", ALL)
def test_everything_lies_in_the_view_box(epoch):
    image = ElementTree.fromstring(overlap_svg(epoch))
    left, top, width, height = map(float, image.get("viewBox", "").split())
    assert (left, top) == (0, 0)
    for box in image.iter(f"{SVG}rect"):
        assert 0 <= float(box.get("x", "")) <= float(box.get("x", "")) + float(box.get("width", "")) <= width
        assert 0 <= float(box.get("y", "")) <= float(box.get("y", "")) + float(box.get("height", "")) <= height
    for words in image.iter(f"{SVG}text"):
        x, length = float(words.get("x", "")), 6.5 * len(words.text or "")
        share = {"start": 0.0, "middle": 0.5, "end": 1.0, None: 0.5}[words.get("text-anchor")]
        assert 0 < x - share * length < x + (1 - share) * length < width
        assert 0 < float(words.get("y", "")) < height


def test_boxes_are_as_wide_as_their_times_are_long():
    image = ElementTree.fromstring(overlap_svg(INPUT_BOUND))
    boxes = [box for box in image.iter(f"{SVG}rect") if box.get("y") == TRAIN_TOP]
    widths = {fill: [float(b.get("width", "")) for b in boxes if b.get("fill") == fill] for fill in ("none", "#1f7a6d")}
    # 30 and 20 of 400 ms on 672 pixels, less the gap between two boxes.
    assert widths == {"none": [pytest.approx(49.9, abs=0.1)] * 8, "#1f7a6d": [pytest.approx(33.1, abs=0.1)] * 8}
    assert [word for word in texts(image) if word.isdigit() and len(word) == 1 and word != "0"] == [*"12345678"] * 2


def test_the_legend_names_only_what_is_there():
    shown = " ".join(texts(ElementTree.fromstring(overlap_svg(HOST_BOUND))))
    assert "host work" in shown
    assert "waiting" not in shown.partition("In these")[0]
    shown = " ".join(texts(ElementTree.fromstring(overlap_svg(ONE_STEP))))
    assert "host work" not in shown
    assert PREPARE_UNKNOWN in shown


def test_its_colours_follow_the_page_or_else_the_system():
    text = overlap_svg(BURSTY)
    assert "prefers-color-scheme:dark" in text
    assert "fill:currentColor" in text
    # In a page, a rule for the root would outdo the page's own colour.
    assert re.findall(r"([\w:.-]+)\{color:", text) == ["svg:root", "svg:root"]
