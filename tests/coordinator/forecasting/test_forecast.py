"""The forecast: from public data alone, right about what a run then measures, and its advice helps."""

import json
import math
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from aggregation.mechanisms.joint import JointMechanism, TeacherSignal
from aggregation.mechanisms.thresholded import ThresholdedVotes
from aggregation.mechanisms.votes import tally
from aggregation.noise.stream import NoiseStream
from coordinator import api
from coordinator.console.command import main
from coordinator.pricing import priced_plan
from coordinator.pricing import release as terms
from coordinator.progress.progress import Silent
from coordinator.store.index import RunIndex
from coordinator.systems.dped import advice, cost, spectra, stand_in
from coordinator.systems.dped.methods import EmbeddingData, changed, summed
from coordinator.systems.dped.public import prepare
from coordinator.systems.registry import plan_of, price_of
from coordinator.transport.launchers import SimulationRequest, find_launcher
from learning.embeddings.moments import contribute
from learning.embeddings.weights import to_bytes

WORDS = [a + b for a in ("ba", "di", "fo", "gu", "ke", "lo") for b in ("lam", "ner", "pos", "qui", "rit", "sol", "tun")]
SIZE = 40
PRICES = {}


def letters(path, count, seed):
    """Letters of thirty words, mostly of one of six subjects, as JSON lines."""
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, len(WORDS) + 1)
    subjects = [frequency * np.where(np.arange(len(WORDS)) % 6 == subject, 12, 1) for subject in range(6)]
    rows = []
    for _ in range(count):
        chances = subjects[rng.integers(6)]
        rows.append({"text": " ".join(rng.choice(WORDS, 30, p=chances / chances.sum()))})
    path.write_text("\n".join(json.dumps(row) for row in rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forecast")
    letters(folder / "public.jsonl", 400, 1)
    letters(folder / "letters.jsonl", 400, 2)
    letters(folder / "heldout.jsonl", 400, 3)
    return folder


@pytest.fixture(autouse=True)
def home(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(folder)


@pytest.fixture(autouse=True)
def priced_once(request, monkeypatch):
    """Pricing takes seconds and says the same each time. A process is started to be timed where tests may be slow."""
    calibrate, price, start = terms.calibrate, terms.price, cost.start_seconds
    timed = request.node.get_closest_marker("slow") is not None

    def calibrated(make, epsilon, delta):
        return once((repr(make(1.0)), epsilon, delta), lambda: calibrate(make, epsilon, delta))

    monkeypatch.setattr(cost, "start_seconds", lambda: once("start", start) if timed else cost.START_SECONDS)
    monkeypatch.setattr(terms, "calibrate", calibrated)
    monkeypatch.setattr(priced_plan, "calibrate", calibrated)
    monkeypatch.setattr(terms, "price", lambda events, delta: once((repr(events), delta), lambda: price(events, delta)))


def once(key, make):
    if key not in PRICES:
        PRICES[key] = make()
    return PRICES[key]


def plan(epsilon=8.0, source="letters.jsonl", parties=4, privacy=None, evaluation="heldout.jsonl", **settings):
    """A plan of teachers; the noise is reproducible so that tests are, the mechanisms are what they would be."""
    tables = {
        "run": {"name": "letters", "recipe": "dped", "seed": 1},
        "privacy": {"epsilon": epsilon, "delta": 1e-5, "insecure_reproducible_noise": True} | (privacy or {}),
        "federation": {
            "launch": "ray",
            "shards": {"source": source, "split": {"by": "hash", "parties": parties}},
        },
        "vocabulary": {"source": "public.jsonl", "size": SIZE},
        "dped": {"dimension": 8, "signals": ["votes"], "queries": SIZE} | settings,
    }
    if evaluation:
        tables["evaluation"] = {"source": evaluation}
    return plan_of(tables)


def simulated(plan, tmp_path):
    """The plan's parties in clear."""
    base = Path.cwd()
    public = prepare(
        changed(plan, signals=["votes", "hidden"], threshold=None, noise_at="parties"), base, tmp_path / "cache"
    )
    request = SimulationRequest(
        parties=api.party_tables(plan),
        folder=tmp_path / "work",
        base=base,
        vocabulary=public.vocabulary.to_bytes(),
        window=plan.dped.window,
        record=plan.privacy.record,
        by_user=False,
    )
    return EmbeddingData(plan, public, find_launcher("ray").simulate(request), Silent())


def measured_accuracy(plan, tmp_path, draws=20):
    """Share of right labels among those answered, and share answered, of simulated parties under the run's noise."""
    data, right, answered = simulated(plan, tmp_path), 0, 0
    votes = np.hstack([each.votes.T for each in data.answers()])
    (release,) = price_of(plan).releases
    joint = isinstance(release.mechanism, JointMechanism)
    if joint:
        contributions = [release.mechanism.contribute(TeacherSignal(each.votes, None)) for each in data.answers()]
    for draw in range(draws):
        if joint:
            noises = EmbeddingData(changed(plan, seed=draw), data.public, data.shards, Silent())
            labels = release.mechanism.release(summed(noises, release.mechanism, contributions), 4).votes.values
            labels = labels.argmax(axis=1)
        else:
            labels = release.mechanism.answer(votes, NoiseStream.insecure(draw)).labels
        answered += (labels >= 0).sum()
        right += ((votes == labels[:, None]).sum(axis=1) == tally(votes)[:, 0])[labels >= 0].sum()
    return right / answered, answered / draws / len(votes)


@pytest.mark.slow
def test_nothing_of_the_parties_is_read():
    there, missing = api.forecast(plan()), api.forecast(plan(source="nowhere.jsonl"))
    assert there.rows == missing.rows
    assert there.bytes == missing.bytes


@pytest.mark.slow
def test_epsilon_is_the_runs_own():
    wanted = plan(privacy={"insecure_reproducible_noise": False})
    assert api.forecast(wanted).epsilon == price_of(wanted).guarantee.epsilon
    assert api.forecast(plan()).epsilon is None


@pytest.mark.slow
def test_more_queries_and_a_smaller_epsilon_leave_less_signal():
    few, many = (api.forecast(plan(signals=["votes", "hidden"], queries=number)) for number in (4, SIZE))
    assert few.row("votes").accuracy > many.row("votes").accuracy
    for name in ("votes", "hidden"):
        assert few.row(name).ratio > 2 * many.row(name).ratio
    cheap = api.forecast(plan(epsilon=2, signals=["votes", "hidden"], queries=4))
    assert cheap.row("votes").accuracy < few.row("votes").accuracy
    assert cheap.row("hidden").ratio < few.row("hidden").ratio


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": 8},
        pytest.param({"epsilon": 8, "vote": "lift"}, marks=pytest.mark.slow),
        pytest.param({"epsilon": 4, "classes": 5}, marks=pytest.mark.slow),
        {"epsilon": 8, "vote": "lift", "threshold": 5.0, "noise_at": "coordinator", "answered": 0.6},
        pytest.param(
            {"epsilon": 8, "threshold": 6.0, "noise_at": "coordinator", "below_threshold": "larger-noise"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_labels_are_as_right_as_forecast(settings, tmp_path):
    wanted = plan(**settings)
    row = api.forecast(wanted).row("votes")
    accuracy, answered = measured_accuracy(wanted, tmp_path)
    assert row.accuracy == pytest.approx(accuracy, rel=0.2, abs=0.05)
    assert row.answered == pytest.approx(answered, rel=0.2, abs=0.05)


@pytest.mark.slow
def test_moments_are_as_loud_as_forecast(tmp_path):
    wanted = plan(signals=["moments"], privacy={"declared_size": 400})
    row, data = api.forecast(wanted).row("moments"), simulated(wanted, tmp_path)
    along, _ = prepare(wanted, Path.cwd(), tmp_path / "cache").moments
    clipped = price_of(wanted, prepare(wanted, Path.cwd(), tmp_path / "cache")).release("moments").mechanism
    total = sum(contribute(units, along, clipped) for units in data.units()) * clipped.granularity
    exact = along.unpack(total)[1][1:, 1:]
    assert row.signal == pytest.approx(float(np.sqrt((exact**2).mean())), rel=0.2)
    assert row.directions > 0


@pytest.mark.slow
def test_hidden_states_and_counts_are_as_loud_as_forecast(tmp_path):
    wanted = plan(signals=["hidden", "counts"], privacy={"declared_size": 400})
    found, data, priced = api.forecast(wanted), simulated(wanted, tmp_path), price_of(wanted)
    counts = priced.release("counts").mechanism
    total = sum(counts.contribute(units).toarray() for units in data.units()).ravel() * counts.granularity
    largest = np.sort(total)[-SIZE * SIZE // 100 :]
    assert found.row("counts").signal == pytest.approx(float(np.sqrt((largest**2).mean())), rel=0.2)
    hidden = priced.release("answers").mechanism.hidden
    total = sum(hidden.contribute(each.states) for each in data.answers()) * hidden.granularity
    assert found.row("hidden").signal == pytest.approx(float(np.sqrt((total**2).mean())), rel=0.2)
    assert found.row("hidden").noise == pytest.approx(hidden.noise, rel=1e-3)


@pytest.mark.slow
def test_noise_counts_every_partys_share():
    three = plan(privacy={"dropouts": 1})
    noise = price_of(three).release("answers").mechanism.votes.noise
    assert api.forecast(three).row("votes").noise == pytest.approx(noise * math.sqrt(4 / 3), rel=1e-2)


@pytest.mark.slow
def test_counts_grow_with_the_declared_size():
    small, large = (api.forecast(plan(signals=["counts"], privacy={"declared_size": size})) for size in (400, 40_000))
    assert large.row("counts").ratio == pytest.approx(100 * small.row("counts").ratio)
    assert large.row("counts").directions > small.row("counts").directions
    assert "40,000 documents" in large.assumptions[0]
    guessed = api.forecast(plan(signals=["counts"]))
    assert guessed.row("counts") == small.row("counts")
    assert "declared_size" in guessed.assumptions[0]


@pytest.mark.slow
def test_text_for_evaluation_stands_in_before_the_vocabularys():
    assert '"heldout.jsonl"' in api.forecast(plan()).assumptions[0]
    assert '"public.jsonl"' in api.forecast(plan(evaluation=None)).assumptions[0]


@pytest.mark.parametrize(("unit", "record"), [("record", "sentence"), ("record", "pair")])
def test_other_records_are_counted_as_such(unit, record):
    found = api.forecast(plan(signals=["counts"], privacy={"unit": unit, "record": record}))
    units = int(re.search(r"([\d,]+) " + record, found.assumptions[0])[1].replace(",", ""))
    assert units == 400 if record == "sentence" else units > 400 * 30


@pytest.mark.slow
def test_drowned_votes_are_told_with_a_number_of_queries_that_helps():
    wanted = plan(epsilon=2)
    drowned = api.forecast(wanted)
    assert drowned.row("votes").drowned
    said = " ".join(drowned.warnings)
    queries, share = re.search(r"about (\d+) queries would give (\d+)%", said).groups()
    assert int(share) >= 50
    followed = api.forecast(changed(wanted, queries=int(queries))).row("votes")
    assert not followed.drowned
    assert followed.accuracy == pytest.approx(int(share) / 100, rel=0.2)
    more = api.forecast(changed(wanted, queries=2 * int(queries))).row("votes")
    assert more.accuracy < 0.5


@pytest.mark.slow
def test_drowned_votes_are_told_with_a_number_of_teachers_that_helps():
    wanted = plan(epsilon=2, privacy={"declared_size": 400})
    said = " ".join(api.forecast(wanted).warnings)
    teachers = int(re.search(r"about ([\d,]+) teachers in all", said)[1].replace(",", ""))
    more = changed(wanted, teachers_per_party=-(-teachers // 4))
    grown = more.model_copy(
        update={"privacy": more.privacy.model_copy(update={"declared_size": 400 * more.teachers // wanted.teachers})}
    )
    assert api.forecast(grown).row("votes").accuracy == pytest.approx(0.5, rel=0.25)


@pytest.mark.slow
def test_drowned_counts_are_told_with_a_size_and_an_epsilon_that_help():
    wanted = plan(epsilon=0.2, signals=["counts"], privacy={"declared_size": 400})
    drowned = api.forecast(wanted)
    assert drowned.row("counts").directions == 0
    said = " ".join(drowned.warnings)
    units = int(re.search(r"about ([\d,]+) units", said)[1].replace(",", ""))
    larger = api.forecast(plan(epsilon=0.2, signals=["counts"], privacy={"declared_size": units}))
    assert larger.row("counts").directions >= 1
    epsilon = float(re.search(r"epsilon = (\d+(?:\.\d+)?)", said)[1])
    dearer = api.forecast(plan(epsilon=epsilon, signals=["counts"], privacy={"declared_size": 400}))
    assert dearer.row("counts").directions >= 1


@pytest.mark.slow
def test_teachers_that_were_trained_privately_answer_for_free():
    training = {"units_per_teacher": 100, "steps": 10, "batch": 20}
    loud = {"noise_multiplier": 30.0}
    found = api.forecast(plan(privacy=loud, private_training=training))
    assert found.row("votes").noise is None
    assert found.row("training").drowned
    assert any("dimension" in sentence or "size" in sentence or "epsilon" in sentence for sentence in found.warnings)
    assert found.trained == 0


def test_further_teachers_vote_as_those_that_were_trained():
    """Sixty teachers' histograms, guessed from six of them, against the sixty."""
    rng = np.random.default_rng(0)
    favourite = rng.integers(1000, size=500)
    strength = rng.uniform(0.05, 0.5, size=500)
    votes = np.where(rng.random((60, 500)) < strength, favourite, rng.integers(1000, size=(60, 500)))
    guessed = stand_in.ranked_votes(votes[:6], 60, 1000, seed=0)[:, 0].mean()
    assert guessed == pytest.approx(tally(votes.T)[:, 0].mean(), rel=0.1)
    assert (stand_in.ranked_votes(votes, 60, 1000, seed=0) == tally(votes.T)).all()


def test_a_threshold_on_the_noisy_histogram_leaves_as_many_labels_as_forecast():
    rng = np.random.default_rng(0)
    votes = np.where(rng.random((300, 20)) < 0.6, 7, rng.integers(50, size=(300, 20)))
    voting = stand_in.Voting(50, noise=3.0, threshold=9.0)
    accuracy, answered = voting.labels(tally(votes), seed=0)
    histograms = np.stack([(votes == word).sum(axis=1) for word in range(50)], axis=1)
    right = kept = 0
    for _ in range(50):
        noisy = histograms + rng.normal(0, 3.0, histograms.shape)
        best, passed = noisy.argmax(axis=1), noisy.max(axis=1) >= 9
        kept += passed.sum()
        right += (passed & (histograms[np.arange(300), best] == histograms.max(axis=1))).sum()
    assert answered == pytest.approx(kept / 50 / 300, rel=0.02)
    assert accuracy == pytest.approx(right / kept, rel=0.02)


def test_a_tested_threshold_stops_where_the_mechanism_does():
    test = ThresholdedVotes(50, 20, 10.0, threshold_noise=4.0, noise=2.0, larger_noise=None, cap=20.0)
    rng = np.random.default_rng(0)
    votes = np.where(rng.random((200, 20)) < 0.6, 7, rng.integers(50, size=(200, 20)))
    accuracy, answered = stand_in.Voting(50, 2.0, tested=test).labels(tally(votes), seed=0)
    found = [test.answer(votes, NoiseStream.insecure(seed)) for seed in range(30)]
    assert answered == pytest.approx(np.mean([each.answered for each in found]) / 200, rel=0.05)
    assert accuracy == pytest.approx(np.mean([(each.labels == 7).sum() / each.answered for each in found]), rel=0.05)


def test_pure_noise_has_no_direction_and_a_plain_one_has():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 2.0, (300, 300))
    values = np.linalg.eigvalsh((noise + noise.T) / 2)
    assert np.abs(values).max() == pytest.approx(spectra.edge(2.0, 300), rel=0.05)


def test_the_search_finds_the_largest_number_that_is_good():
    assert advice.fewer(5000, lambda number: number <= 43) == 43
    assert advice.fewer(5000, lambda number: number <= 437) in range(420, 438, 10)
    assert advice.fewer(5000, lambda number: False) == 0


@pytest.mark.slow
def test_the_command_shows_a_table_the_price_and_what_would_help(capsys):
    Path("plan.toml").write_text(
        f"""
        [run]
        name = "letters"
        recipe = "dped"
        [privacy]
        epsilon = 4.0
        delta = 1e-5
        declared_size = 400
        [federation]
        launch = "ray"
        [federation.shards]
        source = "nowhere.jsonl"
        split = {{ by = "hash", parties = 4 }}
        [vocabulary]
        source = "public.jsonl"
        size = {SIZE}
        [dped]
        dimension = 8
        signals = ["votes", "hidden", "counts"]
        """
    )
    assert main(["forecast", "plan.toml", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    assert lines[0] == "dped · 4 parties x 3 teachers · record = document · trusted aggregator, 4 noise shares of 4"
    assert [row["name"] for row in found["releases"]] == ["votes", "hidden", "counts"]
    assert any(line.startswith("votes") and line.rstrip().endswith("<- drowned") for line in lines)
    assert any(line.startswith("epsilon ") and "of 4 at delta 1e-05" in line for line in lines)
    assert found["warnings"]
    assert found["epsilon"] <= 4
    assert set(found["memory"]) == {"coordinator", "party node", "party training"}
    assert not RunIndex().entries()


def test_a_wrong_plan_is_told_as_everywhere(capsys):
    assert main(["forecast", "missing.toml"]) == 2
    assert "missing.toml" in capsys.readouterr().err


def test_time_and_memory_grow_with_the_work(tmp_path):
    public = prepare(plan(), Path.cwd(), tmp_path / "cache")
    pace = cost.Pace(public=1.0, unit=0.001, teacher=2.0, teacher_work=2.0, step=0.1, start=3.0)
    small, large = price_of(plan()), price_of(plan(teachers_per_party=30))
    assert cost.seconds(large, pace, 400) > cost.seconds(small, pace, 400) + 27 * 2.0
    assert cost.seconds(small, pace, 400_000) > cost.seconds(small, pace, 400) + 90
    assert cost.memory(large, 400, 100)["party training"] > cost.memory(small, 400, 100)["party training"]
    artefacts = len(public.vocabulary.to_bytes()) + len(to_bytes(public.reference))
    assert cost.traffic(small, public) == 4 * (artefacts + 4 * SIZE * SIZE)


@pytest.mark.slow
def test_bytes_are_those_that_a_run_exchanges(tmp_path):
    """Whole party processes, and a run of three signals over them."""
    wanted = plan(parties=2, signals=["votes", "hidden", "counts"])
    tables = api.party_tables(wanted)
    command = Path(sys.executable).with_name("party")
    with ExitStack() as stack:
        entries = []
        for name, party in tables.items():
            file = Path(f"{name}.toml")
            lines = [f'name = "{name}"', 'listen = "127.0.0.1:0"', "plaintext = true"]
            lines += [f"{table} = {_toml(party[table])}" for table in ("shard", "policy")]
            file.write_text("\n".join(lines))
            serve = [command, "serve", "--config", file, "--json"]
            node = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
            stack.callback(node.stdout.close)
            stack.callback(node.wait)
            stack.callback(node.terminate)
            entries.append({"name": name, "address": json.loads(node.stdout.readline())["address"]})
        document = wanted.model_dump()
        document["federation"] |= {"launch": "connect", "parties": entries, "shards": None}
        connected = plan_of(document)
        result = api.run(connected, output=tmp_path / "run")
    store = RunIndex().find(result.run)
    exchanged = store.stages()["aggregate"][2]["bytes"]
    store.close()
    assert api.forecast(connected).bytes == pytest.approx(exchanged, rel=0.05)


def _toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)
