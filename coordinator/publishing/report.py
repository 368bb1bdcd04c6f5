"""What a run guarantees and what it measured: one statement for the report, the model card and `privacy.json`."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from aggregation.accounting.events import to_json
from aggregation.mechanisms.mechanism import HEURISTIC, Form
from aggregation.mechanisms.registry import numbers_of
from coordinator.plan.plan import Plan
from coordinator.pricing.release import PricedPlan, rounded_up, shares
from coordinator.published.audit import Audit
from coordinator.publishing import audited
from coordinator.publishing.computing import NOT_PROTECTED as NOT_ITS_DEVICE
from coordinator.publishing.measured import measurements
from coordinator.publishing.verdict import headline, verdict
from coordinator.store.store import FINISHED, RunStore
from protos.identity.signing import NO_RELATION, RELATION

TRUSTED_AGGREGATOR = (
    "Trusted aggregator: the coordinator received every party's bounded contribution with that party's share of the "
    "noise only, and could learn more than this guarantee says. It holds against everyone who sees the published "
    "student."
)
CLEAR_VOTES = (
    "Votes in clear: the coordinator received each teacher's votes without any noise and was trusted to draw it; it "
    "kept the noised labels alone."
)
OWN_NOISE = (
    "Weights: the coordinator received what each party trained alone, and knows whose it is; each party added all of "
    "the noise itself, so that the guarantee needs no sum there."
)
OWN_ROWS = (
    "Own noise: every party added all of the noise itself to the rows that it released, so that the guarantee holds "
    "against the coordinator too, whatever it did, and whatever other parties did. The coordinator knows which party "
    "released which rows."
)
APART = (
    "Parts: not every party takes part in every release, and each is charged for those that it takes part in. The "
    "epsilon stated is that of the party that is charged most; no party's records are in releases of others."
)
UNPROVEN = (
    "No proof: the coordinator received what each party's model said of given texts, softened by rules that no proof "
    "covers, and knows whose it is. It was trusted with that, and so is every reader of the student with what the "
    "student learned of it."
)
UNPROVEN_ROWS = (
    "No proof: the coordinator received a sample of each text, drawn by a layer that no proof covers, and knows whose "
    "it is. It was trusted with that, and so is everybody who has the published samples."
)
ONE_MACHINE = (
    "Simulation: all parties ran under one coordinator's control, on data that it divided among them. "
    "Nothing is claimed between these parties."
)
ONE_PROCESS = (
    "Shared processes: up to {together:,} of the simulated parties shared one process. Each had a node, a ledger, keys "
    "and a shard of its own, and nothing but this program kept their text apart there; other processes trained for all "
    "of them in turn. Where one of these processes ended, its parties were lost together."
)
ONE_CLUSTER = (
    "One Ray cluster: the parties ran on its machines, and were asked over encrypted connections, under certificates "
    "of this run. The whole cluster is one trust domain all the same: whoever reaches its ports with its token can run "
    "code at every party."
)
PLAIN_TRANSPORT = (
    "Transport: calls were neither encrypted nor authenticated by certificates; whoever could reach the wire could "
    "read what the coordinator read, and could have asked in its place."
)
SECURED_TRANSPORT = (
    "Transport: calls were encrypted, and both ends showed certificates of the federation's authority, whose word on "
    "who asks was believed."
)
COMPOSED = (
    "a person whose text is several units, or lies at several parties: they have the composition of those guarantees"
)
NOTHING_PROTECTED = "any text of any party: nothing bounds what the releases, and so the student, tell of it"
NOT_PROTECTED = (
    "the number of parties, who was in which sum, and the plan: its words, its settings and its noise",
    "facts that a party's policy lets it tell",
    "how long a party's training took, which tells roughly how large its shard is",
    "how long each step took at a party without [policy] step_seconds, which tells the size of its secret batch: known "
    "exactly over 500 steps at a rate of 0.1 of 1,000 units, epsilon 0.88 more at delta 1e-5",
    "that a party's machine failed, or its disk was full",
    "that a party's ledger let it join or not, which may show that its text shares records with text charged before",
    COMPOSED,
    "the result against a party that lies: nobody checks that a party clipped, or what it added",
    "choices made by looking at earlier runs on the same data: only each party's own ledger adds those up",
    "who talked to whom, when and how much, against anyone who sees the wire",
)


_UNMEASURED = "Nothing was measured: the plan names no public test text."


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement of one run.

    privacy: the content of `privacy.json`. epsilon: None where there is no guarantee. audit: of the plan, where it asks
    for one.
    """

    plan: Plan
    parties: tuple[str, ...]
    epsilon: float | None
    privacy: dict[str, Any]
    metrics: dict[str, Any]
    audit: Audit | None = None

    @property
    def heuristic(self) -> bool:
        """Whether no proof covers the releases."""
        return not self.plan.privacy.guarantee


