"""Rows of a corpus written part by part: gone on with after a crash, made once, and in bounded memory."""

import fcntl
import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from aggregation.errors import IntegrityError
from coordinator.errors import PlanError, RunError
from coordinator.text_models.corpus_numbers import LocalStreamer, blocks, find_streamer, written
from learning.errors import DataError
from learning.selection.text_rows import TextRows
from learning.text.corpus import indexed
from learning.text.corpus_files import CorpusSource

WORDS = "the a film was is good bad great awful dull bright plot actor and not very slow fast end start".split()  # noqa: SIM905


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """The model is so small that threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def corpus(tmp_path):
    """50 different short texts."""
    rows = [{"text": " ".join([WORDS[i % 20], WORDS[(3 * i + i // 20) % 20], *WORDS[: i % 7]])} for i in range(50)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = indexed([CorpusSource(str(tmp_path / "c.jsonl"))], tmp_path / "index", distinct=False)
    assert found.count() == 50
    return found


@pytest.fixture
def work(tiny_bert):
    return TextRows("embedding", str(tiny_bert), longest=16)


class Recorded:
    """The local streamer, of which is known what it was asked, and which can die after some parts."""

    def __init__(self, dies_after=None, order=lambda parts: parts):
        self.asked, self._left, self._order = [], dies_after, order

    def rows(self, corpus, work, parts):
        self.asked.append(list(parts))
        for done in LocalStreamer().rows(corpus, work, self._order(parts)):
            if self._left == 0:
                raise KeyboardInterrupt
            if self._left is not None:
                self._left -= 1
            yield done


@pytest.mark.slow
def test_rows_are_written_by_number_and_once(corpus, work, tmp_path):
    seen = []
    shuffled = Recorded(order=lambda parts: parts[::-1])
    path = written(shuffled, corpus, work, tmp_path / "rows", part=8, on_block=lambda *told: seen.append(told))
    expected = work.load()(list(corpus.rows(range(50))))
    np.testing.assert_allclose(np.load(path), expected, atol=1e-5)
    assert seen[0] == (0, 50)
    assert seen[-1] == (50, 50)
    assert len(seen) == 8
    assert [each.name for each in (tmp_path / "rows").iterdir()] == [path.name]
    again = Recorded()
    assert written(again, corpus, work, tmp_path / "rows", part=8) == path
    assert again.asked == []
    other = TextRows("embedding", work.model, longest=8)
    assert written(again, corpus, other, tmp_path / "rows", part=8) != path


@pytest.mark.slow
def test_a_crash_costs_only_what_was_not_marked(corpus, work, tmp_path):
    folder = tmp_path / "rows"
    with pytest.raises(KeyboardInterrupt):
        written(Recorded(dies_after=3), corpus, work, folder, part=8)
    assert not list(folder.glob("*.npy"))
    resumed, seen = Recorded(), []
    path = written(resumed, corpus, work, folder, part=8, on_block=lambda *told: seen.append(told))
    assert resumed.asked == [[(24, 32), (32, 40), (40, 48), (48, 50)]]
    assert seen[0] == (24, 50)
    np.testing.assert_allclose(np.load(path), work.load()(list(corpus.rows(range(50)))), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["part", "marks", "cut", "header"])
def test_what_does_not_fit_together_starts_again(corpus, work, tmp_path, harm):
    folder = tmp_path / "rows"
    with pytest.raises(KeyboardInterrupt):
        written(Recorded(dies_after=3), corpus, work, folder, part=8)
    (begun,), (marks,) = folder.glob("*.part"), folder.glob("*.marks")
    if harm == "marks":
        marks.write_bytes(marks.read_bytes()[:-1])
    elif harm == "cut":
        begun.write_bytes(begun.read_bytes()[:-4])
    elif harm == "header":
        begun.write_bytes(b"\0" + begun.read_bytes()[1:])
    again = Recorded()
    path = written(again, corpus, work, folder, part=10 if harm == "part" else 8)
    assert again.asked[0][0][0] == 0
    np.testing.assert_allclose(np.load(path), work.load()(list(corpus.rows(range(50)))), atol=1e-5)


def test_two_writers_of_one_file_do_not_meet(corpus, work, tmp_path):
    folder = tmp_path / "rows"
    with pytest.raises(KeyboardInterrupt):
        written(Recorded(dies_after=1), corpus, work, folder, part=8)
    with next(folder.glob("*.marks")).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="Another process is writing"):
            written(Recorded(), corpus, work, folder, part=8)
    written(Recorded(), corpus, work, folder, part=8)


class Wrong:
    def __init__(self, change):
        self._change = change

    def rows(self, corpus, work, parts):
        yield from self._change(LocalStreamer().rows(corpus, work, parts))


def not_finite(found):
    for first, rows in found:
        rows[-1, 0] = np.nan
        yield first, rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (not_finite, "NaN"),
        (lambda found: ((first, rows[:-1]) for first, rows in found), "asked otherwise"),
        (lambda found: ((first + 1, rows) for first, rows in found), "asked otherwise"),
        (lambda found: ((first, rows[:, : 32 - first % 3]) for first, rows in found), "another width"),
        (lambda found: list(found)[:-1], "left out 1 of 7 parts"),
    ],
)
def test_wrong_rows_are_never_marked(corpus, work, tmp_path, change, said):
    with pytest.raises(IntegrityError, match=said):
        written(Wrong(change), corpus, work, tmp_path / "rows", part=8)
    path = written(LocalStreamer(), corpus, work, tmp_path / "rows", part=8)
    np.testing.assert_allclose(np.load(path), work.load()(list(corpus.rows(range(50)))), atol=1e-5)


def test_a_folder_that_cannot_be_written_is_named(corpus, work, tmp_path):
    (tmp_path / "rows").write_text("a file")
    with pytest.raises(RunError, match="cannot be written"):
        written(LocalStreamer(), corpus, work, tmp_path / "rows")


def test_blocks_can_be_read_again_and_again(tmp_path):
    rows = np.arange(60, dtype=np.float32).reshape(20, 3)
    np.save(tmp_path / "a.npy", rows)
    found = blocks(tmp_path / "a.npy", 6)
    assert (found.count, found.width) == (20, 3)
    for _ in range(2):
        each = list(found)
        assert [len(some) for some in each] == [6, 6, 6, 2]
        assert np.array_equal(np.concatenate(each), rows)
    assert np.array_equal(found.read(5, 9), rows[5:9])
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-4])
    with pytest.raises(IntegrityError, match="ends before row 20"):
        list(found)
    np.save(tmp_path / "b.npy", rows.astype(np.float64))
    for name in ("a.npy", "b.npy", "gone.npy"):
        with pytest.raises(IntegrityError, match="is no file of rows"):
            blocks(tmp_path / name)


def test_a_streamer_is_found_by_its_name():
    assert isinstance(find_streamer("local"), LocalStreamer)
    with pytest.raises(PlanError, match=r'"sparks" is not installed here. There is "local"'):
        find_streamer("sparks")


def test_an_error_of_the_work_is_the_callers(corpus, tiny_bert, tmp_path):
    with pytest.raises(DataError, match="corpus of pairs"):
        written(LocalStreamer(), corpus, TextRows("embedding", str(tiny_bert), reads="second"), tmp_path / "rows")


BOUNDED = textwrap.dedent(
    """
    import json, resource, sys
    from pathlib import Path

    import numpy as np
    import torch

    from coordinator.text_models.corpus_numbers import LocalStreamer, blocks, written
    from learning.text.corpus import indexed
    from learning.text.corpus_files import CorpusSource
    from learning.selection.text_rows import TextRows

    source, bert, trained, folder, room = sys.argv[1:]
    torch.set_num_threads(1)
    works = [TextRows("embedding", bert, longest=8), TextRows("probability", trained, longest=8)]
    for work in works:  # libraries, threads and their arenas are there before the limit
        work.load()([("a good film " * 100,)] * 32)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    limit = int(status["VmData"].split()[0]) * 1024 + int(room)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    corpus = indexed([CorpusSource(source)], Path(folder) / "index")
    paths = [written(LocalStreamer(), corpus, work, Path(folder), part=32) for work in works]
    vectors, scores = (blocks(path, 64) for path in paths)
    centres = vectors.read(0, 4)
    for _ in range(3):
        sums, counts = np.zeros_like(centres), np.zeros(4)
        for block in vectors:
            near = ((block[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
            np.add.at(sums, near, block)
            counts += np.bincount(near, minlength=4)
        centres = sums / np.maximum(counts, 1)[:, None].astype(np.float32)
    try:
        whole = list(corpus.texts(range(corpus.count())))
    except MemoryError:
        whole = None
    told = {"rows": corpus.count(), "assigned": int(counts.sum()), "mean": float(np.mean([s.mean() for s in scores]))}
    print(json.dumps({**told, "whole_fits": whole is not None}))
    """
)


def passed_through(tmp_path, tiny_bert, corpus_bytes, room):
    """What a process with so much room for data, beyond what its libraries took, says of a corpus of such a size.

    The limit is RLIMIT_DATA: it counts what a process allocates and nothing else. RLIMIT_AS would count address space
    that torch reserves and never uses, and resident memory would count pages of files that the system may take back.
    """
    from learning.models.checkpoints import save
    from learning.models.encoders import classifier
    from learning.text.labelled import LabelMap

    model, tokenizer = classifier(str(tiny_bert), LabelMap(("no", "yes")), seed=0, pool="mean")
    save(model, tokenizer, tmp_path / "trained")
    text = "a good film was slow " * 3000
    with (tmp_path / "c.jsonl").open("w") as file:
        for number in range(corpus_bytes // len(text)):
            file.write(json.dumps({"text": f"{WORDS[number % 20]} {WORDS[number // 20 % 20]} {number} {text}"}) + "\n")
    assert (tmp_path / "c.jsonl").stat().st_size > 4 * room
    arguments = [str(tmp_path / "c.jsonl"), str(tiny_bert), str(tmp_path / "trained"), str(tmp_path), str(room)]
    ended = subprocess.run([sys.executable, "-c", BOUNDED, *arguments], capture_output=True, text=True, timeout=800)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout), corpus_bytes // len(text)


@pytest.mark.slow
def test_a_corpus_larger_than_the_room_for_it_passes_through(tmp_path, tiny_bert):
    said, rows = passed_through(tmp_path, tiny_bert, 64 * 2**20, 12 * 2**20)
    assert said["rows"] == said["assigned"] == rows
    assert 0 < said["mean"] < 1
    assert not said["whole_fits"]


@pytest.mark.slow
def test_a_corpus_twenty_times_larger_than_the_room_for_it_passes_through(tmp_path, tiny_bert):
    said, rows = passed_through(tmp_path, tiny_bert, 640 * 2**20, 32 * 2**20)
    assert said["rows"] == said["assigned"] == rows
    assert not said["whole_fits"]
