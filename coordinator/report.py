"""What a run promises and what it measured: one statement for the report, the model card and `privacy.json`."""

import math
from dataclasses import dataclass
from typing import Any

from aggregation.events import to_json
from coordinator.plan import Plan
from coordinator.store import RunStore
from coordinator.terms import COUNTS, Bound, rounded_up

TRUSTED_AGGREGATOR = (
    "Trusted aggregator: the coordinator received every party's clipped counts with that party's share of the noise "
    "only, and could learn more than this guarantee says. It holds against everyone who sees the published student."
)
ONE_MACHINE = (
    "Simulation: all parties ran under one coordinator's control, on data that it divided among them. "
    "Nothing is claimed between these parties."
)
PLAIN_TRANSPORT = (
    "Transport: calls were neither encrypted nor authenticated by certificates; whoever could reach the wire could "
    "read what the coordinator read, and could have asked in its place."
)
NOT_PROTECTED = (
    "the number of parties, and the plan: its words, its settings and its noise",
    "how long each party took, which tells roughly how much text it has",
    "coarse facts that a party's policy lets it tell",
    "the person whose records lie at several parties: they have the composition of those parties' guarantees",
    "the result against a party that lies: nobody checks that a party clipped",
    "choices made by looking at earlier runs on the same data: only each party's own ledger adds those up",
)


@dataclass(frozen=True, slots=True)
class Statement:
    """What is said of one run.

    privacy: the content of `privacy.json`. epsilon: None where nothing is guaranteed.
    """

    plan: Plan
    parties: tuple[str, ...]
    epsilon: float | None
    privacy: dict[str, Any]
    metrics: dict[str, Any]


def state(bound: Bound, parties: tuple[str, ...], plan_hash: str, metrics: dict[str, Any]) -> Statement:
    """Put together what can be said of a run whose sum over `parties` is complete."""
    plan, counts = bound.plan, bound.counts
    epsilon = bound.guarantee.epsilon if bound.private else None
    cells = plan.vocabulary.size**2
    trust = [TRUSTED_AGGREGATOR, ONE_MACHINE if plan.federation.shards is not None else PLAIN_TRANSPORT]
    privacy = {
        "format": 1,
        "plan_hash": plan_hash,
        "unit": plan.privacy.unit,
        "record": plan.privacy.record,
        "relation": "add or remove one unit at one party",
        "epsilon": epsilon,
        "delta": plan.privacy.delta if bound.private else None,
        "accountant": bound.guarantee.accountant,
        "epsilon_by_rdp": _finite(bound.guarantee.rdp_epsilon) if bound.private else None,
        "sampler_delta": counts.slack(cells, bound.guarantee.epsilon),
        "trust": plan.privacy.trust,
        "trust_means": trust,
        "insecure_reproducible_noise": plan.privacy.insecure_reproducible_noise,
        "parties": {"planned": len(plan.federation.names), "in_the_sum": len(parties), "shares_needed": counts.shares},
        "releases": [
            {
                "name": COUNTS,
                "charges": 1,
                "values": cells,
                "mechanism": {
                    "clip": counts.clip,
                    "levels": counts.levels,
                    "noise_multiplier": counts.noise_multiplier,
                },
                "event": to_json(counts.event()),
            }
        ],
        "not_protected": list(NOT_PROTECTED),
    }
    return Statement(plan, parties, epsilon, privacy, metrics)


def promise(statement: Statement) -> str:
    """The guarantee in one sentence, or that there is none."""
    privacy, table = statement.privacy, statement.plan.privacy
    if statement.epsilon is None:
        return (
            "No privacy guarantee: the noise can be reproduced from the plan's seed (insecure_reproducible_noise). "
            "This student is for comparing runs, not for publishing."
        )
    unit = "all text of one user" if table.unit == "user" else f"one {table.record}"
    return (
        f"Adding or removing {unit} at one party changes the probability of any student by at most a factor "
        f"e^epsilon, epsilon = {rounded_up(statement.epsilon)}, up to delta = {privacy['delta']:g}."
    )


