"""Whatever a coordinator sends, a record shows in a charged release alone: two nodes whose shards differ in one."""

import json
import os
import random
import shutil

import numpy as np
import pytest
from safetensors.numpy import load, save

from learning.embeddings.moments import Directions
from learning.embeddings.skipgram import SkipGram
from learning.embeddings.weights import to_bytes
from learning.text.words import Vocabulary
from party.releasing.mechanisms import is_own
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import batch_digest

WORDS = ("apple", "bread", "cheese", "door", "egg", "fish")
PLANTED = "mallory 4711"
"""What an attacker looks for: in one shard alone."""
EPSILON = 1e12
OFTEN = 4
TAUGHT = 4
"""Numbers that language models say of a token."""
WORDS_SHARE, TEXT_SHARE = (0.004, 0.002) if os.environ.get("CONCLAVE_FUZZ") else (0.06, 0.03)
"""Of the inputs that are made: a run is some fifty requests. `make fuzz` plays 2,600 runs."""
UNITS = {
    "document": (plan_pb2.UNIT_RECORD, plan_pb2.RECORD_DOCUMENT),
    "sentence": (plan_pb2.UNIT_RECORD, plan_pb2.RECORD_SENTENCE),
    "pair": (plan_pb2.UNIT_RECORD, plan_pb2.RECORD_PAIR),
    "user": (plan_pb2.UNIT_USER, plan_pb2.RECORD_DOCUMENT),
}


def texts(rng):
    return " ".join(rng.choice((*WORDS, "film", "good", "bad", "plot")) for _ in range(rng.randint(1, 12)))


def row(rng):
    return {"text": texts(rng), "stars": rng.choice(["no", "yes"]), "who": f"p{rng.randrange(4)}"}


def awful(rng):
    """A record as nobody would wish it, as bytes: what an oracle would be asked about."""
    odd = row(rng)
    match rng.randrange(12):
        case 0:
            odd["text"] = f"{PLANTED} {texts(rng)}"
        case 1:
            odd["stars"] = rng.choice(["purple", "", "0.7", "nan", "1e999", None, 3, ["no"], {"a": 1}])
        case 2:
            odd["text"] = rng.choice(["", " ", "\x00", "\u202e", "￿", "\ud800", "é" * 300, "a" * 5000, None, 7, ["a"]])
        case 3:
            del odd[rng.choice(list(odd))]
        case 4:
            odd["who"] = rng.choice(["", None, "\ud800", 12, "p" * 500])
        case 5:
            return rng.choice([b"null", b"17", b'"text"', b"[1, 2]", b"{", b"\xff\xfe", b"", b"{}", b'{"text": NaN}'])
        case 6:
            odd["text"] = "".join(chr(rng.choice([*range(1, 0xD800), *range(0xE000, 0x11000)])) for _ in range(40))
        case 7:
            odd["text"] = ". ".join(texts(rng) for _ in range(40))
        case 8:
            odd[f"extra-{rng.randrange(9)}"] = {"deep": [1, {"er": None}]}
        case 9:
            return json.dumps(odd).encode().replace(b"text", b"te\\u0078t")
        case 10:
            odd["text"] = rng.choice(["[UNK] [PAD]", "[CLS]", "<|end|>", "[SEP]" * 20])
    return json.dumps(odd).encode()


def shards(rng):
    """Two shards, as lines: the second has a record more, or another in its place."""
    base = [json.dumps(row(rng)).encode() for _ in range(rng.choice([0, 1, 2, 5, 8]))]
    if rng.random() < 0.15:
        base = [line.replace(b'"no"', b'"yes"') for line in base]
    other, place = list(base), rng.randint(0, len(base))
    if base and rng.random() < 0.3:
        place = rng.randrange(len(base))
        other[place] = awful(rng)
    else:
        other.insert(place, awful(rng))
    return (base, other) if rng.random() < 0.5 else (other, base)


