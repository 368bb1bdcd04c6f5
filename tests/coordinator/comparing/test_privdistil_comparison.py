"""Comparing PrivDistil with what it is measured against: fair prices, one distillation for one choice, a leak that is
named.
"""

import json

import numpy as np
import pytest

from aggregation.accounting.events import from_json
from aggregation.accounting.price import price
from coordinator import api
from coordinator.comparing import table
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.systems.privdistil import data as privdistil_data
from coordinator.systems.privdistil import distillation, dpkd
from coordinator.systems.privdistil.data import singles
from coordinator.systems.privdistil.dpkd import mixed
from coordinator.systems.privdistil.methods import METHODS, methods_of
from learning.models import features
from learning.models.batching import Tokens
from learning.models.encoders import digest

SMALL = {
    "privacy": {"noise_multiplier": None, "epsilon": 8.0, "trust": "secure-sum", "dropouts": 1},
    "domain": {"epsilon": 2.0},
    "fine_tune": {"epochs": 2},
    "pate": {"queries": 20, "teachers_per_party": 2, "epochs": 2},
}


@pytest.fixture(scope="module")
def plan(privdistil_plan, opinions):
    return privdistil_plan(**SMALL | {"pate": SMALL["pate"] | {"source": str(opinions / "public.jsonl")}})


@pytest.fixture(scope="module")
def compared(plan, tmp_path_factory):
    """Every method at one epsilon, the students that were distilled, and from where to where others trained."""
    home = tmp_path_factory.mktemp("home")
    made, trained = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONCLAVE_HOME", str(home))
        own = distillation.compress

        def counted(*arguments):
            made.append(arguments[3].parent.name)
            return own(*arguments)

        train = dpkd.federated

        def watched(data, text, mechanism, optimisation, purpose, targets):
            point = train(data, text, mechanism, optimisation, purpose, targets)
            trained.append((purpose, text.start.copy(), point))
            return point

        patch.setattr(privdistil_data, "compress", counted)
        patch.setattr(dpkd, "federated", watched)
        found = api.compare(plan, epsilons=(8.0,), seeds=1, output=home / "out")
    return found, made, trained


@pytest.mark.slow
def test_every_private_cell_costs_no_more_than_its_epsilon_and_the_leaking_one_promises_nothing(compared):
    found, *_ = compared
    assert [cell.method for cell in found.cells] == list(METHODS)
    delta = found.plan.privacy.delta * (1 - SAMPLER_SHARE)
    for cell in found.cells:
        if cell.method in ("kd-ft", "fine_tune"):
            assert (cell.event, cell.paid) == (None, None)
            continue
        assert price([from_json(cell.event)], delta).epsilon == pytest.approx(cell.paid)
        assert 0.9 * 8.0 < cell.paid <= 8.0, cell.method
    assert found.open, "with a row that leaks there is no bound on all of them"
    assert "KD+FT: leaks, no guarantee" in table.markdown(found)


@pytest.mark.slow
def test_a_student_of_one_choice_is_distilled_once(compared):
    _, made, _ = compared
    # Of the six choices, the start and the parties' own text: "undistilled", DPKD, PATE and the teacher distil nothing.
    assert len(made) == len(set(made)) == 8


@pytest.mark.slow
def test_methods_that_choose_publicly_pay_for_the_student_alone(compared):
    found, *_ = compared
    noise = {cell.method: cell.notes["noise_multiplier"] for cell in found.cells if "noise_multiplier" in cell.notes}
    assert noise["random"] == noise["full"] == noise["undistilled"]
    assert noise["privdistil"] > noise["random"], "the classifiers have a part of the budget"
    assert noise["dpkd"] > noise["privdistil"], "both trainings are paid for"
    assert noise["dpkd-ft"] == noise["dpkd"], "what the teacher learned was paid for"
    agreement = {cell.method: cell.notes.get("agreement") for cell in found.cells}
    assert agreement["privdistil"] is not None
    assert agreement["random"] is None


