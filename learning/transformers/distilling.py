"""Distilling a transformer teacher into a student of fewer layers, on public text: PrivDistil, section 3.4.

As DistilBERT's training (Sanh et al. 2019): large batches by accumulated gradients, dynamic masking, the losses of
`learning.transformers.losses`. Teacher and student see the same input; the teacher, too, sees it masked. One without a
head for language is shown whole text unless the settings say otherwise: a sentence encoder has forgotten what a mask
is. With 15% masked, the packaged MiniLM's vectors of different passages have a cosine of 0.8 instead of 0.3, and a
student of that learns what masks look like. Neither model drops anything out: the student fits a function.

A gradient is that of the mean over the batch's tokens, in however many parts it is computed. All chance comes from the
seed and the place in the training, so a training that is taken up again has no generator to restore: it reads its pass
again up to where it was and goes on as if it had never stopped, to the last bit on one thread.

Memory: both models, the student's gradient and its two moments; `Distillation.buffer` texts; the tokens of
`bucket * batch` examples; and for one micro-batch what the student's layers keep, with heads about nine arrays
[micro_batch, max_tokens, vocabulary] of float32 more. It does not grow with the corpus.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from aggregation.errors import ConclaveError
from learning.errors import EXHAUSTED, ComputeError, DataError, Diverged
from learning.models.adapting import trainable
from learning.models.batching import Tokens, encode, encode_documents, form_of, inputs_of
from learning.models.checkpoints import ModelError
from learning.models.compute import device_of, loss_scale, moved, passing
from learning.models.device_memory import attempted
from learning.models.optimisers import Schedule, uncompiled
from learning.transformers.distilling_state import CHECKPOINT, taken_up, write_state
from learning.transformers.layered_student import check_alike, family_of, pair
from learning.transformers.losses import (
    NAMES,
    NOT_ASKED,
    Masking,
    Name,
    Said,
    Weights,
    next_tokens,
    padded,
    sums,
    tokens_of,
    total,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MASKED: Final = 0.15
"""The share of tokens that BERT's training hides."""


