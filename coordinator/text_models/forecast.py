"""Forecasts what a run of a text classifier will cost, for every kind of signal.

Only the plan, the public model and the lengths of the public text are used; made-up batches of such lengths are timed.
Epsilon is exact.
"""

import os
from pathlib import Path
from typing import Any

from aggregation.mechanisms.mechanism import Form
from coordinator.forecasting import cost
from coordinator.forecasting.forecast import Forecast, Row
from coordinator.forecasting.needs import Needs
from coordinator.forecasting.pace import Lengths, pace_of
from coordinator.pricing.release import PricedPlan, rounded_up
from coordinator.text_models.plan import ClassifierPlan, ModelPlan, TrainedPlan
from coordinator.text_models.public import PublicModel, PublicText
from coordinator.text_models.recipe import TextRecipe

TORCH_MEMORY = 400 * 2**20
"""Bytes of a process that has imported everything to train a text model."""
TRAINING_MEMORY = 480 * 2**20
"""The same of a party's training, with adapters, a tokenizer and what the allocator keeps."""
FORMED_MEMORY = 160 * 2**20
"""Bytes of the matrices that are made at a time of the gradients of whole layers, in single and in double precision."""
SLACK = 1.25
"""Bytes that the allocator takes for a byte of activations."""
STEP_SECONDS, SECURE_SECONDS = 0.1, 0.1
"""Seconds of a step besides its gradients: for its calls, and for those of a secure sum of a short vector."""
VALUE_BYTES = 4
TOKEN_BYTES = 4
NODE_BYTES = 40
"""Bytes of a released number at a party's node: its bounded sum, the noise on it, and a masked block."""
USUAL_UNITS = 10_000
"""Units of a party, where the plan does not give their number."""

LOGITS = 12
"""Arrays of a micro-batch's logits that take as much memory as learning a language model does. It holds four at once,
and the others lie free between blocks of other sizes (`learning.language.memory`).
"""
READ_SECONDS = 3e-5
"""Seconds of a core to read a row, to see whose it is, and to tokenise it where it is a party's own."""
TRAINED, MEASURED = 3, 0.5
"""How many times longer it takes to train on a text than to run the model on it; and what part of private training
that is.
"""


def forecast(
    priced: PricedPlan[ClassifierPlan],
    public: PublicText,
    rows: tuple[Row, ...],
    warnings: tuple[str, ...],
    *,
    prepared: float,
    looked: float,
    private: bool,
    sums: int,
    teachers: int = 0,
) -> Forecast:
    """The forecast of a run whose signals are known. No party is asked, none of their data is read, and nothing is
    spent.

    rows, warnings: of the signals. prepared: seconds that reading the public data took. looked: how many times a party
    processes a text. private: whether it takes clipped gradients of it. sums: how many sums are made. teachers: of one
    party.
    """
    plan = priced.plan
    lengths = lengths_of(plan, public)
    pace = pace_of(public.model, lengths, trained=private, sample=sampled(plan))
    measuring = len(public.heldout) * pace.text.likely * (MEASURED if private else 1) / at_once()
    spent = pace.text.through(lambda seen: seconds(plan, prepared + measuring, looked * seen + pace.trial, sums))
    return Forecast(
        plan=plan,
        rows=rows,
        epsilon=priced.guarantee.epsilon if priced.private else None,
        trained=0,
        bytes=traffic(priced, public),
        seconds=spent.likely,
        between=(spent.least, spent.most),
        why=by(lengths),
        memory=memory(priced, public),
        assumptions=(supposed(plan, lengths),),
        warnings=warnings,
        teachers=teachers,
    )


def supposed(plan: ModelPlan, lengths: Lengths) -> str:
    """A sentence on what the forecast of a run's time rests on."""
    texts = f"texts of {lengths.middle} tokens, the most that are read"
    if lengths.known:
        texts = f"texts as long as those of [evaluation], {lengths.middle} tokens in the middle"
    return (
        f"Supposed: {texts}, parties as fast as this machine, and {declared(plan):,} units among them"
        f"{', as [privacy] declared_size says' if plan.privacy.declared_size else ''}."
    )


