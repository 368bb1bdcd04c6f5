"""Every way through a model on a second device: nothing is left on the processor, and the numbers are the processor's.

`elsewhere` (tests/second_device.py) is that device; each case is done there and on the processor.
"""

import itertools

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertForMaskedLM

from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
from aggregation.noise.stream import NoiseStream
from learning.classification.training import Fit, fit, fit_head, predict, predict_head
from learning.models.adapting import Lora, adapt, flatten, merged
from learning.models.batching import encode, encode_documents, losses
from learning.models.checkpoints import save
from learning.models.compute import PROCESSOR, device_of, on_device, running
from learning.models.encoders import classifier, digest, encoder, language_model
from learning.models.features import features, features_apart, head_alone
from learning.private_training.dp_sgd import train_private
from learning.private_training.feature_units import FeatureUnits, head_losses
from learning.private_training.optimisation import Optimisation
from learning.private_training.text_units import TextUnits, probe_of
from learning.selection.text_rows import TextRows
from learning.text.labelled import LabelMap, ScoreRange
from learning.transformers.distilling import Distillation, distil
from learning.transformers.layered_student import inherit, load_teacher, make_student

pytestmark = pytest.mark.slow

NAMES = LabelMap(("no", "yes"))
TEXTS = [
    " ".join(each)
    for each in itertools.islice(itertools.permutations(["good", "dull", "film", "was", "not", "very"], 4), 24)
]
LABELS = np.arange(len(TEXTS)) % 2
SOME = Fit(epochs=1, batch=8, learning_rate=0.01)


@pytest.fixture(scope="module")
def bert(tiny_bert):
    def makes(how="full", targets=NAMES, pool="mean"):
        model, tokenizer = classifier(str(tiny_bert), targets, seed=1, pool=pool)
        adapt(model, how, seed=1, lora=Lora(2, 4))
        return on_device(model), encode(tokenizer, TEXTS, longest=16).rows

    return makes


@pytest.fixture(scope="module")
def gpt2(tiny_gpt2):
    def makes(how="full"):
        model, tokenizer = language_model(str(tiny_gpt2))
        adapt(model, how, seed=1, lora=Lora(2, 4))
        return on_device(model), encode_documents(tokenizer, TEXTS, longest=16).rows

    return makes


def trained(model, rows, labels, by_user=False):
    members = [list(range(start, start + 3)) for start in range(0, len(rows), 3)] if by_user else None
    targets = None if labels is None else torch.from_numpy(np.array(labels))
    head = None if labels is None else head_alone(model)
    if head is None:
        units = TextUnits(model.config, rows, targets, members=members)
    else:
        units = FeatureUnits(features_apart(model, rows, {}, tokens=64), targets, members=members)
    learner = model if head is None else head
    mechanism = GradientMechanism(
        clip=0.5, levels=fine_levels(0.5, len(flatten(learner))), noise_multiplier=1.0, sampling_probability=0.5,
        steps=2, parameters=len(flatten(learner)),
    )  # fmt: skip
    kinds = None if labels is None else (0 if np.issubdtype(np.array(labels).dtype, np.floating) else len(NAMES.names))
    train_private(
        learner,
        units,
        losses if head is None else head_losses,
        mechanism,
        Optimisation(expected_batch=8, learning_rate=0.05),
        stream=NoiseStream.insecure(1, "training"),
        probe=probe_of(model.config, kinds) if head is None else None,
    )
    return flatten(learner).numpy()


def privately(how, by_user=False, targets=NAMES, labels=LABELS, pool="mean"):
    return lambda given: trained(*given["bert"](how, targets, pool), labels, by_user)


def speaking(how):
    return lambda given: trained(*given["gpt2"](how), None)


def predicted(given):
    model, rows = given["bert"]()
    return predict(model, rows, tokens=64)


def fitted(how, batch=8):
    def does(given):
        model, rows = given["bert"](how)
        fit(model, rows, LABELS, Fit(epochs=1, batch=batch, learning_rate=0.01), np.random.default_rng(0))
        return flatten(model).numpy()

    return does


def with_a_head(given):
    model, rows = given["bert"]("head")
    vectors, head = features(model, rows), head_alone(model)
    fit_head(head, vectors, LABELS, SOME, np.random.default_rng(0))
    return predict_head(head, vectors)


def with_a_score(given):
    model, rows = given["bert"]("full", ScoreRange(0, 5))
    fit(model, rows, LABELS.astype(np.float32), SOME, np.random.default_rng(0))
    return predict(model, rows)


def apart(given):
    model, rows = given["bert"]("head")
    return features_apart(model, rows, {}, tokens=64)


def kept(given):
    model, _ = given["bert"]("lora")
    with given["elsewhere"].paused():
        plain = merged(model)
    assert device_of(plain).type == "cpu"
    tokenizer = AutoTokenizer.from_pretrained(given["tiny_bert"])
    save(plain, tokenizer, given["tmp_path"])
    save(given["bert"]()[0], tokenizer, given["tmp_path"])
    return np.frombuffer(digest(model), np.uint8)


