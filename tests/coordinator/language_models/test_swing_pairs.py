"""Swing distillation of answers to inputs: whole runs in both forms, of causal models and of such with an encoder."""

import json
import shutil
from contextlib import closing

import numpy as np
import pytest

from aggregation.errors import ConclaveError
from coordinator import api
from coordinator.comparing.table import markdown
from coordinator.errors import PlanError
from coordinator.language_models.audit import INPUT
from coordinator.plan.audit import AuditTable
from coordinator.progress.progress import Silent
from coordinator.run import connecting
from coordinator.run.audited import audited
from coordinator.store.store import RunStore
from coordinator.systems.registry import plan_of, prepared, system
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import prepare
from coordinator.transport.launchers import find_launcher
from deploy import simulated_links
from deploy.launch import RayLauncher
from learning.text.source import Document
from party.tasks.result import wrapped
from protos.console.mistakes import SettingsError
from protos.console.settings import check_settings

INPUTS = {"east": "the film was good", "west": "a slow plot and a dull actor we saw"}
ANSWERS = {"east": "bright start", "west": "very bad end"}
PAIRS = {"text": {"kind": "pair", "answer": 8, "longest": 24, "separator": " and "}}


@pytest.fixture(scope="session")
def letters(tmp_path_factory):
    """The folder of `parties.jsonl` and `public.jsonl`: inputs, each with the answer of its kind."""
    folder = tmp_path_factory.mktemp("letters")
    rng = np.random.default_rng(1)
    for name, count in (("parties", 120), ("public", 20)):
        rows = []
        for number in range(count):
            kind = list(INPUTS)[int(rng.random() < 0.4)]
            body = " ".join(rng.choice(INPUTS[kind].split(), rng.integers(3, 12)))
            rows.append({"body": body, "subject": ANSWERS[kind], "id": f"{name}-{number}", "owner": f"p{number % 17}"})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return folder


@pytest.fixture(scope="session")
def paired(letters):
    """`paired(tables)`: the same tables of a plan that learns answers to inputs."""

    def makes(tables):
        columns = {"text": "body", "second": "subject", "id": "id"}
        found = tables | PAIRS
        shards = tables["federation"]["shards"] | columns | {"source": str(letters / "parties.jsonl")}
        found["federation"] = tables["federation"] | {"shards": shards}
        for name in ("queries", "evaluation"):
            found[name] = tables[name] | columns | {"source": str(letters / "public.jsonl")}
        return found

    return makes


