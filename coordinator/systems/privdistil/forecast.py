"""Forecasts what a PrivDistil run will cost, how its budget is divided, and how its noise compares with its signal.

Only the plan and public data are used; made-up batches are timed. Epsilon is exact.
"""

import math
from pathlib import Path
from typing import Final

from aggregation.accounting.price import price
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.mechanism import Form
from coordinator.forecasting import cost
from coordinator.forecasting.forecast import Forecast, Row
from coordinator.forecasting.needs import Needs
from coordinator.forecasting.pace import LOOKED_AT, Lengths, Pace, Span, pace_of
from coordinator.pricing.release import SAMPLER_SHARE, PricedPlan, Release, rounded_up
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.public import PublicCorpus
from coordinator.systems.privdistil.recipe import PrivDistil
from coordinator.systems.privdistil.releases import CLEAR, DOMAIN, SCORES
from coordinator.text_models import forecast as classifier_forecast
from coordinator.text_models.forecast import TORCH_MEMORY, at_once, crowd, model_bytes, started

_TAUGHT: Final = 4.0
"""Time of distilling a text over the teacher's forward pass alone: it adds the student's forward and backward pass."""
_TOLD: Final = 200
"""Average bytes of a text that is sent."""


def forecast(
    recipe: PrivDistil, priced: PricedPlan[PrivDistilPlan], base: Path, cache: Path, prepared: float
) -> Forecast:
    """Forecast a run. No party is asked, none of their data is read, and nothing is spent."""
    plan, public = recipe.plan, recipe.read
    rows = tuple(_row(priced, release) for release in priced.releases if release.name != SCORES)
    lengths = classifier_forecast.lengths_of(plan, public.text)
    spent = _seconds(plan, public, lengths).through(lambda rest: prepared + rest)
    return Forecast(
        plan=plan,
        rows=rows,
        epsilon=priced.guarantee.epsilon if priced.private else None,
        trained=0,
        bytes=_traffic(priced, public),
        seconds=spent.likely,
        between=(spent.least, spent.most),
        why=classifier_forecast.by(lengths),
        memory=memory(priced, public),
        clear=_split(priced),
        assumptions=(classifier_forecast.supposed(plan, lengths),),
        warnings=_warnings(rows, priced),
    )


def needs(recipe: PrivDistil, priced: PricedPlan[PrivDistilPlan], base: Path, cache: Path) -> Needs:
    """What the run is expected to need."""
    public = recipe.read
    cells = sum(release.rows * release.columns for release in priced.releases)
    artefacts = model_bytes(public.text) + sum(map(len, public.samples.values()))
    artefacts += 0 if public.domain is None else model_bytes(public.domain)
    return Needs.of(memory(priced, public), artefacts + _stored(public), cells)


def memory(priced: PricedPlan[PrivDistilPlan], public: PublicCorpus) -> dict[str, int]:
    """Upper estimates of the peak memory of each kind of process, in bytes."""
    plan = priced.plan
    found = classifier_forecast.memory(priced, public.text)
    teacher = 4 * sum(each.numel() for each in public.text.model.parameters()) * public.layers[1] // public.layers[0]
    width = int(getattr(public.text.model.config, "hidden_size", 1024))
    kept = 60 * plan.distil.micro_batch * plan.distil.longest * width * public.layers[1]
    distilling = cost.COORDINATOR_MEMORY + TORCH_MEMORY + 6 * teacher + kept
    if public.domain is not None:
        found["party training"] += 4 * public.opposed * (public.domain.longest + width)
    return found | {"coordinator": max(found["coordinator"] + 2 * teacher, distilling)}


def _row(priced: PricedPlan[PrivDistilPlan], release: Release) -> Row:
    mechanism, plan = release.under(GradientMechanism), priced.plan
    noise = mechanism.noise_multiplier * mechanism.sensitivity * mechanism.granularity * math.sqrt(mechanism.parameters)
    batch = plan.domain.batch if release.name == DOMAIN else plan.dp_sgd.batch
    if release.name != DOMAIN and release.form != Form.STEPPED:
        batch = batch // len(plan.federation.names)
    return Row(release.name, mechanism.steps, mechanism.clip, noise, batch * mechanism.clip, at_most=True)


