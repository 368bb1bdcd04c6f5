"""Writing texts: what is drawn, in which order, and what a kill changes: nothing."""

import numpy as np
import pytest
import torch

from aggregation.errors import ConclaveError, IntegrityError
from learning.language.generation import Sampling, Texts, generate
from learning.language.speaker import Speaker

OPENINGS = [[0], [0, 5, 6], [0], [0, 7, 8], [0, 5, 6]] * 8


def _made(speaker, folder, sampling=None, openings=OPENINGS, seed=1, known=None, progress=lambda done, total: None):
    known = known or speaker.model.config.vocab_size
    return generate(
        speaker, openings, sampling or Sampling(longest=12, batch=8), end=0, seed=seed, folder=folder, known=known,
        progress=progress,
    )  # fmt: skip


@pytest.mark.slow
def test_the_best_token_every_time_is_what_the_library_writes_without_a_cache(model, tmp_path):
    made = _made(Speaker(model), tmp_path, Sampling(longest=10, top_k=1, batch=8))
    for opening, text in zip(OPENINGS, made, strict=True):
        ids = list(opening)
        for _ in range(10):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == 0:
                break
        assert text.tolist() == ids[len(opening) :]


@pytest.mark.slow
def test_texts_are_drawn_by_what_the_speaker_says_of_its_best_tokens(speaker, tmp_path):
    made = _made(speaker, tmp_path, Sampling(longest=1, top_k=0, top_p=1.0, batch=500), [[0]] * 4000)
    found = np.bincount([int(each[0]) for each in made], minlength=speaker.model.config.vocab_size) / 4000
    with torch.no_grad():
        logits = speaker.model(torch.tensor([[0]])).logits[0, -1]
    said = speaker.log_probabilities(logits).exp().numpy()
    assert np.abs(found - said).max() < 0.03
    few = _made(speaker, tmp_path / "few", Sampling(longest=1, top_k=5, top_p=0.5, batch=500), [[0]] * 500)
    best = np.sort(said)[::-1][:5] / np.sort(said)[::-1][:5].sum()
    count = int((np.cumsum(best) - best < 0.5).sum())
    assert {int(each[0]) for each in few} <= set(np.argsort(-said)[:count].tolist())


@pytest.mark.slow
def test_a_writing_that_was_killed_ends_with_the_same_bytes(speaker, tmp_path):
    whole = _made(speaker, tmp_path / "whole")

    class Killed(Exception):
        pass

    def killed(done, total):
        if done >= 16:
            raise Killed

    with pytest.raises(Killed):
        _made(speaker, tmp_path / "killed", progress=killed)
    there = len(list((tmp_path / "killed").glob("block-*.npz")))
    assert 0 < there < len(list((tmp_path / "whole").glob("block-*.npz")))
    begun = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "killed").glob("block-*.npz")}
    again = _made(speaker, tmp_path / "killed")
    assert (again.ids == whole.ids).all()
    assert (again.stops == whole.stops).all()
    assert all((tmp_path / "killed" / name).stat().st_mtime_ns == when for name, when in begun.items())
    assert (_made(speaker, tmp_path / "other", seed=2).ids[:20] != whole.ids[:20]).any()


@pytest.mark.slow
def test_blocks_of_another_writing_are_not_taken_and_damaged_ones_are_said(speaker, tmp_path):
    first = _made(speaker, tmp_path)
    other = _made(speaker, tmp_path, seed=9)
    assert (other.ids[:20] != first.ids[:20]).any()
    (tmp_path / "block-000000.npz").write_bytes(b"PK")
    with pytest.raises(IntegrityError, match="damaged"):
        _made(speaker, tmp_path, seed=9)


def test_nothing_beyond_the_tokenizer_is_said_and_no_text_is_longer_than_asked(model, tmp_path):
    size = model.config.vocab_size
    up = torch.zeros(size)
    up[20:] = 50.0
    made = _made(Speaker(model, up), tmp_path, Sampling(longest=6, top_k=0, top_p=1.0), known=20)
    assert made.ids.max() < 20
    assert max(map(len, made)) <= 6
    for text in made:
        assert 0 not in text[:-1]


def test_texts_that_repeat_or_are_empty_are_left_out():
    words = {0: "", 5: "g", 6: "ood", 7: "goo", 8: "d", 9: " "}
    made = [[5, 6, 0], [0], [5, 6], [7, 0], [], [7, 8], [9, 9, 0], [8, 5]]
    texts = Texts.joined([np.array(each, np.int32) for each in made], 0)
    kept = texts.distinct(lambda ids: "".join(words[int(each)] for each in ids))
    assert kept.tolist() == [0, 3, 7], "7, 8 reads as 5, 6 does; 9 is blank"
    assert [each.tolist() for each in texts.of(kept)] == [[5, 6, 0], [7, 0], [8, 5]]


def test_what_cannot_be_drawn_is_said(speaker, tmp_path):
    with pytest.raises(ConclaveError, match="cannot be drawn"):
        Sampling(top_p=0.0)
    with pytest.raises(ConclaveError, match="opening"):
        _made(speaker, tmp_path, openings=[[]])


def test_each_texts_code_says_what_it_is_drawn_by(model, tmp_path):
    size = model.config.vocab_size
    tilts = torch.zeros(3, size)
    tilts[0, 5] = tilts[1, 9] = tilts[2, 7] = 50.0
    cells = [0, 1, -1, 1, 0] * 8
    made = generate(
        Speaker(model, tilts), OPENINGS, Sampling(longest=3, batch=8), end=0, seed=1, folder=tmp_path, known=size,
        cells=cells,
    )  # fmt: skip
    assert [set(map(int, text)) for text in made] == [{{0: 5, 1: 9, -1: 7}[cell]} for cell in cells]
    again = generate(
        Speaker(model, tilts), OPENINGS, Sampling(longest=3, batch=8), end=0, seed=1, folder=tmp_path, known=size,
        cells=[0] * len(cells),
    )  # fmt: skip
    assert {int(each) for text in again for each in text} == {5}, "texts of other codes are another writing"
