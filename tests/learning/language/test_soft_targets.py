"""What teachers say of every token: rightly kept, to a stated error, averaged, and the same after a kill."""

import math

import numpy as np
import pytest
import torch

from aggregation.errors import ConclaveError, IntegrityError
from learning.language.soft_targets import STEP, averaged, graded, opened
from learning.language.speaker import Speaker
from learning.models.batching import Tokens


def _said(speaker, text, opening, temperature=1.0):
    """The log-probabilities at every own token's place, alone, without padding."""
    row = Tokens(np.concatenate([np.array(opening, np.int32), text]), len(opening))
    with torch.no_grad():
        return speaker.log_probabilities(speaker.logits([row])[0, len(opening) - 1 : -1], temperature)


def test_the_best_tokens_of_every_place_are_kept_to_the_stated_error(speaker, texts, tmp_path):
    openings = [[0, 3] if place % 3 else [0] for place in range(len(texts))]
    found = graded([speaker], texts, [openings], top=16, temperature=1.0, folder=tmp_path)
    assert found.tokens == len(texts.ids)
    assert found.bytes == found.tokens * 16 * 4
    for place in (0, 1, 7, 39):
        best, ids = _said(speaker, texts[place], openings[place]).topk(16, dim=-1)
        named, logs = found.of(place)
        assert (torch.sort(named).values == torch.sort(ids).values).all()
        at = {(row, int(one)): float(log) for row, (ones, each) in enumerate(zip(named, logs, strict=True))
              for one, log in zip(ones, each, strict=True)}  # fmt: skip
        for row in range(len(best)):
            for one, log in zip(ids[row], best[row], strict=True):
                assert abs(at[row, int(one)] - float(log)) <= STEP / 2 + 1e-5
    assert math.exp(STEP / 2) - 1 < 2e-4


def test_several_teachers_are_averaged_each_with_its_own_opening(model, speaker, texts, tmp_path):
    other = Speaker(model)
    openings = [[[0]] * len(texts), [[0, 4, 5]] * len(texts)]
    found = graded([speaker, other], texts, openings, top=300, temperature=2.0, folder=tmp_path)
    ids, logs = found.of(5)
    mean = (_said(speaker, texts[5], [0], 2.0).exp() + _said(other, texts[5], [0, 4, 5], 2.0).exp()) / 2
    assert torch.allclose(mean.gather(1, ids), logs.exp(), rtol=1e-3, atol=1e-7)


def test_hidden_states_are_kept_where_they_are_asked(model, texts, tmp_path):
    openings = [[[0]] * len(texts)]
    found = graded([Speaker(model)], texts, openings, top=4, temperature=1.0, folder=tmp_path, hidden=True)
    ids = torch.tensor([[0, *texts[3].tolist()]])
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states[-1][0, :-1]
    assert torch.allclose(found.states(3), states, atol=5e-3)


