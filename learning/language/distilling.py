"""A smaller language model learns from texts and from what teachers say of every token of them.

With p what the teachers say at temperature t, q the student at t and at 1, and y the token that stands there, a batch's
loss is (1 - l) mean(-ln q_y) + l t^2 mean(KL(p || q)) + h mean(|A s - h_t|^2 / d): means over the batch's own tokens,
never over padding or openings, and the second one without the first `skip` tokens of a text. The KL is over the kept
tokens and, as one more outcome, all others together. A, which is learned and thrown away, maps the student's last
hidden states to the teacher's width where they differ.

Without `squared` the t^2 is left out. That is the loss of swing distillation (Li et al., equations 10 and 11), whose
-sum p ln q is KL(p || q) and the entropy of p, on which no gradient depends: there p was said under a temperature of
each token's own, and the student's is t. With a t^2 a student at t = 2 heeds the teacher four times as much.

DistilDP (Flemings & Annavaram 2024, equation 1) has the same loss; its published code sums the KL over positions where
its CE is a mean, and counts padding, so that its l is none of ours.

Where targets have weights w, each token has its own share l w in place of l: mean((1 - l w)(-ln q_y)) and mean(l w
KL(p || q)). So answers that say nothing of a token leave the token itself to teach.

Every `every`-th text is held out. The student that is kept is the best on these; training ends early when it got no
better for `patience` looks. All chance comes from the seed and the place in the training, so that a training that was
killed goes on from its checkpoint to the same bytes, on one thread.

Memory: the student three times with its moments, and once more as the best; for one micro-batch its logits
[tokens, vocabulary] three times. The targets are read from disk.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aggregation.errors import ConclaveError, IntegrityError
from learning.errors import Diverged
from learning.language.generation import Texts, write_whole
from learning.language.memory import freed_is_kept
from learning.language.soft_targets import Targets
from learning.language.speaker import own_logits
from learning.models.batching import Tokens
from learning.models.compute import device_of
from learning.models.optimisers import Schedule, uncompiled

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STATE: Final = "state.safetensors"
_LEAST_REST: Final = 1e-7
"""The least mass of all tokens that are not kept: it is what is left of 1 in single precision."""
_LARGEST_GRADIENT: Final = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a student learns.

    mixing: l; temperature: t, that of the targets; hidden: h. squared: whether t^2 weighs the KL. skip: first tokens of
    a text that count for no KL. passes: over the texts; batch: texts of an update; micro_batch: texts computed at a
    time. decay: of weights, on matrices only. held_out: share of the texts. looks: at the held-out texts in a pass.
    patience: looks without a better student. save_every: seconds between checkpoints. Raises `ConclaveError` for what
    teaches nothing.
    """

    mixing: float = 0.8
    temperature: float = 1.0
    skip: int = 0
    hidden: float = 0.0
    squared: bool = True
    passes: int = 3
    batch: int = 64
    micro_batch: int = 32
    learning_rate: float = 1e-3
    warm_up: float = 0.05
    decay: float = 0.01
    held_out: float = 0.02
    looks: int = 4
    patience: int = 3
    save_every: float = 60.0

    def __post_init__(self) -> None:
        least = min(self.passes, self.batch, self.micro_batch, self.looks, self.patience)
        if least < 1 or not 0 <= self.mixing <= 1 or not 0 < self.held_out < 1 or self.temperature <= 0:
            raise ConclaveError(f"Settings that teach nothing: {self}.")
        Schedule("linear", self.warm_up)


@dataclass(frozen=True, slots=True)
class Outcome:
    """steps: updates that were made. best: the update whose student was kept. losses: of that student on held-out
    texts, each a mean over tokens, in nats: "hard", "soft" and, where asked, "hidden"; "total" is what was minimised.
    """

    steps: int
    best: int
    losses: Mapping[str, float]


def distil(
    student: "PreTrainedModel",
    texts: Texts,
    openings: Sequence[Sequence[int]],
    targets: Targets,
    settings: Settings,
    *,
    seed: int,
    checkpoint: Path,
    on_step: Callable[[int, int, Mapping[str, float]], None] = lambda done, total, losses: None,
) -> Outcome:
    """Train all of a student in place on graded texts; returns what became of it.

    openings: what stands before each text as the student reads it, one token or more. targets: of these texts, at the
    settings' temperature. checkpoint: a folder of this training alone. Raises `ConclaveError` where targets and texts
    differ or are too few, `Diverged` for a loss that is not finite, `IntegrityError` for a damaged checkpoint.
    """
    if len(targets.stops) != len(texts.stops) or (targets.stops != texts.stops).any():
        raise ConclaveError("The targets are of other texts than these.")
    if targets.temperature != settings.temperature or (settings.hidden and targets.hidden is None):
        raise ConclaveError(
            "The targets were made for other settings: of another temperature, or without hidden states."
        )
    every = max(2, round(1 / settings.held_out))
    heldout = np.arange(0, len(texts), every)
    own_places = np.setdiff1d(np.arange(len(texts)), heldout)
    if not len(own_places):
        raise ConclaveError(f"{len(texts):,} texts are too few to learn from and to hold some out.", code="C204")
    learning = _Learning(student, texts, openings, targets, settings, seed, checkpoint, own_places, heldout)
    with freed_is_kept():
        return learning.run(on_step)


