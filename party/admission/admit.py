"""Admission to a run: checks the plan's terms against the party's own rules, before anything is spent."""

import math
import re
from typing import Final

from aggregation.accounting.library import DpEvent, SelfComposedDpEvent
from aggregation.accounting.price import price
from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import Form, Mechanism
from aggregation.mechanisms.samples import SamplesMechanism
from aggregation.mechanisms.sequences import SequencesMechanism
from party.admission.codes import admit_coded
from party.admission.company import MOST_ATTEMPTS, admit_company, admit_shares, admit_trust
from party.admission.labels import admit_labelled
from party.admission.pairs import admit_paired
from party.admission.proof import admit_guarantee, admit_proven
from party.admission.recipes import why_not
from party.config import PartyConfig
from party.releasing.mechanisms import against, broken, form_of, mechanism_of, shares_of
from protos.conclave.v1 import plan_pb2
from protos.identity.certificates import PARTY_NAME
from protos.refusal import Reason, Refusal
from protos.roster import ALONE, among, odd_roster, own_terms, roster_of
from protos.steps import MOST_STEPS, charged

RELEASE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)
CAPACITY: Final = 2**31
"""The largest value of one cell of a sum before it wraps; integers travel modulo 2**32."""

MOST_RELEASES: Final = 64
MOST_PARTIES: Final = 1000
MOST_CHARGES: Final = 10**6


def admit(terms: plan_pb2.Terms, config: PartyConfig) -> None:
    """Return when this party takes part under these terms, otherwise raise `Refusal` naming the rule. Spends nothing.

    A rule of the party file is refused as POLICY; terms that no party could accept as PLAN. Releases that this party
    has no part in are no business of its policy, and cost it nothing.
    """
    if len(terms.releases) > MOST_RELEASES or len(terms.parties) > MOST_PARTIES:
        raise broken(f"it has more than {MOST_RELEASES} releases or {MOST_PARTIES} parties")
    _admit_names(terms, config)
    whole, terms = terms, _own(terms, config)
    for seen in _companies(terms):
        admit_company(seen, config)
        _admit_promise(seen, config)
    admit_labelled(terms, config.shard)
    admit_coded(terms, config.shard)
    admit_paired(terms, config.shard)
    events = [_admit_release(release, terms, config) for release in terms.releases]
    if (mixture := why_not(whole)) is not None:
        raise against("recipes", f"recipes = {', '.join(config.policy.recipes)}; {mixture}")
    events = [
        event for release, event in zip(terms.releases, events, strict=True) for _ in range(times(release, terms))
    ]
    _admit_queries(terms, config)
    if terms.privacy.unproven or terms.privacy.insecure_reproducible_noise:
        return
    try:
        spent = price(events, terms.privacy.delta).epsilon
    except ConclaveError as error:
        raise broken(f"its releases have no price: {str(error).rstrip('.')}") from None
    if not spent <= terms.privacy.epsilon:
        raise broken(
            f"its releases cost epsilon {spent:.4g} at delta {terms.privacy.delta:g}, "
            f"above the {terms.privacy.epsilon:g} it promises"
        )


def queries_of(release: plan_pb2.Release) -> int:
    """How many queries a release may ask, as `maximum_queries` counts them: those that are charged one by one.

    Teachers' answers: `charges`, one a row. Counts, moments and a private training: also `charges`, which is one for a
    whole matrix or training. Votes under a threshold are charged by a cap on all of them together: as many as that cap
    pays for if every test fails, since the terms do not say how many will be asked. Free answers: none. Raises
    `Refusal` (PLAN) as `mechanism_of` does.
    """
    return mechanism_of(release).queries(release.charges)


def times(release: plan_pb2.Release, terms: plan_pb2.Terms) -> int:
    """How many times a release of these terms, or each of its steps, may be charged: once, except for secure sums with
    more attempts.

    A party's own training is charged once; its answers cost nothing, so their sum may be attempted as often as any
    plan's.
    """
    match release.form:
        case plan_pb2.FORM_TRAINING | plan_pb2.FORM_WEIGHTS | plan_pb2.FORM_SAID | plan_pb2.FORM_SAMPLES:
            return 1
        case plan_pb2.FORM_FREE:
            return MOST_ATTEMPTS
    return max(1, terms.privacy.attempts)


def affordable(terms: plan_pb2.Terms) -> list[tuple[str, DpEvent]]:
    """Everything that these terms may charge, one by one: the name of the charge, and its event. Raises `Refusal`
    (PLAN).
    """
    wanted: list[tuple[str, DpEvent]] = []
    for release in terms.releases:
        often = times(release, terms)
        event = None
        for one in charged(release):
            event = event_of(one) if event is None else event  # all steps cost the same
            wanted += [(one.name, event)] * often
    return wanted


def event_of(release: plan_pb2.Release) -> DpEvent:
    """The event of a release. Raises `Refusal` (PLAN) as `mechanism_of` does."""
    event = mechanism_of(release).event()
    return event if release.charges == 1 else SelfComposedDpEvent(event, release.charges)