def by(lengths: Lengths) -> str:
    """Why a run may take less or more time than is likely."""
    return "by the lengths of the evaluation text" if lengths.known else "by how long the texts are"


def needs(recipe: TextRecipe, priced: PricedPlan[ClassifierPlan], base: Path, cache: Path) -> Needs:
    """The needs that are expected of the run."""
    public = recipe.read
    cells = sum(release.rows * release.columns for release in priced.releases)
    return Needs.of(memory(priced, public), model_bytes(public), cells)


def traffic(priced: PricedPlan[ModelPlan], public: PublicModel) -> int:
    """Bytes of the model and of public texts sent to all parties, and of what every step, round or query exchanges."""
    exchanged = sum(
        VALUE_BYTES
        * release.rows
        * release.columns
        * release.steps
        * (2 if release.form in (Form.STEPPED, Form.WEIGHTS) else 1)
        for release in priced.releases
    )
    queries = public.queries if isinstance(public, PublicText) else ()
    asked = sum(len(text.encode()) + 8 for texts in queries for text in texts)
    return len(priced.plan.federation.names) * (model_bytes(public) + asked + exchanged)


def memory(priced: PricedPlan[ModelPlan], public: PublicModel) -> dict[str, int]:
    """Upper bounds of the peak memory of each kind of process, in bytes."""
    plan, parameters = priced.plan, len(public.start)
    parties = len(plan.federation.names)
    model = model_bytes(public)
    texts = declared(plan) // parties * (TOKEN_BYTES * public.longest + 16)
    if plan.model.adapt == "head":
        texts += declared(plan) // parties * 4 * int(getattr(public.model.config, "hidden_size", 1024))
    formed = FORMED_MEMORY if plan.model.adapt == "full" else 0
    training = TRAINING_MEMORY + 2 * model + 40 * parameters + texts + formed + activations(plan, public)
    return {
        "coordinator": cost.COORDINATOR_MEMORY + TORCH_MEMORY + 3 * model + 60 * parameters,
        "party node": cost.NODE_MEMORY + model + NODE_BYTES * parameters,  # the model's files come through it
        "party training": training,
    }


