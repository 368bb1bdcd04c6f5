"""The page of a run: one file that loads nothing, escapes everything, and can be read by everybody."""

import base64
import hashlib
import importlib.util
import itertools
import re
from pathlib import Path

import pytest

from coordinator.page.account import Spent, Stage
from coordinator.page.exhibits import Exhibit, Matrix, Passage, Passages, Points, Spot, Table
from coordinator.page.run_page import framed, page
from coordinator.publishing.verdict import headline

_spec = importlib.util.spec_from_file_location("reading", Path(__file__).with_name("reading.py"))
reading = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reading)
Page, contrast, mixed, schemes = reading.Page, reading.contrast, reading.mixed, reading.schemes
ATTACKS = (
    '<script>alert(1)</script>',
    '"><img src=x onerror=alert(1)>',
    "'; } </style><script>alert(1)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "</title></svg><a href=javascript:alert(1)>x</a>",
    "\x1b[31mred\x00\u202ereversed",
    "&lt;b&gt;",
)  # fmt: skip


def hostile(account, attack):
    """An account in which every text that others wrote is an attack."""
    exhibits = (
        Exhibit(
            title=attack, says=[attack], content=Points(spots=[Spot(label=attack, x=0, y=0), Spot(label="b", x=1, y=1)])
        ),
        Exhibit(title="t", content=Matrix(names=[attack, "b"], cells=[[1, 0], [2, 3]])),
        Exhibit(title="t", content=Table(heads=[attack, attack], rows=[[attack, attack]])),
        Exhibit(title="t", content=Passages(passages=[Passage(text=attack, about=attack)])),
    )
    told = account().privacy
    release = told["releases"][0] | {"name": attack, "says": attack, "parties": [attack]}
    privacy = told | {
        "trust_means": [attack],
        "not_protected": [attack],
        "left_out": {attack: attack},
        "releases": [release],
    }
    return account(
        audit=account().audit.model_copy(update={"unit": attack, "attacks": [
            account().audit.attacks[0].model_copy(update={"attacked": attack})
        ]}),
        name=attack, run=attack, error=attack, about=attack, recipe=attack, parties=(attack, attack), privacy=privacy,
        states={attack: f"lost: {attack}"}, retries={attack: {attack: 2}}, exhibits=exhibits, student=attack,
        spent=(Spent(attack, 2.0, 1, 10.0), Spent(attack, None, None, None, attack)),
        stages=(Stage(attack, 0.0, 1.0), Stage(attack, 1.0, None)),
        metrics=account().metrics | {"warnings": [attack]},
        plan={"privacy": {"epsilon": 3.0}, "federation": {"shards": {"source": attack}}},
    )  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_others_wrote_is_text_wherever_it_stands(account, attack):
    plain, made = Page(page(hostile(account, "an honest name"))), Page(page(hostile(account, attack)))
    assert made.wrong == []
    assert [element[0] for element in made.elements] == [element[0] for element in plain.elements]
    assert [sorted(e[1]) for e in made.elements] == [sorted(e[1]) for e in plain.elements]
    assert not made.all("script", "img", "iframe", "form", "object", "embed", "link")


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_frame_in_a_notebook_cannot_be_left(account, attack):
    shown = Page(framed(hostile(account, attack)))
    ((name, attributes, _),) = shown.elements
    assert (name, attributes["sandbox"]) == ("iframe", "")
    assert Page(attributes["srcdoc"]).wrong == []


def test_no_control_character_is_in_a_page(account):
    assert re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]", page(hostile(account, ATTACKS[5]))) is None