def _admit_names(terms: plan_pb2.Terms, config: PartyConfig) -> None:
    policy, parties = config.policy, list(terms.parties)
    if len(set(parties)) != len(parties) or parties != sorted(parties):
        raise broken("its parties are not sorted or one is named twice")
    odd = next((name for name in parties if re.fullmatch(PARTY_NAME, name) is None), None)
    if odd is not None:
        raise broken(f"{odd[:40]!r} is no name for a party; use small letters, digits and hyphens")
    if config.name not in parties:
        raise Refusal(
            Reason.PLAN, f"this party is {config.name}, and the plan knows {', '.join(parties) or 'no party'}."
        )
    if terms.recipe not in policy.recipes:
        raise against("recipes", f"recipes = {', '.join(policy.recipes)}; this plan runs {terms.recipe or 'none'}")


def _own(terms: plan_pb2.Terms, config: PartyConfig) -> plan_pb2.Terms:
    """The terms with the releases that this party has a part in. Raises `Refusal` (PLAN) where it has none."""
    if (odd := odd_roster(terms)) is not None:
        raise broken(odd)
    names = [each.name for each in terms.releases]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise broken(f"release {twice[:64]} is listed twice")
    own = own_terms(terms, config.name)
    if terms.releases and not own.releases:
        raise broken(f"this party, {config.name}, has a part in none of its releases")
    return own


def _companies(terms: plan_pb2.Terms) -> list[plan_pb2.Terms]:
    """The terms as each sum with this party's part has them; as they are where it is in no sum."""
    rosters = {roster_of(release, terms) for release in terms.releases if release.form not in ALONE}
    return [among(terms, each) for each in sorted(rosters)] or [terms]


def _admit_promise(terms: plan_pb2.Terms, config: PartyConfig) -> None:
    privacy = terms.privacy
    admit_guarantee(terms, config)
    if not privacy.unproven and not (math.isfinite(privacy.epsilon) and privacy.epsilon > 0 and 0 < privacy.delta < 1):
        raise broken(f"epsilon = {privacy.epsilon:g} and delta = {privacy.delta:g} promise nothing")
    if privacy.unit not in (plan_pb2.UNIT_RECORD, plan_pb2.UNIT_USER):
        raise broken("it does not say what it protects, a record or a user")
    if privacy.record not in (plan_pb2.RECORD_DOCUMENT, plan_pb2.RECORD_SENTENCE, plan_pb2.RECORD_PAIR):
        raise broken("it does not say what a record is")
    if privacy.unit == plan_pb2.UNIT_USER and config.shard.user is None:
        raise against("shard.user", "this party's shard has no user column, and the plan protects users")
    if privacy.insecure_reproducible_noise and not config.policy.simulation:
        raise against(
            "simulation",
            "simulation = false; insecure_reproducible_noise protects nobody and is for a simulation alone",
        )
    admit_trust(terms, config)
    if privacy.dropouts + privacy.colluders >= len(terms.parties):
        raise broken(f"{privacy.dropouts} dropouts and {privacy.colluders} colluders leave no honest party")


def _admit_release(release: plan_pb2.Release, terms: plan_pb2.Terms, config: PartyConfig) -> DpEvent:
    if not RELEASE_NAME.fullmatch(release.name):
        raise broken(f"{release.name[:40]!r} is no name for a release; use small letters, digits and hyphens")
    if not 1 <= release.charges <= MOST_CHARGES:
        raise broken(f"release {release.name} is charged {release.charges} times; use 1 to {MOST_CHARGES}")
    mechanism, form = mechanism_of(release), form_of(release)
    admit_proven(release, mechanism, terms, config)
    _admit_form(release, mechanism, form)
    shares = shares_of(mechanism)
    admit_shares(release, shares, among(terms, roster_of(release, terms)), config)
    _admit_size(mechanism, config)
    if form == Form.CLEAR_VOTES and not config.policy.clear_votes:
        raise against(
            "clear_votes",
            f"clear_votes = false; release {release.name} sends this party's votes to the coordinator, which adds "
            "the noise itself",
        )
    if form == Form.FREE:
        _admit_free(release, release.free.after, terms)
    if form == Form.SAID:
        _admit_said(release, terms)
    if form == Form.WEIGHTS and not config.policy.weights:
        raise against("weights", f"weights = false; release {release.name} sends the parameters of a model")
    if isinstance(mechanism, SamplesMechanism | SequencesMechanism):
        _admit_samples(release, mechanism, terms, config)
    least, noise = config.policy.minimum_noise, mechanism.noise_multiplier_charged()
    alone = terms.privacy.trust == plan_pb2.TRUST_TRUSTED_AGGREGATOR and shares > 1
    noise = noise / math.sqrt(shares) if alone else noise
    if least is not None and noise < least:
        whose = "at each party, as the aggregator sees it, " if alone else ""
        raise against(
            "minimum_noise",
            f"minimum_noise = {least:g}; release {release.name} has {whose}a noise multiplier of {noise:.4g}",
        )
    return event_of(release)


