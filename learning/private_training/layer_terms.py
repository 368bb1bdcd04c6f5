"""What a layer that is passed through adds to the gradients of its parameters: a rule for every kind of layer.

Linear layers, `Conv1D`, embeddings and layer norms are known; other layers get one gradient an example from Opacus'
samplers, or from `torch.func` where it has none.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from learning.models.checkpoints import ModelError
from learning.models.compute import exact
from learning.private_training.gradient_terms import Dense, Outer, Rows, Term

_REDUCED = (torch.bfloat16, torch.float16)


_Made = Iterator[tuple[Tensor | None, Term]]


class Keeping:
    """What is kept in one pass of `units` units of so many examples each, unit by unit.

    names: of the trained parameters, by their `id`. terms: to which their terms are added, by name. device: where the
    terms are worked with. scale: what the loss is multiplied by, a power of two that is taken out of what is kept.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        terms: Mapping[str, list[Term]],
        device: torch.device,
        *,
        units: int,
        examples_per_unit: int,
        scale: float,
    ):
        self._names = names
        self._found = terms
        self._device = device
        self._scale = scale
        self._units = units
        self._examples = units * examples_per_unit
        self._quiet = False
        self.reduced = False
        """Whether the layer in hand multiplied in bfloat16: it took what it was given in it."""

    def hook(self, name: str) -> Callable[..., Any]:
        """A forward hook of the layer that is called so; it raises `ModelError` where an axis is not of examples."""

        def forward(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
            if self._quiet:
                return output
            if not isinstance(output, Tensor):
                raise ModelError(_unknown(name, layer, f"it gives a {type(output).__name__} in place of a tensor"))
            kept = [_detached(each) for each in given]
            others = {key: _detached(each) for key, each in named.items()}
            result = output if output.requires_grad else output.detach().requires_grad_()

            def backward(slope: Tensor) -> None:
                self._check(name, layer, [*kept, *others.values(), slope])
                self.reduced = slope.dtype == torch.bfloat16 and self._scale == 1 and slope.device.type == "cpu"
                with exact(slope.device):
                    self._terms(name, layer, *self._widened(kept, others, slope.detach()))

            result.register_hook(backward)  # type: ignore[no-untyped-call]
            return result

        return forward

    def _widened(
        self, given: list[Any], named: dict[str, Any], slope: Tensor
    ) -> tuple[list[Any], dict[str, Any], Tensor]:
        """What was recorded in float32, which holds every number of a reduced precision, and the slope unscaled."""
        wide = _wide(slope)
        if self._scale != 1:
            wide = wide / self._scale
        return [_wide(each) for each in given], {name: _wide(each) for name, each in named.items()}, wide

    def _check(self, name: str, layer: nn.Module, tensors: list[Any]) -> None:
        found = [list(each.shape) for each in tensors if isinstance(each, Tensor)]
        wrong = next((shape for shape in found if not shape or shape[0] != self._examples), None)
        if wrong is not None:
            hint = "pass position_ids as [examples, length]" if isinstance(layer, nn.Embedding) else "use another model"
            raise ModelError(
                _unknown(name, layer, f"it works on {wrong}, and the batch has {self._examples} examples", hint)
            )

    def _terms(self, name: str, layer: nn.Module, given: list[Any], named: dict[str, Any], slope: Tensor) -> None:
        made = _rule(type(layer)) if len(given) == 1 and not named else _any_layer
        for parameter, term in made(self, name, layer, given, named, slope):
            if self.wanted(parameter):
                self._found[self._names[id(parameter)]].append(term.to(self._device))

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Within it nothing is kept: a layer is called for its own sake."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def wanted(self, parameter: Tensor | None) -> bool:
        """Whether a parameter is trained."""
        return parameter is not None and id(parameter) in self._names

    def flat(self, values: Tensor) -> Tensor:
        """[examples, ..., features] as [units, positions, features]."""
        return values.reshape(self._units, -1, values.shape[-1])

    def taken(self, given: Tensor) -> Tensor:
        """What a layer was given, as it multiplied it, [units, positions, features]."""
        flat = self.flat(given)
        return flat.bfloat16().float() if self.reduced else flat

    def by_unit(self, values: Tensor) -> Tensor:
        """[examples, ...] as [units, examples of a unit, ...]."""
        return values.reshape(self._units, -1, *values.shape[1:])


def _linear(keep: Keeping, name: str, layer: Any, given: list[Any], named: dict[str, Any], slope: Tensor) -> _Made:
    slopes = keep.flat(slope)
    yield layer.weight, Outer(slopes, keep.taken(given[0]), keep.reduced)
    if keep.wanted(layer.bias):
        yield layer.bias, _summed(slopes)


def _conv1d(keep: Keeping, name: str, layer: Any, given: list[Any], named: dict[str, Any], slope: Tensor) -> _Made:
    slopes = keep.flat(slope)
    yield layer.weight, Outer(keep.taken(given[0]), slopes, keep.reduced)
    if keep.wanted(layer.bias):
        yield layer.bias, _summed(slopes)


def _embedding(keep: Keeping, name: str, layer: Any, given: list[Any], named: dict[str, Any], slope: Tensor) -> _Made:
    if layer.scale_grad_by_freq or layer.max_norm is not None:
        raise ModelError(_unknown(name, layer, "its scaling by frequency or by norm mixes examples"))
    index = keep.by_unit(given[0]).flatten(1)
    values = keep.flat(slope)
    if layer.padding_idx is not None:
        values = values * (index != layer.padding_idx)[:, :, None]
    yield layer.weight, Rows(index, values, layer.num_embeddings)


def _layer_norm(keep: Keeping, name: str, layer: Any, given: list[Any], named: dict[str, Any], slope: Tensor) -> _Made:
    shape = layer.normalized_shape
    if keep.wanted(layer.weight):
        normal = nn.functional.layer_norm(given[0], shape, eps=layer.eps)
        yield layer.weight, _summed(keep.flat((slope * normal).flatten(-len(shape))), shape)
    if keep.wanted(layer.bias):
        yield layer.bias, _summed(keep.flat(slope.flatten(-len(shape))), shape)


def _any_layer(keep: Keeping, name: str, layer: Any, given: list[Any], named: dict[str, Any], slope: Tensor) -> _Made:
    """One gradient an example from Opacus' samplers or, for other layers, from `torch.func`."""
    from opacus.grad_sample import GradSampleModule

    own = {key: each for key, each in layer.named_parameters(recurse=False) if keep.wanted(each)}
    sampler = GradSampleModule.GRAD_SAMPLERS.get(type(layer))
    try:
        if sampler is not None and not named:
            for each in own.values():
                each.requires_grad_(True)  # it gives the gradients of no other parameters
            found = {id(parameter): values for parameter, values in sampler(layer, given, slope).items()}
            for each in own.values():
                each.requires_grad_(False)
            made = [(each, found[id(each)]) for each in own.values()]
        else:
            with keep.quiet():
                values = _differentiated(layer, own, given, named, slope)
            made = [(each, values[key]) for key, each in own.items()]
    except (RuntimeError, TypeError, ValueError, KeyError, NotImplementedError) as error:
        raise ModelError(_unknown(name, layer, str(error).strip().split("\n")[0])) from error
    for parameter, values in made:
        apart = keep.by_unit(values)
        yield parameter, Dense(apart.sum(dim=1), apart.flatten(2).norm(dim=2).sum(dim=1))


def _differentiated(
    layer: nn.Module, own: dict[str, Tensor], given: list[Any], named: dict[str, Any], slope: Tensor
) -> dict[str, Tensor]:
    """Gradients of one layer by its own parameters, [examples, ...], by differentiating it for each example."""
    constants = {key: each for key, each in layer.named_parameters() if key not in own} | dict(layer.named_buffers())

    def pulled(parameters: dict[str, Tensor], inputs: list[Any], others: dict[str, Any], back: Tensor) -> Tensor:
        inputs = [each.unsqueeze(0) if isinstance(each, Tensor) else each for each in inputs]
        others = {key: each.unsqueeze(0) if isinstance(each, Tensor) else each for key, each in others.items()}
        given_back = torch.func.functional_call(layer, {**constants, **parameters}, tuple(inputs), others)
        total: Tensor = (given_back * back.unsqueeze(0)).sum()
        return total

    axes = [0 if isinstance(each, Tensor) else None for each in given]
    named_axes = {key: 0 if isinstance(each, Tensor) else None for key, each in named.items()}
    each = torch.func.vmap(torch.func.grad(pulled), in_dims=(None, axes, named_axes, 0))
    found: dict[str, Tensor] = each({key: value.detach() for key, value in own.items()}, given, named, slope)
    return found


def _summed(values: Tensor, shape: tuple[int, ...] | None = None) -> Dense:
    """What is added over positions: [units, positions, features] to [units, features], or to `shape` a unit."""
    total = values.sum(dim=1)
    return Dense(total if shape is None else total.reshape(-1, *shape), values.norm(dim=2).sum(dim=1))


def _rule(kind: type) -> Callable[..., _Made]:
    """The rule for a kind of layer; that of the models' library is known by its name, so that it need not be there."""
    if (kind.__module__, kind.__qualname__) == ("transformers.pytorch_utils", "Conv1D"):
        return _conv1d
    return _KNOWN.get(kind, _any_layer)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _REDUCED else value


def _unknown(name: str, layer: nn.Module, why: str, remedy: str = "freeze it, or use another model") -> str:
    return (
        f"The model's layer {name or 'at its top'} is a {type(layer).__name__} whose gradients cannot be told apart by "
        f"examples: {why}. What to do: {remedy}."
    )


_KNOWN: dict[type, Callable[..., _Made]] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
}
