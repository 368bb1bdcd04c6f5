"""Membership inference by shadow models: a student that remembers is caught, a private one is not."""

import json
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from scipy.special import expit

from coordinator import api
from coordinator.auditing import audit as auditing
from coordinator.auditing.canaries import Canary, flipped
from coordinator.auditing.shadows import inferred
from coordinator.auditing.source import made, rows_of
from coordinator.plan.audit import AuditTable
from coordinator.progress.progress import Silent
from coordinator.published.audit import Audit
from coordinator.publishing.audited import ROC, content_of, keep, lines
from coordinator.publishing.report import render
from coordinator.run.party_files import party_tables
from coordinator.systems.registry import plan_of, prepared, system
from coordinator.transport.launchers import find_launcher
from learning.text.source import Document


@pytest.fixture
def memberships(tmp_path, monkeypatch):
    """`memberships(tables, canaries, shadows)`: what shadow models find of worst cases, without any other attack."""
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))

    def found(tables, canaries, shadows, records):
        plan, rng = plan_of(tables), np.random.default_rng(0)
        recipe = prepared(plan, tmp_path, tmp_path / "cache")
        attacks = system(plan.run.recipe).audit(recipe)
        given = auditing.AuditRequest(
            plan, recipe, attacks, find_launcher("ray"), party_tables(plan), tmp_path, tmp_path / "cache",
            AuditTable(), Silent(), b"", seed=0,
        )  # fmt: skip
        left = rows_of(plan, tmp_path, tmp_path / "cache", records, rng).kept
        planted = flipped(made(plan, attacks.worst(canaries, left, rng)), 0)
        alone = partial(auditing._alone, given)
        with alone([*left, *planted.rows]) as ran:
            return inferred(attacks, planted, ran, left, shadows, alone, rng, Silent())

    return found


HEAD = {"model": {"adapt": "head", "pooling": "mean"}, "privacy": {"epsilon": 1.0, "noise_multiplier": None}}


@pytest.mark.slow
@pytest.mark.parametrize(("part", "least", "most"), [(0.0, 0.62, 1.0), (1.0, 0.36, 0.6)])
def test_shadow_models_catch_a_training_without_its_noise(memberships, classifier_tables, noise, part, least, most):
    """Power: 168 canaries in 7 runs; an area of 0.62 is nearly 3 deviations from guessing, 0.6 a little more than 2."""
    noise(part, key=3)
    tables = classifier_tables(**HEAD, dp_sgd={"steps": 40, "batch": 240, "learning_rate": 0.3})
    found = memberships(tables, 24, 6, 16)
    assert [each.attack for each in found] == ["lira", "rmia"]
    for each in found:
        assert least <= each.area <= most, (each.attack, each.area)


@pytest.mark.slow
def test_a_party_that_coins_leave_with_one_class_or_with_nothing_ends_no_audit(memberships, classifier_tables, caplog):
    tables = classifier_tables(**HEAD, dp_sgd={"steps": 1, "batch": 4})
    memberships(tables, 3, 4, 1)
    assert "Training goes on" in caplog.text


class Fitted:
    """A student of numbers: a logistic regression of rows with as many features as rows, fitted by gradient descent."""

    def __init__(self, noise, canaries=120):
        rng = np.random.default_rng(0)
        self.vectors = rng.normal(0, 1, (canaries, 100))
        self.labels = rng.choice([-1.0, 1.0], canaries)
        self._noise, self._rng = noise, rng
        self.runs = 0

    def losses(self, canaries, ran):
        own = [int(canary.rows[0].id) for canary in canaries]
        return np.logaddexp(0, -self.labels[own] * (self.vectors[own] @ ran))

    @contextmanager
    def simulate(self, rows):
        self.runs += 1
        own = [int(row.id) for row in rows]
        weights = np.zeros(100)
        for _ in range(60):
            slopes = -self.labels[own] * expit(-self.labels[own] * (self.vectors[own] @ weights))
            norms = np.maximum(np.abs(slopes) * np.linalg.norm(self.vectors[own], axis=1), 1.0)
            total = (slopes / norms) @ self.vectors[own] + self._rng.normal(0, self._noise, 100)
            weights -= 0.1 * total
        yield weights


def fitted(noise, shadows=20, spoiled=()):
    student = Fitted(noise)
    canaries = [Canary("worst", (Document(str(number), "", {}),)) for number in range(120)]
    planted = flipped(canaries, 0)
    with student.simulate(planted.rows) as ran:
        own = student.losses
        if spoiled:
            student.losses = lambda canaries, ran: own(canaries, ran) * (np.nan if student.runs in spoiled else 1)
        found = inferred(student, planted, ran, [], shadows, student.simulate, np.random.default_rng(1), Silent())
    assert student.runs == shadows + 1
    return found


