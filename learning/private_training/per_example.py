"""Per-example gradients: exact norms and clipped sums of every unit, from one forward and one backward pass.

Autograd is asked for gradients by activations alone; what a layer was given and what came back to it are kept, and from
the two everything that clipping needs is computed (`learning.private_training.gradient_terms`), first the norms, then
the weighted sum. No second backward pass is made and no gradient of a single unit by a matrix is formed
("book-keeping", Bu et al. 2023, "Differentially private optimization on large model at small cost"). Layers have
their rules in `learning.private_training.layer_terms`.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from learning.models.adapting import trainable
from learning.models.checkpoints import ModelError
from learning.models.compute import exact, exact_device, single
from learning.private_training.alike_terms import Alike, alike
from learning.private_training.gradient_terms import Term
from learning.private_training.layer_terms import Keeping
from learning.private_training.term_norms import norms_of, off

ROUNDING = 1e-5
"""The least part of the terms' squared size that is added to every squared norm. So, even where terms cancel, they are
no more than 1 / sqrt(ROUNDING) times as large as the norm of their unit.
"""
LARGEST_NORM = 1e30
"""A gradient with a larger norm counts as empty: below it no sum in single precision overflows."""

_ALIKE = 1e-3
"""Tolerance relative to a gradient's size: far above rounding in single precision, far below the effect of mixed
examples.
"""
_MIXES = (nn.modules.batchnorm._BatchNorm,)


class PerExample:
    """Gradients of one model by its trainable parameters, those that require gradients when this is made.

    model: examples are the first axis of what every layer with trainable parameters takes and gives. A layer that mixes
    examples, such as batch normalisation, makes the guarantee void; `check_apart` finds those that it can.

    Between `recording` and the next, `bounds` and `add_weighted` speak of what was recorded, in float32 or more precise
    arithmetic whatever precision the passes are in: what was recorded in less is widened, which is exact, before
    anything is computed of it. So a bound holds of what is added, however far a pass in a reduced precision is off.
    Source: book-keeping (Bu et al. 2023, "Differentially private optimization on large model at small cost").
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.parameters = trainable(model)
        """Every one once, by its first name; tied parameters are one."""
        if not self.parameters:
            raise ModelError("The model has nothing to train: no parameter requires gradients.")
        self._names = {id(each): name for name, each in self.parameters.items()}
        self._terms: dict[str, list[Term]] = {}
        self._alike: list[Alike] = []
        self.sizes: dict[tuple[int, ...], tuple[int, ...]] = {}
        """For each shape that was tried, the sizes of micro-batches that agree (`learning.models.agreement`)."""
        self._layers = self._trainable_layers()

    @property
    def device(self) -> torch.device:
        """Where gradients are worked with: the model's device, or the processor where that has no float64."""
        return exact_device(next(iter(self.parameters.values())).device)

    @property
    def count(self) -> int:
        """Trainable numbers."""
        return sum(each.numel() for each in self.parameters.values())

    @contextmanager
    def recording(self, units: int, examples_per_unit: int = 1, scale: float = 1.0) -> Iterator[None]:
        """Within it, one forward and one backward pass of units * examples_per_unit examples, unit by unit.

        The loss that `backward` is called on is a sum over examples, times `scale`, a power of two that is taken out of
        what is recorded. Nothing is put into `.grad`. Raises `ModelError`
        naming the layer where an axis is not that of examples.
        """
        self._terms, self._alike = {name: [] for name in self.parameters}, []
        keep = Keeping(
            self._names, self._terms, self.device, units=units, examples_per_unit=examples_per_unit, scale=scale
        )
        with ExitStack() as stack:
            for name, layer in self._layers.items():
                hook = layer.register_forward_hook(keep.hook(name), with_kwargs=True, always_call=False)
                stack.callback(hook.remove)
            for each in self.parameters.values():
                each.requires_grad_(False)
                stack.callback(each.requires_grad_, True)
            yield
        unused = [name for name, terms in self._terms.items() if not terms]
        if unused and units:
            raise ModelError(
                f"The model's {unused[0]} is trainable, and no layer of its own used it: its gradients cannot be told "
                "apart by examples. Freeze it, or use another model."
            )
        if _together(self.device):
            self._join()

    def bounds(self) -> Tensor:
        """Upper bounds of the L2 norms of what `add_weighted` adds for each unit, float64 [units].

        They hold whatever was recorded, by `learning.private_training.term_norms.norms_of`; `ROUNDING` and
        more is allowed. Infinite where anything that was recorded of a unit, or its norm, is no number up to
        `LARGEST_NORM`.
        """
        squares = sizes = rounded = torch.zeros((), dtype=torch.float64)
        with exact(self.device):
            for count, terms in self._apart():
                found = norms_of(terms)
                lost = off(found.additions)
                squares = squares + _over(found.squared, count)
                squares = squares + max(2 * lost, ROUNDING) * _over(found.size.square(), count)
                sizes = sizes + lost * _over(found.size, count)
                rounded = rounded + _over(found.rounded.square(), count)
        bounds = squares.clamp(min=0).sqrt() + sizes + rounded.sqrt()
        return bounds.where(bounds <= LARGEST_NORM, math.inf)

    def leave_out(self, units: Tensor) -> None:
        """Forget what was recorded of the units that a mask [units] marks: they add zero, whatever it was."""
        self._terms = {name: [term.without(units) for term in terms] for name, terms in self._terms.items()}
        if self._alike:
            self._join()

    def norms(self) -> Tensor:
        """L2 norms as computed, float64 [units]: noise-free, for tests."""
        return sum(norms_of(terms).squared for terms in self._terms.values()).clamp(min=0).sqrt()  # type: ignore[union-attr]

    def positions(self) -> int:
        """Positions of all units together, at most, that a product over the recorded ones adds up."""
        found = [0]
        for terms in self._terms.values():
            found.append(sum(term.units * term.positions for term in terms))
        return max(found)

    def uses(self) -> int:
        """How many uses of one parameter were recorded, at most."""
        return max(map(len, self._terms.values()), default=0)

    def recorded(self) -> list[Tensor]:
        """All that is worked with of each unit, [units, ...]."""
        found = []
        for terms in self._terms.values():
            for term in terms:
                found += [each for each in (getattr(term, name) for name in term.__slots__) if isinstance(each, Tensor)]
        return found

    def add_weighted(self, weights: Tensor, totals: dict[str, Tensor]) -> None:
        """Add sum over units of weights[u] gradient[u] to `totals`, one a parameter; all of them float64."""
        with exact(self.device):
            together = set[str]()
            for some in self._alike:
                some.add_weighted(weights, totals)
                together.update(some.names)
            for name, terms in self._terms.items():
                for term in terms if name not in together else ():
                    term.add_weighted(weights, totals[name])

    def gradients(self) -> Tensor:
        """The gradient of every unit, float32 [units, parameters] in the order of `trainable`: noise-free, for audits.

        Memory: twice that.
        """
        each = [
            torch.stack([term.dense(slice(None)).flatten(1) for term in terms]).sum(dim=0)
            for terms in self._terms.values()
        ]
        return torch.cat(each, dim=1)

    def clear(self) -> None:
        """Forget what was recorded."""
        self._terms, self._alike = {}, []

    def _join(self) -> None:
        """Lay terms of like shapes one after another."""
        self._alike = alike(self._terms)
        for some in self._alike:
            for name, term in zip(some.names, some.each(), strict=True):
                self._terms[name] = [term]

    def _apart(self) -> Iterator[tuple[int, list[Term]]]:
        """All terms, each once: those of one parameter, or one each of so many parameters one after another."""
        together = set[str]()
        for some in self._alike:
            yield len(some.names), [some.term]
            together.update(some.names)
        for name, terms in self._terms.items():
            if name not in together:
                yield 1, terms

    def _trainable_layers(self) -> dict[str, nn.Module]:
        layers = {}
        for name, layer in self.model.named_modules():
            if isinstance(layer, _MIXES) and layer.training:
                raise ModelError(
                    f"The model's {name or 'top layer'} is a {type(layer).__name__}, which mixes examples: no gradient "
                    "of one example exists. Use a model with layer normalisation."
                )
            if any(id(each) in self._names for each in layer.parameters(recurse=False)):
                layers[name] = layer
        return layers


