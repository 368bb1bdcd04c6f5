"""Swing distillation of answers to inputs: whole runs in both forms, of causal models and of such with an encoder."""

import json

import numpy as np
import pytest

from coordinator import api
from coordinator.systems.registry import plan_of

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
            distil={"passes": 30, "learning_rate": 5e-3, "layers": 2},
        )
    )
    return api.run(plan_of(tables), output=folder), folder


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
    assert f"{tokens:,} queries" in release["says"]
    assert result.verdict.ok
    assert result.metrics["tokens"] == sum(
        len(tokenizer(row["subject"], add_special_tokens=False)["input_ids"]) + 1 for row in rows
    )


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
    from coordinator.systems.registry import prepared
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