def state(
    priced: PricedPlan[Plan],
    parties: tuple[str, ...],
    plan_hash: str,
    metrics: dict[str, Any],
    *,
    run: str,
    sums: Mapping[str, Sequence[str]],
    steps: Mapping[str, Sequence[Sequence[str]]] = MappingProxyType({}),
    left_out: Mapping[str, str] = MappingProxyType({}),
    claimed: float | None = None,
    computed: Mapping[str, Any] = MappingProxyType({}),
    audit: Audit | None = None,
    together: int = 1,
) -> Statement:
    """Make the statement of a run whose sum over `parties` is complete.

    Without a guarantee `privacy.json` says so, has no figure where one would claim anything, and says whether there was
    an audit. sums: the parties in the sum of each release, by its name; a release that is missing
    (a training) has all of `parties`. steps: for a stepped release, the parties in the sum of each step. left_out: why
    the guarantee leaves a party out. claimed: the epsilon that a paper's own formula gives for the same noise
    (`coordinator.publishing.student`). computed: what `coordinator.publishing.computing.stated` gives. audit:
    of the plan, where it asked for one. together: how many simulated parties shared a process at most.
    """
    plan, proven = priced.plan, priced.plan.privacy.guarantee
    epsilon = priced.guarantee.epsilon if priced.private else None
    weights = any(release.form in (Form.WEIGHTS, Form.SAID, Form.SAMPLES) for release in priced.releases)
    trust = [TRUSTED_AGGREGATOR if plan.privacy.trust == "trusted-aggregator" else secure_sum(plan, weights)]
    if all(release.form == Form.SAMPLES for release in priced.releases):
        trust, weights = [OWN_ROWS], False
    if not proven:
        trust = [UNPROVEN_ROWS if all(release.form == Form.SAMPLES for release in priced.releases) else UNPROVEN]
    if any(release.form == Form.CLEAR_VOTES for release in priced.releases):
        trust.append(CLEAR_VOTES)
    if plan.privacy.trust == "secure-sum" and weights:
        trust.append(OWN_NOISE)
    if any(release.parties for release in priced.releases):
        trust.append(APART)
    if plan.federation.shards is not None:
        trust.append(ONE_MACHINE)
        if together > 1:
            trust.append(ONE_PROCESS.format(together=together))
        if plan.federation.cluster is not None:
            trust.append(ONE_CLUSTER)
    else:
        trust.append(PLAIN_TRANSPORT if plan.federation.identity is None else SECURED_TRANSPORT)
    privacy = {
        "format": 1,
        "run": run,
        "plan_hash": plan_hash,
        "unit": plan.privacy.unit,
        "record": plan.privacy.record,
        "relation": RELATION if proven else NO_RELATION,
        **({} if proven else {"guarantee": False, "audited": audit is not None}),
        "epsilon": epsilon,
        "delta": plan.privacy.delta if priced.private else None,
        "accountant": priced.guarantee.accountant if proven else None,
        "epsilon_by_rdp": _finite(priced.guarantee.rdp_epsilon) if priced.private else None,
        "epsilon_by_the_papers_formula": claimed,
        "sampler_delta": priced.slack if proven else None,
        "attempts": plan.privacy.attempts,
        "trust": plan.privacy.trust,
        "trust_means": trust,
        "insecure_reproducible_noise": plan.privacy.insecure_reproducible_noise,
        "parties": {
            "planned": len(plan.federation.names),
            "in_the_sum": len(parties),
            "shares_needed": shares(plan),
        },
        "left_out": dict(left_out),
        "releases": [
            {
                "name": release.name,
                "parties": sorted(sums.get(release.name, parties)),
                "charges": release.charges,
                "values": release.rows * release.columns,
                "says": release.described,
                "mechanism": numbers_of(release.mechanism),
                "event": to_json(release.event),
            }
            | ({"steps": _in_steps(steps[release.name])} if release.name in steps else {})
            | ({"among": list(release.parties)} if release.parties else {})
            for release in priced.releases
        ],
        "not_protected": [*plan.exposed, *_not_protected(proven), *([NOT_ITS_DEVICE] if computed else [])],
        **({"computed": dict(computed)} if computed else {}),
    }
    return Statement(plan, parties, epsilon, privacy, metrics, audit)


