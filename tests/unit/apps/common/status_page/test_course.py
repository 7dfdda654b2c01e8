"""The course of a run: curves through known points, a row for each process, bounded, and safe to show."""

import re
from xml.etree import ElementTree

import pytest

from apps.common.status_page.course import HEIGHT, MAX_SNAPSHOTS, MAX_STEPS, WIDTH, Course


def status(step, loss=1.0, rate=100.0, phase="counting", **passes):
    """A status as JSON shows it, with peers by their passes."""
    peers = [{"name": name, "forwards": done, "backwards": 0} for name, done in passes.items()]
    return {"step": step, "loss": loss, "tokens_per_s": rate, "step_phase": phase, "peers": peers}


def drawn(*statuses):
    """The figures of these statuses, one a second, by their names."""
    course = Course()
    for at, each in enumerate(statuses):
        course.add(float(at), each)
    figures = ElementTree.fromstring(f"<page>{course.draw()}</page>")
    return {figure.find("figcaption").text: figure.find("svg") for figure in figures}


def points(svg):
    """The points of the curve."""
    return [tuple(map(float, pair.split(","))) for pair in svg.find("polyline").get("points").split()]


def texts(svg):
    return [each.text for each in svg.findall("text")]


def test_the_curves_go_through_loss_and_rate_of_every_step_that_was_seen():
    found = drawn(
        status(0, 0.0), status(1, 4.0, 10.0), status(2, 3.0, 30.0), status(2, 3.0, 20.0), status(5, 2.0, 40.0)
    )
    assert points(found["loss"]) == [(0.0, 0.0), (WIDTH / 4, HEIGHT / 2), (WIDTH, HEIGHT)]
    assert points(found["tokens/s"]) == [
        (0.0, HEIGHT),
        (WIDTH / 4, pytest.approx(HEIGHT * 2 / 3, abs=0.1)),
        (WIDTH, 0.0),
    ]
    assert texts(found["loss"]) == ["4", "2", "1", "step 5"]


def test_a_run_that_goes_back_is_drawn_from_there():
    found = drawn(status(1, 4.0), status(2, 3.0), status(9, 1.0), status(2, 2.0), status(3, 2.0))
    assert texts(found["loss"]) == ["4", "2", "1", "step 3"] and len(points(found["loss"])) == 3


def test_losses_that_are_no_numbers_are_left_out():
    found = drawn(status(1, 4.0), status(2, float("nan")), status(3, 2.0), {"step": None}, {"step": 4, "loss": None})
    assert points(found["loss"]) == [(0.0, 0.0), (WIDTH, HEIGHT)]


def test_steps_without_phases_have_a_curve_alone():
    statuses = [{"step": step, "loss": 9.0 - step} for step in (1, 2, 3)]
    assert list(drawn(*statuses)) == ["loss"], "a run that trains is not idle"


def test_a_process_is_darker_the_more_passes_it_did_and_a_step_has_the_colour_of_its_phase():
    looks = status(1, a=10, b=0), status(1, a=14, b=2), status(2, phase="summing", a=14, b=0, c=3)
    found = drawn(*looks)["the last steps"]
    cells = [
        (cell.get("class"), *map(float, map(cell.get, ("x", "y", "width", "fill-opacity"))))
        for cell in found.findall("rect")
    ]
    half = WIDTH / 2
    assert cells == [
        ("counting", 0.0, 0.0, half, 1.0),
        ("passes", 0.0, 16.0, half, 1.0),
        ("passes", 0.0, 32.0, half, 0.5),
        ("summing", half, 0.0, half, 1.0),
        ("passes", half, 48.0, half, 1.0),
    ]
    assert texts(found) == ["step", "a", "b", "c", "2"]
    assert [title.text for title in found.iter("title")][1:3] == ["a: 4 passes", "b: 2 passes"]


def test_a_long_run_keeps_a_curve_over_all_of_it_of_bounded_length():
    course = Course()
    for step in range(5 * MAX_STEPS):
        course.add(float(step), status(step, loss=float(-step)))
    drawing = course.draw()
    places = re.search(r'points="([^"]*)"', drawing)[1].split()
    assert MAX_STEPS / 2 <= len(places) <= MAX_STEPS
    assert places[0] == "0.0,0.0" and places[-1] == f"{WIDTH:.1f},{HEIGHT:.1f}"
    assert drawing.count("<rect") == MAX_SNAPSHOTS - 1


def test_names_of_the_network_are_text_and_nothing_else():
    hostile = '<script>"&\x1b'
    found = drawn(status(1, **{hostile: 1}), status(2, phase='"><script>', **{hostile: 2}))["the last steps"]
    assert texts(found)[1] == '<script>"&\ufffd' and not list(found.iter("script"))