@pytest.mark.slow
def test_a_student_without_noise_is_caught_at_few_false_positives_and_a_private_one_is_not():
    """Power: 2,520 canaries in 21 runs, half of them out, so that a rate of 0.1% is one of a thousand."""
    lira, rmia = fitted(0.0)
    assert (lira.attack, rmia.attack) == ("lira", "rmia")
    for each in (lira, rmia):
        assert (each.models, each.members + each.others) == (21, 2520)
        assert each.area > 0.8
        tenth, hundredth = each.rates
        assert (tenth.false, hundredth.false) == (0.001, 0.01)
        assert tenth.true > 0.02
        assert hundredth.true > 0.08
    for each in fitted(60.0):
        assert 0.46 < each.area < 0.54
        assert each.rates[1].true < 0.03


def test_a_run_that_diverged_is_left_out_and_too_few_show_nothing():
    assert {each.models for each in fitted(0.0, 8, spoiled=(3,))} == {8}
    assert fitted(0.0, 6, spoiled=(2, 3, 4, 5)) == []


def test_rates_that_too_few_canaries_can_show_are_none():
    (lira, _) = fitted(0.0, 6)
    assert [rate.true is None for rate in lira.rates] == [True, False]


def test_a_curve_is_kept_in_few_points_that_begin_and_end_as_it_does():
    (lira, _) = fitted(0.0)
    points = np.array(lira.curve)
    assert len(points) <= 64
    assert points[-1].tolist() == [1.0, 1.0]
    assert (np.diff(points, axis=0) >= 0).all()
    assert np.trapezoid(points[:, 1], points[:, 0]) == pytest.approx(lira.area, abs=0.02)


@pytest.mark.slow
def test_what_shadow_models_found_is_told_and_drawn_from_the_file_alone(tmp_path):
    attack = {"attacked": "student", "canaries": "worst", "count": 120, "how": "It looked.", "guesses": 2, "right": 1}
    found = Audit(
        format=2, run=None, plan_hash="ab" * 32, claimed=None, delta=1e-5, unit="one document", confidence=0.95,
        records=10, source=10, coins="seed", memberships=fitted(0.0, 6),
        attacks=[attack | {"tried": 7, "lower": 0.0, "counted": [[2, 1]]}],
    )  # fmt: skip
    read = Audit.model_validate_json(content_of(found))
    assert read == found
    (lira, rmia) = lines(read)[-2:]
    assert lira.startswith("Membership inference against the student (LiRA, worst case, 7 models")
    assert "at 1%; too few canaries are out for 0.1%." in rmia
    keep(read, tmp_path)
    assert (tmp_path / ROC).read_bytes().startswith(b"\x89PNG")
    keep(read.model_copy(update={"memberships": []}), tmp_path)
    assert not (tmp_path / ROC).exists()  # of an earlier audit


@pytest.mark.slow
def test_what_shadow_models_found_is_published_drawn_and_told(here, classifier_tables, tmp_path):
    asked = {"canaries": 6, "records": 80, "kinds": ["worst"], "shadows": 6}
    tables = classifier_tables(**HEAD, dp_sgd={"steps": 1, "batch": 240}) | {"audit": asked}
    result = api.run(plan_of(tables), output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    found = Audit.model_validate_json((result.student / "audit.json").read_text())
    assert [each.attack for each in found.memberships] == ["lira", "rmia"]
    assert {each.models for each in found.memberships} == {7}
    for text in ((result.student / "README.md").read_text(), render(api.report(result.run))):
        assert "Membership inference against the student (LiRA, worst case, 7 models" in " ".join(text.split())
        assert "too few canaries are out for 0.1% and 1%" in " ".join(text.split())
    assert (tmp_path / "run" / ROC).read_bytes().startswith(b"\x89PNG")
    assert not (result.student / ROC).exists()


@pytest.mark.slow
def test_embeddings_have_no_shadow_models_and_a_plan_of_before_is_what_it_was(audit, dped_tables):
    assert audit(dped_tables("counts"), canaries=10, records=40, kinds=["worst"], shadows=6).memberships == []
    plain, asks = (plan_of(dped_tables("counts", audit={"shadows": each})) for each in (0, 16))
    assert "shadows" not in json.loads(plain.document())["audit"]
    assert json.loads(asks.document())["audit"]["shadows"] == 16
    with pytest.raises(ValueError, match="5 shadow models are too few"):
        plan_of(dped_tables("counts", audit={"shadows": 5}))
