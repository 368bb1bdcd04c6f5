"""The page of a comparison: the table with its numbers to sort by, readable without a script."""

import importlib.util
import re
from contextlib import closing
from pathlib import Path

import pytest

from coordinator import api
from coordinator.page.comparison_page import framed, page
from coordinator.store.store import RunStore
from coordinator.systems.registry import plan_of

_spec = importlib.util.spec_from_file_location("reading", Path(__file__).with_name("reading.py"))
reading = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reading)


def test_every_row_is_there_without_a_script_and_its_numbers_are_what_it_is_sorted_by(comparison):
    read = reading.Page(page(comparison()))
    assert read.wrong == []
    rows = [e[2] for e in read.all("th") if e[1].get("scope") == "row"]
    assert rows == ["counts", "moments", "noised unigram", "no privacy", "never measured"]
    values = [e[1]["data-value"] for e in read.all("td") if "data-value" in e[1]]
    assert values[:2] == ["314.5", "305.5"]
    assert values[-2:] == ["", ""]
    assert "12.300" in read.all("body")[0][2]
    (picture,) = read.all("svg")
    assert "moments: 244.5 at epsilon 1, 235.5 at epsilon 4" in picture[1]["aria-label"]


def test_its_one_script_is_named_by_its_digest_and_a_label_cannot_add_another(comparison):
    made = page(comparison("</script><script>alert(1)</script>"))
    read = reading.Page(made)
    assert len(read.all("script")) == 1
    assert "https:" not in made
    policy = next(e[1]["content"] for e in read.all("meta") if "http-equiv" in e[1])
    assert re.fullmatch(r"default-src 'none'; style-src 'sha256-[^']+'; base-uri 'none'; form-action 'none'; "
                        r"script-src 'sha256-[^']+'", policy)  # fmt: skip
    assert 'sandbox="allow-scripts"' in framed(comparison())


@pytest.mark.slow
def test_a_comparison_puts_its_rows_without_privacy_beside_a_run_of_the_same_plan(here, dped_tables, tmp_path, keep):
    plan = plan_of(dped_tables("moments"))
    found = api.compare(plan, recipes=["moments", "non-private"], epsilons=[8.0], seeds=1, output=tmp_path / "compared")
    keep(page(found))
    result = api.run(plan, output=tmp_path / "run")
    made = api.page(result.folder, beside=tmp_path / "compared")
    assert "without privacy: no privacy" in made
    assert "was not measured in this run" not in made
    other = plan_of(dped_tables("moments", delta=1e-7))
    again = api.run(other, output=tmp_path / "other")
    with pytest.raises(api.RunError, match="comparison of another plan"):
        api.page(again.folder, beside=tmp_path / "compared")
    with closing(RunStore(tmp_path / "run")) as store:
        assert store.fact("heard")
    assert result._repr_html_().startswith('<iframe title="Report of run')
