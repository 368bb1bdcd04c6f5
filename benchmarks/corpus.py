"""A public corpus through an encoder, in this process and on Ray: texts a second and peak memory, side by side.

    python benchmarks/corpus.py [--passages 2000] [--longest 64] [--rows 1000] [--out FILE]

Speed: passages of the novels, through the packaged encoder. Memory: a corpus of made-up rows of 16 KiB, and one of ten
times as many, through a model of width 32; what is bounded stays where it was. Every measurement is a process of its
own. Peak memory is the largest sum of the proportional set sizes of all its processes, looked at every quarter of a
second; "here" is of the process that reads the results alone. Seconds count from the first part asked for to the last
row on disk, with loading and, on Ray, starting it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

DATA = Path(os.environ.get("CONCLAVE_DATA", Path(__file__).resolve().parents[2] / "shared/data"))
MIB = 2**20


def tiny(folder: Path) -> str:
    """A BERT of width 32 with the packaged encoder's tokenizer."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from learning.models.checkpoints import PACKAGED, place_of

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(place_of(PACKAGED))
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def made_up(path: Path, rows: int) -> None:
    """Different rows of 16 KiB."""
    body = "it was the best of plots and the worst of plots " * 340
    with path.open("w") as file:
        for number in range(rows):
            file.write(json.dumps({"text": f"{number} {body}"}) + "\n")


class Watch:
    """Looks at the memory of this process and of all that it starts, until it is left."""

    def __enter__(self) -> "Watch":
        self.here = self.all = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        own = psutil.Process()
        while not self._ended.wait(0.25):
            here = own.memory_full_info().pss
            total = here
            for each in own.children(recursive=True):
                try:
                    total += each.memory_full_info().pss
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
            self.here, self.all = max(self.here, here), max(self.all, total)


def one(streamer: str, source: str, limit: int, model: str, longest: int, part: int) -> dict[str, Any]:
    """One measurement, in this process."""
    from coordinator.text_models.corpus_numbers import LocalStreamer, blocks, written
    from deploy.streaming import RayStreamer
    from learning.selection.text_rows import TextRows
    from learning.text.corpus import indexed
    from learning.text.corpus_files import CorpusSource

    with tempfile.TemporaryDirectory() as folder, Watch() as watch:
        corpus = indexed([CorpusSource(source, limit=limit)], Path(folder))
        work = TextRows("embedding", model, longest=longest)
        chosen = RayStreamer() if streamer == "ray" else LocalStreamer()
        began = time.perf_counter()
        path = written(chosen, corpus, work, Path(folder), part=part)
        took = time.perf_counter() - began
        mean = float(sum(block.sum() for block in blocks(path)) / corpus.count())
    return {
        "texts": corpus.count(),
        "seconds": took,
        "texts_per_second": corpus.count() / took,
        "peak_mib": watch.all / MIB,
        "peak_here_mib": watch.here / MIB,
        "mean_of_sums": mean,
    }


def measured(*arguments: object) -> dict[str, Any]:
    """One measurement, in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(arguments)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def main() -> int:
    """Measure, print, write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=2000)
    parser.add_argument("--longest", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1000, help="of the small made-up corpus")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(*given.one)))
        return 0
    novels = DATA / "novels/passages.jsonl"
    if not novels.exists():
        print(f"needs novels in CONCLAVE_DATA or {DATA}", file=sys.stderr)
        return 1
    from learning.models.checkpoints import PACKAGED

    speed, memory = {}, {}
    for name in ("local", "ray"):
        speed[name] = measured(name, str(novels), given.passages, PACKAGED, given.longest, 256)
        print(
            f"{name}: {speed[name]['texts_per_second']:.0f} texts/s of {given.longest} tokens through {PACKAGED}, "
            f"peak {speed[name]['peak_mib']:.0f} MiB",
            flush=True,
        )
    with tempfile.TemporaryDirectory() as folder:
        model, source = tiny(Path(folder) / "tiny"), Path(folder) / "corpus.jsonl"
        for rows in (given.rows, 10 * given.rows):
            made_up(source, rows)
            size = source.stat().st_size / MIB
            for name in ("local", "ray"):
                found = measured(name, str(source), rows, model, 16, 64)
                memory[f"{name}_{rows}"] = {**found, "corpus_mib": size}
                print(
                    f"{name}: a corpus of {size:.0f} MiB, peak {found['peak_mib']:.0f} MiB in all, "
                    f"{found['peak_here_mib']:.0f} here",
                    flush=True,
                )
    if given.out is not None:
        given.out.write_text(json.dumps({"speed": speed, "memory": memory}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
