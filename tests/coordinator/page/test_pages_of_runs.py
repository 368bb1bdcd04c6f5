"""Pages of small runs: what each has to show, and nothing private or of this machine."""

import pytest

from coordinator import api

pytestmark = pytest.mark.slow

SECURE = {"trust": "secure-sum"}


@pytest.fixture
def tables(dped_tables, classifier_tables, softened_tables, nvdp_tables):
    return {
        "dped": lambda: dped_tables("moments"),
        "dped-votes": lambda: dped_tables("votes", "hidden"),
        "dp_sgd-secure": lambda: classifier_tables("dp_sgd", privacy=SECURE | {"dropouts": 1}),
        "pate": lambda: classifier_tables("pate"),
        "swing-published": lambda: softened_tables(),
        "nvdp-pairs": lambda: nvdp_tables("pairs"),
    }


SHOWN = {
    "dped": ("A map of the words", "Nearest words", "% signal"),
    "dped-votes": ("What the paper would have claimed", "answers (votes)"),
    "dp_sgd-secure": ("Secure sum: the coordinator learned noisy sums", "What it takes for what"),
    "pate": ("What it takes for what", "votes"),
    "swing-published": ("No privacy guarantee.", "nothing bounds it", "What it writes"),
    "nvdp-pairs": ("What the rows are", "Where it errs"),
}


QUICK = ("dped",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SHOWN]
)
def test_a_page_shows_what_its_system_has_to_show(name, tables, ran, keep, tmp_path, opinions, letters):
    given = tables[name]()
    result, _ = ran(given)
    page = api.page(result.folder)
    keep(page)
    for said in SHOWN[name]:
        assert said in page, said
    assert "WRONG" not in page
    assert len(page.encode()) < 2_000_000
    for place in (tmp_path, opinions, letters):
        assert str(place) not in page
    if result.epsilon is None:
        assert "of 100, at the very most" not in page
    else:
        assert "of 100, at the very most" in page
    first = page.split('<p class="verdict', 1)[1].split(">", 1)[1].split("<", 1)[0]
    assert first.replace("&#39;", "'") in " ".join((result.student / "README.md").read_text().split())