class Artefacts:
    """What is provided: as it should be, or as an attacker makes it."""

    def __init__(self, hostile, folder):
        self._hostile = hostile
        self.model = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.*"))}

    def small(self, rng, content):
        return self._hostile.damage(rng, content) if rng.random() < 0.08 else content

    def vocabulary(self, rng):
        return self.small(rng, Vocabulary(WORDS).to_bytes())

    def reference(self, rng, width):
        inputs, outputs = (np.full((len(WORDS), width), 0.1, np.float32) for _ in range(2))
        content = to_bytes(SkipGram(inputs, outputs, np.zeros(len(WORDS), np.float32)))
        if rng.random() < 0.1:
            parts = {name: each.copy() for name, each in load(content).items()}
            parts["inputs"][rng.randrange(len(WORDS))] = rng.choice([3e38, np.nan, np.inf, -1e20, 1e6])
            content = save(parts)
        return self.small(rng, content)

    def directions(self, rng):
        vectors = np.eye(len(WORDS), 2, dtype=np.float32)
        if rng.random() < 0.1:
            vectors[0] = rng.choice([3e38, 1e30])
        return self.small(rng, Directions(vectors, np.ones(2, np.float32), np.ones(6, np.float32)).to_bytes())

    def public(self, rng):
        return self.small(rng, json.dumps([texts(rng) for _ in range(4)]).encode())

    def parameters(self, rng, count):
        start = np.zeros(count if rng.random() < 0.95 else count + 1, np.float32)
        if rng.random() < 0.1:
            start[rng.randrange(len(start))] = rng.choice([np.nan, np.inf, 3e38, -1e30, 1e7])
        return start.tobytes()

    def files(self, rng):
        """A model's files, of which one may be an attacker's."""
        files = dict(self.model)
        match rng.randrange(14):
            case 0:
                files["tokenizer.json"] = self._oracle(rng, json.loads(files["tokenizer.json"]))
            case 1:
                files["tokenizer.json"] = json.dumps(
                    self._hostile.damage_json(rng, json.loads(files["tokenizer.json"])), default=str
                ).encode()
            case 2:
                name = rng.choice(["config.json", "tokenizer_config.json"])
                settings = json.loads(files.get(name, b"{}"))
                key = rng.choice(["vocab", "vocab_file", "tokenizer_file", "name_or_path", "auto_map", "merges_file"])
                settings[key] = rng.choice(["/etc/passwd", "../../ledger.sqlite", "notes.jsonl", "~/.ssh/id_rsa"])
                files[name] = json.dumps(settings).encode()
            case 3:
                weights = {name: each.copy() for name, each in load(files["model.safetensors"]).items()}
                each = weights[rng.choice(sorted(weights))]
                each.reshape(-1)[: rng.choice([1, 32])] = rng.choice([3e38, np.nan, np.inf, 1e30])
                files["model.safetensors"] = save(weights, {"format": "pt"})
            case 4:
                name = rng.choice(sorted(files))
                files[name] = self._hostile.damage(rng, files[name])
        return files

    def _oracle(self, rng, tokenizer):
        """A tokenizer that fails, or says something else, where a text has what is looked for."""
        pattern = {"Regex": rng.choice(["mallory", "4711", "[0-9]+", "(a+)+$"])}
        match rng.randrange(4):
            case 0:
                vocabulary = {word: number for number, word in enumerate(WORDS)}
                tokenizer["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[NONE]"}
            case 1:
                tokenizer["pre_tokenizer"] = {
                    "type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False
                }  # fmt: skip
            case 2:
                tokenizer["truncation"] = {
                    "direction": "Right", "max_length": 1, "strategy": "OnlySecond", "stride": 0
                }  # fmt: skip
        tokenizer["normalizer"] = {"type": "Replace", "pattern": pattern, "content": rng.choice(["", "\x00", "zz"])}
        return json.dumps(tokenizer).encode()


