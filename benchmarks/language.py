"""What stages of a language model's run cost beside the plain ways: writing in batches, learning from stored targets.

    python benchmarks/language.py [--texts 128] [--rounds 3] [--threads 1]

Models of random weights: a tiny one (2 layers, width 64, 1,024 tokens) and one of 4 layers, width 256 and 8,192 tokens;
texts of 128 tokens at most, drawn among the 50 most probable with top-p 0.9. Writing: tokens a second beside
`model.generate` one text at a time, which makes a sixteenth of the texts. Learning: tokens a second of a student with
half the layers, from stored targets beside a teacher that says them again in every pass, and beside four teachers, one
of each party, whose mean is taken (the paper's form). All in turns, in one run; seconds are of the processor, which
other programs change less than the clock. benchmarks/results/language.json.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
SIZES = {"tiny": (2, 64, 1024), "small": (4, 256, 8192)}
LOOP = 16
TEACHERS = 4
"""Of as many parties: the paper's form, beside the one that all parties train together."""


def main() -> None:
    """Print one line a model and stage, and keep all figures."""
    import torch

    parser = argparse.ArgumentParser(description="Measure writing and learning of language models.")
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[str, Any] = {"texts": options.texts, "rounds": options.rounds, "threads": options.threads}
    for name, size in SIZES.items():
        found[name] = measured(*size, options.texts, options.rounds)
        for stage, each in found[name].items():
            print(f"{name}, {stage}: " + ", ".join(f"{key} {value:,.1f}" for key, value in each.items()), flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "language.json").write_text(json.dumps(found, indent=1) + "\n")


def measured(layers: int, width: int, tokens: int, texts: int, rounds: int) -> dict[str, dict[str, float]]:
    """Medians over the rounds of tokens a second of either way, and of their ratios."""
    import numpy as np
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from learning.language.distilling import Settings, distil
    from learning.language.generation import Sampling, generate
    from learning.language.soft_targets import graded
    from learning.language.speaker import Speaker
    from learning.transformers.layered_student import make_student

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=tokens, n_positions=256, n_embd=width, n_layer=layers, n_head=4, bos_token_id=0,
                   eos_token_id=0, pad_token_id=0)
    ).train(False)  # fmt: skip
    speaker, openings = Speaker(model), [[0, 1, 2]] * texts
    settings = Settings(passes=1, batch=32, micro_batch=32, held_out=0.02, looks=1)

    def written(seed: int, folder: Path) -> Any:
        return generate(speaker, openings, Sampling(batch=texts), end=0, seed=seed, folder=folder, known=tokens)

    def looped() -> int:
        given, count = torch.tensor([[0, 1, 2]]), 0
        for _ in range(max(1, texts // LOOP)):
            said = model.generate(
                given, attention_mask=torch.ones_like(given), do_sample=True, top_k=50, top_p=0.9, max_new_tokens=128
            )
            count += said.shape[1] - 3
        return count

    writing: dict[str, list[float]] = {"batched": [], "looped": []}
    learning: dict[str, list[float]] = {"stored": [], "live": [], "live of several": []}
    with tempfile.TemporaryDirectory() as place:
        for number in range(rounds):
            base = Path(place) / str(number)
            speed, made = timed(
                lambda base=base, number=number: written(number, base / "texts"), lambda each: len(each.ids)
            )
            writing["batched"].append(speed)
            writing["looped"].append(timed(looped, int)[0])
            before = openings[: len(made)]
            targets = graded([speaker], made, [before], top=64, temperature=1.0, folder=base / "targets")
            student = make_student(model, layers // 2, "spread")
            for name in learning:
                (base / name).mkdir()

            def learned(given: Any, name: str, base: Path = base, made: Any = made, student: Any = student) -> int:
                distil(student, made, openings, given, settings, seed=0, checkpoint=base / name)
                return len(made.ids)

            given = {
                "stored": targets,
                "live": Live([speaker], made, before, targets),
                "live of several": Live([speaker] * TEACHERS, made, before, targets),
            }
            for name, each in given.items():
                learning[name].append(timed(lambda name=name, each=each, learned=learned: learned(each, name), int)[0])
        bytes_a_token = float(np.float64(targets.bytes) / targets.tokens)
    return {
        "writing": told(writing, "batched", "looped"),
        "learning": told(learning, "stored", "live") | {"bytes_a_token": bytes_a_token},
        "learning of several": told(learning, "stored", "live of several"),
    }


class Live:
    """Stored targets of which the teachers say the best tokens anew whenever they are asked for, the mean of all."""

    def __init__(self, speakers: list[Any], texts: Any, openings: list[list[int]], stored: Any) -> None:
        self._speakers, self._texts, self._openings, self._stored = speakers, texts, openings, stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stored, name)

    def several(self, places: list[int]) -> Any:
        """What the teachers say of some texts, read together: the best tokens and their log-probabilities."""
        import numpy as np
        import torch

        from learning.language.speaker import own_logits
        from learning.models.batching import Tokens

        rows = [
            Tokens(
                np.concatenate([np.asarray(self._openings[each], np.int32), self._texts[each]]),
                len(self._openings[each]),
            )
            for each in places
        ]
        mean: Any = None
        with torch.inference_mode():
            for speaker in self._speakers:
                said = speaker.log_probabilities(own_logits(speaker.model, rows)[0])
                mean = said if mean is None else torch.logaddexp(mean, said)
        best, ids = mean.topk(self.ids.shape[1], dim=-1)
        return ids, best - math.log(len(self._speakers))


def timed(work: Callable[[], Any], count: Callable[[Any], int]) -> tuple[float, Any]:
    """Tokens a processor second of a piece of work, and what it made."""
    began = time.process_time()
    made = work()
    return count(made) / (time.process_time() - began), made


def told(speeds: dict[str, list[float]], one: str, other: str) -> dict[str, float]:
    """Medians of both ways and of the rounds' ratios."""
    ratios = [each / beside for each, beside in zip(speeds[one], speeds[other], strict=True)]
    return {name: statistics.median(speeds[name]) for name in (one, other)} | {"ratio": statistics.median(ratios)}


if __name__ == "__main__":
    main()