@dataclass(frozen=True, slots=True)
class Distillation:
    """How to distil; the defaults are PrivDistil's (appendix B), and DistilBERT's where it says nothing.

    passes: over the texts. batch: texts of one update; micro_batch: texts computed at a time, which changes memory and
    rounding only. learning_rate: the highest; it rises over the share `warm_up` of all steps, then falls to 0 in a
    straight line. decay: AdamW's, on matrices only. longest_gradient: its norm is cut to this. max_tokens: of a text,
    fewer where the models take fewer. weights: of the losses; one that the models cannot have (soft without two heads,
    hard without the student's or without anything hidden) is left out. match: hidden states of the "last" layer, or
    "paired" of every layer of the student (`learning.transformers.layered_student.pair`). mask_share: tokens hidden in
    each pass anew, for models that see both ways; 0 hides none, None is `MASKED` where both have a head for language
    and 0 elsewhere. bucket: batches' worth of texts that are put together by length, so that there is little padding.
    buffer: texts among which the next is drawn by chance. save_every: seconds between checkpoints. Raises
    `ConclaveError` for values that train nothing.
    Source: PrivDistil, section 3.4 and appendix B; DistilBERT (Sanh et al. 2019).
    """

    passes: int = 10
    batch: int = 800
    micro_batch: int = 32
    learning_rate: float = 5e-4
    warm_up: float = 0.05
    decay: float = 0.01
    longest_gradient: float = 5.0
    max_tokens: int = 128
    temperature: float = 2.0
    weights: Weights = field(default_factory=Weights)
    match: Literal["last", "paired"] = "last"
    mask_share: float | None = None
    bucket: int = 4
    buffer: int = 16_384
    save_every: float = 300.0

    def __post_init__(self) -> None:
        for name in ("passes", "batch", "micro_batch", "max_tokens", "bucket", "buffer"):
            if getattr(self, name) < 1:
                raise ConclaveError(f"{name} = {getattr(self, name)} distils nothing. Give 1 or more.")
        for name in ("learning_rate", "temperature", "longest_gradient"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConclaveError(f"{name} = {getattr(self, name)} distils nothing. Give a number above 0.")
        if self.mask_share is not None and not 0 <= self.mask_share < 1:
            raise ConclaveError(f"mask_share = {self.mask_share:g} is no share of a text. Give one from 0 to under 1.")
        if self.match not in ("last", "paired"):
            raise ConclaveError(f"There is no match {self.match!r}. Use last or paired.")
        Schedule("linear", self.warm_up)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a distillation did: updates, texts of a pass, and each loss, its mean over the tokens of the last batch."""

    steps: int
    texts: int
    losses: Mapping[Name, float]


def distil(
    teacher: "PreTrainedModel",
    student: "PreTrainedModel",
    rows: Callable[[], Iterable[str]],
    settings: Distillation,
    *,
    tokenizer: "PreTrainedTokenizerBase",
    seed: int,
    checkpoint: Path | None = None,
    on_step: Callable[[int, int, Mapping[Name, float]], None] | None = None,
) -> Outcome:
    """Train what is trainable in a student, in place, to say what its teacher says. Not private: the text is public.

    rows: called for each pass, gives the same texts in the same order each time, and once before, to count them: the
    schedule needs the number of steps. checkpoint: a folder for the state of the training; one that is there is taken
    up, if it is of the same models, texts, settings and seed. on_step: told the step, from 1, of how many, and the
    losses. The student is on the teacher's device, in the precision of `learning.models.compute.running`; where that
    device's memory is exhausted, micro-batches halve themselves. The same arguments on the same device give the same
    student.
    Raises `ModelError` for models that do not match or a tokenizer without a mask token, `DataError` for texts that are
    none or differ between passes, `ComputeError` for a text too large for the device, `Diverged` for a loss that is not
    finite, `IntegrityError` for a checkpoint that is broken or of another training, `ConclaveError` where no loss is
    left or a checkpoint cannot be written.
    Source: public knowledge distillation, PrivDistil, section 3.4; DistilBERT (Sanh et al. 2019).
    """
    check_alike(teacher, student)
    texts, digest = _survey(rows())
    distiller = _Distiller.of(teacher, student, settings, tokenizer, seed)
    parameters = trainable(student)
    optimiser = _optimiser(parameters, settings)
    per_pass = -(-texts // settings.batch)
    steps, step = settings.passes * per_pass, 0
    losses: Mapping[Name, float] = {}
    micro = settings.micro_batch
    if checkpoint is not None:
        training = _training(distiller, digest)
        step, losses = taken_up(checkpoint / CHECKPOINT, training, parameters, optimiser)
    saved = monotonic()
    teacher.train(False)
    student.train(False)
    schedule = Schedule("linear", settings.warm_up)
    while step < steps:
        number, done = divmod(step, per_pass)
        for batch in distiller.batches(rows(), number, done, texts):
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * schedule.scale(step, steps)
            losses, micro = distiller.descended(optimiser, batch, step, micro)
            size = nn.utils.clip_grad_norm_(parameters.values(), settings.longest_gradient)
            if not (torch.isfinite(size) and all(math.isfinite(each) for each in losses.values())):
                raise Diverged(
                    f"Distilling went to infinity in step {step + 1:,} of {steps:,}. Use a smaller learning rate or a "
                    "longer warm-up."
                )
            with uncompiled():
                optimiser.step()
            step += 1
            if checkpoint is not None and (step == steps or monotonic() - saved >= settings.save_every):
                write_state(checkpoint / CHECKPOINT, training, parameters, optimiser, step, losses)
                saved = monotonic()
            if on_step is not None:
                on_step(step, steps, losses)
    return Outcome(steps, texts, losses)


@dataclass(frozen=True, slots=True)
class _Distiller:
    """What stays the same in every step. states: numbers of the teacher's hidden states, and of the student's."""

    teacher: "PreTrainedModel"
    student: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    settings: Distillation
    seed: int
    masking: Masking | None
    causal: bool
    longest: int
    names: tuple[Name, ...]
    states: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(
        cls,
        teacher: "PreTrainedModel",
        student: "PreTrainedModel",
        settings: Distillation,
        tokenizer: "PreTrainedTokenizerBase",
        seed: int,
    ) -> "_Distiller":
        size = min(teacher.config.vocab_size, student.config.vocab_size)
        if len(tokenizer) > size:
            raise ModelError(f"The tokenizer has {len(tokenizer):,} tokens, the models know {size:,}. Give theirs.")
        causal = family_of(teacher.config).causal
        asks = _speaks(student)
        share = settings.mask_share
        if share is None:
            share = MASKED if asks and _speaks(teacher) else 0.0
        masking = None if causal or not share else Masking.of(tokenizer, share)
        possible = {"soft": asks and _speaks(teacher), "hard": asks and (causal or masking is not None)}
        names = tuple(name for name in NAMES if settings.weights.of(name) and possible.get(name, True))
        if not names:
            raise ConclaveError(
                "None of the losses is left: these models have no heads. Give cosine or squared weight."
            )
        limits = (form_of(model.config).longest for model in (teacher, student))
        longest = min([settings.max_tokens, *(limit for limit in limits if limit is not None)])
        depth, theirs = student.config.num_hidden_layers, teacher.config.num_hidden_layers
        paired = (pair(depth, theirs), tuple(range(1, depth + 1))) if settings.match == "paired" else None
        states = paired or ((theirs,), (depth,))
        return cls(teacher, student, tokenizer, settings, seed, masking, causal, longest, names, states)

    def batches(self, texts: Iterable[str], number: int, done: int, count: int) -> Iterator[list[Tokens]]:
        """The batches of a pass but the first `done`; each holds examples of like length, the shorter first."""
        settings = self.settings
        rng = _chance(self.seed, "order", number)
        drawn = _shuffled(texts, settings.buffer, rng, count)
        before = 0
        while window := list(islice(drawn, settings.bucket * settings.batch)):
            within = -(-len(window) // settings.batch)
            order = _chance(self.seed, "window", number, before).permutation(within)[max(done - before, 0) :]
            before += within
            if not len(order):
                continue  # these were used before the checkpoint: no need to tokenise them
            encoding = encode_documents if self.causal else encode
            rows = sorted(encoding(self.tokenizer, window, longest=self.longest).rows, key=len)
            for place in order:
                yield rows[place * settings.batch : (place + 1) * settings.batch]

    def descended(
        self, optimiser: torch.optim.Optimizer, batch: list[Tokens], step: int, micro: int
    ) -> tuple[dict[Name, float], int]:
        """Set a batch's gradient, `micro` texts at a time or as few as the device's memory holds; returns the losses
        and how many these were.
        """

        def whole() -> dict[Name, float]:
            optimiser.zero_grad(set_to_none=True)
            return self.gradient(batch, step, micro)

        while (losses := attempted(whole)) is None:
            if micro == 1:
                raise ComputeError(EXHAUSTED, code="C304")
            micro = min(micro, len(batch)) // 2 or 1
        if (scale := loss_scale()) != 1:
            for each in trainable(self.student).values():
                if each.grad is not None:
                    each.grad.div_(scale)
        return losses, micro

    def gradient(self, batch: list[Tokens], step: int, micro: int) -> dict[Name, float]:
        """Add a batch's gradient, times the scale of losses, to the student's parameters, micro-batch by micro-batch;
        returns the losses.
        """
        scale = loss_scale()
        if self.masking is None:
            labels = (
                next_tokens(batch) if self.causal else [np.full(len(row), NOT_ASKED, dtype=np.int64) for row in batch]
            )
        else:
            batch, labels = self.masking.apply(batch, _chance(self.seed, "mask", step))
        tokens = tokens_of(batch, labels, self.names)
        losses = dict.fromkeys(self.names, 0.0)
        for first in range(0, len(batch), micro):
            part = slice(first, first + micro)
            found = self._sums(batch[part], padded(labels[part]))
            loss = total(found, tokens, self.settings.weights)
            (loss if scale == 1 else loss * scale).backward()  # type: ignore[no-untyped-call]
            for name, each in found.items():
                losses[name] += float(each.detach()) / tokens[name]
        return losses

    def _sums(self, rows: list[Tokens], labels: Tensor) -> dict[Name, Tensor]:
        with torch.no_grad():
            inputs = self._inputs(self.teacher, rows)
            theirs = _said(self.teacher, inputs, self.states[0], "soft" in self.names)
        inputs = self._inputs(self.student, rows)
        ours = _said(self.student, inputs, self.states[1], "soft" in self.names or "hard" in self.names)
        attended = inputs["attention_mask"].bool()
        where = labels.to(attended.device)
        return sums(ours, theirs, attended, where, self.names, temperature=self.settings.temperature)

    def _inputs(self, model: "PreTrainedModel", rows: list[Tokens]) -> dict[str, Tensor]:
        return moved(inputs_of(model.config, rows), model)


def _speaks(model: "PreTrainedModel") -> bool:
    return model.get_output_embeddings() is not None  # type: ignore[no-untyped-call]


def _said(model: "PreTrainedModel", inputs: dict[str, Tensor], states: tuple[int, ...], logits: bool) -> Said:
    """What a model says; its head is not asked where nothing needs the logits, for it costs as much as many layers."""
    asked = model if logits else model.base_model
    with passing(device_of(model)):
        found = asked(**inputs, output_hidden_states=True)
    return Said(tuple(found.hidden_states[state] for state in states), found.logits if logits else None)


def _chance(seed: int, what: str, *place: int) -> np.random.Generator:
    """Numbers for one place of a training, independent of all other places."""
    digest = hashlib.sha256(f"conclave distillation {seed} {what} {place}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))


def _survey(texts: Iterable[str]) -> tuple[int, str]:
    """How many texts there are, and a digest of them all. Raises `DataError` for none."""
    count, digest = 0, hashlib.sha256()
    for text in texts:
        content = text.encode(errors="surrogatepass")
        digest.update(len(content).to_bytes(8, "big") + content)
        count += 1
    if not count:
        raise DataError("There is no text to distil on. Give one or more.", code="C204")
    return count, digest.hexdigest()


def _shuffled(texts: Iterable[str], size: int, rng: np.random.Generator, count: int) -> Iterator[str]:
    """The texts of a pass, each drawn from a buffer that the next one fills up. Raises `DataError` unless `count`."""
    held: list[str] = []
    found = 0
    for found, text in enumerate(texts, 1):
        if found <= size:
            held.append(text)
        elif found <= count:
            place = int(rng.integers(size))
            yield held[place]
            held[place] = text
    if found != count:
        raise DataError(f"A pass gave {found:,} texts, and there were {count:,} before. Give the same in every pass.")
    for place in rng.permutation(len(held)):
        yield held[place]


@uncompiled()
def _optimiser(parameters: dict[str, nn.Parameter], settings: Distillation) -> torch.optim.AdamW:
    """AdamW, whose decay is for matrices: a bias or a norm's scale is not to shrink."""
    if not parameters:
        raise ConclaveError("Nothing of the student is to be trained. Let its parameters require a gradient.")
    groups = [
        {"params": [each for each in parameters.values() if each.ndim > 1], "weight_decay": settings.decay},
        {"params": [each for each in parameters.values() if each.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], settings.learning_rate, eps=1e-6)


def _training(distiller: _Distiller, texts: str) -> str:
    """What a training is of, as a digest: models, texts, settings and seed."""
    found = hashlib.sha256()
    settings = {name: value for name, value in asdict(distiller.settings).items() if name != "save_every"}
    found.update(json.dumps([settings, distiller.seed, texts, len(distiller.tokenizer)], sort_keys=True).encode())
    for model in (distiller.teacher, distiller.student):
        for name, parameter in sorted(model.named_parameters()):
            found.update(f"{name} {tuple(parameter.shape)} {parameter.requires_grad}\n".encode())
            found.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
