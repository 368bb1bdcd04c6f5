"""Pages in a real browser: nothing overflows, no error is said, text stands out, and the keyboard reaches everything.

Needs Chromium and its driver on this machine (Debian: chromium, chromium-driver); without them these tests are skipped.
What needs no browser is tested beside this.
"""

import importlib.util
from contextlib import contextmanager
from pathlib import Path

import pytest

from coordinator.page.comparison_page import page as comparison_page
from coordinator.page.run_page import framed, page

_spec = importlib.util.spec_from_file_location("looking", Path(__file__).with_name("looking.py"))
looking = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(looking)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        looking.DRIVER is None or looking.BROWSER is None,
        reason="no browser on this machine: install chromium and chromium-driver to look at pages in one",
    ),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    pytest.importorskip("selenium", reason="selenium is not installed")
    found = looking.started(tmp_path_factory.mktemp("profile"))
    yield found
    found.quit()


@pytest.fixture
def opened(driver, tmp_path):
    """`opened(page, width, scheme)`: the driver with the page open."""

    def opens(made, width=1440, scheme="light", name="page.html"):
        (tmp_path / name).write_text(made, encoding="utf-8")
        looking.show(driver, tmp_path / name, width, scheme)
        return driver

    return opens


@pytest.fixture
def pages(account, privacy, comparison):
    """Pages of a run in several states, and of a comparison, by name."""
    long = "a-party-with-a-name-that-is-much-longer-than-any-name-should-ever-be.example.org"
    open_run = {"epsilon": None, "delta": None, "accountant": None, "sampler_delta": None, "guarantee": False}
    return {
        "run": page(account()),
        "claimed": page(account(privacy=privacy(epsilon_by_the_papers_formula=1.1))),
        "long": page(
            account(name="w" * 64, parties=(long,) * 12, states={long: f"lost: {'x' * 300}"}, recipe="r" * 60)
        ),
        "open": page(account(privacy=privacy(**open_run, audited=False), spent=())),
        "begun": page(
            account(status="running", privacy=None, metrics=None, exhibits=(), spent=(), heard={}, checked=())
        ),
        "comparison": comparison_page(comparison()),
    }


@contextmanager
def nothing_logged(driver):
    looking.logged(driver)
    yield
    assert looking.logged(driver) == []


@pytest.mark.parametrize("scheme", looking.SCHEMES)
@pytest.mark.parametrize("width", looking.WIDTHS)
def test_nothing_overflows_is_cut_off_or_faint_and_nothing_is_logged(opened, pages, width, scheme):
    for name, made in pages.items():
        driver = opened("<p>blank</p>")
        with nothing_logged(driver):
            opened(made, width, scheme)
            assert driver.execute_script(looking.OVERFLOWING) == [0, []], (name, width)
            assert driver.execute_script(looking.CUT_OFF) == [], (name, width)
            assert driver.execute_script(looking.FAINT) == [], (name, scheme)
            assert driver.execute_script(looking.SMALL) == [], name


def test_what_is_printed_stands_out_too(opened, pages):
    for name, made in pages.items():
        driver = opened(made, 794, "print")
        assert driver.execute_script(looking.FAINT) == [], name
        assert driver.execute_script(looking.OVERFLOWING) == [0, []], name
        assert not driver.execute_script("return getComputedStyle(document.querySelector('.skip')).display !== 'none'")


def test_it_fits_on_pages_of_a4(opened, pages):
    from selenium.webdriver.common.print_page_options import PrintOptions

    driver, options = opened(pages["run"]), PrintOptions()
    options.page_width, options.page_height = 21.0, 29.7
    assert len(driver.print_page(options)) > 10_000


def test_the_keyboard_reaches_every_link_region_and_button_in_order(opened, pages):
    for name in ("run", "comparison"):
        driver = opened(pages[name])
        seen, reached, wanted = looking.pressing_tab(driver)
        assert seen[0][0] == "To the content"
        assert [each for each in seen if not each[1] or each[2] == "none"] == [], name
        assert reached == wanted, name


def test_the_browsers_own_tree_has_headings_in_order_landmarks_and_a_name_for_everything(opened, pages):
    for name, made in pages.items():
        seen = looking.tree(opened(made))
        assert looking.disordered(seen) == [], name
        assert {role for role, _, _ in seen} >= {"banner", "main", "contentinfo", "region", "heading", "table"}, name


def test_a_script_that_was_smuggled_in_would_not_run(opened, account):
    driver = opened("<p>blank</p>")
    made = page(account()).replace("</main>", "<script>document.title = 'taken'</script><img src='x.png'></main>")
    opened(made)
    assert driver.title == "demo: report of a run"
    assert any("Content Security Policy" in each["message"] for each in driver.get_log("browser"))


def test_rows_of_a_comparison_are_sorted_by_the_heading_that_is_pressed(opened, pages):
    driver = opened(pages["comparison"])
    column = "return [...document.querySelectorAll('tbody tr')].map((row) => row.cells[1].textContent)"
    before = driver.execute_script(column)
    button = driver.find_elements("css selector", "thead button")[1]
    button.click()
    rising = driver.execute_script(column)
    button.click()
    falling = driver.execute_script(column)
    figures = [float(each.split()[0]) for each in rising if each != "-"]
    assert figures == sorted(figures)
    assert rising != before
    assert [each for each in falling if each != "-"] == [each for each in reversed(rising) if each != "-"]
    assert rising[-1] == falling[-1] == "-"
    assert driver.execute_script("return document.querySelectorAll('[aria-sort=descending]').length") == 1


def test_a_notebooks_frame_shows_the_same_page(opened, account):
    driver = opened(f"<!doctype html><title>notebook</title><body>{framed(account())}")
    driver.switch_to.frame(0)
    assert driver.find_element("css selector", "h1").text == "demo"
    assert driver.execute_script(looking.OVERFLOWING)[0] == 0
    driver.switch_to.default_content()