def _split(priced: PricedPlan[PrivDistilPlan]) -> tuple[str, ...]:
    """How the budget is divided: each part priced alone. Composed, they cost less than their sum."""
    release = priced.release(DOMAIN)
    if release is None or not priced.private:
        return ()
    delta = priced.plan.privacy.delta * (1 - SAMPLER_SHARE)
    alone = price([release.event], delta).epsilon
    rest = price([each.at_most for each in priced.releases if each.name not in (DOMAIN, SCORES)], delta).epsilon
    chosen = "as [domain] epsilon says" if priced.plan.domain.epsilon is not None else "the least that leaves a signal"
    return (
        f"Of epsilon {rounded_up(priced.guarantee.epsilon, 2)}, choosing public text would cost {rounded_up(alone, 2)} "
        f"alone, {chosen}, and training the student {rounded_up(rest, 2)} alone.",
    )


def _warnings(rows: tuple[Row, ...], priced: PricedPlan[PrivDistilPlan]) -> tuple[str, ...]:
    plan, found = priced.plan, []
    for row in rows:
        if row.name == DOMAIN:
            assert row.ratio is not None
            if row.ratio * math.sqrt(row.queries) < CLEAR:
                found.append(
                    f"The noise of a domain classifier leaves {row.ratio * math.sqrt(row.queries):.1f} of the signal "
                    f"that {CLEAR:g} is wanted of: public text may be chosen no better than at random. Use a larger "
                    '[domain] epsilon or batch, more steps, or [selection] method = "random", which costs nothing.'
                )
        elif row.drowned:
            assert row.ratio is not None
            advice = [] if plan.model.adapt == "head" else ['train less of the model ([model] adapt = "head")']
            advice += ["more units a step ([dp_sgd] batch)", "fewer steps", "a larger epsilon"]
            found.append(
                f"The noise is {1 / row.ratio:,.0f} times the sum of the student's gradients at the most: it will "
                f"hardly learn. Use {', or '.join(advice)}. This run would cost epsilon "
                f"{rounded_up(priced.guarantee.epsilon, 2)} all the same."
            )
    return tuple(found)


def _traffic(priced: PricedPlan[PrivDistilPlan], public: PublicCorpus) -> int:
    parties = len(priced.plan.federation.names)
    found = classifier_forecast.traffic(priced, public.text)
    if public.domain is not None:
        found += parties * (model_bytes(public.domain) + sum(map(len, public.samples.values())))
        if priced.plan.domain.release == "scores":
            found += parties * public.corpus.count() * _TOLD
    return found


def _stored(public: PublicCorpus) -> int:
    """Bytes of embeddings on disk; runs with the same corpus and model share them."""
    width = int(getattr(public.text.model.config, "hidden_size", 1024))
    return 0 if public.domain is None else 4 * width * public.corpus.count()


def _seconds(plan: PrivDistilPlan, public: PublicCorpus, lengths: Lengths) -> Span:
    """Seconds from the run's command to its end. lengths: of the parties' texts, supposedly."""
    text, deeper, trained = public.text, public.layers[1] / public.layers[0], plan.model.adapt != "head"
    corpus = _lengths_of_corpus(public)

    def passed(found: Lengths, longest: int) -> Pace:
        """The pace of the student, run on public texts one after another."""
        return pace_of(text.model, found.cut(longest), trained=False, sample=public.corpus.count())

    chosen = public.corpus.count() if plan.selection.method == "all" else plan.selection.texts
    seen = passed(corpus, plan.distil.longest).text.likely * deeper
    fixed = _TAUGHT * seen * chosen * plan.distil.passes / at_once()
    if public.domain is not None:
        own = passed(lengths, text.longest).text.likely * plan.party_size
        told = passed(corpus, text.longest).text.likely
        fixed += deeper * told * public.corpus.count() / at_once()
        fixed += crowd(plan) * deeper * (own + told * public.opposed) + started(plan) * cost.START_SECONDS
    pace = pace_of(text.model, lengths, trained=trained, sample=classifier_forecast.sampled(plan))
    looked, sums = classifier_forecast.trained_sums(plan)
    return pace.text.through(
        lambda seconds: fixed + classifier_forecast.seconds(plan, 0.0, looked * seconds + pace.trial, sums)
    )


def _lengths_of_corpus(public: PublicCorpus) -> Lengths:
    """Of some of the corpus' texts, one in so many."""
    count, longest = public.corpus.count(), public.text.longest
    rows = list(public.corpus.rows(range(0, count, max(1, count // LOOKED_AT))))
    first = [row[0] for row in rows]
    return Lengths.of(
        public.text.tokenizer, first, [row[1] for row in rows] if public.corpus.width > 1 else None, longest=longest
    )
