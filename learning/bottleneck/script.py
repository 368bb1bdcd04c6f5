"""Scripts of standard libraries alone for what the published form releases: one that trains on the sequences, and one
that applies a layer and a head to texts.
"""

from typing import Final

READER: Final = '''\
class Reader(torch.nn.Module):
    """Attention over noisy vectors, which heeds their weights and lengths unless it is plain, and a head."""

    def __init__(self, width, outputs, heads, plain):
        super().__init__()
        self.heads, self.plain = heads, plain
        self.query, self.out = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)
        self.head = torch.nn.Linear(width, outputs)

    def forward(self, vectors, log_weights):
        texts, positions, width = vectors.shape
        size = width // self.heads
        z, q = (x.view(texts, positions, self.heads, size).transpose(1, 2) for x in (vectors, self.query(vectors)))
        scores = q @ z.transpose(2, 3) / size**0.5
        if not self.plain:
            scores = scores + (log_weights[:, None, :] - z.square().sum(3) / (2 * size**0.5)).unsqueeze(2)
        mixed = (torch.softmax(scores, 3) @ z).transpose(1, 2).reshape(texts, positions, width)
        h = self.first(self.out(mixed))
        h = self.second(h + self.down(torch.nn.functional.gelu(self.up(h))))
        return self.head((h * log_weights.exp().unsqueeze(2)).sum(1))
'''

TRAIN: Final = f'''\
"""Train a head on the sequences in a folder: python train.py FOLDER. It needs torch, numpy and datasets."""

import json
import sys
from pathlib import Path

import torch
from datasets import load_from_disk

{READER}

folder = Path(sys.argv[1])
known = json.loads((folder / "known.json").read_text(encoding="utf-8"))
rows = load_from_disk(str(folder)).with_format("torch")[:]
vectors, log_weights, labels = rows["vectors"].float(), rows["log_weights"].float(), rows["label"]
scores = "scores" in known
targets = torch.tensor(known["scores"])[labels].float() if scores else labels
torch.manual_seed(0)
reader = Reader(known["width"], 1 if scores else known["classes"], known["heads"], known["plain"])
steps, batch, epochs = 0, 32, 6
optimizer = torch.optim.Adam(reader.parameters(), lr=1e-3)
for _ in range(epochs):
    for places in torch.randperm(len(labels)).split(batch):
        said = reader(vectors[places], log_weights[places])
        if scores:
            loss = torch.nn.functional.mse_loss(said[:, 0], targets[places])
        else:
            loss = torch.nn.functional.cross_entropy(said, targets[places])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimizer.step()
torch.save(reader.state_dict(), folder / "reader.pt")
'''
"""rows: `vectors` [positions, width], `log_weights` [positions], `label`. known.json: `width`, `heads`, `classes`,
`plain`, and of scores their middles, `scores`.
"""

PREDICT: Final = f'''\
"""What the model in this folder says of texts: python predict.py < texts.txt

It takes a text a line, samples each once, and needs torch, transformers and safetensors.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

HERE = Path(__file__).resolve().parent
KNOWN = json.loads((HERE / "layer.json").read_text(encoding="utf-8"))
TENSORS = load_file(HERE / "layer.safetensors")
TOKENIZER, ENCODER = AutoTokenizer.from_pretrained(HERE), AutoModel.from_pretrained(HERE).eval()


{READER}

def linear(x, name):
    """A linear map of the layer."""
    return torch.nn.functional.linear(x, TENSORS[name + ".weight"], TENSORS.get(name + ".bias"))


def sampled(texts, source):
    """One noisy sequence of each text: vectors [texts, positions, width], log weights [texts, positions]."""
    inputs = TOKENIZER(texts, truncation=True, max_length=KNOWN["tokens"], padding="max_length", return_tensors="pt")
    with torch.inference_mode():
        x = ENCODER(**inputs).last_hidden_state.half().float()
    there = inputs["attention_mask"].bool()
    x = x.masked_fill(~there.unsqueeze(2), 0.0)
    if KNOWN["kind"].startswith("vib"):
        pooled = x.sum(1) / there.sum(1, keepdim=True).clamp(min=1)
        mean = torch.tanh(linear(pooled, "bottleneck.mean")).unsqueeze(1)
        if KNOWN["kind"] == "vib-fixed":
            deviation = torch.full(mean.shape[-1:], KNOWN["sigma"])
        else:
            learned = torch.nn.functional.softplus(TENSORS["bottleneck.deviation"]).clamp(min=1e-6)
            deviation = learned.log().clamp(-5, 2).exp()
        vectors = mean + deviation * torch.randn(mean.shape, generator=source)
        return vectors, torch.zeros(vectors.shape[:2])
    mean = linear(x, "bottleneck.mean").clamp(-1e4, 1e4).masked_fill(~there.unsqueeze(2), 0.0)
    logs = linear(x, "bottleneck.log_variance").clamp(-10, 4).masked_fill(~there.unsqueeze(2), 0.0)
    pad = torch.nn.functional.pad
    if KNOWN["kind"] == "vtdp":
        vectors = mean + (logs / 2).exp() * torch.randn(mean.shape, generator=source)
        positions = torch.tensor(float(vectors.shape[1]))
        return vectors, -positions.log().expand(vectors.shape[:2])
    counts = linear(x, "bottleneck.linear_count") + linear(x * x, "bottleneck.square_count")
    counts = pad(counts.squeeze(2).clamp(-8, 8).masked_fill(~there, 0.0), (1, 0))
    mean, logs = pad(mean, (0, 0, 1, 0)), pad(logs, (0, 0, 1, 0))
    vectors = mean + (logs / 2).exp() * torch.randn(mean.shape, generator=source)
    gammas = torch._standard_gamma(counts.exp() + 1, generator=source).log()
    uniform = torch.rand(counts.shape, generator=source, dtype=torch.float64).clamp(min=2**-53).log()
    return vectors, torch.log_softmax(gammas + uniform.float() / counts.exp(), 1).clamp(min=-80)


READS = Reader(KNOWN["width"], KNOWN["outputs"], KNOWN["heads"], KNOWN["kind"] != "nvib").eval()
OWN = {{name.removeprefix("reader."): each for name, each in TENSORS.items() if name.startswith("reader.")}}
READS.load_state_dict({{name.removeprefix("attention."): each for name, each in OWN.items()}})


def outputs(texts, seed=0):
    """Scores of the classes [texts, classes], or the standard score [texts, 1], of one sample of each text."""
    with torch.inference_mode():
        return READS(*sampled(texts, torch.Generator().manual_seed(seed)))


def predict(texts, seed=0, at_once=64):
    """For each text its class and that class's probability, or its score."""
    parts = [outputs(texts[start : start + at_once], seed + start) for start in range(0, len(texts), at_once)]
    said = torch.cat(parts)
    if "range" in KNOWN:
        low, high = KNOWN["range"]
        return ((low + high) / 2 + (high - low) / 2 * said[:, 0]).clamp(low, high).tolist()
    chances = said.softmax(1)
    return [(KNOWN["labels"][int(each.argmax())], float(each.max())) for each in chances]


if __name__ == "__main__":
    given = [line.rstrip("\\n") for line in sys.stdin if line.strip()]
    if not given:
        sys.exit("Give texts, one a line.")
    for said in predict(given):
        print(*said if isinstance(said, tuple) else (said,), sep="\\t")
'''
"""layer.safetensors: `bottleneck.*` and `reader.*` by the names of `learning.bottleneck.forms.NoisyModel`. layer.json:
`kind`, `tokens`, `width`, `heads`, `sigma`, `outputs`, and `labels` or the `range` of scores.
"""