def _admit_samples(
    release: plan_pb2.Release,
    mechanism: SamplesMechanism | SequencesMechanism,
    terms: plan_pb2.Terms,
    config: PartyConfig,
) -> None:
    """Check that this party lets single texts leave under noise; and their labels as they are, where the plan calls
    them public, or promises nothing.
    """
    if not config.policy.samples:
        what = "vector" if isinstance(mechanism, SamplesMechanism) else "sequence"
        raise against(
            "samples",
            f"samples = false; release {release.name} sends a noisy {what} of each of {mechanism.rows:,} texts",
        )
    if not (isinstance(mechanism, SamplesMechanism) and mechanism.label_epsilon) and not config.policy.public_labels:
        raise against(
            "public_labels",
            f"public_labels = false; release {release.name} sends labels as they are. Plan with a label_epsilon",
        )
    if release.charges != 1:
        raise broken(f"release {release.name} is charged {release.charges} times; its rows are drawn once")
    if isinstance(mechanism, SamplesMechanism) and terms.privacy.unit == plan_pb2.UNIT_RECORD and mechanism.texts != 1:
        raise broken(f"a record is one text, and release {release.name} counts {mechanism.texts} of one unit")


def _admit_form(release: plan_pb2.Release, mechanism: Mechanism, form: Form) -> None:
    """Check that only a sum, whole or in steps, counts on noise that several parties add together.

    The parameters of a model that one party trained alone carry all the noise that is charged, so no sum has to
    complete it: they may leave, where the policy says so, under a secure sum as under a trusted aggregator.
    """
    if form.alone and mechanism.shares > 1:
        raise broken(f"release {release.name} counts on {mechanism.shares} noise shares, and each party trains alone")
    if form != Form.STEPPED:
        return
    if (steps := release.gradients.steps) > MOST_STEPS:
        raise broken(f"release {release.name} has {steps:,} steps; use {MOST_STEPS:,} at most")
    if release.charges != 1:
        raise broken(f"release {release.name} is charged {release.charges} times; each of its steps is charged once")


def _admit_queries(terms: plan_pb2.Terms, config: PartyConfig) -> None:
    most = config.policy.maximum_queries
    asked = {release.name: queries_of(release) for release in terms.releases}
    if most is not None and sum(asked.values()) > most:
        listed = ", ".join(f"{name} {queries:,}" for name, queries in asked.items() if queries)
        raise against(
            "maximum_queries", f"maximum_queries = {most:,}; this plan may ask {sum(asked.values()):,} ({listed})"
        )


def _admit_size(mechanism: Mechanism, config: PartyConfig) -> None:
    declared = config.policy.declared_size
    if declared is not None and declared * mechanism.most >= CAPACITY:
        raise against(
            "declared_size",
            f"declared_size = {declared}; so many records of {mechanism.most} levels may overflow a 32-bit sum; "
            f"levels up to {(CAPACITY - 1) // declared} would fit",
        )


def _admit_said(release: plan_pb2.Release, terms: plan_pb2.Terms) -> None:
    """Check that texts are free only after a training that the same terms charge, and that only the model that wrote
    texts says more, once: it is not trained again. Softened outcomes are not free: they are charged, as what has no
    guarantee.
    """
    if release.HasField("softened"):
        return
    if release.HasField("texts"):
        _admit_free(release, release.texts.after, terms)
        return
    after = release.targets.after
    if not any(each.name == after and each.HasField("texts") for each in terms.releases):
        raise broken(f"release {release.name} is free after {after[:40]!r}, which gives no texts")
    if [each.targets.after for each in terms.releases if each.HasField("targets")].count(after) > 1:
        raise broken(f"two releases are free after {after!r}; what wrote texts grades them once")


def _admit_free(release: plan_pb2.Release, after: str, terms: plan_pb2.Terms) -> None:
    """Check that answers are free only after a training that the same terms charge, under that training's name.

    Nothing else of that training may leave: it has one noise key, under which another start or other texts would be a
    second training that nobody paid for.
    """
    paid = [each for each in terms.releases if each.name == after]
    if not paid or Form.TRAINING not in mechanism_of(paid[0]).forms:
        raise broken(f"release {release.name} is free after {after[:40]!r}, which trains nothing privately")
    if (form := form_of(paid[0])) != Form.TRAINING:
        raise broken(
            f"release {release.name} is free after {after!r}, which gives its "
            f"{'steps' if form == Form.STEPPED else 'parameters'} itself; one training is one release"
        )
    free = [each.free.after for each in terms.releases if each.HasField("free")]
    if [*free, *(each.texts.after for each in terms.releases if each.HasField("texts"))].count(after) > 1:
        raise broken(f"two releases are free after {after!r}; one training is one set of teachers")