@pytest.fixture(scope="module")
def finished(here_for_all, swing_tables, paired, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    tables = paired(
        swing_tables(
            privacy={"trust": "secure-sum", "epsilon": 20.0},
            teachers={"epochs": 6, "learning_rate": 0.02},
            distil={"passes": 40, "patience": 160, "learning_rate": 5e-3, "layers": 2},
        )
    )
    return api.run(plan_of(tables), output=folder), folder


@pytest.mark.slow
def test_the_student_answers_inputs_and_the_public_model_does_not(finished):
    result, _ = finished
    found = result.metrics
    assert found["token_perplexity"] < 0.1 * found["public_perplexity"]
    assert found["rouge_1"] > 40 > 10 > found["public_rouge_1"]
    assert {"rouge_2", "rouge_l", "public_rouge_2", "public_rouge_l"} <= set(found)
    assert found["written"] == 20
    card = (result.student / "README.md").read_text()
    assert f"ROUGE-1 of the likeliest answers on public text: {found['rouge_1']:.1f}" in card
    assert "ROUGE-1 of the public model's: " in card
    assert f"'rouge_1': {found['rouge_1']}" in str(api.report(finished[1]))


@pytest.mark.slow
def test_the_measurements_are_shown_as_one_bar(finished):
    with closing(RunStore(finished[1])) as store:
        assert store.fact("bars")["measuring"] == [4000, 4000, "percent"], "perplexity and answers, of both"


@pytest.mark.slow
def test_the_tokens_of_answers_alone_are_charged(finished, letters):
    """By hand: of each of the first 12 answers its tokens and the end, and nothing of the inputs."""
    from transformers import AutoTokenizer

    result, _ = finished
    tokenizer = AutoTokenizer.from_pretrained(result.student)
    rows = [json.loads(line) for line in (letters / "public.jsonl").read_text().splitlines()]
    tokens = sum(len(tokenizer(row["subject"], add_special_tokens=False)["input_ids"]) + 1 for row in rows[:12])
    privacy = json.loads((result.student / "privacy.json").read_text())
    (release,) = privacy["releases"]
    assert release["name"] == "differences"
    assert f"what teachers say of {tokens:,} tokens" in release["says"]
    assert result.verdict.ok
    assert result.metrics["tokens"] == sum(
        len(tokenizer(row["subject"], add_special_tokens=False)["input_ids"]) + 1 for row in rows
    )


@pytest.mark.slow
def test_the_cards_example_writes_what_was_measured(finished, letters):
    """The code of the card, run on the public inputs, gives answers of the very ROUGE that the card states."""
    from learning.swing.rouge import rouge

    result, _ = finished
    rows = [json.loads(line) for line in (letters / "public.jsonl").read_text().splitlines()]
    short = [row for row in rows if len(row["body"].split()) < 5]
    card = (result.student / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0].replace('"this-folder"', repr(str(result.student)))
    known = {}
    exec(code, known)
    said = [
        known["writer"](row["body"] + known["separator"], max_new_tokens=8, return_full_text=False, do_sample=False)[0]
        for row in short
    ]
    assert short
    found = rouge([each["generated_text"] for each in said], [row["subject"] for row in short])
    assert found.rouge_1 > 30


def test_every_answer_is_asked_after_its_own_input_and_a_students_too(swing_tables, paired, letters, tmp_path):
    from coordinator.systems.swing.questions import written_content

    recipe = prepared(plan_of(paired(swing_tables())), tmp_path, tmp_path / "cache")
    public, tokenizer = recipe.read, recipe.read.tokenizer
    rows = [json.loads(line) for line in (letters / "public.jsonl").read_text().splitlines()][:12]
    for place, row in enumerate(rows):
        answer = tokenizer(row["subject"], add_special_tokens=False)["input_ids"]
        assert public.queries[place].tolist() == [*answer, public.end]
        read = tokenizer.decode(public.before[place][1:])
        assert read.endswith(" and ")
        assert row["body"].startswith(read.removesuffix(" and "))
        assert len(public.before[place]) <= 24 - 8
    sent = json.loads(written_content(public))
    assert [tuple(sent["openings"][code]) for code in sent["codes"]] == list(public.before)
    assert len(sent["openings"]) == len(set(public.before))
    assert f"{public.cut} of the 12 pairs of [queries] are longer" in recipe.doubts()[0]
    assert public.cut > 0


@pytest.fixture(scope="module", params=["bart", pytest.param("t5", marks=pytest.mark.slow)])
def apart(request, here_for_all, swing_tables, paired, tiny_sequence, tmp_path_factory):
    """A run of a model with an encoder and a decoder, whose checkpoint writes for another task: its result."""
    folder = tmp_path_factory.mktemp(request.param)
    began = shutil.copytree(tiny_sequence(request.param), folder / "began")
    told = json.loads((began / "generation_config.json").read_text())
    (began / "generation_config.json").write_text(json.dumps(told | {"min_length": 7, "forced_bos_token_id": 5}))
    tables = paired(
        swing_tables(
            privacy={"trust": "secure-sum", "epsilon": 20.0},
            model={"name": str(began)},
            teachers={"epochs": 6, "learning_rate": 0.02},
            distil={"passes": 40, "patience": 160, "learning_rate": 5e-3, "layers": None},
        )
    )
    return api.run(plan_of(tables), output=folder / "run")


@pytest.mark.slow
def test_a_model_with_an_encoder_and_a_decoder_is_taught_and_published(apart):
    assert apart.verdict.ok
    assert apart.metrics["token_perplexity"] < 0.1 * apart.metrics["public_perplexity"]
    # Under noise so small a model writes well or badly, run by run (0 to 68 was seen); what it learned shows above.
    assert 0 <= apart.metrics["rouge_1"] <= 100
    card = (apart.student / "README.md").read_text()
    assert "A model with an encoder and a decoder of 2 layers" in card
    assert "pipeline" not in card


@pytest.mark.slow
def test_its_cards_example_is_right(apart, letters):
    """The card's code writes, of an input, what a decoder says that takes the likeliest token each time."""
    import torch

    rows = [json.loads(line) for line in (letters / "public.jsonl").read_text().splitlines()]
    code = (apart.student / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code = code.replace('"this-folder"', repr(str(apart.student)))
    assert "An input." in code
    for row in rows[:3]:
        known = {}
        exec(code.replace("An input.", row["body"]), known)
        model, read = known["model"], known["asked"].input_ids
        assert read.shape[1] <= 24 - 8
        own = [model.config.decoder_start_token_id]
        while len(own) < 9 and own[1:][-1:] != [0]:
            with torch.no_grad():
                own.append(int(model(input_ids=read, decoder_input_ids=torch.tensor([own])).logits[0, -1].argmax()))
        assert known["said"][0].tolist() == own


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_single_texts_need_a_model_without_an_encoder_of_its_own(swing_tables, tiny_sequence, tmp_path, kind):
    plan = plan_of(swing_tables(model={"name": str(tiny_sequence(kind))}))
    with pytest.raises(PlanError, match=r'has an encoder and a decoder, .*Use \[text\] kind = "pair" with columns'):
        prepare(plan, tmp_path, tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.parametrize("distil", [{"layers": 1}, {"layers": None, "start": "random"}])
def test_a_student_of_a_model_with_an_encoder_has_all_of_it(swing_tables, paired, tiny_sequence, tmp_path, distil):
    tables = paired(swing_tables(model={"name": str(tiny_sequence("bart"))}, distil=distil))
    with pytest.raises(PlanError, match=r"a student of it has all layers of both.* Leave layers and start out"):
        prepare(plan_of(tables), tmp_path, tmp_path / "cache")


@pytest.mark.slow
def test_a_student_reads_inputs_as_its_teacher_does(swing_tables, paired, tiny_gpt2, tiny_sequence, tmp_path):
    bart, t5 = (str(tiny_sequence(kind)) for kind in ("bart", "t5"))
    for teacher, student in ((bart, str(tiny_gpt2)), (str(tiny_gpt2), bart)):
        tables = paired(swing_tables(model={"name": teacher}, distil={"layers": None, "student": student}))
        with pytest.raises(PlanError, match="one has an encoder and a decoder, the other not"):
            prepare(plan_of(tables), tmp_path, tmp_path / "cache")
    tables = paired(swing_tables(model={"name": bart}, distil={"layers": None, "student": t5}))
    assert prepare(plan_of(tables), tmp_path, tmp_path / "cache").student == t5


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        ("queries", {"second": None}, r"\[queries\] second is missing: the column of the answers"),
        ("evaluation", {"second": None}, r"\[evaluation\] second is missing"),
        ("text", {"kind": "single", "separator": "\n", "answer": 32}, r"asks about no answers. Add \[text\] kind"),
        ("text", {"answer": 24}, "answer = 24 leaves nothing of longest = 24 for an input"),
        ("text", {"separator": ""}, "separator"),
        ("privacy", {"record": "sentence"}, 'an input and its answer are of one row. Use record = "document"'),
    ],
)
def test_a_plan_of_pairs_that_cannot_be_is_refused_in_a_sentence(swing_tables, paired, table, change, said):
    tables = paired(swing_tables())
    tables[table] = tables.get(table, {}) | change
    with pytest.raises(SettingsError, match=said):
        check_settings(tables, SwingPlan, "plan.toml")


def test_parties_without_a_column_of_answers_are_refused_in_a_sentence(swing_tables, paired):
    tables = paired(swing_tables())
    del tables["federation"]["shards"]["second"]
    with pytest.raises(SettingsError, match=r"\[federation.shards\] second is missing"):
        check_settings(tables, SwingPlan, "plan.toml")
    with pytest.raises(SettingsError, match='separator and answer belong to kind = "pair"'):
        check_settings(swing_tables(text={"answer": 9}), SwingPlan, "plan.toml")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text": {"answer": 14}}, r"\[text\] Pairs of 24 tokens leave 7 for an input beside 14 of its answer and 3"),
        ({"queries": {"second": "answer"}}, "answer"),
        ({"queries": {"second": "blank"}}, "3 rows have an answer in column 'blank', and a student takes 4 or more"),
        ({"evaluation": {"second": "none"}}, r"\[evaluation\] .* has no answer in its column 'none'"),
    ],
)
def test_public_text_of_which_no_answer_can_be_learned_is_refused(
    swing_tables, paired, tmp_path, letters, change, said
):
    rows = [json.loads(line) for line in (letters / "public.jsonl").read_text().splitlines()]
    rows = [row | {"blank": row["subject"] if number % 7 == 0 else " ", "none": ""} for number, row in enumerate(rows)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = paired(swing_tables())
    for name in ("queries", "evaluation"):
        tables[name] = tables[name] | {"source": str(tmp_path / "own.jsonl")}
    for name, each in change.items():
        tables[name] = tables[name] | each
    with pytest.raises(ConclaveError, match=said):
        prepare(plan_of(tables), tmp_path, tmp_path / "cache")


def test_a_plan_of_single_texts_binds_parties_to_what_it_did_before(swing_plan, swing_tables, paired):
    told = json.loads(swing_plan().document())
    assert set(told["text"]) == {"longest"}
    assert "second" not in told["queries"]
    told = json.loads(plan_of(paired(swing_tables())).document())
    assert told["text"] == PAIRS["text"]
    assert told["queries"]["second"] == "subject"


@pytest.mark.slow
def test_the_published_form_softens_answers_alone(here_for_all, softened_tables, paired, tmp_path):
    tables = paired(softened_tables(teachers={"epochs": 6}, distil={"passes": 30, "learning_rate": 5e-3}))
    result = api.run(plan_of(tables), output=tmp_path / "run")
    assert result.verdict.ok
    assert result.epsilon is None
    assert result.metrics["token_perplexity"] < 0.2 * result.metrics["public_perplexity"]
    assert "rouge_1" in result.metrics


@pytest.mark.slow
def test_a_comparison_shows_rouge_beside_perplexity(swing_tables, paired, tmp_path, monkeypatch):
    monkeypatch.setattr(connecting, "find_launcher", lambda name: RayLauncher())
    tables = paired(
        swing_tables(teachers={"epochs": 12, "learning_rate": 0.03}, distil={"passes": 10, "learning_rate": 5e-3})
    )
    names = ["swing", "kd", "alone", "fine_tune", "teachers", "public"]
    table = api.compare(plan_of(tables), recipes=names, epsilons=[8.0], seeds=1, output=tmp_path / "table")
    found = {cell.method: cell.metrics for cell in table.cells}
    assert set(found) == set(names)
    assert all(set(each) == {"perplexity", "rouge_1", "rouge_2", "rouge_l"} for each in found.values())
    assert found["teachers"]["rouge_1"] > found["public"]["rouge_1"]
    assert found["kd"]["perplexity"] < found["public"]["perplexity"]
    assert "ROUGE-1 at 8" in markdown(table)


def test_a_forecast_counts_the_inputs_that_parties_are_sent(swing_tables, paired, tmp_path):
    from coordinator.pricing.priced_plan import price_plan
    from coordinator.systems.swing.forecast import asked_bytes, forecast
    from coordinator.systems.swing.questions import written_content

    recipe = prepared(plan_of(paired(swing_tables())), tmp_path, tmp_path / "cache")
    found = forecast(recipe, price_plan(recipe), tmp_path, tmp_path / "cache", 0.0)
    tokens = len(recipe.read.queries.ids)
    (row,) = found.rows
    assert row.queries == tokens
    assert any("are cut" in each for each in found.warnings)
    sent = len(written_content(recipe.read)) + 4 * 8 * tokens
    assert 0.7 * sent < asked_bytes(recipe) < 1.6 * sent


@pytest.fixture
def audit(tmp_path, monkeypatch):
    """`audit(tables, **settings)`: the audit of a plan."""
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))

    def audits(tables, **settings):
        plan = plan_of(tables)
        table = AuditTable(**settings)
        return audited(plan, find_launcher("ray"), tmp_path, table, Silent(), seed=0)

    return audits


