"""A student of stored targets: its losses, what counts, and a kill that changes nothing."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from aggregation.errors import ConclaveError, IntegrityError
from learning.language.distilling import Settings, distil, divergence
from learning.language.soft_targets import graded
from learning.transformers.layered_student import make_student

FEW = Settings(passes=4, batch=8, micro_batch=3, held_out=0.1, learning_rate=5e-3, save_every=1e9, patience=100)


@pytest.fixture
def lesson(model, speaker, texts, tmp_path):
    """`lesson(top, hidden)`: a student of one layer, the texts, their openings and what the speaker says of them."""

    def makes(top=300, hidden=False, temperature=1.0):
        openings = [[0]] * len(texts)
        targets = graded(
            [speaker], texts, [openings], top=top, temperature=temperature, folder=tmp_path / f"{top}-{hidden}",
            hidden=hidden,
        )  # fmt: skip
        return make_student(model, 1, "spread"), texts, openings, targets

    return makes


def test_the_divergence_of_all_tokens_is_the_librarys_and_of_some_is_no_more():
    chance = torch.Generator().manual_seed(0)
    p, q = (torch.log_softmax(torch.randn(6, 50, generator=chance), dim=1) for _ in range(2))
    whole = functional.kl_div(q, p, reduction="none", log_target=True).sum(dim=1)
    assert torch.allclose(divergence(p, q), whole, atol=1e-5)
    best, ids = p.topk(10, dim=1)
    some = divergence(best, q.gather(1, ids))
    assert (some <= whole + 1e-5).all()
    assert (some >= -1e-6).all()
    assert torch.allclose(divergence(best, best), torch.zeros(6), atol=1e-6)


@pytest.mark.slow
def test_a_student_comes_nearer_to_its_teacher_and_is_the_best_that_was_looked_at(lesson, tmp_path):
    student, texts, openings, targets = lesson()
    told = []
    found = distil(
        student, texts, openings, targets, FEW, seed=1, checkpoint=tmp_path,
        on_step=lambda done, total, losses: told.append((done, total, losses["total"])),
    )  # fmt: skip
    assert [done for done, _, _ in told] == list(range(1, 21))
    assert {total for _, total, _ in told} == {20}
    start = distil(
        lesson()[0], texts, openings, targets, Settings(**{**_fields(FEW), "learning_rate": 1e-12}), seed=1,
        checkpoint=tmp_path / "none",
    ) if (tmp_path / "none").mkdir() is None else None  # fmt: skip
    assert found.losses["total"] < 0.8 * start.losses["total"]
    assert 0 < found.best <= found.steps
    assert not any(each.requires_grad for each in student.parameters())


def _fields(settings):
    return {name: getattr(settings, name) for name in settings.__slots__}


@pytest.mark.slow
def test_the_loss_is_per_token_and_masked_and_leaves_the_first_tokens_out_of_the_divergence(lesson, speaker, tmp_path):
    student, texts, openings, targets = lesson()
    still = Settings(**{**_fields(FEW), "learning_rate": 1e-12, "skip": 2, "mixing": 0.6})
    found = distil(copy.deepcopy(student), texts, openings, targets, still, seed=1, checkpoint=tmp_path).losses
    hard, soft, tokens, graded_tokens = 0.0, 0.0, 0, 0
    for place in range(0, len(texts), 10):
        ids = torch.tensor([[0, *texts[place].tolist()]])
        with torch.no_grad():
            q = torch.log_softmax(student(ids).logits[0, :-1], dim=-1)
            p = speaker.log_probabilities(speaker.model(ids).logits[0, :-1])
        hard -= float(q.gather(1, ids[0, 1:, None]).sum())
        soft += float(functional.kl_div(q, p, reduction="none", log_target=True).sum(dim=1)[2:].sum())
        tokens += len(texts[place])
        graded_tokens += max(0, len(texts[place]) - 2)
    assert found["hard"] == pytest.approx(hard / tokens, rel=1e-4)
    assert found["soft"] == pytest.approx(soft / graded_tokens, rel=2e-3)
    assert found["total"] == pytest.approx(0.4 * found["hard"] + 0.6 * found["soft"], rel=1e-5)


@pytest.mark.slow
def test_answers_are_heeded_by_their_weight_and_the_token_itself_by_the_rest(lesson, speaker, texts, tmp_path):
    student, _, openings, targets = lesson()
    weights = np.linspace(0, 1, len(texts.ids)).astype(np.float32)
    weighted = replace(targets, weights=weights)
    still = Settings(**{**_fields(FEW), "learning_rate": 1e-12, "mixing": 0.6, "held_out": 0.5})
    found = distil(copy.deepcopy(student), texts, openings, weighted, still, seed=1, checkpoint=tmp_path).losses
    total, hard, tokens = 0.0, 0.0, 0
    for place in range(0, len(texts), 2):
        ids = torch.tensor([[0, *texts[place].tolist()]])
        own = torch.from_numpy(weights[texts.stops[place] : texts.stops[place + 1]])
        with torch.no_grad():
            q = torch.log_softmax(student(ids).logits[0, :-1], dim=-1)
            p = speaker.log_probabilities(speaker.model(ids).logits[0, :-1])
        each = -q.gather(1, ids[0, 1:, None])[:, 0]
        apart = functional.kl_div(q, p, reduction="none", log_target=True).sum(dim=1)
        total += float(((1 - 0.6 * own) * each + 0.6 * own * apart).sum())
        hard += float(each.sum())
        tokens += len(own)
    assert found["hard"] == pytest.approx(hard / tokens, rel=1e-4)
    assert found["total"] == pytest.approx(total / tokens, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("weight", "mixing"), [(0.0, 0.0), (1.0, 0.7)])
def test_answers_of_no_weight_teach_what_the_texts_alone_teach_and_those_of_full_weight_as_without_weights(
    weight, mixing, lesson, texts, tmp_path
):
    students = []
    for name, share, weights in (
        ("weighted", 0.7, np.full(len(texts.ids), weight, np.float32)),
        ("plain", mixing, None),
    ):
        student, _, openings, targets = lesson()
        (tmp_path / name).mkdir()
        settings = Settings(**{**_fields(FEW), "passes": 1, "mixing": share})
        distil(student, texts, openings, replace(targets, weights=weights), settings, seed=1,
               checkpoint=tmp_path / name)  # fmt: skip
        students.append(student)
    for one, other in zip(*(each.parameters() for each in students), strict=True):
        assert (one - other).abs().mean() < 1e-4  # the steps are of 5e-3, and rounding turns some that should be 0


@pytest.mark.slow
def test_the_loss_of_swing_has_each_tokens_temperature_for_the_teacher_and_one_for_the_student(
    lesson, speaker, texts, tmp_path
):
    """Equations 10 and 11: l (-sum p ln q) + (1 - l) CE, q at T, without a T^2; the entropy of p has no gradient."""
    student = lesson(top=8)[0]
    each = np.linspace(1, 9, len(texts.ids))
    openings = [[0]] * len(texts)
    targets = graded([speaker], texts, [openings], top=300, temperature=2.0, folder=tmp_path / "own", temperatures=each)
    swing = Settings(
        **{**_fields(FEW), "learning_rate": 1e-12, "mixing": 0.7, "temperature": 2.0, "squared": False, "held_out": 0.5}
    )
    found = distil(student, texts, openings, targets, swing, seed=1, checkpoint=tmp_path).losses
    hard, crossed, entropy, tokens = 0.0, 0.0, 0.0, 0
    for place in range(0, len(texts), 2):
        ids = torch.tensor([[0, *texts[place].tolist()]])
        at = torch.tensor(each[texts.stops[place] : texts.stops[place + 1]], dtype=torch.float32)[:, None]
        with torch.no_grad():
            v = student(ids).logits[0, :-1]
            p = speaker.log_probabilities(speaker.model(ids).logits[0, :-1], at)
        hard -= float(torch.log_softmax(v, dim=-1).gather(1, ids[0, 1:, None]).sum())
        crossed -= float((p.exp() * torch.log_softmax(v / 2.0, dim=-1)).sum())
        entropy -= float((p.exp() * p).sum())
        tokens += len(texts[place])
    wanted = 0.7 * (crossed - entropy) / tokens + 0.3 * hard / tokens
    assert found["total"] == pytest.approx(wanted, rel=2e-3)
    assert found["soft"] == pytest.approx((crossed - entropy) / tokens, rel=3e-3)


@pytest.mark.slow
def test_hidden_states_of_another_width_are_matched_through_a_map_that_is_thrown_away(lesson, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    _, texts, openings, targets = lesson(top=8, hidden=True)
    torch.manual_seed(0)
    narrow = GPT2LMHeadModel(
        GPT2Config(vocab_size=int(targets.ids.max()) + 300, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    )
    narrow.config.pad_token_id = None
    names = {name for name, _ in narrow.named_parameters()}
    (tmp_path / "one").mkdir()
    found = distil(
        narrow, texts, openings, targets, Settings(**{**_fields(FEW), "hidden": 1.0, "passes": 8}), seed=1,
        checkpoint=tmp_path / "one",
    )  # fmt: skip
    assert found.losses["hidden"] < 1.1
    assert {name for name, _ in narrow.named_parameters()} == names


@pytest.mark.slow
def test_a_learning_that_was_killed_ends_with_the_same_bytes(lesson, tmp_path):
    student, texts, openings, targets = lesson(top=8)
    often = Settings(**{**_fields(FEW), "save_every": 1e-9})
    whole, killed, again = (copy.deepcopy(student) for _ in range(3))
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    expected = distil(whole, texts, openings, targets, often, seed=1, checkpoint=tmp_path / "whole")

    class Killed(Exception):
        pass

    def kills(done, total, losses):
        if done == 13:
            raise Killed

    with pytest.raises(Killed):
        distil(killed, texts, openings, targets, often, seed=1, checkpoint=tmp_path / "killed", on_step=kills)
    steps = []
    found = distil(
        again, texts, openings, targets, often, seed=1, checkpoint=tmp_path / "killed",
        on_step=lambda done, total, losses: steps.append(done),
    )  # fmt: skip
    assert steps[0] == 14
    assert found == expected
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    (tmp_path / "killed" / "state.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(IntegrityError, match="damaged"):
        distil(copy.deepcopy(student), texts, openings, targets, often, seed=1, checkpoint=tmp_path / "killed")


def test_training_ends_where_it_gets_no_better(lesson, tmp_path):
    student, texts, openings, targets = lesson(top=8)
    wild = Settings(**{**_fields(FEW), "learning_rate": 3.0, "patience": 2, "passes": 50})
    before = [each.clone() for each in student.parameters()]
    found = distil(student, texts, openings, targets, wild, seed=1, checkpoint=tmp_path)
    assert found.steps < 100
    assert found.best == 0
    assert all(torch.equal(one, other) for one, other in zip(before, student.parameters(), strict=True))


def test_targets_of_other_texts_are_refused(lesson, tmp_path):
    student, texts, openings, targets = lesson(top=8)
    with pytest.raises(ConclaveError, match="other texts"):
        distil(student, texts.of(np.arange(5)), openings[:5], targets, FEW, seed=1, checkpoint=tmp_path)
    with pytest.raises(ConclaveError, match="other settings"):
        distil(
            student, texts, openings, targets, Settings(**{**_fields(FEW), "temperature": 2.0}), seed=1,
            checkpoint=tmp_path,
        )  # fmt: skip