class _Learning:
    """One training: the student, the map of hidden states, the optimiser, and where it is."""

    def __init__(
        self,
        student: "PreTrainedModel",
        texts: Texts,
        openings: Sequence[Sequence[int]],
        targets: Targets,
        settings: Settings,
        seed: int,
        checkpoint: Path,
        places: NDArray[np.int64],
        heldout: NDArray[np.int64],
    ) -> None:
        self._student, self._texts, self._openings, self._targets = student, texts, openings, targets
        self._settings, self._seed, self._checkpoint = settings, seed, checkpoint
        self._places, self._heldout = places, heldout
        self._updates = math.ceil(len(places) / settings.batch)
        self._steps = settings.passes * self._updates
        student.requires_grad_(True)
        student.config.use_cache = False
        self._map = self._mapped()
        named = [*student.named_parameters(), *([("map", self._map)] if self._map is not None else [])]
        self._trained = dict(named)
        matrices = [each for _, each in named if each.ndim > 1]
        vectors = [each for _, each in named if each.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": settings.decay}, {"params": vectors, "weight_decay": 0.0}]
        with uncompiled():
            self._optimiser = torch.optim.AdamW([each for each in groups if each["params"]], lr=settings.learning_rate)
        self._done, self._best, self._since = 0, 0, 0
        self._losses: dict[str, float] = {}
        self._kept = {name: each.detach().clone() for name, each in student.named_parameters()}

    def run(self, on_step: Callable[[int, int, Mapping[str, float]], None]) -> Outcome:
        """Train to the end, or until it gets no better."""
        self._take_up()
        saved, schedule = monotonic(), Schedule("linear", self._settings.warm_up)
        look = max(1, self._updates // self._settings.looks)
        if not self._losses:
            self._losses = self._measured()
        while self._done < self._steps and self._since < self._settings.patience:
            losses = self._update(schedule.scale(self._done, self._steps))
            self._done += 1
            if self._done % look == 0 or self._done == self._steps:
                self._look()
            if monotonic() - saved >= self._settings.save_every:
                self._save()
                saved = monotonic()
            on_step(self._done, self._steps, losses)
        self._save()
        with torch.no_grad():
            for name, each in self._student.named_parameters():
                each.copy_(self._kept[name])
        self._student.requires_grad_(False)
        return Outcome(self._done, self._best, self._losses)

    def _look(self) -> None:
        found = self._measured()
        if found["total"] < self._losses["total"]:
            self._losses, self._best, self._since = found, self._done, 0
            self._kept = {name: each.detach().clone() for name, each in self._student.named_parameters()}
        else:
            self._since += 1

    def _update(self, factor: float) -> dict[str, float]:
        number, place = divmod(self._done, self._updates)
        order = np.random.default_rng([self._seed, number]).permutation(self._places)
        batch = order[place * self._settings.batch : (place + 1) * self._settings.batch]
        batch = batch[np.argsort([-len(self._texts[int(each)]) for each in batch], kind="stable")]
        sizes = self._sizes(batch)
        self._optimiser.zero_grad(set_to_none=True)
        losses: dict[str, float] = {}
        for start in range(0, len(batch), self._settings.micro_batch):
            parts = self._sums(batch[start : start + self._settings.micro_batch])
            loss = self._total(parts, sizes)
            loss.backward()  # type: ignore[no-untyped-call]
            for name, each in parts.items():
                losses[name] = losses.get(name, 0.0) + float(each.detach()) / max(1, sizes[name])
            losses["total"] = losses.get("total", 0.0) + float(loss.detach())
        if not math.isfinite(losses["total"]):
            raise Diverged("The student's loss is not finite any more. Use a smaller [distil] learning_rate.")
        nn.utils.clip_grad_norm_(list(self._trained.values()), _LARGEST_GRADIENT)
        for group in self._optimiser.param_groups:
            group["lr"] = self._settings.learning_rate * factor
        with uncompiled():
            self._optimiser.step()
        return losses

    def _measured(self) -> dict[str, float]:
        """The losses on held-out texts."""
        sizes = self._sizes(self._heldout)
        found: dict[str, float] = {}
        with torch.no_grad():
            for start in range(0, len(self._heldout), self._settings.micro_batch):
                parts = self._sums(self._heldout[start : start + self._settings.micro_batch])
                found["total"] = found.get("total", 0.0) + float(self._total(parts, sizes))
                for name, each in parts.items():
                    found[name] = found.get(name, 0.0) + float(each) / max(1, sizes[name])
        return found

    def _sizes(self, places: NDArray[np.int64]) -> dict[str, int]:
        lengths = [len(self._texts[int(each)]) for each in places]
        graded = sum(max(0, length - self._settings.skip) for length in lengths)
        return {"hard": sum(lengths), "heeded": sum(lengths), "soft": graded, "hidden": sum(lengths)}

    def _total(self, parts: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Tensor:
        settings = self._settings
        weights = {
            "hard": 1.0 if "heeded" in parts else 1 - settings.mixing,
            "heeded": -settings.mixing,
            "soft": settings.mixing * (settings.temperature**2 if settings.squared else 1.0),
            "hidden": settings.hidden,
        }
        total = sum(weights[name] * each / max(1, sizes[name]) for name, each in parts.items())
        assert isinstance(total, Tensor)
        return total

    def _sums(self, places: NDArray[np.int64]) -> dict[str, Tensor]:
        """The sums over the own tokens of some texts of each loss."""
        settings, student = self._settings, self._student
        rows = [
            Tokens(np.concatenate([np.asarray(self._openings[int(each)], np.int32), self._texts[int(each)]]),
                   len(self._openings[int(each)]))
            for each in places
        ]  # fmt: skip
        device = device_of(student)
        logits, states = own_logits(student, rows, hidden=bool(settings.hidden))
        truth = torch.from_numpy(np.concatenate([self._texts[int(each)] for each in places]).astype(np.int64)).to(
            device
        )
        found: dict[str, Tensor] = {}
        plain = torch.log_softmax(logits, dim=-1)
        hard = -plain.gather(1, truth[:, None]).squeeze(1)
        found["hard"] = hard.sum()
        if settings.mixing:
            heeded = self._targets.heeded(places.tolist())
            if heeded is not None:
                heeded = heeded.to(device)
                found["heeded"] = (heeded * hard).sum()
            ids, asked = (each.to(device) for each in self._targets.several(places.tolist()))
            soft = plain if settings.temperature == 1 else torch.log_softmax(logits / settings.temperature, dim=-1)
            counted = torch.cat([torch.arange(len(self._texts[int(each)])) >= settings.skip for each in places])
            apart = divergence(asked, soft.gather(1, ids))
            found["soft"] = (apart if heeded is None else heeded * apart)[counted.to(device)].sum()
        if states is not None:
            states = states if self._map is None else states @ self._map.T
            wanted = torch.cat([self._targets.states(int(each)) for each in places]).to(device)
            found["hidden"] = (states - wanted).square().mean(dim=1).sum()
        return found

    def _mapped(self) -> nn.Parameter | None:
        """The map of hidden states, begun from the seed; None where widths agree or states are not asked."""
        if not self._settings.hidden or self._targets.hidden is None:
            return None
        theirs, width = self._targets.hidden.shape[1], int(self._student.config.hidden_size)
        if theirs == width:
            return None
        chance = torch.Generator().manual_seed(self._seed)
        made = torch.randn(theirs, width, generator=chance) / math.sqrt(width)
        return nn.Parameter(made.to(device_of(self._student)))

    def _save(self) -> None:
        from safetensors.torch import save

        state: dict[str, Tensor] = {}
        for name, each in self._trained.items():
            state[f"now.{name}"] = each.detach()
            for moment, value in self._optimiser.state.get(each, {}).items():
                state[f"{moment}.{name}"] = value
        state |= {f"best.{name}": each for name, each in self._kept.items()}
        about = json.dumps([self._done, self._best, self._since, self._losses])
        packed = {name: each.detach().cpu().contiguous().clone() for name, each in state.items()}
        write_whole(self._checkpoint / STATE, save(packed, {"about": about, "settings": repr(self._settings)}))

    def _take_up(self) -> None:
        """Go on from the checkpoint, where there is one of the same settings."""
        from safetensors import SafetensorError, safe_open

        path = self._checkpoint / STATE
        if not path.exists():
            return
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata()
                if about["settings"] != repr(self._settings):
                    return
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            with torch.no_grad():
                for name, each in self._trained.items():
                    each.copy_(state[f"now.{name}"])
                    moments = ("step", "exp_avg", "exp_avg_sq")
                    if f"step.{name}" in state:
                        self._optimiser.state[each] = {
                            key: state[f"{key}.{name}"].to(each.device if key != "step" else "cpu") for key in moments
                        }
                self._kept = {name: state[f"best.{name}"].to(each.device) for name, each in self._kept.items()}
            self._done, self._best, self._since, self._losses = json.loads(about["about"])
        except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
            raise IntegrityError(f"{path} is damaged: {error}. Remove it, and learning begins again.") from None


def divergence(asked: Tensor, said: Tensor) -> Tensor:
    """KL(p || q) of every place, [places], in nats, over kept tokens and, as one outcome, all others.

    asked, said: log-probabilities of the kept tokens, of the teachers and of the student [places, top].
    """
    p, q = asked.exp(), said.exp()
    rest_p = (1 - p.sum(dim=1)).clamp(min=_LEAST_REST)
    rest_q = (1 - q.sum(dim=1)).clamp(min=_LEAST_REST)
    kept: Tensor = (p * (asked - said)).sum(dim=1)
    return kept + rest_p * (rest_p.log() - rest_q.log())