def markdown(statement: Statement) -> str:
    """The statement as Markdown: the promise, who has to be trusted, what is not protected, the measurements."""
    privacy = statement.privacy
    release = privacy["releases"][0]
    mechanism = release["mechanism"]
    lines = [
        "## Privacy",
        "",
        promise(statement),
        "",
        f"- Mechanism: each unit's counts clipped to L2 norm {mechanism['clip']:g}, Gaussian noise of standard "
        f"deviation {mechanism['noise_multiplier']:g} times that on each of {release['values']:,} sums, charged once; "
        f"accountant {privacy['accountant']}"
        + (f" (RDP: {rounded_up(privacy['epsilon_by_rdp'])})" if privacy["epsilon_by_rdp"] else "")
        + ".",
        f"- Parties in the sum: {privacy['parties']['in_the_sum']} of {privacy['parties']['planned']}; the guarantee "
        f"counts on the noise of {privacy['parties']['shares_needed']}.",
        *(f"- {line}" for line in privacy["trust_means"]),
        "",
        "Not protected:",
        "",
        *(f"- {line}" for line in privacy["not_protected"]),
        "",
        "## Evaluation",
        "",
        *(f"- {label}: {value}" for label, value in measurements(statement.metrics)),
        "",
    ]
    return "\n".join(lines)


def measurements(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    """Each metric with its name in words and its value as a person reads it."""
    shown: list[tuple[str, str]] = []
    if "perplexity" in metrics:
        shown.append(("context perplexity on public held-out text", f"{metrics['perplexity']:.1f}"))
        shown.append(("of the noised unigram model (the floor)", f"{metrics['unigram_floor']:.1f}"))
    if "sentiment" in metrics:
        shown.append(("sentiment probe, accuracy", f"{metrics['sentiment']:.3f}"))
    wordsim, analogies = metrics["wordsim"], metrics["analogies"]
    pairs = f"{wordsim['pairs_used']} of {wordsim['pairs_total']} pairs are in the vocabulary"
    shown.append(("WordSim-353, Spearman", f"{_or_none(wordsim['spearman'])} ({pairs})"))
    known = f"{analogies['used']:,} of {analogies['total']:,} questions are in the vocabulary"
    shown.append(("analogies, accuracy", f"{_or_none(analogies['accuracy'])} ({known})"))
    return shown


def statement_of(store: RunStore) -> dict[str, Any]:
    """What the store keeps for `coordinator report`: the finished run's statement as plain JSON values."""
    return {
        "run": store.id,
        "name": store.fact("name"),
        "status": store.status(),
        "error": store.fact("error"),
        "student": store.fact("student"),
        "epsilon": store.fact("epsilon"),
        "privacy": store.fact("privacy"),
        "metrics": store.fact("metrics"),
        "stages": {
            name: {"seconds": None if end is None else round(end - start, 3), "result": result}
            for name, (start, end, result) in store.stages().items()
        },
    }


def render(report: dict[str, Any]) -> str:
    """A stored report as a person reads it in a terminal."""
    lines = [f"run {report['run']}  {report['status']}"]
    if report["error"]:
        lines += ["", report["error"]]
    privacy = report["privacy"]
    if privacy is not None:
        unit = "user" if privacy["unit"] == "user" else privacy["record"]
        guarantee = "none: the noise can be reproduced from the plan's seed"
        if report["epsilon"] is not None:
            guarantee = f"epsilon {rounded_up(report['epsilon'])} at delta {privacy['delta']:g}, unit: one {unit}"
        parties = privacy["parties"]
        lines += ["", f"guarantee  {guarantee}, {privacy['relation']}", f"accountant {privacy['accountant']}"]
        lines += [f"parties    {parties['in_the_sum']} of {parties['planned']} in the sum"]
        lines += [f"trust      {line}" for line in privacy["trust_means"]]
        lines += ["", "not protected", *(f"  - {line}" for line in privacy["not_protected"])]
    if report["metrics"] is not None:
        lines += ["", "measured", *(f"  {label}: {value}" for label, value in measurements(report["metrics"]))]
    lines += ["", "stages"]
    for name, stage in report["stages"].items():
        lines.append(f"  {name:<10} " + ("not finished" if stage["seconds"] is None else f"{stage['seconds']:.1f} s"))
    if report["student"]:
        lines += ["", f"student    {report['student']}"]
    return "\n".join(lines)


def _or_none(value: float | None) -> str:
    return "not measured" if value is None or math.isnan(value) else f"{value:.3f}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
