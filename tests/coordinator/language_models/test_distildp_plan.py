"""What a plan of DistilDP may say, what its parts cost, and what is said of a mistake before anything is spent."""

import json
import shutil

import pytest

from aggregation.accounting.price import price
from coordinator.errors import PlanError
from coordinator.language_models.counts import CODES, TOKENS
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.run.party_files import party_tables
from coordinator.systems.distildp.public import prepare
from coordinator.systems.registry import names, plan_of, prepared, price_of, template
from learning.models.checkpoints import ModelError
from protos.console.mistakes import SettingsError
from protos.console.settings import check_settings


@pytest.fixture
def ready(distildp_plan, tmp_path):
    def makes(**changes):
        plan = distildp_plan(**changes)
        return plan, prepare(plan, tmp_path, tmp_path / "cache")

    return makes


@pytest.mark.slow
def test_the_releases_together_cost_the_plans_epsilon_and_each_part_its_own(ready):
    plan, public = ready(floor={"epsilon": 2.0}, codes={"epsilon": 0.5})
    priced = price_of(plan, public)
    tokens, codes, steps = priced.releases
    delta = plan.privacy.delta * (1 - SAMPLER_SHARE)
    alone = [price([release.at_most], delta).epsilon for release in (tokens, codes, steps)]
    assert alone[0] == pytest.approx(2.0, rel=0.01)
    assert alone[1] == pytest.approx(0.5, rel=0.01)
    assert 7.9 < priced.guarantee.epsilon <= 8.0
    assert alone[2] < 8.0 < sum(alone)
    assert (tokens.rows, tokens.columns) == (1, 2 * public.tokens)
    assert (codes.rows, codes.columns) == (1, 2)
    assert [tokens.name, codes.name, steps.name] == [TOKENS, CODES, "steps"]


def test_a_plan_at_another_epsilon_divides_it_as_before(distildp_plan):
    from coordinator.comparing.comparable import changed

    plan = changed(distildp_plan(floor={"epsilon": 2.0}, codes={"epsilon": 0.5}), epsilon=4.0)
    assert (plan.floor.epsilon, plan.codes.epsilon) == (1.0, 0.25)


@pytest.mark.slow
def test_parties_are_told_the_codes_and_their_files_which_column_they_are(ready):
    plan, public = ready()
    coded = price_of(plan, public).binding.terms.coded
    assert coded.template == "{way}"
    assert [(each.name, list(each.labels), list(each.values)) for each in coded.columns] == [
        ("way", ["east", "west"], ["1", "2"])
    ]
    assert all(tables["shard"]["codes"] == {"way": "kind"} for tables in party_tables(plan).values())