def _not_protected(proven: bool) -> list[str]:
    """What remains open; without a guarantee, that is first of all every text."""
    return list(NOT_PROTECTED) if proven else [NOTHING_PROTECTED, *(each for each in NOT_PROTECTED if each != COMPOSED)]


def _in_steps(steps: Sequence[Sequence[str]]) -> dict[str, Any]:
    """How many parties are in the smallest of a release's sums, and in how many of them each party is."""
    names = sorted({name for parties in steps for name in parties})
    counts = {name: sum(name in parties for parties in steps) for name in names}
    return {"fewest": min(map(len, steps)), "parties": counts}


def secure_sum(plan: Plan, weights: bool = False) -> str:
    """What the secure sum hides, in one sentence; weights: whether something leaves a party outside of it."""
    colluders = plan.privacy.colluders
    parties = "1 party" if colluders == 1 else f"{colluders} parties"
    pooling = f"and up to {parties} pooling what they know" if colluders else "alone"
    what = "of what went through it the coordinator" if weights else "the coordinator"
    return (
        f"Secure sum: {what} learned noisy sums over all parties, and of each party alone what is listed as not "
        f"protected; the guarantee holds against it too, {pooling}, as long as it follows the protocol, and counts on "
        f"the noise of {shares(plan)} honest parties."
    )


def promise(statement: Statement) -> str:
    """The guarantee in one sentence, or the sentence that there is none."""
    return promised(statement.privacy)


def promised(privacy: Mapping[str, Any]) -> str:
    """The same sentence from the content of `privacy.json`."""
    unit = "all text of one user" if privacy["unit"] == "user" else f"one {privacy['record']}"
    if not privacy.get("guarantee", True):
        measured = "an audit measured it, which bounds nothing" if privacy["audited"] else "no audit measured it"
        return (
            f"{HEURISTIC[0].upper()}{HEURISTIC[1:]}. No proof covers what left each party. "
            f"How much this student tells of {unit} is not bounded, and {measured}."
        )
    if privacy["epsilon"] is None:
        return (
            "No privacy guarantee: the noise can be reproduced from the plan's seed (insecure_reproducible_noise). "
            "This student is for comparing runs, not for publishing."
        )
    return (
        f"Adding or removing {unit} at one party changes the probability of any student by at most a factor "
        f"e^epsilon, epsilon = {rounded_up(privacy['epsilon'])}, up to delta = {privacy['delta']:g}."
        + "".join(f" {each}" for each in _left_out(privacy))
    )


def _left_out(privacy: Mapping[str, Any]) -> list[str]:
    """A sentence for every party that the guarantee leaves out."""
    return [f"Nothing is promised for {name}: {why}." for name, why in sorted(privacy.get("left_out", {}).items())]


def markdown(statement: Statement) -> str:
    """The statement as Markdown: the guarantee, who has to be trusted, what is not protected, the measurements."""
    privacy = statement.privacy
    rdp, claimed = privacy["epsilon_by_rdp"], privacy["epsilon_by_the_papers_formula"]
    lines = [
        "## Privacy",
        "",
        promise(statement),
        "",
        *(f"- Release `{release['name']}`: {release['says']}.{_whose(release)}" for release in privacy["releases"]),
        *(
            [f"- Accountant {privacy['accountant']}" + (f" (RDP: {rounded_up(rdp)})" if rdp else "") + "."]
            if privacy["accountant"]
            else []
        ),
        *([f"- {_claim(claimed)}"] if claimed else []),
        f"- Parties in the sum: {privacy['parties']['in_the_sum']} of {privacy['parties']['planned']}; the guarantee "
        f"counts on the noise of {privacy['parties']['shares_needed']}."
        if not statement.heuristic
        else f"- Parties: {privacy['parties']['in_the_sum']} of {privacy['parties']['planned']}.",
        *(f"- Release `{release['name']}`: {away}." for release in privacy["releases"] if (away := _away(release))),
        *(f"- {line}" for line in (*privacy["trust_means"], *_computed(privacy))),
        "",
        "Not protected:",
        "",
        *(f"- {line}" for line in privacy["not_protected"]),
        "",
        *([audited.markdown(statement.audit)] if statement.audit is not None else []),
        "## Evaluation",
        "",
        *([f"- {label}: {value}" for label, value in measurements(statement.metrics)] or [_UNMEASURED]),
        "",
    ]
    return "\n".join(lines)