def test_a_page_loads_nothing_and_its_policy_forbids_that_it_ever_does(account):
    made = page(account())
    read = Page(made)
    policy = next(e[1]["content"] for e in read.all("meta") if e[1].get("http-equiv") == "Content-Security-Policy")
    style = re.search(r"<style>(.*?)</style>", made, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "url(" not in style
    assert "@import" not in style
    for name, attributes, _ in read.elements:
        assert not {"src", "srcset", "style", "data", "action"} & set(attributes), (name, attributes)
        assert not [key for key in attributes if key.startswith("on")], (name, attributes)
        assert attributes.get("href", "#").startswith("#"), (name, attributes)
    assert len(made.encode()) < 2_000_000
    assert "http://" not in made
    assert "https://" not in made


def test_headings_go_down_one_step_at_a_time_and_there_is_one_title(account):
    levels = [int(name[1]) for name, *_ in Page(page(account())).all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= level + 1 for level, later in itertools.pairwise(levels))


def test_pictures_have_a_name_and_tables_their_headings(account):
    read = Page(page(account()))
    pictures = read.all("svg")
    assert len(pictures) >= 6
    for _, attributes, _ in pictures:
        assert attributes["role"] == "img"
        assert len(attributes["aria-label"]) > 20
    assert {e[1].get("scope") for e in read.all("th")} == {"col", "row"}
    assert [e for e in read.all("table") if not e[1].get("aria-label")] == []
    assert len(read.all("table")) == len([e for e in read.all("div") if e[1].get("class") == "scroll"])
    for _, attributes, _ in (e for e in read.all("div") if e[1].get("class") == "scroll"):
        assert attributes["tabindex"] == "0"
        assert attributes["aria-label"]


def test_every_link_leads_to_a_place_and_no_place_has_two_names(account):
    read = Page(page(account()))
    ids = [e[1]["id"] for e in read.elements if "id" in e[1]]
    assert len(ids) == len(set(ids))
    assert {e[1]["href"][1:] for e in read.all("a")} <= set(ids)
    assert {e[1]["aria-labelledby"] for e in read.all("section")} <= set(ids)
    assert read.all("html")[0][1]["lang"] == "en"
    assert len(read.all("main")) == len(read.all("nav")) == len(read.all("header")) == 1


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_text_stands_out_in_every_scheme(account, scheme):
    colours = schemes(page(account()))[scheme]
    for text, ground in [
        ("ink", "paper"), ("soft", "paper"), ("link", "paper"), ("warn", "paper"), ("ink", "wash"), ("soft", "wash"),
        ("ink", "warn-wash"), ("link", "wash"),
    ]:  # fmt: skip
        assert contrast(colours[text], colours[ground]) >= 4.5, (scheme, text, ground)
    for picture in ("accent", "free", "warn"):  # of graphics, WCAG 2.1, 1.4.11
        assert contrast(colours[picture], colours["paper"]) >= 3.0, (scheme, picture)
    for share in (0.06, 0.34):  # cells of a matrix
        ground = mixed(colours["accent"], colours["paper"], share)
        assert contrast(colours["ink"], ground) >= 4.5, (scheme, share)


def test_the_first_line_is_the_verdict_that_the_report_and_the_card_have(account):
    made = account()
    first = next(e[2] for e in Page(page(made)).all("p") if "verdict" in e[1].get("class", ""))
    assert first == headline(made.privacy, made.metrics)
    assert first.startswith("Better than what costs nothing: it is right in 80.0% of 400 public test texts")


@pytest.mark.parametrize(
    "changes", [{"guarantee": False, "audited": False, "delta": None}, {"insecure_reproducible_noise": True}]
)
def test_without_a_guarantee_that_is_first_and_no_picture_claims_one(account, privacy, changes):
    absent = {"epsilon": None, "accountant": None, "sampler_delta": None}
    event = {"kind": "non-private"} if "guarantee" in changes else {"kind": "gaussian", "noise_multiplier": 1.0}
    release = privacy()["releases"][0] | {"event": event}
    read = Page(page(account(privacy=privacy(**absent, **changes, releases=[release]), spent=())))
    first = next(e[2] for e in read.all("p") if "verdict" in e[1].get("class", ""))
    assert first.startswith("No privacy guarantee. Better than")
    text = read.all("body")[0][2]
    assert "There is no picture here of what a reader could tell, because nothing bounds it" in text
    assert "at the very most" not in text
    assert not [e for e in read.all("svg") if "Guesses that are right" in e[1]["aria-label"]]
    assert not re.search(r"\binf\b|nan|None", text)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("running", "This run is not finished: it goes on"),
        ("resumable", "This run is not finished: it stopped, and can go on."),
        ("failed", "This run failed: nothing was published."),
        ("cancelled", "This run was cancelled: nothing was published."),
    ],
)
def test_an_unfinished_run_says_so_first_and_shows_what_there_is(account, status, says):
    made = account(
        status=status, error="party east was lost", privacy=None, metrics=None, exhibits=(), spent=(), student=None,
        heard={}, checked=(), stages=(Stage("join", 0.0, 2.0), Stage("train", 2.0, None)),
    )  # fmt: skip
    read = Page(page(made))
    first = next(e[2] for e in read.all("p") if "verdict" in e[1].get("class", ""))
    assert first.startswith(says)
    text = read.all("body")[0][2]
    assert "party east was lost" in text
    assert ("coordinator resume" in text) == (status in ("running", "resumable"))
    assert "coordinator verify" not in text
    assert "not finished" in text.split("How it went")[2]


def test_a_delta_above_one_in_the_number_of_units_is_warned_of(account, privacy):
    plan = account().plan
    few = page(account(privacy=privacy(delta=1e-3), plan=plan | {"privacy": {"epsilon": 3.0, "declared_size": 10_000}}))
    assert "Delta is too large. With 10,000 units" in few
    assert "shows 10 of them to everybody" in few
    assert "Delta is too large" not in page(account())


def test_what_only_a_party_knows_is_said_to_be_its_own_and_a_party_that_did_not_sign_is_named(account):
    text = Page(page(account())).all("body")[0][2]
    assert "known to the party alone" in text
    assert "it did not sign" in text


def test_what_attacks_found_stands_beside_the_claim(account):
    read = Page(page(account()))
    text = read.all("body")[0][2]
    assert "No attack refutes the claim: the largest lower bound is 0.40, and the plan claims 2.200." in text
    assert any("released sums: epsilon 0.40 or more" in e[1]["aria-label"] for e in read.all("svg"))
    assert "Nobody has attacked this run." in page(account(audit=None))
