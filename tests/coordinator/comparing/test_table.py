"""The picture of a comparison: what it names, at several epsilons and at one."""

import re
from dataclasses import replace

import pytest

from aggregation.accounting.price import Guarantee
from coordinator.comparing import table
from coordinator.comparing.comparable import Method
from coordinator.comparing.comparison import Cell, Comparison
from coordinator.text_models.compare import CLASSES

pytestmark = pytest.mark.slow

METHODS = (
    *(Method(f"m{number}", f"method {number}", lambda data, epsilon: None) for number in range(11)),
    Method("clear", "no privacy", lambda data, epsilon: None, private=False),
)


def cells(epsilons):
    for place, method in enumerate(METHODS):
        for epsilon in epsilons if method.private else [None]:
            for seed in (7, 8):
                metrics = {"accuracy": 0.6 + 0.02 * place + 0.01 * seed}
                yield Cell(method.name, epsilon, seed, epsilon, None, None, metrics, {}, 1.0)


@pytest.fixture
def comparison(privdistil_plan, tmp_path):
    """`comparison(epsilons)` of twelve methods and two seeds."""
    plan, total = privdistil_plan(), Guarantee(8.0, 1e-5, "PLD", 8.1)
    return lambda *epsilons: Comparison(
        plan, CLASSES, METHODS, epsilons, (7, 8), tuple(cells(epsilons)), (), total, True, tmp_path
    )


def said(path):
    """The words of a picture, in the order in which they were drawn."""
    return [each.strip() for each in re.findall(r"<!--(.*?)-->", path.read_text(), re.DOTALL)]


def test_at_one_epsilon_every_method_has_a_row_of_its_own(comparison, tmp_path):
    png, svg = table.draw(comparison(4.0), tmp_path)
    words = said(svg)
    assert [each for each in words if each in {method.label for method in METHODS}] == [each.label for each in METHODS]
    assert {"accuracy, higher is better, at epsilon 4", "(delta 1e-05, unit: one document)"} <= set(words)
    assert png.read_bytes().startswith(b"\x89PNG")


def test_over_several_epsilons_no_two_methods_look_alike(comparison, tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    looks, own = [], Axes.errorbar

    def watched(axes, *where, **how):
        looks.append((how["color"], how["marker"], how["linestyle"]))
        return own(axes, *where, **how)

    monkeypatch.setattr(Axes, "errorbar", watched)
    _, svg = table.draw(comparison(1.0, 4.0), tmp_path)
    assert len(looks) == len(set(looks)) == len(METHODS)
    assert "epsilon (delta 1e-05, unit: one document)" in said(svg)


@pytest.mark.parametrize("epsilons", [(4.0,), (1.0, 4.0)])
def test_what_is_off_the_scale_is_named_and_the_same_measures_are_the_same_bytes(comparison, tmp_path, epsilons):
    found = comparison(*epsilons)
    bounded = replace(found, view=replace(found.view, worst=0.8))
    _, svg = table.draw(bounded, tmp_path)
    before = svg.read_bytes()
    assert "method 10 (off the scale)" in said(svg)
    assert "method 0" in said(svg)
    table.draw(bounded, tmp_path)
    assert svg.read_bytes() == before
