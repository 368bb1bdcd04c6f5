"""A student of half its teacher's layers: how much faster it is, how fast it is distilled, and how near it comes.

    python benchmarks/layered_student.py [--texts 1024] [--rounds 11] [--out FILE]

The packaged MiniLM (6 layers) and its student (3), two threads, 64 tokens a text. First a forward pass of either, in
turns, with the parameters: PrivDistil's table 2. Beside time on the clock, which other programs share, stands the time
that processors worked. Then a short distillation on passages of novels (where $CONCLAVE_DATA
or ../shared/data has them) from each start: with the teacher's layers spread, with its first ones, and from a seed; and
spread again on text of which 15% is masked, as for a language model.
Nearness is the cosine of student's and teacher's mean-pooled vectors of passages of other novels, and the share of
those passages whose vector is nearest to the teacher's vector of the same passage.
"""

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learning.models.batching import encode, inputs_of
from learning.models.checkpoints import PACKAGED
from learning.transformers.distilling import MASKED, Distillation, distil
from learning.transformers.layered_student import load_teacher, make_student

DATA = Path(os.environ.get("CONCLAVE_DATA") or Path(__file__).resolve().parents[2] / "shared/data")
THREADS, LAYERS, TOKENS, HELD_OUT = 2, 3, 64, 128
STARTS = ("spread", "first", "random")
SETTINGS = Distillation(passes=1, batch=16, micro_batch=16, learning_rate=5e-4, max_tokens=TOKENS)


def passages(count: int) -> tuple[list[str], list[str]]:
    """Texts to distil on, evenly from the first nine tenths of the corpus, and held-out ones from the last tenth."""
    with (DATA / "novels/passages.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line)["text"] for line in file]
    border = len(rows) * 9 // 10
    return rows[: border : border // count][:count], rows[border :: (len(rows) - border) // HELD_OUT][:HELD_OUT]


def speed(teacher: Any, student: Any, rows: list[Any], rounds: int) -> dict[str, Any]:
    """Seconds of a forward pass of either on the same texts, in turns; the speed-up is the median of the rounds'."""
    found: dict[str, list[float]] = {"teacher": [], "student": []}
    spent = {"teacher": 0.0, "student": 0.0}
    with torch.no_grad():
        for place in range(rounds + 2):
            for name, model in (("teacher", teacher), ("student", student)):
                inputs = inputs_of(model.config, rows)
                began, work = time.perf_counter(), time.process_time()
                model(**inputs)
                if place >= 2:
                    found[name].append(time.perf_counter() - began)
                    spent[name] += time.process_time() - work
    ratios = [slow / fast for slow, fast in zip(found["teacher"], found["student"], strict=True)]
    return {
        "texts": len(rows),
        "teacher_ms": 1000 * statistics.median(found["teacher"]),
        "student_ms": 1000 * statistics.median(found["student"]),
        "speed_up": statistics.median(ratios),
        "work_ratio": spent["teacher"] / spent["student"],
    }


def embed(model: Any, tokenizer: Any, texts: list[str]) -> Tensor:
    """Unit vectors [texts, width]: the mean over each text's tokens."""
    parts = []
    with torch.no_grad():
        for first in range(0, len(texts), 32):
            inputs = inputs_of(model.config, encode(tokenizer, texts[first : first + 32], longest=TOKENS).rows)
            weights = inputs["attention_mask"][:, :, None].float()
            parts.append((model(**inputs).last_hidden_state * weights).sum(1) / weights.sum(1))
    return torch.nn.functional.normalize(torch.cat(parts), dim=1)


def near(ours: Tensor, theirs: Tensor) -> dict[str, float]:
    """Cosines of a student's vectors with the teacher's of the same texts, and how often the same text is nearest."""
    cosines = ours @ theirs.T
    own = cosines.diagonal()
    return {
        "cosine": float(own.mean()),
        "lowest_tenth": float(own.quantile(0.1)),
        "nearest": float((cosines.argmax(1) == torch.arange(len(ours))).float().mean()),
    }


def timed(times: list[float]) -> Callable[[int, int, Mapping[Any, float]], None]:
    """An `on_step` that notes when each step ended, and prints every tenth."""

    def on_step(step: int, steps: int, losses: Mapping[Any, float]) -> None:
        times.append(time.perf_counter())
        if step % 10 == 0 or step == steps:
            shown = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
            print(f"    step {step} of {steps}: {shown}", flush=True)

    return on_step


def main() -> None:
    """Print what is found; with --out write it as JSON."""
    parser = argparse.ArgumentParser(description="A student of half its teacher's layers.")
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    teacher, tokenizer = load_teacher(PACKAGED)
    texts, held_out = passages(given.texts)
    students = {start: make_student(teacher, LAYERS, start, seed=1) for start in STARTS}
    students["spread, masked"] = make_student(teacher, LAYERS)
    parameters = {
        name: sum(each.numel() for each in model.parameters())
        for name, model in (("teacher", teacher), ("student", students["spread"]))
    }
    rows = encode(tokenizer, texts, longest=TOKENS).rows
    speeds = [speed(teacher, students["spread"], rows[:count], given.rounds) for count in (1, 32)]
    print(f"  parameters: teacher {parameters['teacher']:,}, student {parameters['student']:,}", flush=True)
    for each in speeds:
        print(
            f"  {each['texts']} at once: teacher {each['teacher_ms']:.1f} ms, student {each['student_ms']:.1f} ms, "
            f"{each['speed_up']:.2f} times as fast, {each['work_ratio']:.2f} times less work",
            flush=True,
        )
    theirs = embed(teacher, tokenizer, held_out)
    apart = theirs @ theirs.T
    other = float((apart.sum() - apart.trace()) / (len(theirs) * (len(theirs) - 1)))
    print(f"  teacher's vectors of different passages: cosine {other:.3f}", flush=True)
    found = {}
    for start, student in students.items():
        before = near(embed(student, tokenizer, held_out), theirs)
        print(f"  {start}: {before}", flush=True)
        times: list[float] = []
        work = time.process_time()
        settings = replace(SETTINGS, mask_share=MASKED) if start.endswith("masked") else SETTINGS
        outcome = distil(
            teacher, student, lambda: iter(texts), settings, tokenizer=tokenizer, seed=1, on_step=timed(times)
        )
        work = time.process_time() - work
        seconds = statistics.median(late - early for early, late in pairwise(times))
        found[start] = {
            "before": before,
            "after": near(embed(student, tokenizer, held_out), theirs),
            "texts_a_second": SETTINGS.batch / seconds,
            "texts_a_processor_second": len(texts) / work,
            "steps": outcome.steps,
            "losses": dict(outcome.losses),
        }
        print(
            f"  {start}: {found[start]['after']}, {SETTINGS.batch / seconds:.1f} texts a second, "
            f"{len(texts) / work:.1f} a second of a processor",
            flush=True,
        )
    result = {
        "teacher": PACKAGED,
        "layers": [teacher.config.num_hidden_layers, LAYERS],
        "threads": THREADS,
        "tokens": TOKENS,
        "parameters": parameters,
        "forward": speeds,
        "texts": len(texts),
        "held_out": len(held_out),
        "batch": SETTINGS.batch,
        "different_passages": other,
        "starts": found,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
