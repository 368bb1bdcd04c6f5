"""The script in the published folder of a rule for pairs of texts, which applies it with standard libraries alone."""

from typing import Final

PREDICT: Final = '''\
"""What the model in this folder says of pairs of texts: python predict.py < pairs.tsv

A line has two texts with a tab between them. It needs torch, transformers, numpy and safetensors.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModel, AutoTokenizer

HERE = Path(__file__).resolve().parent
RULE, KNOWN = load_file(HERE / "rule.safetensors"), json.loads((HERE / "rule.json").read_text(encoding="utf-8"))
TOKENIZER, ENCODER = AutoTokenizer.from_pretrained(HERE), AutoModel.from_pretrained(HERE).eval()


def encoded(rows):
    """Texts as tokens to the encoder's vectors of them at norm 1, [texts, width]."""
    inputs = TOKENIZER.pad({"input_ids": rows}, return_tensors="pt")
    with torch.inference_mode():
        return torch.nn.functional.normalize(ENCODER(**inputs).pooler_output).double().numpy()


def outputs(pairs):
    """Scores of the classes, [pairs, classes], or what is said of the score, [pairs, 1]."""
    first, second = map(list, zip(*pairs))
    told = TOKENIZER(first, second, truncation=True, max_length=KNOWN["longest"], return_token_type_ids=True)
    sides = [], []
    for ids, types in zip(told["input_ids"], told["token_type_ids"]):
        begins = types.index(1)
        sides[0].append(ids[:begins])
        sides[1].append(ids[:1] + ids[begins:])
    u, v = encoded(sides[0]), encoded(sides[1])
    x = (np.hstack([u * v, np.abs(u - v)]) - RULE["centre"]) @ RULE["matrix"]
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    return x @ RULE["weights"] + RULE["bias"]


def predict(pairs, at_once=64):
    """For each pair (text, text) its class and that class's probability, or its score within the range."""
    said = np.vstack([outputs(pairs[start : start + at_once]) for start in range(0, len(pairs), at_once)])
    if "range" in KNOWN:
        return np.clip(said[:, 0], *KNOWN["range"]).tolist()
    chances = np.exp(said - said.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    return [(KNOWN["labels"][each.argmax()], float(each.max())) for each in chances]


if __name__ == "__main__":
    given = [tuple(line.rstrip("\\n").split("\\t")) for line in sys.stdin if line.strip()]
    if not given or any(len(pair) != 2 for pair in given):
        sys.exit("Give lines of two texts with a tab between them.")
    for said in predict(given):
        print(*said if isinstance(said, tuple) else (said,), sep="\\t")
'''
"""rule.safetensors, float64: `centre` [features], `matrix` [features, d], scaled, `weights` [d, outputs], `bias`.

rule.json: `longest` tokens of a pair, and `labels`, or the `range` of scores. The folder's encoder is the standard
library's `AutoModel`, whose `pooler_output` is a text's vector.
"""