class Scene:
    """Twins for each unit that an account can be for, and what a coordinator may ask of them, honest or not.

    pairs: by the unit. runs, answered: how many were joined, and how many blocks came.
    """

    def __init__(self, pairs, artefacts, hostile, made):
        self.pairs, self.artefacts, self.hostile, self.made = pairs, artefacts, hostile, made
        self.twins = pairs["document"]
        self.runs = 0
        self.answered = 0

    def terms(self, rng, release, units=tuple(UNITS), **more):
        """The terms of a plan for one of these units, which is then what is played with those twins."""
        unit = rng.choice(units)
        self.twins, (kind, record) = self.pairs[unit], UNITS[unit]
        settings = {"epsilon": EPSILON, "releases": release if isinstance(release, list) else [release], **more}
        return self.made.make_terms(**settings, unit=kind, record=record)

    def joined(self, terms):
        self.runs += 1
        return self.twins.join(f"run-{self.runs}", terms)

    def ask(self, rng, verb, request):
        """Put a request, now and then damaged, to both."""
        if rng.random() < 0.15:
            damaged = self.hostile.damage_message(rng, request)
            if rng.random() < 0.8 and verb != "Describe":
                damaged.run.CopyFrom(request.run)
            request = damaged
        end, _ = self.twins.ask(verb, [request])
        return end

    def words(self, rng, kind):
        """Counts, moments or teachers' answers: the terms, and the task when a run has joined."""
        made, artefacts, window = self.made, self.artefacts, rng.choice([1, 2, 2, 2, 2, 3, 5, 0])
        if kind == "cooccurrence":
            release = made.make_terms().releases[0]
        elif kind == "moments":
            numbers = made.make_terms().releases[0].counts
            vectors = plan_pb2.VectorMechanism(**{each.name: value for each, value in numbers.ListFields()})
            release = plan_pb2.Release(name="moments", charges=1, form=plan_pb2.FORM_SUMMED, vectors=vectors)
        else:
            release = {"teachers": made.ANSWERS, "private": [made.TRAINING, made.FREE]}[kind]
        terms = self.terms(rng, release)

        def task(context):
            known = {"vocabulary_sha256": self.twins.provide(context, "vocabulary", artefacts.vocabulary(rng))}
            if kind == "cooccurrence":
                task = party_pb2.CooccurrenceTask(release="counts", window=window, **known)
                return {"cooccurrence": task}, "counts", 6
            if kind == "moments":
                known["directions_sha256"] = self.twins.provide(context, "directions", artefacts.directions(rng))
                return {"moments": party_pb2.MomentsTask(release="moments", window=window, **known)}, "moments", 1
            known["reference_sha256"] = self.twins.provide(context, "reference", artefacts.reference(rng, made.WIDTH))
            task = party_pb2.TeachersTask(
                release="answers", window=window, teachers=rng.choice([1, 2, 3]), alignment=rng.choice([1, 2]),
                queries=[5, 0, 1, 3], classes=[0, 2, 4], layers=[1, 2], vote=rng.choice([1, 2]), expected_batch=2.0,
                learning_rate=rng.choice([0.1, 0.1, 1e6, 1e30]), **known,
            )  # fmt: skip
            return {"teachers": task}, "answers", 4

        return terms, task

    def text(self, rng, kind):
        """A step, a model of one party, scores, or an ensemble."""
        made, artefacts = self.made, self.artefacts
        numbers = {"clip": 1.0, "levels": 400, "noise_multiplier": 1.0, "sampling_probability": 0.5, "steps": 2}
        gradients = plan_pb2.GradientMechanism(**numbers, parameters=made.HEAD)
        votes = plan_pb2.VotesMechanism(classes=2, levels=2, noise=12.0, shares=2, distribution="gaussian")
        scores = plan_pb2.FreeAnswers(after="domain", classes=0, layers=1, width=1, clip=1.0, levels=1000)
        releases = {
            "step": [plan_pb2.Release(name="steps", charges=1, gradients=gradients, form=plan_pb2.FORM_STEPPED)],
            "labels": [plan_pb2.Release(name="weights", charges=1, gradients=gradients, form=plan_pb2.FORM_WEIGHTS)],
            "domain": [plan_pb2.Release(name="weights", charges=1, gradients=gradients, form=plan_pb2.FORM_WEIGHTS)],
            "scores": [
                plan_pb2.Release(name="domain", charges=1, form=plan_pb2.FORM_TRAINING, gradients=gradients),
                plan_pb2.Release(name="scores", charges=4, form=plan_pb2.FORM_FREE, free=scores),
            ],
            "ensemble": [
                plan_pb2.Release(
                    name="votes", charges=4, form=plan_pb2.FORM_SUMMED, joint=plan_pb2.JointMechanism(votes=votes)
                )
            ],
        }[kind]
        recipe = {"ensemble": "pate", "domain": "privdistil", "scores": "privdistil"}.get(kind, "dp_sgd")
        if recipe == "privdistil":  # as its plans are: a training by all parties comes after the choice
            steps = plan_pb2.Release(name="steps", charges=1, gradients=gradients, form=plan_pb2.FORM_STEPPED)
            releases = [*releases, steps]
        terms = self.terms(rng, releases, ("document", "user"), recipe=recipe, labelled=made.LABELLED)

        def task(context):
            files = []
            for name, content in artefacts.files(rng).items():
                sha256 = self.twins.provide(context, "model", content)
                files.append(party_pb2.ModelFile(name=name, sha256=sha256))
            longest = rng.choice([16, 16, 2, 3, 1 << 20])
            model = party_pb2.TextModel(files=files, adapt=1, longest=longest, rank=2, alpha=4)
            descent = party_pb2.Descent(
                learning_rate=rng.choice([0.1, 1e30]), optimiser=1, schedule=1, momentum=0.9, expected_batch=4.0,
                epochs=1, batch=4,
            )  # fmt: skip
            public = self.twins.provide(context, "texts", artefacts.public(rng))
            if kind == "ensemble":
                task = party_pb2.EnsembleTask(
                    release="votes", model=model, teachers=2, descent=descent, texts_sha256=public
                )
                return {"ensemble": task}, "votes", 4
            start = self.twins.provide(context, "parameters", artefacts.parameters(rng, made.HEAD))
            known = {"model": model, "parameters_sha256": start}
            if kind == "step":
                return {"step": party_pb2.StepTask(release="steps.0", **known)}, "steps.0", 1
            objective = 1 if kind == "labels" else 2
            known |= {"descent": descent, "objective": objective, "texts_sha256": public}
            if kind == "scores":
                known["scored_sha256"] = public
                return {"text_model": party_pb2.TextModelTask(release="scores", **known)}, "scores", 4
            return {"text_model": party_pb2.TextModelTask(release="weights", **known)}, "weights", 1

        return terms, task

    def play(self, rng, made):
        """One run, from `Join` to `Leave`: each verb after `Join` is asked `OFTEN` times or more, in several ways."""
        terms, task = made
        self.twins.shards(*shards(rng))
        secure = rng.random() < 0.3 and not any(each.HasField("free") for each in terms.releases)
        if secure:
            terms.privacy.trust = plan_pb2.TRUST_SECURE_SUM
        if (context := self.joined(terms)) is None:
            return
        work, release, rows = task(context)
        request = party_pb2.TrainRequest(run=context, operation_id="one", **work)
        trained = self.ask(rng, "Train", request)[0] == "OK"
        for operation in ("one", "another"):
            request.operation_id = operation
            trained |= self.ask(rng, "Train", request)[0] == "OK"
        own = any(each.name == release and is_own(each) for each in terms.releases)  # and so in no sum
        if secure and trained and not own:
            columns = {"counts": 6, "moments": 12, "answers": 11, "votes": 2, "steps.0": self.made.HEAD}
            columns = (columns | {"differences": TAUGHT})[release]
            self.twins.sum_up(context, terms, release, 6 if release == "counts" else rows, columns)
        for number, (start, stop) in enumerate([(0, rows), (0, rows), (0, 10**6), (0, 1)]):
            batch = party_pb2.AnswerRequest(
                run=context, release=release, batch=number, rows=party_pb2.RowRange(start=start, stop=stop)
            )
            batch.digest = batch_digest(batch)
            self.answered += self.ask(rng, "Answer", batch)[0] == "OK"
        for _ in range(OFTEN):
            self.aside(rng, context, terms, release)
        self.twins.ask("Leave", [party_pb2.LeaveRequest(run=context)])
        self.ask(rng, "Train", request)

    def aside(self, rng, context, terms, release):
        """What may be asked at any time, of every verb that has not its own place in a run."""
        self.ask(rng, "Describe", party_pb2.DescribeRequest(nonce=rng.randbytes(rng.choice([0, 16, 32, 64]))))
        self.ask(rng, "Attest", party_pb2.AttestRequest(run=context))
        other = party_pb2.RunContext(run_id=f"run-{rng.randrange(self.runs + 1)}", plan_hash=context.plan_hash)
        self.ask(rng, "Leave", party_pb2.LeaveRequest(run=other))
        kind = rng.choice(["vocabulary", "reference", "directions", "texts", "parameters", "model", "other"])
        self.twins.provide(context, kind, rng.randbytes(rng.choice([0, 1, 300])))
        self.ask(
            rng, "SecureSum", party_pb2.SecureSumRequest(
                run=context, release=release, attempt=rng.choice([0, 0, 1]), round=rng.randint(1, 8), rows_at_once=4,
                message=rng.randbytes(rng.choice([0, 8, 200])),
            )
        )  # fmt: skip