def _computed(privacy: Mapping[str, Any]) -> list[str]:
    """The sentences on what the run was computed with, where it was not the processor alone."""
    return list(privacy.get("computed", {}).get("says", ()))


def _whose(release: Mapping[str, Any]) -> str:
    """The sentence on whose records a release is of, where these are not all parties'; empty where they are."""
    return f" Of the records of {', '.join(release['among'])} alone." if "among" in release else ""


def _away(release: Mapping[str, Any]) -> str:
    """Which parties are missing from some sums of a stepped release, in words; empty where none is."""
    if "steps" not in release:
        return ""
    every, counts = release["mechanism"]["steps"], release["steps"]["parties"]
    return ", ".join(f"{name} in {count:,} of {every:,} sums" for name, count in counts.items() if count < every)


def _claim(epsilon: float) -> str:
    return (
        f"The paper's own formula (DPED, theorem 1) would have claimed epsilon {epsilon:.3f} for the same noise: it "
        "takes 1 for the sensitivity of votes, half of a hidden state's, and one of the two for both. Nothing rests on "
        "it here."
    )


def statement_of(store: RunStore) -> dict[str, Any]:
    """What the store keeps for `coordinator report`: the finished run's statement as JSON values.

    student: where it was published, if it is there. error: why a run at rest is not finished.
    """
    status, place = store.status(), store.fact("student")
    return {
        "run": store.id,
        "name": store.fact("name"),
        "status": status,
        "error": store.why(),
        "student": str(place) if status == FINISHED and os.path.isdir(str(place)) else None,
        "epsilon": store.fact("epsilon"),
        "privacy": store.fact("privacy"),
        "metrics": store.fact("metrics"),
        "verdict": None if store.fact("metrics") is None else asdict(verdict(store.fact("metrics"))),
        "audit": None if (audit := audited.kept(store.folder)) is None else audit.model_dump(mode="json"),
        "stages": {
            name: {"seconds": None if end is None else round(end - start, 3), "result": result}
            for name, (start, end, result) in store.stages().items()
        },
    }


def render(report: dict[str, Any]) -> str:
    """A stored report as text for a terminal."""
    finished = report["metrics"] is not None
    first = [headline(report["privacy"], report["metrics"]), ""] if finished else []
    lines = [*first, f"run {report['run']}  {report['status']}"]
    if report["error"]:
        lines += ["", report["error"]]
    privacy = report["privacy"]
    if privacy is not None:
        unit = "user" if privacy["unit"] == "user" else privacy["record"]
        guarantee = "none: the noise can be reproduced from the plan's seed"
        if report["epsilon"] is not None:
            guarantee = f"epsilon {rounded_up(report['epsilon'])} at delta {privacy['delta']:g}, unit: one {unit}"
        parties = privacy["parties"]
        if privacy.get("guarantee", True):
            lines += ["", f"guarantee  {guarantee}, {privacy['relation']}", f"accountant {privacy['accountant']}"]
        else:
            lines += ["", f"guarantee  {promised(privacy)}"]
        lines += [f"parties    {parties['in_the_sum']} of {parties['planned']} in the sum"]
        lines += [f"left out   {sentence}" for sentence in _left_out(privacy)]
        lines += [f"release    {release['name']}: {release['says']}" for release in privacy["releases"]]
        lines += [
            f"lost       {release['name']}: {away}" for release in privacy["releases"] if (away := _away(release))
        ]
        if privacy["epsilon_by_the_papers_formula"]:
            lines += [f"claim      {_claim(privacy['epsilon_by_the_papers_formula'])}"]
        lines += [f"trust      {line}" for line in privacy["trust_means"]]
        lines += [f"computed   {line}" for line in _computed(privacy)]
        lines += ["", "not protected", *(f"  - {line}" for line in privacy["not_protected"])]
    if report.get("audit") is not None:
        lines += ["", "audit", *(f"  {line}" for line in audited.lines(Audit.model_validate(report["audit"])))]
    if report["metrics"] is not None:
        lines += ["", "measured", *(f"  {label}: {value}" for label, value in measurements(report["metrics"]))]
    lines += ["", "stages"]
    for name, stage in report["stages"].items():
        lines.append(f"  {name:<10} " + ("not finished" if stage["seconds"] is None else f"{stage['seconds']:.1f} s"))
    if report["student"]:
        lines += ["", f"student    {report['student']}"]
    elif report["status"] == FINISHED:
        lines += ["", "student    no longer where it was published"]
    return "\n".join(lines)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