@pytest.mark.slow
def test_a_canary_of_answers_is_a_pair_and_without_noise_it_shows_in_the_sum(audit, swing_tables, paired, monkeypatch):
    def bare(clean, mechanism, stream):
        return wrapped((clean if isinstance(clean, np.ndarray) else clean.toarray()).astype(np.int64))

    monkeypatch.setattr(simulated_links, "noised", bare)
    tables = paired(swing_tables(privacy={"epsilon": 0.3}, teachers={"per_party": 300, "epochs": 1}))
    found = audit(tables, canaries=50, records=70, kinds=["worst"])
    (worst,) = [each for each in found.attacks if each.attacked == "differences"]
    assert worst.right > 0.85 * worst.guesses
    assert found.broken


@pytest.mark.slow
def test_an_honest_run_on_answers_is_not_refuted_and_its_numbers_are_ranked_after_their_input(
    audit, swing_tables, paired, monkeypatch
):
    monkeypatch.setattr("coordinator.language_models.audit.LEAST_MORE", 0)  # of 32 tokens no more are left
    tables = paired(swing_tables(privacy={"epsilon": 1.0}))
    found = audit(tables | {"text": PAIRS["text"] | {"answer": 20, "longest": 32}}, canaries=12, records=50)
    assert [(each.attacked, each.canaries) for each in found.attacks] == [
        ("differences", "worst"), ("differences", "natural"), ("student", "worst"), ("student", "natural"),
    ]  # fmt: skip
    assert not found.broken
    (exposed,) = found.exposures
    assert (exposed.attacked, exposed.digits) == ("student", 4)


@pytest.mark.slow
def test_a_worst_case_of_answers_has_its_number_in_the_answer(swing_tables, paired, tmp_path, monkeypatch):
    monkeypatch.setattr("coordinator.language_models.audit.LEAST_MORE", 0)
    rows = [Document("a", "the film", {"subject": "bright start", "owner": "p1"})]
    for answer in (8, 20):  # a short answer has room for words alone
        tables = paired(swing_tables()) | {"text": PAIRS["text"] | {"answer": answer, "longest": 32}}
        recipe = prepared(plan_of(tables), tmp_path, tmp_path / "cache")
        made = system("swing").audit(recipe).worst(6, rows, np.random.default_rng(0))
        assert {each.text for each in made} == {INPUT}
        assert len({each.fields["subject"] for each in made}) == 6
        assert all(each.fields["subject"].startswith("The number is") == (answer == 20) for each in made)
        assert {each.fields["owner"] for each in made} == {"p1"}
