"""Make a small public language model from text that every Python has, for examples that need one: no file, no network.

    python examples/public_model.py                # examples/public-model, a minute or two on two cores

A GPT-2 of a million parameters, with a tokenizer of its own, reads the passages of Python's language reference
(`documentation-passages`) a few times. It knows little English, and nothing that is not public, so that figures show
what parties add to it. For a run that matters name a real one in `[model] name`.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from learning.text.documentation import rows

END = "<|endoftext|>"
TOKENS, WIDTH, LAYERS, LENGTH, BATCH = 2048, 128, 4, 64, 32


def main() -> int:
    """Make the model; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).with_name("public-model"))
    parser.add_argument("--steps", type=int, default=600, help="updates, of 32 sequences of 64 tokens each")
    asked = parser.parse_args()
    began = time.monotonic()
    loss = made(asked.folder, asked.steps)
    print(f"{asked.folder}: {asked.steps} updates in {time.monotonic() - began:.0f} s, loss {loss:.2f}")
    return 0


def made(folder: Path, steps: int) -> float:
    """Train the model, keep it, and return the mean loss of its last updates, in nats a token."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    texts = [row["text"] for row in rows("documentation-passages")]
    tokenizer = tokenizer_of(texts)
    ids = [token for text in texts for token in (*tokenizer(text).input_ids, tokenizer.eos_token_id)]
    tokens = torch.tensor(ids[: len(ids) // LENGTH * LENGTH]).reshape(-1, LENGTH)
    torch.manual_seed(0)
    end = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=256, n_embd=WIDTH, n_layer=LAYERS, n_head=WIDTH // 64, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=end, eos_token_id=end,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(config).train()
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.1, betas=(0.9, 0.95))
    losses: list[float] = []
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 30, max(0.05, 1 - step / steps))
        batch = tokens[torch.randint(len(tokens), (BATCH,))]
        loss = model(input_ids=batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(float(loss.detach()))
        if (step + 1) % 50 == 0:
            print(f"  {step + 1} of {steps} updates, loss {losses[-1]:.2f}", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    last = losses[-20:]
    return sum(last) / max(1, len(last))


def tokenizer_of(texts: list[str]) -> Any:
    """A byte-level tokenizer that these texts alone have made."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=TOKENS, special_tokens=[END], initial_alphabet=alphabet, show_progress=False),
    )
    return PreTrainedTokenizerFast(tokenizer_object=found, bos_token=END, eos_token=END, pad_token=END, unk_token=END)


if __name__ == "__main__":
    sys.exit(main())
