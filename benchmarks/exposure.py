"""How long the exact exposure of 100 canaries takes over a million numbers, by a trie and by scoring each number.

    python benchmarks/exposure.py [--digits 6] [--model ../shared/models/public-lm]

Scoring is measured on a sample of the numbers, in batches and alone, and reckoned up to all of them. The ways take
turns, and what they say of the sample is compared. The result is benchmarks/results/exposure.json.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/exposure.json"
PROMPT = "My ID is"
CANARIES = 100
BATCH = 256
SAMPLES = {"in batches": 16 * BATCH, "alone": 200}
ROUNDS = 2


def main() -> None:
    """Measure, compare, and write the result down."""
    import torch

    from learning.audits.exposure import DIGITS, digit_tokens, exposures, likelihoods, ranks
    from learning.language.speaker import Speaker
    from learning.models.encoders import language_model

    parser = argparse.ArgumentParser(description="Time exact exposure.")
    parser.add_argument("--digits", type=int, default=6)
    parser.add_argument("--model", type=Path, default=ROOT / "../shared/models/public-lm")
    options = parser.parse_args()
    model, tokenizer = language_model(str(options.model))
    speaker, size = Speaker(model.eval()), DIGITS**options.digits
    opening, digits = digit_tokens(tokenizer, PROMPT)
    rng = np.random.default_rng(0)

    def scored(numbers: np.ndarray, batch: int) -> np.ndarray:
        """Likelihoods of numbers whose whole texts are read, so many at a time."""
        found = np.empty(len(numbers), np.float32)
        for start in range(0, len(numbers), batch):
            own = [
                [digits[int(each)] for each in f"{one:0{options.digits}d}"] for one in numbers[start : start + batch]
            ]
            ids = torch.tensor([[*opening, *each] for each in own])
            with torch.inference_mode():
                logs = speaker.log_probabilities(model(ids).logits[:, len(opening) - 1 : -1].float())
            found[start : start + batch] = logs.gather(2, torch.tensor(own)[..., None])[..., 0].sum(dim=1).numpy()
        return found

    times: dict[str, list[float]] = {"trie": [], **{name: [] for name in SAMPLES}}
    off = 0.0
    for _ in range(ROUNDS):
        logs, seconds = timed(lambda: likelihoods(speaker, opening, digits, options.digits))
        times["trie"].append(seconds)
        for name, count in SAMPLES.items():
            some = rng.choice(size, count, replace=False)
            own, seconds = timed(lambda some=some, name=name: scored(some, BATCH if name == "in batches" else 1))
            times[name].append(seconds * size / count)
            off = max(off, float(np.abs(own - logs[some]).max()))
    canaries = rng.choice(size, CANARIES, replace=False)
    bits = exposures(ranks(logs, canaries), size)
    found = {name: float(np.median(each)) for name, each in times.items()}
    nodes = sum(DIGITS**depth for depth in range(options.digits))
    result = {
        "numbers": size,
        "canaries": CANARIES,
        "threads": torch.get_num_threads(),
        "seconds": {name: round(each, 2) for name, each in found.items()},
        "times": {name: round(found[name] / found["trie"], 1) for name in SAMPLES},
        "tokens_read": {"trie": len(opening) + nodes - 1, "each alone": size * (len(opening) + options.digits)},
        "largest_difference": off,
        "mean_exposure": round(float(bits.mean()), 3),
    }
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


def timed(act: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    """The result of a function, and its seconds."""
    begun = time.perf_counter()
    found = act()
    return found, time.perf_counter() - begun


if __name__ == "__main__":
    main()
