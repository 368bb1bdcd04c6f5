"""What a run of a text classifier is said to cost and show before anything is asked; what a check finds."""

import itertools
import json
import math
import re

import pytest

from coordinator import api
from coordinator.console.command import main
from coordinator.forecasting import cost, pace
from coordinator.forecasting.forecast import headline, record, summary, table
from coordinator.systems.registry import plan_of, prepared, price_of
from coordinator.text_models.forecast import activations, memory, traffic

PARAMETERS = 33 * 32 + 33 * 2
"""Of the small model's last layers."""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))


@pytest.fixture
def priced(classifier_plan, tmp_path):
    """Makes a bound plan, and what is public of it."""

    def makes(recipe="dp_sgd", **changes):
        plan = classifier_plan(recipe, **changes)
        public = prepared(plan, tmp_path, tmp_path / "cache").public
        return price_of(plan, public), public

    return makes


@pytest.mark.slow
def test_steps_are_forecast_as_the_most_that_they_can_show(classifier_plan, priced):
    found = api.forecast(classifier_plan())
    (row,) = found.rows
    assert (row.name, row.queries, row.sensitivity, row.at_most) == ("steps", 4, 1.0, True)
    assert row.signal == 60, "a batch whose clipped gradients all agree"
    assert row.noise == pytest.approx(1.5 * math.sqrt(PARAMETERS), rel=0.01)
    assert not row.drowned
    assert found.warnings == ()
    (cells,) = table(found)[1]
    assert cells[0] == "steps"
    assert cells[4].startswith("at most 1.19")
    assert headline(found).startswith("dp_sgd · 4 parties · record = document · trusted aggregator, 4 noise shares")
    assert found.epsilon == priced()[0].guarantee.epsilon <= 8.0
    said = "\n".join(summary(found))
    assert "240 units among them, as [privacy] declared_size says" in said
    assert "texts as long as those of [evaluation], 7 tokens in the middle" in said
    assert record(found)["releases"][0]["at_most"] is True
    least, most = found.between
    assert 0 < least <= found.seconds <= most
    assert record(found)["between"] == (least, most)


