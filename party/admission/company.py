"""Which other parties this party takes part with, and who is trusted with the sum.

A plan's list of parties is only the coordinator's claim. A party knows itself, and those whose signing keys its
administrator learned out of band and pinned in `[peers]`; the coordinator may have invented all others.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from party.config import PartyConfig
from party.releasing.mechanisms import against, broken
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.identity.certificates import IdentityError, fingerprint, read_certificate

MOST_ATTEMPTS: Final = 10


def unproven(terms: plan_pb2.Terms, config: PartyConfig) -> list[str]:
    """The plan's parties that may be invented: all that are neither this one nor pinned.

    In a simulation, whose text is not secret, there are none. `admit_peers` then checks that pinned parties show the
    keys that they are pinned by.
    """
    if config.policy.simulation:
        return []
    return _unpinned(terms, config)


def certain_shares(terms: plan_pb2.Terms, config: PartyConfig) -> int:
    """How many shares of noise are certain to be in a sum with this party's share, and unknown to an attacker.

    h = survivors - max(colluders, `unproven`), where survivors is parties - dropouts, or the plan's minimum of parties
    if that is smaller: invented parties count as colluders first, whoever is trusted with the sum. At least 1, because
    a sum without this party's own share does not contain its data either.
    """
    survivors = min(len(terms.parties) - terms.privacy.dropouts, terms.minimum_parties)
    return max(1, survivors - max(terms.privacy.colluders, len(unproven(terms, config))))


def admit_company(terms: plan_pb2.Terms, config: PartyConfig) -> None:
    """Raises `Refusal` (`minimum_parties`) where a sum may have fewer proven parties than the policy demands.

    A sum goes on with as few as the plan's `minimum_parties`, and these may include all the invented ones. This party
    is always among them: a sum without it does not contain its data.
    """
    policy, parties, strangers = config.policy, terms.parties, unproven(terms, config)
    rule = f"minimum_parties = {policy.minimum_parties}"
    if len(parties) < policy.minimum_parties:
        raise against("minimum_parties", f"{rule}, this plan has {len(parties)}")
    if terms.minimum_parties < policy.minimum_parties:
        raise against("minimum_parties", f"{rule}, this plan would go on with {terms.minimum_parties}")
    if terms.minimum_parties > len(parties):
        raise broken(f"it wants {terms.minimum_parties} parties and has {len(parties)}")
    if max(1, terms.minimum_parties - len(strangers)) < policy.minimum_parties:
        raise against(
            "minimum_parties",
            f"{rule}, this plan would go on with {terms.minimum_parties} of {len(parties)}, and {_named(strangers)} "
            f"not pinned here, so the coordinator could have made {_them(strangers)} up; pin fingerprints in [peers], "
            "as their administrators read them out",
        )


def admit_trust(terms: plan_pb2.Terms, config: PartyConfig) -> None:
    """Raises `Refusal` where the sum would be shown to more parties than the policy trusts, or is not what the plan
    calls it.

    A policy without `trust` demands the secure sum wherever peers are pinned. Where none is pinned, an aggregator is
    trusted only if the policy says so; in a simulation the plan decides. Under the secure sum a party that is not
    pinned counts as a colluder.
    """
    privacy, parties = terms.privacy, list(terms.parties)
    if not 0 <= privacy.attempts <= MOST_ATTEMPTS:
        raise broken(f"it would charge a release {privacy.attempts} times; use 1 to {MOST_ATTEMPTS}")
    if privacy.trust == plan_pb2.TRUST_TRUSTED_AGGREGATOR:
        if privacy.colluders or privacy.attempts > 1:
            raise broken("it speaks of colluders or attempts, and a trusted aggregator has neither")
        _admit_aggregator(config)
        return
    if privacy.trust != plan_pb2.TRUST_SECURE_SUM:
        raise broken("it does not say who is trusted with the sum")
    if len(parties) <= 2 * privacy.dropouts + privacy.colluders:
        raise broken(
            f"of {len(parties)} parties, {privacy.dropouts} dropouts and {privacy.colluders} colluders are too many "
            "for a secure sum"
        )
    if any(release.HasField("thresholded") for release in terms.releases):
        raise broken("it shows the coordinator votes, under a secure sum that shows it nothing but sums")
    strangers = _unpinned(terms, config)
    if len(strangers) > privacy.colluders:
        raise against(
            "peers",
            f"peers: {_named(strangers)} not pinned here, so the coordinator could have made {_them(strangers)} up, "
            f"and this plan allows {privacy.colluders} colluders; pin their fingerprints in [peers], as their "
            "administrators read them out",
        )


def admit_shares(release: plan_pb2.Release, shares: int, terms: plan_pb2.Terms, config: PartyConfig) -> None:
    """Raises `Refusal` where a release counts on more shares of noise than are certain.

    It is PLAN where the plan's own numbers show this, POLICY (`shares`) where the shares are those of parties that may
    have been invented.
    """
    privacy = terms.privacy
    honest = len(terms.parties) - privacy.dropouts - privacy.colluders
    if shares > honest:
        raise broken(
            f"release {release.name} counts on {shares} noise shares; "
            f"with the dropouts and colluders it allows, {honest} may be all there are"
        )
    if shares and terms.minimum_parties < shares + privacy.colluders:
        raise broken(
            f"it would go on with {terms.minimum_parties} parties, and release {release.name} counts on "
            f"{shares} noise shares"
        )
    certain, strangers = certain_shares(terms, config), unproven(terms, config)
    if shares > certain:
        raise against(
            "shares",
            f"shares: release {release.name} counts on {shares} noise shares, and {certain} may be all there are, for "
            f"{_named(strangers)} not pinned here and the coordinator could have made {_them(strangers)} up; pin "
            "fingerprints in [peers], as their administrators read them out",
        )


def admit_peers(peers: Sequence[party_pb2.Peer], terms: plan_pb2.Terms, config: PartyConfig) -> None:
    """Return when every party of the plan that `[peers]` pins has the pinned signing key, otherwise raise `Refusal`.

    The coordinator may run the certificate authority, so its certificate proves nobody to be a peer: only the
    fingerprint that was learned out of band does. A pinned party without a certificate, or with several keys, is
    refused as well. Parties that are not pinned pass here; `admit_company`, `admit_trust` and `admit_shares` do not
    count them.
    """
    parties, shown_by = set(terms.parties), defaultdict[str, set[str]](set)
    for peer in peers:
        if peer.name in config.peers:
            shown_by[peer.name].add(_fingerprint(peer.certificate))
    for name, pinned in sorted(config.peers.items()):
        if name not in parties:
            continue
        given = shown_by[name]
        if given != {pinned}:
            shown = " and ".join(sorted(given)) or "no certificate"
            raise against(
                "peers",
                f"peers: the signing key of party {name} is pinned as {pinned}, and the coordinator gives {shown}; "
                f"ask {name}'s administrator, not the coordinator, which key it is",
            )


def _admit_aggregator(config: PartyConfig) -> None:
    policy = config.policy
    if policy.trust == "trusted-aggregator" or (policy.simulation and policy.trust is None):
        return
    if policy.trust is None and not config.peers:
        raise against(
            "trust",
            "trust is not said, and this plan has the coordinator see each party's contribution (trusted-aggregator). "
            'Pin peers in [peers] for plans with trust = "secure-sum", or write trust = "trusted-aggregator" in '
            "[policy] if the coordinator may see contributions under this party's own noise alone",
        )
    why = "" if policy.trust else ", as wherever peers are pinned and the party file does not say otherwise"
    raise against(
        "trust",
        f'trust = "secure-sum"{why}; this plan has the coordinator see each party\'s contribution (trusted-aggregator)',
    )


def _unpinned(terms: plan_pb2.Terms, config: PartyConfig) -> list[str]:
    return sorted(set(terms.parties) - set(config.peers) - {config.name})


def _named(strangers: Sequence[str], most: int = 8) -> str:
    """A few of these parties by name, with the verb."""
    if len(strangers) > most:
        return f"{', '.join(strangers[:most])} and {len(strangers) - most:,} more are"
    return f"{', '.join(strangers) or 'nobody'} {'are' if len(strangers) > 1 else 'is'}"


def _them(strangers: Sequence[str]) -> str:
    return "it" if len(strangers) == 1 else "them"


@lru_cache(maxsize=2048)
def _fingerprint(certificate: bytes) -> str:
    """Of a certificate (DER); known where another simulated party of this process was shown the same."""
    try:
        return fingerprint(read_certificate(certificate))
    except IdentityError:
        return "something that is no certificate"