def activations(plan: ModelPlan, public: PublicModel) -> int:
    """An upper bound of the bytes that one micro-batch takes in a party's training, with what comes back to it.

    A unit's examples go together: of a user they may be as many as are read of one.
    """
    from learning.models.batching import form_of
    from learning.private_training.text_units import MOST_EXAMPLES, TOKENS_AT_ONCE

    config = public.model.config
    longest = min(public.longest, form_of(config).longest or public.longest)
    tokens = max(TOKENS_AT_ONCE, longest * (MOST_EXAMPLES if plan.privacy.unit == "user" else 1))
    width = told(config, ("hidden_size", "n_embd", "d_model"), 1024)
    layers = told(config, ("num_hidden_layers", "n_layer"), 24)
    inner = told(config, ("intermediate_size", "n_inner", "ffn_dim"), 4 * width)
    heads = told(config, ("num_attention_heads", "n_head"), width // 32)
    if plan.model.adapt == "head":
        return int(SLACK * 4 * tokens * (8 * width + 2 * inner + 3 * heads * longest))
    kept = 20 * width + 3 * inner + 3 * heads * longest + (10 * width + 2 * inner) * (plan.model.adapt == "full")
    return int(SLACK * 4 * tokens * layers * kept)


def told(config: Any, names: tuple[str, ...], otherwise: int) -> int:
    """A whole number of a model's configuration, under the first of these names that it has."""
    return next((found for name in names if isinstance(found := getattr(config, name, None), int)), otherwise)


def drowning(row: Row, what: str, advice: list[str], priced: PricedPlan[Any]) -> str:
    """A sentence on a signal that is below its noise, and on what would help. what: the name of the signal."""
    assert row.ratio is not None
    return (
        f"The noise is {1 / row.ratio:,.0f} times {what}: the student will hardly learn. Use "
        f"{', or '.join(advice)}. This run would cost epsilon {rounded_up(priced.guarantee.epsilon, 2)} all the same."
    )


def lengths_of(plan: ClassifierPlan, public: PublicText) -> Lengths:
    """The lengths of the texts of `[evaluation]`; without it, the most that the model reads."""
    first = [each.first for each in public.heldout]
    second = [each.second or "" for each in public.heldout] if plan.text.pairs else None
    return Lengths.of(public.tokenizer, first, second, longest=public.longest)


def sampled(plan: TrainedPlan) -> float:
    """Texts that a party is expected to process in one step, or all of them where only the last layer is trained."""
    whole = declared(plan) if plan.model.adapt == "head" else plan.dp_sgd.batch
    return whole / len(plan.federation.names)


def trained_sums(plan: TrainedPlan) -> tuple[float, int]:
    """How many times a party processes a text where `[dp_sgd]` trains the model, and how many sums are made."""
    settings, parties = plan.dp_sgd, len(plan.federation.names)
    looked = settings.steps * settings.batch / parties
    if plan.model.adapt == "head":
        looked = declared(plan) / parties
    return looked, settings.steps if settings.form == "federated" else settings.rounds


def seconds(plan: ModelPlan, prepared: float, busy: float, sums: int) -> float:
    """Seconds from the run's command to its end. Parties that are launched here share this machine's cores, and its
    device where models run on one.

    busy: seconds that a party's training takes of one core, or of the device, without reading its texts.
    """
    parties = len(plan.federation.names)
    shared = plan.federation.shards is not None
    reading = READ_SECONDS * declared(plan) / (1 if shared else parties)
    secure = SECURE_SECONDS if plan.privacy.trust == "secure-sum" else 0.0
    constant = cost.COMMAND_SECONDS + cost.FINISHING_SECONDS + (cost.RAY_SECONDS if shared else 0.0)
    starting = started(plan) * (cost.START_SECONDS + reading)
    return prepared + constant + crowd(plan) * busy + starting + (STEP_SECONDS + secure) * sums


def crowd(plan: ModelPlan) -> float:
    """Seconds until all parties have done with a model what takes one of them a second of one core, or of a device.

    Parties that are launched on this machine have its cores, or its one device, together. On a cluster those with GPUs
    have theirs, of which a fraction is shared; parties elsewhere have their own.
    """
    if plan.federation.shards is None:
        return 1 / at_once()
    parties, cluster = len(plan.federation.names), plan.federation.cluster
    least = 0.0 if cluster is None else min(cluster.of(name).gpus for name in plan.federation.names)
    if least and at_once() == 1:
        return min(float(parties), max(1.0, 1 / least))
    return parties / at_once()


def started(plan: ModelPlan) -> float:
    """How many times longer a training takes to start than it would alone: on cores, whatever models run on."""
    return max(1.0, (1 if plan.federation.shards is None else len(plan.federation.names)) / cores())


def at_once() -> int:
    """How many passes through a model take place at a time: one a core, and on a device one, which has all of it."""
    from learning.models.compute import current

    return cores() if current().device.type == "cpu" else 1


def cores() -> int:
    """The cores of this machine."""
    return os.cpu_count() or 1


def model_bytes(public: PublicModel) -> int:
    """Bytes of the model's files as every party is sent them."""
    return sum(path.stat().st_size for path in public.files.values())


def declared(plan: ModelPlan) -> int:
    """Units of all parties together: the plan's figure, or a typical one."""
    return plan.privacy.declared_size or USUAL_UNITS * len(plan.federation.names)