@pytest.mark.slow
def test_a_student_of_dpkd_begins_at_the_public_head_or_at_its_teachers(compared):
    students = {purpose: start for purpose, start, _ in compared[2] if purpose[0] == "twice" and "student" in purpose}
    teachers = [point for purpose, _, point in compared[2] if purpose[0] == "twice" and "teacher" in purpose]
    public, inherited = (students[purpose] for purpose in sorted(students, key=len))
    assert np.array_equal(inherited, teachers[-1])
    assert not np.array_equal(public, teachers[-1])
    assert not np.array_equal(public, teachers[0])


@pytest.mark.slow
def test_pairs_are_compared_and_no_encoder_reads_a_text_twice(
    privdistil_plan, privdistil_tables, tmp_path, monkeypatch
):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    read, own = [], features.features_apart

    def counted(model, rows, *more):
        read.append((digest(model.base_model), b"".join(row.ids.tobytes() + b"|" for row in rows)))
        return own(model, rows, *more)

    monkeypatch.setattr(features, "features_apart", counted)
    shards = privdistil_tables()["federation"]["shards"] | {"second": "second"}
    pairs = {"text": {"kind": "pair"}, "federation": {"shards": shards}, "evaluation": {"second": "second"}}
    rows = ["privdistil", "ais-random"]
    plan = privdistil_plan(privacy=SMALL["privacy"], domain=SMALL["domain"], model={"pooling": "mean"}, **pairs)
    api.compare(plan, recipes=rows, epsilons=(4.0, 8.0), seeds=1, output=tmp_path / "out")
    assert len(read) == len(set(read)) > 4 + 4 + 4, "parties' texts and public ones, and pairs by a student or more"


def test_a_student_of_layers_that_are_not_its_teachers_inherits_nothing(privdistil_plan, tiny_bert):
    assert "dpkd-ft" in methods_of(privdistil_plan())
    assert "dpkd-ft" not in methods_of(privdistil_plan(distil={"layers": None, "student": str(tiny_bert)}))


def test_a_pair_is_distilled_on_as_two_texts():
    class Part:
        rows = (Tokens(np.array([2, 10, 11, 3, 12, 3], np.int32), 4), Tokens(np.array([2, 10, 3], np.int32), 3))

    assert [row.ids.tolist() for row in singles(Part)] == [[2, 10, 11, 3], [2, 12, 3], [2, 10, 3]]


def test_soft_targets_have_the_gradient_of_the_mean_of_both_losses():
    import torch
    from torch.nn import functional

    from learning.models.batching import losses_of

    said, labels = np.array([[1.0, -2.0, 0.5]], np.float32), np.array([2])
    soft = torch.from_numpy(mixed(labels, said))
    assert soft.sum().item() == pytest.approx(1.0)
    logits = torch.tensor([[0.3, 0.1, -0.7]], requires_grad=True)
    (one,) = torch.autograd.grad(losses_of(logits, soft).sum(), logits)
    teacher = functional.softmax(torch.from_numpy(said), dim=1)
    divergence = functional.kl_div(functional.log_softmax(logits, 1), teacher, reduction="sum")
    both = (functional.cross_entropy(logits, torch.from_numpy(labels)) + divergence) / 2
    (other,) = torch.autograd.grad(both, logits)
    assert torch.allclose(one, other, atol=1e-6)
    scores = mixed(np.array([0.5], np.float32), np.array([[-0.5]], np.float32))
    assert scores.tolist() == [0.0]


def test_what_a_comparison_is_of_can_be_read_again(plan):
    assert json.loads(plan.document())["selection"]["method"] == "ais"


@pytest.mark.slow
def test_students_and_teachers_of_rows_are_fine_tuned_by_adapters_too(privdistil_plan, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    rows = ("privdistil", "undistilled", "dpkd", "teacher")
    small = {name: table for name, table in SMALL.items() if name != "pate"}
    plan = privdistil_plan(**small | {"model": {"adapt": "lora", "rank": 2}})
    found = api.compare(plan, recipes=rows, epsilons=(8.0,), seeds=1, output=tmp_path / "out")
    assert [cell.method for cell in found.cells] == list(rows)
    assert all(cell.paid <= 8.0 for cell in found.cells)
    assert all("accuracy" in cell.metrics for cell in found.cells)
