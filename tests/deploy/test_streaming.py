"""The `ray` streamer: the rows of the local one, whatever dies meanwhile, nothing said and nothing left."""

import json
import os
import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest

from coordinator.text_models.corpus_numbers import LocalStreamer, written
from deploy.embedded import embedded
from deploy.streaming import RayStreamer, StreamError, Worker
from learning.selection.text_rows import TextRows
from learning.text.corpus import indexed
from learning.text.corpus_files import CorpusSource

WORDS = ["the", "a", "film", "was", "is", "good", "bad", "great", "awful", "dull", "bright", "plot"]


@pytest.fixture
def corpus(tmp_path):
    rng = np.random.default_rng(0)
    rows = [{"text": " ".join(rng.choice(WORDS, 1 + number % 30))} for number in range(300)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return indexed([CorpusSource(str(tmp_path / "c.jsonl"))], tmp_path / "index")


@pytest.fixture
def work(tiny_bert):
    return TextRows("embedding", str(tiny_bert), longest=32)


def parts_of(corpus, rows):
    return [(first, min(first + rows, corpus.count())) for first in range(0, corpus.count(), rows)]


BEFORE = set()
"""Processes that tests before this one left, as a library's resource tracker."""


@pytest.fixture(autouse=True)
def _before():
    BEFORE.clear()
    BEFORE.update(each.pid for each in psutil.Process().children(recursive=True))


def started():
    """All processes that this one started in this test, at any depth, and that still run."""
    ours = (each for each in psutil.Process().children(recursive=True) if each.pid not in BEFORE)
    return [each for each in ours if each.status() != psutil.STATUS_ZOMBIE]


def test_nothing_to_do_starts_nothing(corpus, work):
    assert list(RayStreamer().rows(corpus, work, [])) == []
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()


@pytest.mark.slow
def test_a_worker_answers_with_rows_or_with_the_reason_why_not(corpus, work, monkeypatch):
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    parts = np.array(parts_of(corpus, 7), np.int64)
    expected = dict(LocalStreamer().rows(corpus, work, parts_of(corpus, 7)))
    worker = Worker(corpus, work, parts)
    for place in (3, 0, len(parts) - 1):
        said = worker({"place": np.array([place])})
        assert said["why"] == [""]
        found = np.frombuffer(said["rows"][0], np.float32).reshape(-1, said["width"][0])
        np.testing.assert_allclose(found, expected[said["first"][0]], atol=1e-5)
    without = Worker(corpus, TextRows("embedding", work.model, reads="second"), parts)
    assert "corpus of pairs" in without({"place": np.array([0])})["why"][0]


@pytest.mark.slow
def test_rows_are_those_of_the_local_streamer_and_nothing_is_left(corpus, work, tmp_path):
    environment = dict(os.environ)
    paths = [
        written(streamer, corpus, work, tmp_path / name, part=16)
        for name, streamer in (("local", LocalStreamer()), ("ray", RayStreamer()))
    ]
    np.testing.assert_allclose(*map(np.load, paths), atol=1e-5)
    assert started() == []
    assert dict(os.environ) == environment
    found = RayStreamer(workers=1).rows(corpus, work, parts_of(corpus, 16))
    next(found)
    found.close()
    assert started() == []


@pytest.mark.slow
def test_a_worker_that_dies_costs_nothing(corpus, work):
    parts = parts_of(corpus, 4)
    expected = dict(LocalStreamer().rows(corpus, work, parts))
    found = {}
    for first, rows in RayStreamer().rows(corpus, work, parts):
        assert first not in found
        found[first] = rows
        if len(found) == 2:
            victims = [each for each in started() if "MapWorker" in " ".join(each.cmdline())]
            victims[0].kill()
    assert set(found) == set(expected)
    for first in expected:
        np.testing.assert_allclose(found[first], expected[first], atol=1e-5)


@pytest.mark.slow
def test_a_ray_that_runs_already_is_used_and_left_running(corpus, work):
    parts = parts_of(corpus, 64)
    expected = dict(LocalStreamer().rows(corpus, work, parts))
    with embedded(2) as ray:
        found = dict(RayStreamer().rows(corpus, work, parts))
        assert ray.is_initialized()
        deadline = time.monotonic() + 120  # a worker takes its time to end where processors are scarce
        while workers := [each for each in started() if "MapWorker" in " ".join(each.cmdline())]:
            assert time.monotonic() < deadline, workers
            time.sleep(0.2)
    for first in expected:
        np.testing.assert_allclose(found[first], expected[first], atol=1e-5)


@pytest.mark.slow
def test_what_the_work_cannot_do_is_one_sentence(corpus, tiny_bert):
    with pytest.raises(StreamError, match="is not trained") as error:
        list(RayStreamer(workers=1).rows(corpus, TextRows("probability", str(tiny_bert)), parts_of(corpus, 100)))
    assert "\n" not in str(error.value)
    assert started() == []


SILENT = textwrap.dedent(
    """
    import sys
    from pathlib import Path

    from coordinator.text_models.corpus_numbers import written
    from deploy.streaming import RayStreamer
    from learning.text.corpus import indexed
    from learning.text.corpus_files import CorpusSource
    from learning.selection.text_rows import TextRows

    folder, bert = sys.argv[1:]
    corpus = indexed([CorpusSource(folder + "/c.jsonl")], Path(folder))
    written(RayStreamer(), corpus, TextRows("embedding", bert), Path(folder), part=64)
    """
)


@pytest.mark.slow
def test_nothing_is_said_on_the_terminal(corpus, work, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", SILENT, str(tmp_path), work.model], capture_output=True, text=True, timeout=800
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert len(list(tmp_path.glob("*.npy"))) == 1
