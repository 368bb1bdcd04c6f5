"""The page of a run: its sections in order, each with what it needs."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final

from markupsafe import Markup

from aggregation.mechanisms.mechanism import HEURISTIC
from coordinator.page import drawing, quality, words
from coordinator.page.account import Account, Spent
from coordinator.page.drawing import Bar
from coordinator.page.exhibits import Calibration, Dots, Exhibit, Points
from coordinator.page.reader import Reader, chance, delta_doubt, figures, if_claimed, reader_of
from coordinator.page.rendering import in_frame, rendered
from coordinator.pricing.release import rounded_up
from coordinator.publishing import audited
from coordinator.publishing.report import promised
from coordinator.publishing.verdict import headline, promises, verdict

_KNOWN: Final = {
    "gaussian": "from the exact noise of all that this run released",
    "sampled": "from the noise and the sampling of all steps of this run together",
    "renyi": "from the R\u00e9nyi divergences of all that this run released",
    "claim": "from epsilon and delta alone, the worst that they allow",
}


@dataclass(frozen=True, slots=True)
class Promise:
    """The section on the promise. reader: None where nothing is promised. claims: rows of the run's own promise and of
    the paper's own formula, where the run has one.
    """

    sentence: str
    reader: Reader | None
    unit: str
    yours: str
    known: str
    chance: str
    people: Markup | None
    said: Markup | None
    said_people: int
    coin: Markup | None
    scale: Markup | None
    doubt: str | None
    claims: list[list[str]]


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """A release in the section on signal and noise. shown: the share of its energy that is signal, in words."""

    name: str
    part: str
    says: str
    shown: str
    share: float | None


def page(account: Account) -> str:
    """The whole page of a run, in whatever state it is."""
    privacy, reached = account.privacy, verdict(account.metrics)
    guaranteed = privacy is None or promises(privacy)
    first = headline(privacy, account.metrics) if account.metrics is not None else words.unfinished(account)
    releases = [] if privacy is None else _releases(account)
    return rendered(
        "run.html",
        account=account,
        first=first,
        kind=reached.kind if account.metrics is not None else "unmeasured",
        guaranteed=guaranteed,
        unfinished=words.unfinished(account),
        lede=words.lede(account),
        promise=None if privacy is None else _promise(account),
        cost=_cost(account),
        spent=[_spent_row(account, each) for each in account.spent],
        releases=releases,
        heard=_heard_picture(releases),
        quality=quality.picture(account),
        how_to_read=quality.how_to_read(account),
        beside=quality.missing(account),
        measures=quality.measures(account.metrics or {}),
        warnings=quality.warnings(account.metrics),
        exhibits=[(each, _drawn(each)) for each in account.exhibits],
        audit=None if account.audit is None else (audited.HEADS, audited.rows(account.audit)),
        audit_picture=_audit_picture(account),
        audit_says=[] if account.audit is None else audited.summary(account.audit),
        stages=[_stage_row(each.name, each.seconds) for each in account.stages],
        open_stages=any(each.seconds is None for each in account.stages),
        timeline=_timeline(account),
        retries=[(name, doing, times) for name, each in account.retries.items() for doing, times in each.items()],
        lost={name: state for name, state in account.states.items() if state.startswith("lost")},
        events=[] if privacy is None else [_event_row(each, privacy["attempts"]) for each in privacy["releases"]],
        computed=[] if privacy is None else (privacy.get("computed") or {}).get("says", []),
        left_out={} if privacy is None else privacy.get("left_out", {}),
        software=version("conclave-distill"),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        began=datetime.fromtimestamp(account.started, UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def framed(account: Account) -> str:
    """The same for a notebook."""
    return in_frame(page(account), f"Report of run {account.run}")


def _promise(account: Account) -> Promise:
    privacy = account.privacy
    assert privacy is not None
    reader = reader_of(privacy)
    if reader is None:
        return Promise(promised(privacy), None, words.unit(privacy), "", "", "", None, None, 0, None, None, None, [])
    said = None
    marks, claims = [(reader.epsilon, f"this run: {rounded_up(reader.epsilon)}")], []
    paper = privacy["epsilon_by_the_papers_formula"]
    if paper:
        marks.append((float(paper), f"by the paper's own formula: {paper:.3g}"))
        said = if_claimed(float(paper), reader)
        claims = [
            ["this run, as it is certified", *figures(reader)],
            ["the same noise, as the paper would have it", *figures(said)],
        ]
    return Promise(
        sentence=promised(privacy),
        reader=reader,
        unit=words.unit(privacy),
        yours=words.yours(privacy),
        known=_KNOWN[reader.by],
        chance=chance(reader.delta),
        people=drawing.people(reader.people),
        said=None if said is None else drawing.people(said.people),
        said_people=0 if said is None else said.people,
        coin=drawing.people(50),
        scale=drawing.scale(marks),
        doubt=delta_doubt(reader.delta, account.units),
        claims=claims,
    )


def _cost(account: Account) -> Markup | None:
    """What the run cost every party, beside what the plan allows and the party's cap; None where it is not known."""
    budget = (account.plan.get("privacy") or {}).get("epsilon")
    paid = [each for each in account.spent if each.epsilon is not None]
    if not paid or not isinstance(budget, int | float):
        return None
    most = max([budget, *(each.cap for each in paid if each.cap is not None)])
    rows = [Bar(each.party, each.epsilon or 0.0, _of(each, budget), room=each.cap) for each in paid[:12]]
    return drawing.bars("What the run cost each party, in epsilon", rows, most=most)