def distilled(kind):
    def does(given):
        if kind == "encoder":
            teacher, tokenizer = load_teacher(str(given["tiny_bert"]))
        elif kind == "causal":
            teacher, tokenizer = load_teacher(str(given["tiny_gpt2"]))
            tokenizer.pad_token = tokenizer.eos_token
        else:
            tokenizer = AutoTokenizer.from_pretrained(given["tiny_bert"])
            tokenizer.add_special_tokens({"mask_token": "[MASK]"})
            config, _ = encoder(str(given["tiny_bert"]))
            torch.manual_seed(0)
            config.config.vocab_size = len(tokenizer)
            config.config._attn_implementation = "sdpa"
            teacher = on_device(BertForMaskedLM(config.config))
        student = make_student(teacher, 1, seed=1)
        settings = Distillation(
            passes=1, batch=8, micro_batch=3, learning_rate=3e-3, max_tokens=16, bucket=2, buffer=12, save_every=0.0,
            match="paired",
        )  # fmt: skip
        folder = given["tmp_path"] / "state"

        def stops(step, steps, losses):
            if step == 2:
                raise KeyboardInterrupt

        how = {"tokenizer": tokenizer, "seed": 1, "checkpoint": folder}
        with pytest.raises(KeyboardInterrupt):
            distil(teacher, student, lambda: TEXTS, settings, on_step=stops, **how)
        student = make_student(teacher, 1, seed=1)
        outcome = distil(teacher, student, lambda: TEXTS, settings, **how)
        return np.append(flatten(student).numpy(), list(outcome.losses.values()))

    return does


def inherited(given):
    whole, _ = given["bert"]("lora")
    inherit(whole, whole)
    return flatten(whole).numpy()


def rows_of(kind):
    def does(given):
        name = given["tiny_bert"]
        if kind == "probability":
            name = given["tmp_path"] / "classifier"
            with running(PROCESSOR):
                save(given["bert"]()[0], AutoTokenizer.from_pretrained(given["tiny_bert"]), name)
        return TextRows(kind, str(name), longest=16, column=1 if kind == "probability" else 0).load()(
            [(t,) for t in TEXTS]
        )

    return does


WAYS = {
    "predict": predicted,
    "features of a head": with_a_head,
    "features apart": apart,
    "fit all": fitted("full"),
    "fit lora": fitted("lora"),
    "fit a regression": with_a_score,
    "private head": privately("head"),
    "private head of users": privately("head", by_user=True),
    "private head with a pooler": privately("head", pool="first"),
    "private lora": privately("lora"),
    "private all": privately("full"),
    "private all of users": privately("full", by_user=True),
    "private regression": privately("full", targets=ScoreRange(0, 1), labels=LABELS.astype(np.float32)),
    "private language, lora": speaking("lora"),
    "private language, all": speaking("full"),
    "distil an encoder": distilled("encoder"),
    "distil a masked model": distilled("masked"),
    "distil a causal model": distilled("causal"),
    "inherit": inherited,
    "saved and told apart": kept,
    "rows: embedding": rows_of("embedding"),
    "rows: mean": rows_of("mean"),
    "rows: probability": rows_of("probability"),
}


@pytest.fixture
def given(bert, gpt2, tiny_bert, tiny_gpt2, tmp_path, elsewhere):
    models = {"bert": bert, "gpt2": gpt2, "tiny_bert": tiny_bert, "tiny_gpt2": tiny_gpt2}
    return models | {"tmp_path": tmp_path, "elsewhere": elsewhere}


QUICK = ("features of a head", "private head of users", "private language, lora", "rows: mean")


@pytest.mark.parametrize("way", [way if way in QUICK else pytest.param(way, marks=pytest.mark.slow) for way in WAYS])
def test_on_another_device_nothing_is_left_behind_and_numbers_are_the_same(way, given, elsewhere, tmp_path):
    with running(PROCESSOR), elsewhere.paused():
        (tmp_path / "here").mkdir()
        expected = WAYS[way](given | {"tmp_path": tmp_path / "here"})
    done = elsewhere.done
    # Distilling takes the library's attention, of which the processor has a way of its own; AdamW magnifies rounding.
    near = 1e-3 if way.startswith("distil") else 1e-6
    np.testing.assert_allclose(WAYS[way](given), expected, rtol=near, atol=near / 2)
    assert elsewhere.done > done


def unmoved(inputs, model):
    return inputs


HERE = torch.device("cpu")
LEAVES = {
    "a model": ("predict", "", lambda model: model),
    "a pass' inputs": ("predict", "learning.models.batching.moved", unmoved),
    "an encoder's inputs": ("features apart", "learning.models.features.moved", unmoved),
    "a head's vectors": ("features of a head", "learning.classification.training.device_of", lambda model: HERE),
    "private units' vectors": ("private head", "learning.private_training.clipped_sum.moved", unmoved),
    "a teacher's inputs": ("distil an encoder", "learning.transformers.distilling.moved", unmoved),
    "sums": ("private lora", "learning.private_training.per_example.exact_device", lambda device: HERE),
}


@pytest.mark.parametrize(
    "left", [each if "pass" in each else pytest.param(each, marks=pytest.mark.slow) for each in LEAVES]
)
def test_whatever_is_left_behind_is_found(left, given, elsewhere, monkeypatch):
    way, where, instead = LEAVES[left]
    if left == "a model":
        monkeypatch.setitem(globals(), "on_device", instead)
    else:
        monkeypatch.setattr(where, instead)
    with pytest.raises(elsewhere.failures):
        WAYS[way](given)