@pytest.fixture(scope="module")
def scene(tests, hostile, tmp_path_factory, tiny_bert):
    made = tests("party/conftest.py")
    twins = hostile_module("twins.py", tests)
    folder = tmp_path_factory.mktemp("model") / "bert"
    shutil.copytree(tiny_bert, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    policy = {"epsilon": 1e15, "recipes": ["dped", "dp_sgd", "pate", "privdistil"], "weights": True}
    policy |= {"trust": "trusted-aggregator"}
    where = tmp_path_factory.mktemp("twins")
    with pytest.MonkeyPatch.context() as patch:
        pairs, process = {}, twins.Process(patch)
        for name in UNITS:
            unit = {"unit": "user"} if name == "user" else {"record": name}
            pairs[name] = twins.Twins(made, where / name, policy | unit, process)
        yield Scene(pairs, Artefacts(hostile, folder), hostile, made)
        for both in pairs.values():
            both.close()


def hostile_module(name, tests):
    """A module beside this one."""
    return tests(f"fuzz/{name}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cooccurrence", "moments", "teachers", "private"])
def test_words_tell_a_coordinator_nothing_of_a_record_but_what_is_charged(fuzz, hostile, scene, kind):
    @fuzz(hostile.made(lambda rng: rng), mebibytes=1024, seconds=60, share=WORDS_SHARE)
    def _(rng):
        scene.play(rng, scene.words(rng, kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["step", "labels", "domain", "scores", "ensemble"])
def test_text_models_tell_a_coordinator_nothing_of_a_record_but_what_is_charged(fuzz, hostile, scene, kind):
    @fuzz(hostile.made(lambda rng: rng), mebibytes=1024, seconds=60, share=TEXT_SHARE)
    def _(rng):
        scene.play(rng, scene.text(rng, kind))


@pytest.mark.slow
def test_so_many_of_the_runs_came_to_an_answer_that_the_others_mean_something(fuzz, scene):
    assert scene.answered > scene.runs / 4
    sums, asked = sum(both.sums for both in scene.pairs.values()), scene.twins.process.asked
    assert sums > 0
    assert min(count for verb, count in asked.items() if verb != "Join") >= OFTEN * scene.runs
    print(f"{scene.runs:,} runs, {scene.answered:,} blocks answered, {sums:,} secure sums; requests: {dict(asked)}")


@pytest.mark.slow
def test_a_difference_that_is_there_is_found(scene, monkeypatch):
    """The negative control: a node that fails where a text is in its shard."""
    import party.shard.reading as reading

    units = reading.units

    def tells(*given, **more):
        for unit in units(*given, **more):
            if any(PLANTED in each for each in unit.passages):
                raise ValueError("told")
            yield unit

    rng = random.Random(1)
    monkeypatch.setattr(reading, "units", tells)
    monkeypatch.setattr("party.tasks.job.Job.frank", property(lambda job: True))
    line = json.dumps(row(rng)).encode()
    scene.twins = scene.pairs["document"]
    scene.twins.shards([line], [line, json.dumps({"text": PLANTED, "stars": "no", "who": "p1"}).encode()])
    terms = scene.made.make_terms(epsilon=EPSILON)
    context = scene.joined(terms)
    sha256 = scene.twins.provide(context, "vocabulary", Vocabulary(WORDS).to_bytes())
    task = party_pb2.CooccurrenceTask(release="counts", vocabulary_sha256=sha256, window=2)
    request = party_pb2.TrainRequest(run=context, operation_id="one", cooccurrence=task)
    with pytest.raises(AssertionError, match="Train tells the shards apart"):
        scene.twins.ask("Train", [request])