def _of(spent: Spent, budget: float) -> str:
    return f"{rounded_up(spent.epsilon or 0.0, 2)} of {budget:g}"


def _spent_row(account: Account, spent: Spent) -> list[str]:
    if account.privacy is not None and not promises(account.privacy):
        cost = "no epsilon: nothing is promised"
    else:
        cost = "not known" if spent.epsilon is None else rounded_up(spent.epsilon)
    charges = spent.why or f"{spent.charges:,} signed by it"
    cap = "known to the party alone" if spent.cap is None else f"{spent.cap:g}"
    return [spent.party, cost, charges, cap]


def _releases(account: Account) -> list[ReleaseRow]:
    """Every release with what was heard in it."""
    found = []
    for release in (account.privacy or {})["releases"]:
        name, says = str(release["name"]), str(release["says"])
        heard = account.heard.get(name, ())
        for each in heard:
            shown = f"{each.share:.1%} signal, {1 - each.share:.1%} noise; signal over noise {each.ratio:.2f}"
            if not each.signal:
                shown = "no signal can be told from the noise"
            found.append(ReleaseRow(name, each.part, says, shown, each.share))
        if not heard:
            found.append(
                ReleaseRow(name, "", says, "not measured: it is no noisy sum, or the run did not keep it", None)
            )
    return found


def _heard_picture(releases: list[ReleaseRow]) -> Markup | None:
    rows = [
        Bar(" ".join(filter(None, (each.name, each.part))), each.share, _signal(each.share))
        for each in releases
        if each.share is not None
    ]
    return drawing.bars("Share of each release that is signal", rows, most=1.3) if rows else None


def _signal(share: float) -> str:
    return f"{share:.1%} signal" if share else "no signal above the noise"


def _stage_row(name: str, seconds: float | None) -> list[str]:
    return [name, "not finished" if seconds is None else words.duration(seconds)]


def _audit_picture(account: Account) -> Markup | None:
    """Every lower bound that attacks show, beside the claim, where there is one."""
    if account.audit is None:
        return None
    claimed, attacks = account.audit.claimed, account.audit.attacks
    rows = [Bar(each.attacked, each.lower, f"epsilon {each.lower:.2f} or more", room=claimed) for each in attacks]
    most = max([each.lower for each in attacks] + ([] if claimed is None else [claimed]))
    return drawing.bars("What attacks prove of epsilon", rows, most=1.3 * most)


def _timeline(account: Account) -> Markup | None:
    rows = [
        (each.name, each.start, each.seconds, words.duration(each.seconds))
        for each in account.stages
        if each.seconds is not None
    ]
    return drawing.timeline(rows) if rows else None


def _event_row(release: Any, attempts: int) -> list[str]:
    parties = ", ".join(release["parties"]) or "none"
    event = HEURISTIC if _without_proof(release["event"]) else json.dumps(release["event"], ensure_ascii=False)
    return [str(release["name"]), f"{release['charges']:,}", f"{attempts:,}", parties, event]


def _without_proof(event: Any) -> bool:
    """Whether an event, or the one that it repeats, has no price."""
    return bool(event.get("kind") == "non-private" or ("event" in event and _without_proof(event["event"])))


def _drawn(exhibit: Exhibit) -> Markup | None:
    """The picture of what is drawn; None for what is text and tables."""
    match exhibit.content:
        case Points(spots=spots):
            return drawing.spots([(each.label, each.x, each.y) for each in spots])
        case Calibration(bins=bins):
            return drawing.calibration([(each.confidence, each.right, each.examples) for each in bins])
        case Dots(across=across, up=up, dots=dots):
            return drawing.dots([(x, y) for x, y in dots], across, up)
    return None
