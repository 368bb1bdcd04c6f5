"""A mechanism of another package is made from kind and numbers where that package is installed, and nowhere else."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from aggregation.accounting.events import noise_multiplier_of
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.outside import KIND, find
from aggregation.mechanisms.registry import made, message_of
from aggregation.noise.stream import NoiseStream

EXAMPLE = Path(__file__).parents[3] / "examples/own_recipe"
sys.path.insert(0, str(EXAMPLE))
from own_recipe.mechanism import PresenceMechanism  # noqa: E402 - as it is when its package is installed

sys.path.remove(str(EXAMPLE))

PRESENCE = PresenceMechanism(most_cells=3, levels=100, noise_multiplier=1.5, shares=2)
ODD = """
from dataclasses import dataclass
from own_recipe.mechanism import PresenceMechanism

@dataclass(frozen=True)
class OtherKind(PresenceMechanism):
    kind = "odd.other"

@dataclass(frozen=True)
class Unproven(PresenceMechanism):
    kind = "odd.unproven"
    guaranteed = False

@dataclass(frozen=True)
class Listed(PresenceMechanism):
    kind = "odd.listed"
    words: tuple = ()

def function(): ...
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """`site(PACKAGE, {kind: place})`: have a package bring these mechanisms."""

    def installs(package, points):
        folder = tmp_path / package
        (folder / f"{package}-1.0.dist-info").mkdir(parents=True)
        (folder / f"{package}-1.0.dist-info/METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        lines = "\n".join(f"{kind} = {place}" for kind, place in points.items())
        (folder / f"{package}-1.0.dist-info/entry_points.txt").write_text(f"[conclave.mechanisms]\n{lines}\n")
        (folder / f"{package}_code.py").write_text(ODD)
        monkeypatch.syspath_prepend(folder)

    return installs


@pytest.fixture
def installed(site):
    site("own_recipe_here", {PRESENCE.kind: "own_recipe.mechanism:PresenceMechanism"})


def test_it_is_made_again_from_what_a_plan_says_of_it(installed):
    field, values = message_of(PRESENCE)
    assert (field, values["kind"]) == ("outside", "own_recipe.presence")
    assert json.loads(values["numbers"]) == {"most_cells": 3, "levels": 100, "noise_multiplier": 1.5, "shares": 2}
    assert made(field, values) == PRESENCE


def test_without_its_package_it_is_refused_in_words():
    numbers = '{"levels":100,"most_cells":3,"noise_multiplier":1.5,"shares":2}'
    with pytest.raises(
        ConclaveError, match=r"mechanism own_recipe\.presence is of another package, which is not installed"
    ):
        made("outside", {"kind": PRESENCE.kind, "numbers": numbers})
    with pytest.raises(ConclaveError, match="which is not installed here"):
        message_of(PRESENCE)


@pytest.mark.parametrize(
    "numbers",
    [
        "",
        "[]",
        "{}",
        "nonsense",
        '{"levels":100,"most_cells":3,"noise_multiplier":1.5}',
        '{"levels":100,"most_cells":3,"noise_multiplier":1.5,"shares":2,"more":1}',
        '{"levels":100,"most_cells":"3","noise_multiplier":1.5,"shares":2}',
        '{"levels":100,"most_cells":3,"noise_multiplier":NaN,"shares":2}',
        '{"levels":100,"most_cells":3,"noise_multiplier":-1.5,"shares":2}',
        '{"levels": 100, "most_cells": 3, "noise_multiplier": 1.5, "shares": 2}',
        '{"most_cells":3,"levels":100,"noise_multiplier":1.5,"shares":2}',
        '{"levels":100,"levels":100,"most_cells":3,"noise_multiplier":1.5,"shares":2}',
        "[" * 100_000,
    ],
)
def test_numbers_that_are_not_its_own_are_refused_in_words(installed, numbers):
    with pytest.raises(ConclaveError) as refused:
        made("outside", {"kind": PRESENCE.kind, "numbers": numbers})
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@given(st.text(max_size=80))
def test_any_other_kind_is_a_sentence(kind):
    with pytest.raises(ConclaveError) as refused:
        find(kind)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("kind", "place", "says"),
    [
        ("odd.gone", "odd_code:Gone", "cannot be loaded"),
        ("odd.nowhere", "nowhere_at_all:Gone", "cannot be loaded"),
        ("odd.function", "odd_code:function", "which is no frozen dataclass of that kind"),
        ("odd.another", "odd_code:OtherKind", "which is no frozen dataclass of that kind"),
        ("odd.unproven", "odd_code:Unproven", "and has a guarantee. Tell whoever made its package"),
    ],
)
def test_what_is_no_mechanism_that_can_be_trusted_is_refused(site, kind, place, says):
    site("odd", {kind: place})
    with pytest.raises(ConclaveError, match=says):
        find(kind)


def test_a_mechanism_has_plain_numbers_alone(site):
    site("odd", {"odd.listed": "odd_code:Listed"})
    with pytest.raises(ConclaveError, match="are finite numbers, texts, booleans or None"):
        message_of(find("odd.listed")(3, 100, 1.5, 2, ("a",)))


def test_two_packages_cannot_bring_one_kind(site):
    site("one", {"odd.other": "one_code:OtherKind"})
    site("two", {"odd.other": "two_code:OtherKind"})
    with pytest.raises(ConclaveError, match=r"two installed packages bring the mechanism odd\.other\. Uninstall one\."):
        find("odd.other")


def test_a_kind_is_a_package_and_a_name():
    assert KIND.count(r"\.") == 1
    with pytest.raises(ConclaveError, match=r"is named PACKAGE\.MECHANISM"):
        find("counts")


ROWS = st.lists(st.lists(st.integers(0, 3), min_size=8, max_size=8), min_size=1, max_size=6)


@pytest.mark.slow
@given(ROWS)
def test_neighbours_of_the_example_change_its_sum_by_no_more_than_the_sensitivity(rows):
    units = sparse.csr_array(np.array(rows))
    total = PRESENCE.contribute(units).toarray()
    less = PRESENCE.contribute(units[1:]).toarray() if len(rows) > 1 else 0
    change = total - less
    assert set(np.unique(change)) <= {0, PRESENCE.levels}
    assert np.linalg.norm(change) <= PRESENCE.sensitivity + 1e-9
    first = np.array(rows[0]) > 0
    assert np.array_equal(change[0] > 0, first & (np.cumsum(first) <= PRESENCE.most_cells))


def test_the_noise_of_the_example_has_the_charged_variance():
    shares = [PRESENCE.noise_share((40_000,), NoiseStream.insecure(name)) for name in (1, 2)]
    wanted = PRESENCE.noise_multiplier * PRESENCE.sensitivity
    assert np.std(sum(shares)) == pytest.approx(wanted, rel=0.02)
    assert noise_multiplier_of(PRESENCE.event()) == PRESENCE.noise_multiplier == PRESENCE.noise_multiplier_charged()
    assert PRESENCE.release(np.array([100]), 2).sigma == pytest.approx(wanted / PRESENCE.levels, rel=1e-3)
    with pytest.raises(IntegrityError, match="must not be released"):
        PRESENCE.release(np.array([100]), 1)
    with pytest.raises(IntegrityError, match="no finite number"):
        PRESENCE.contribute(sparse.csr_array([[-1.0]]))