def test_a_grading_that_was_killed_ends_with_the_same_bytes(speaker, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("learning.language.soft_targets._BLOCK", 8)
    openings = [[[0]] * len(texts)]

    def done(folder, progress=lambda done, total: None):
        return graded([speaker], texts, openings, top=8, temperature=1.0, folder=folder, progress=progress)

    whole = done(tmp_path / "whole")

    class Killed(Exception):
        pass

    def killed(count, total):
        if count >= 16:
            raise Killed

    with pytest.raises(Killed):
        done(tmp_path / "killed", killed)
    said = []
    again = done(tmp_path / "killed", lambda count, total: said.append(count))
    assert said[0] == 24
    assert (again.ids == whole.ids).all()
    assert (again.codes == whole.codes).all()


def test_what_cannot_be_graded_is_said(speaker, texts, tmp_path):
    with pytest.raises(ConclaveError, match="cannot be graded"):
        graded([speaker], texts, [[[0]] * len(texts)], top=10_000, temperature=1.0, folder=tmp_path)


def test_a_texts_code_says_by_which_tilt_it_is_graded(model, texts, tmp_path):
    size = model.config.vocab_size
    tilts = torch.randn(3, size, generator=torch.Generator().manual_seed(2))
    cells = [place % 3 - 1 for place in range(len(texts))]
    openings = [[[0]] * len(texts)]
    found = graded([Speaker(model, tilts)], texts, openings, top=16, temperature=1.0, folder=tmp_path, cells=cells)
    for place in (0, 1, 2, 38):
        best, ids = _said(Speaker(model, tilts[cells[place]]), texts[place], [0]).topk(16, dim=-1)
        named, logs = found.of(place)
        assert (torch.sort(named).values == torch.sort(ids).values).all()
        torch.testing.assert_close(logs.sort().values, best.sort().values, atol=STEP, rtol=0)
    other = graded([Speaker(model, tilts)], texts, openings, top=16, temperature=1.0, folder=tmp_path)
    assert not torch.equal(other.of(1)[1], found.of(1)[1]), "targets of other codes are another grading"


def test_the_mean_of_what_is_known_of_several_is_near_the_mean_of_all(speaker, texts, tmp_path):
    """Each teacher's likeliest tokens alone travel: what it did not name gets its remaining mass in equal shares."""
    tokens = speaker.model.config.vocab_size
    openings = [[[0]] * len(texts), [[0, 4, 5]] * len(texts)]
    parts = [
        graded([speaker], texts, [each], top=32, temperature=1.0, folder=tmp_path / str(number))
        for number, each in enumerate(openings)
    ]
    known = [(np.array(each.ids), np.array(each.codes)) for each in parts]
    kept = {"stops": texts.stops, "tokens": tokens, "temperature": 1.0}
    near = averaged(known, folder=tmp_path / "mean", **kept)
    true = graded([speaker] * 2, texts, openings, top=tokens, temperature=1.0, folder=tmp_path / "true")
    for place in range(0, len(texts), 7):
        (ids, logs), (every, wanted) = near.of(place), true.of(place)
        whole = torch.zeros(len(every), tokens).scatter(1, every, wanted.exp()).gather(1, ids)
        left = max(1 - np.exp(-STEP * each[1].astype(float)).sum(axis=1).min() for each in known)
        assert (whole - logs.exp()).abs().max() <= left
        assert (logs[:, :-1] >= logs[:, 1:]).all()
        assert len(set(ids[0].tolist())) == 32
    again = opened(tmp_path / "mean", texts.stops, 32, tokens, 1.0)
    assert np.array_equal(again.ids, near.ids)
    alone = averaged(known[:1], folder=tmp_path / "alone", **kept)
    assert np.array_equal(alone.codes, known[0][1])
    assert all(set(one) == set(other) for one, other in zip(alone.ids, known[0][0], strict=True))


def test_a_mean_that_is_not_there_or_of_other_texts_is_an_error(texts, tmp_path):
    with pytest.raises(IntegrityError, match="ids is damaged"):
        opened(tmp_path, texts.stops, 4, 100, 1.0)
    rows = np.arange(4)[None, :].repeat(len(texts.ids), axis=0)
    averaged([(rows, rows.astype(np.uint16))], stops=texts.stops, tokens=100, temperature=1.0, folder=tmp_path)
    assert opened(tmp_path, texts.stops, 4, 100, 1.0).tokens == len(texts.ids)
    with pytest.raises(IntegrityError, match="not of these texts"):
        opened(tmp_path, texts.stops, 5, 100, 1.0)


def test_every_place_has_its_own_temperature_that_of_the_token_it_says(speaker, texts, tmp_path):
    """Token m is said by the logits before it, under the temperature of place m."""
    each = np.linspace(0.5, 20, len(texts.ids))
    openings = [[0, 3] if place % 3 else [0] for place in range(len(texts))]
    found = graded([speaker], texts, [openings], top=16, temperature=2.0, folder=tmp_path / "own", temperatures=each)
    assert found.temperature == 2.0
    for text in (0, 5, 39):
        begin = int(texts.stops[text])
        for m in range(len(texts[text])):
            wanted = _said(speaker, texts[text], openings[text], float(each[begin + m]))[m]
            best, ids = wanted.topk(16)
            named, logs = (part[m] for part in found.of(text))
            assert set(named.tolist()) == set(ids.tolist())
            torch.testing.assert_close(logs.sort().values, best.sort().values, atol=STEP, rtol=0)


def test_equal_temperatures_are_the_constant_one_and_others_another_grading(speaker, texts, tmp_path):
    openings = [[[0]] * len(texts)]
    settings = {"top": 8, "temperature": 3.0, "folder": tmp_path}
    plain = np.array(graded([speaker], texts, openings, **settings).codes)
    same = graded([speaker], texts, openings, temperatures=np.full(len(texts.ids), 3.0), **settings)
    assert (same.codes == plain).all()
    other = graded([speaker], texts, openings, temperatures=np.full(len(texts.ids), 9.0), **settings)
    assert (other.codes != plain).any(), "what was kept of other temperatures is not taken for this"


def test_what_protects_is_given_each_text_once_under_its_own_label(speaker, texts, tmp_path):
    seen = {}

    class Shy:
        def __repr__(self):
            return "shy"

        def __call__(self, said, label):
            assert label not in seen
            seen[label] = said
            return torch.full_like(said, -math.inf).scatter(1, torch.tensor([[7]] * len(said)), 0.0)

    openings = [[[0]] * len(texts)]
    found = graded([speaker], texts, openings, top=4, temperature=1.0, folder=tmp_path, protect=Shy())
    assert len({label.split("/")[0] for label in seen}) == 1
    assert sorted(int(label.split("/")[1]) for label in seen) == list(range(len(texts)))
    for label, said in seen.items():
        text = int(label.split("/")[1])
        torch.testing.assert_close(said, _said(speaker, texts[text], [0]), atol=1e-4, rtol=1e-4)
        ids, logs = found.of(text)
        assert (ids[:, 0] == 7).all()
        assert (logs[:, 0] == 0).all()
        assert (logs[:, 1:] < -23.9).all(), "what has no probability is kept as the smallest"


@pytest.mark.parametrize("wrong", [np.ones(3), None, np.nan])
def test_temperatures_of_other_texts_or_of_none_are_refused(speaker, texts, tmp_path, wrong):
    each = (
        np.zeros(len(texts.ids)) if wrong is None else np.full(len(texts.ids), wrong) if np.ndim(wrong) == 0 else wrong
    )
    with pytest.raises(ConclaveError, match="Temperatures of"):
        graded([speaker], texts, [[[0]] * len(texts)], top=4, temperature=1.0, folder=tmp_path, temperatures=each)