@pytest.mark.slow
def test_time_follows_the_lengths_of_the_evaluation_text_and_the_most_that_is_read_without_one(
    classifier_tables, tmp_path, monkeypatch
):
    """As if a micro-batch took a second for every 1,000 of its tokens, for a true measurement has its own noise."""
    monkeypatch.setattr(pace, "_trained", lambda model, length, most: lambda: length * most)
    monkeypatch.setattr(pace, "_timed", lambda work: work() / 1e3)

    def forecast(**changes):
        tables = classifier_tables(
            model={"adapt": "lora"},
            privacy={"noise_multiplier": 100.0},
            dp_sgd={"steps": 4000, "batch": 240},
            text={"longest": 32},
            **changes,
        )
        if not changes:
            del tables["evaluation"]
        return api.forecast(plan_of(tables))

    def public(words):
        path = tmp_path / f"{words}.jsonl"
        rows = [{"text": " ".join(["film"] * (words + number % 5)), "mood": str(number % 2)} for number in range(40)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {"source": str(path), "label": "mood"}

    short, long, any_length = forecast(evaluation=public(3)), forecast(evaluation=public(18)), forecast()
    assert short.between[1] < long.between[0], "the tenth that is longest, and the tenth that is shortest"
    assert any_length.seconds == any_length.between[1] > long.seconds
    assert any_length.between[0] < long.between[0], "nothing is known of the texts, which may be short"
    assert "texts of 32 tokens, the most that are read" in "\n".join(summary(any_length))
    said = "\n".join(summary(short))
    assert re.search(r"about \S+ \w+ \(\S+ \w+ to \S+ \w+, by the lengths of the evaluation text\)", said), said


@pytest.mark.slow
def test_a_whole_model_under_little_budget_is_said_to_drown(classifier_plan):
    found = api.forecast(
        classifier_plan(
            privacy={"epsilon": 1.0, "noise_multiplier": 4.0},
            model={"adapt": "full"},
            dp_sgd={"batch": 24},
        )
    )
    (row,) = found.rows
    assert row.drowned
    (warning,) = found.warnings
    assert "the student will hardly learn" in warning
    assert 'train less of the model ([model] adapt = "head")' in warning
    assert "all the same" in warning
    assert table(found)[1][0][-1] == "<- drowned"


def test_local_rounds_are_forecast_one_by_one_each_on_a_partys_share_of_a_batch(classifier_plan):
    found = api.forecast(classifier_plan(dp_sgd={"form": "local", "rounds": 2}))
    assert [(row.name, row.queries, row.signal) for row in found.rows] == [("round-0", 2, 15.0), ("round-1", 2, 15.0)]


@pytest.mark.slow
def test_votes_are_forecast_by_all_teachers_and_say_when_they_drown(classifier_plan):
    found = api.forecast(classifier_plan("pate", privacy={"noise_multiplier": 1.0}))
    (row,) = found.rows
    assert (row.name, row.queries, row.signal, row.at_most) == ("votes", 20, 20.0, True)
    assert row.sensitivity == pytest.approx(math.sqrt(2))
    assert row.noise == pytest.approx(math.sqrt(40), rel=0.01)
    assert "4 parties x 5 teachers" in headline(found)
    assert found.warnings == ()
    noisy = api.forecast(classifier_plan("pate", privacy={"noise_multiplier": 10.0}))
    (warning,) = noisy.warnings
    assert "all teachers' votes together" in warning
    assert "fewer [pate] queries" in warning


@pytest.mark.slow
def test_more_of_a_model_and_more_steps_take_no_less_memory_and_traffic(priced):
    sizes = []
    for changes in (
        {},
        {"dp_sgd": {"steps": 8}},
        {"dp_sgd": {"steps": 8}, "model": {"adapt": "lora"}},
        {"dp_sgd": {"steps": 8}, "model": {"adapt": "full"}},
    ):
        made, public = priced(privacy={"noise_multiplier": 3.0}, **changes)
        needs = memory(made, public)
        assert needs["coordinator"] > cost.COORDINATOR_MEMORY
        assert needs["party node"] >= cost.NODE_MEMORY
        sizes.append((traffic(made, public), needs["coordinator"], needs["party node"]))
    for less, more in itertools.pairwise(sizes):
        assert less[0] < more[0]
        assert all(one <= other for one, other in zip(less[1:], more[1:], strict=True))


@pytest.mark.slow
def test_more_units_take_more_of_a_partys_memory(priced):
    small, big = (memory(*priced(privacy={"declared_size": size})) for size in (240, 240_000))
    assert big["party training"] > small["party training"] + 60_000 * 32 * 4
    assert big["coordinator"] == small["coordinator"]


@pytest.mark.slow
def test_a_users_texts_go_together_and_take_memory_together(priced):
    made, public = priced(privacy={"noise_multiplier": 3.0}, model={"adapt": "lora"}, text={"longest": 32})
    by_user = made.plan.model_copy(update={"privacy": made.plan.privacy.model_copy(update={"unit": "user"})})
    assert activations(by_user, public) == 2 * activations(made.plan, public), "32 texts of 32 tokens, over 512"


def test_queries_and_parties_take_traffic(priced):
    made, public = priced("pate", privacy={"noise_multiplier": 3.0})
    fewer, less = priced("pate", privacy={"noise_multiplier": 3.0}, pate={"queries": 5})
    assert traffic(fewer, less) < traffic(made, public)
    assert traffic(made, public) > 4 * sum(path.stat().st_size for path in public.files.values())


def test_the_forecast_command_says_it_and_asks_nobody(classifier_tables, tmp_path, capsys):
    path = written(classifier_tables(), tmp_path)
    assert main(["forecast", str(path)]) == 0
    said = capsys.readouterr().out
    assert "at most" in said
    assert "epsilon" in said
    assert not (tmp_path / "home/runs").exists()


def test_a_check_of_a_good_plan_passes_and_says_its_price(here, classifier_tables, tmp_path, capsys):
    path = written(classifier_tables(), tmp_path)
    assert main(["check", str(path)]) == 0, capsys.readouterr()
    said = capsys.readouterr().out
    assert "plan      dp_sgd, 4 parties, epsilon" in said
    assert "memory" in said
    assert here.asked == []


def written(tables, folder):
    """The tables as a plan's file."""

    def toml(value):
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + " }"
        if isinstance(value, list):
            return "[" + ", ".join(map(toml, value)) + "]"
        if isinstance(value, bool):
            return str(value).lower()
        return f'"{value}"' if isinstance(value, str) else repr(value)

    path = folder / "plan.toml"
    path.write_text("\n".join(f"{name} = {toml(table)}" for name, table in tables.items()))
    return path