def _together(device: torch.device) -> bool:
    """Whether a device gains where terms of like shapes are worked out together: the processor does not."""
    return device.type != "cpu"


def _over(values: Tensor, count: int) -> Tensor:
    """The sum over so many parameters: [parameters * units] to [units]."""
    return values if count == 1 else values.view(count, -1).sum(dim=0)


@contextmanager
def single_precision() -> Iterator[None]:
    """Within this context, a GPU computes products in single precision and never in TF32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def check_apart(gradients: PerExample, loss: Callable[[slice], Tensor], examples: int) -> None:
    """Try on public or made-up examples whether a model keeps examples apart. Raises `ModelError` where it does not.

    loss: the losses of some of the examples, each once, computed by the model; dropout must be off. Each example's norm
    is compared with its norm alone, where none can mix with it, and the sum of all gradients with what autograd gives.
    """
    with single():
        _check_apart(gradients, loss, examples)


def _check_apart(gradients: PerExample, loss: Callable[[slice], Tensor], examples: int) -> None:
    with gradients.recording(examples):
        loss(slice(0, examples)).sum().backward()  # type: ignore[no-untyped-call]
    together = gradients.norms()
    on = gradients.device
    added = {
        name: torch.zeros(each.shape, dtype=torch.float64, device=on) for name, each in gradients.parameters.items()
    }
    gradients.add_weighted(torch.ones_like(together), added)
    alone = torch.zeros_like(together)
    for place in range(examples):
        with gradients.recording(1):
            loss(slice(place, place + 1)).sum().backward()  # type: ignore[no-untyped-call]
        alone[place] = gradients.norms()[0]
    gradients.clear()
    true = torch.autograd.grad(
        loss(slice(0, examples)).sum(), list(gradients.parameters.values()), allow_unused=True, materialize_grads=True
    )
    size = sum(float(each.to(on).double().square().sum()) for each in true) ** 0.5
    off = sum(float((added[name] - each.to(on)).square().sum()) for name, each in zip(added, true, strict=True))
    if not torch.allclose(together, alone, rtol=_ALIKE, atol=_ALIKE * size) or off**0.5 > _ALIKE * size + 1e-12:
        raise ModelError(
            f"The gradients of this {type(gradients.model).__name__} cannot be told apart by examples: what one of "
            "them adds depends on the others, or a parameter is used where no layer shows it. Use another model, or "
            'train less of it: adapt = "head" or "lora".'
        )