def test_what_is_trained_decides_the_learning_rate(distildp_plan):
    rates = {
        adapt: distildp_plan(model={"adapt": adapt}).dp_sgd.learning_rate for adapt in ("lora", "lora-all", "full")
    }
    assert rates == {"lora": 0.01, "lora-all": 0.008, "full": 0.0005}
    tables = distildp_plan().model_dump()
    del tables["model"]["adapt"], tables["dp_sgd"]["learning_rate"]
    assert plan_of(tables).dp_sgd.learning_rate == rates["lora-all"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": {"record": "pair"}}, "learns from texts"),
        ({"privacy": {"record": "sentence"}}, "a control code belongs to a document"),
        ({"privacy": {"declared_size": None}}, "declared_size is missing"),
        ({"floor": {"epsilon": 7.9}}, "leave nothing"),
        ({"privacy": {"noise_multiplier": 1.0}}, r"\[floor\] epsilon is missing"),
        ({"distil": {"student": "x"}}, "exclude each other"),
        ({"generation": {"longest": 64}}, "is more than"),
        ({"codes": {"template": "no column"}}, "names no column"),
        ({"codes": {"template": "{way} {other}"}}, "other is in one of them only"),
        ({"codes": {"columns": {"way": {"values": [str(n) for n in range(5000)]}}}}, "5,000 combinations"),
        ({"codes": {"columns": {"way": {"values": ["east", "east"]}}}}, "twice"),
        ({"generation": {"top_p": 0.0}}, "top_p"),
        ({"model": {"adapt": "head"}}, "adapt"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_a_sentence(distildp_tables, changes, said):
    from coordinator.systems.distildp.plan import DistilDpPlan

    with pytest.raises(SettingsError, match=said):
        check_settings(distildp_tables(**changes), DistilDpPlan, "plan.toml")


def test_a_code_that_leaves_no_room_for_text_is_refused(ready):
    with pytest.raises((PlanError, ModelError), match="shorter template"):
        ready(codes={"template": "a very long code before the word {way}"}, text={"longest": 20})


def _copied(tiny_gpt2, folder):
    return shutil.copytree(tiny_gpt2, folder)


def test_a_model_without_an_end_token_is_refused(ready, tiny_gpt2, tmp_path):
    folder = _copied(tiny_gpt2, tmp_path / "endless")
    path = folder / "tokenizer_config.json"
    told = json.loads(path.read_text())
    told.pop("eos_token")
    path.write_text(json.dumps(told))
    with pytest.raises(PlanError, match="no end token"):
        ready(model={"name": str(folder)})


@pytest.mark.slow
def test_a_student_with_another_tokenizer_is_refused_though_it_has_as_many_tokens(ready, tiny_gpt2, tmp_path):
    folder = _copied(tiny_gpt2, tmp_path / "other")
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text())
    vocabulary = told["model"]["vocab"]
    first, second = [token for token in vocabulary if len(token) == 1][:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(told))
    with pytest.raises(PlanError, match="another tokenizer"):
        ready(distil={"student": str(folder), "layers": None})
    _, public = ready(distil={"student": str(tiny_gpt2), "layers": None})
    assert public.layers == (2, 2)


def test_a_student_of_more_layers_than_its_teacher_is_refused(ready):
    with pytest.raises(ModelError, match="layers"):
        ready(distil={"layers": 7})


def test_an_encoder_is_refused(ready, tiny_bert):
    with pytest.raises(ModelError, match=r"no causal|cannot be a|lacks"):
        ready(model={"name": str(tiny_bert)})


@pytest.mark.slow
def test_the_forecast_names_every_release_and_what_is_drowned(distildp_plan, tmp_path):
    from coordinator.pricing.priced_plan import price_plan
    from coordinator.systems.distildp.forecast import forecast, needs

    plan = distildp_plan()
    recipe = prepared(plan, tmp_path, tmp_path / "cache")
    priced = price_plan(recipe)
    found = forecast(recipe, priced, tmp_path, tmp_path, 1.0)
    assert [row.name for row in found.rows] == ["tokens", "codes", "steps"]
    assert found.seconds > 1
    assert "counts of tokens" in found.clear[0]
    many = distildp_plan(generation={"texts": 40_000})
    longer = forecast(prepared(many, tmp_path, tmp_path / "cache"), priced, tmp_path, tmp_path, 1.0)
    assert longer.seconds > 2 * found.seconds
    small = distildp_plan(privacy={"epsilon": 0.1})
    less = prepared(small, tmp_path, tmp_path / "cache")
    drowned = forecast(less, price_plan(less), tmp_path, tmp_path, 1.0)
    assert drowned.warnings
    assert needs(recipe, priced, tmp_path, tmp_path).disk > 0


def test_there_is_a_plan_to_start_from_for_either_launch():
    assert "distildp" in names()
    assert 'recipe = "distildp"' in template("ray", "distildp")
    assert 'launch = "connect"' in template("connect", "distildp")


def test_a_text_with_any_end_of_line_in_it_is_one_line_of_the_dataset():
    import json

    from coordinator.systems.distildp.student import json_line

    row = {"text": "".join(map(chr, (97, 10, 11, 12, 13, 28, 29, 30, 0x85, 0x2028, 0x2029, 0xE9, 98))), "way": "east"}
    (line,) = json_line(row).splitlines()
    assert json.loads(line) == row
    assert "é" in line


@pytest.mark.slow
def test_the_forecast_of_teachers_that_stay_counts_what_they_say_at_every_party(distildp_plan, tmp_path):
    from coordinator.pricing.priced_plan import price_plan
    from coordinator.systems.distildp.forecast import forecast, needs

    made = {}
    for where in ("coordinator", "parties"):
        plan = distildp_plan(dp_sgd={"form": "local"}, generation={"where": where})
        recipe = prepared(plan, tmp_path, tmp_path / "cache")
        priced = price_plan(recipe)
        found = forecast(recipe, priced, tmp_path, tmp_path, 1.0)
        assert [row.name for row in found.rows] == ["tokens", "codes", "round-0"]
        made[where] = (found, needs(recipe, priced, tmp_path, tmp_path))
    (free, least), (kept, most) = made["coordinator"], made["parties"]
    assert kept.rows[2].ratio == free.rows[2].ratio
    assert kept.bytes > free.bytes
    assert most.party_disk > least.party_disk
    assert most.party_memory > least.party_memory
    together = prepared(distildp_plan(), tmp_path, tmp_path / "cache")
    joint = forecast(together, price_plan(together), tmp_path, tmp_path, 1.0)
    assert joint.rows[2].ratio > kept.rows[2].ratio
