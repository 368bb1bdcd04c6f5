"""`coordinator verify`: a folder left alone passes, and each way of changing one fails with its own sentence."""

import json
import os
import re
import shutil
import time
from datetime import UTC, datetime, timedelta

import pytest
from dp_accounting import GaussianDpEvent

from aggregation.accounting.events import to_json
from aggregation.accounting.price import price
from coordinator.console.command import main
from coordinator.published import manifest
from coordinator.published.folder import LARGEST_TEXT
from coordinator.published.manifest import Seal
from coordinator.publishing.report import promised, state
from coordinator.systems.registry import plan_of, price_of
from coordinator.verifying.check import Trust
from coordinator.verifying.verify import verify
from protos.conclave.v1 import plan_pb2
from protos.digest import canonical, plan_hash
from protos.fields import word
from protos.identity.authority import new_authority
from protos.identity.certificates import Role, pem_of
from protos.identity.identity import Identity, self_made
from protos.identity.requests import Request, key_pem, new_keys
from protos.identity.signing import Signed, canonical_json, sign

RUN = "7f3a-demo"
PARTIES = ("east", "north", "south", "west")
FILES = (
    "0_StaticEmbedding/model.safetensors",
    "README.md",
    *(f"attestations/{name}.{kind}" for name in PARTIES for kind in ("json", "pem", "sig")),
    "coordinator.pem",
    "manifest.json",
    "manifest.sig",
    "plan.json",
    "privacy.json",
    "vectors.txt",
)


def plan(seed=7, epsilon=6.0, signals=("counts",), **privacy):
    return plan_of(
        {
            "run": {"name": "demo", "recipe": "dped", "seed": seed},
            "privacy": {"epsilon": epsilon, "delta": 1e-6, "dropouts": 1} | privacy,
            "federation": {
                "launch": "connect",
                "parties": [{"name": name, "address": "127.0.0.1:7443"} for name in PARTIES],
            },
            "vocabulary": {"source": "public.jsonl", "size": 30},
            "dped": {"signals": list(signals), "dimension": 4},
        }
    )


def identity(authority, name, role=Role.PARTY, **dates):
    transport, signing = new_keys()
    issued = authority.issue(Request(name, transport.public_key(), signing.public_key()), role, **dates)
    return Identity(name, role, issued.transport, key_pem(transport), issued.signing, signing, issued.authority)


class Federation:
    """An authority, the ends that it vouches for, and a bound plan."""

    def __init__(self):
        self.authority = new_authority("consortium")
        self.coordinator = identity(self.authority, "coordinator.consortium.example", Role.COORDINATOR)
        self.parties = {name: identity(self.authority, name) for name in PARTIES}
        self.priced = price_of(plan())

    def attestation(self, name, *, signer=None, priced=None, times=1, **changes):
        """What a party signs of the run; `changes` are fields that it states otherwise."""
        priced = priced or self.priced
        privacy = priced.plan.privacy
        fields = {
            "party": name,
            "run": RUN,
            "plan_hash": plan_hash(priced.binding).hex(),
            "account": "00" * 16,
            "unit": privacy.unit,
            "record": privacy.record,
            "relation": "add or remove one unit at one party",
            "insecure_reproducible_noise": privacy.insecure_reproducible_noise,
            "simulation": False,
            "releases": [
                {"name": each.name, "attempt": attempt, "event": to_json(each.event)}
                for each in priced.releases
                for attempt in range(times)
            ],
            "software": "0.1.0",
            "signed_at": int(time.time()),
        }
        return sign(signer or self.parties[name], "conclave attestation 1", fields | changes)

    def publish(
        self,
        folder,
        *,
        priced=None,
        attestations=None,
        not_attested=None,
        coordinator=None,
        alter=lambda privacy: None,
        binding=None,
        sums=None,
        card=None,
        left_out=None,
        attested_at=None,
        signed_at=None,
    ):
        """A student's folder, signed by the coordinator whatever is in it; by default all is well.

        attestations: of some parties, others than their own of this run (None: none). alter: changes privacy.json.
        """
        priced = priced or self.priced
        digest = plan_hash(binding or priced.binding).hex()
        signed = {name: self.attestation(name, priced=priced) for name in PARTIES} | (attestations or {})
        statement = state(priced, PARTIES, digest, {}, run=RUN, sums=sums or {}, left_out=left_out or {})
        alter(statement.privacy)
        (folder / "0_StaticEmbedding").mkdir(parents=True)
        (folder / "0_StaticEmbedding/model.safetensors").write_bytes(bytes(range(256)) * 64)
        (folder / "vectors.txt").write_text("1 2\napple 0.5 0.25\n")
        (folder / "privacy.json").write_text(json.dumps(statement.privacy, indent=2))
        (folder / "README.md").write_text(card or f"# demo\n\n{promised(statement.privacy)}\n")
        manifest.write(
            folder,
            Seal(
                run=RUN,
                plan_hash=digest,
                binding=binding or priced.binding,
                identity=coordinator or self.coordinator,
                attestations={name: each for name, each in signed.items() if each is not None},
                not_attested=not_attested or {},
                attested_at=attested_at or signed_at or time.time(),
                signed_at=signed_at or time.time(),
            ),
        )
        return folder

    @property
    def trust(self):
        return Trust(self.authority.certificate, None)


@pytest.fixture(scope="module")
def federation():
    return Federation()


@pytest.fixture(scope="module")
def original(federation, tmp_path_factory):
    return federation.publish(tmp_path_factory.mktemp("published") / "student")


@pytest.fixture
def folder(original, tmp_path):
    """A folder that passes, to be changed."""
    return shutil.copytree(original, tmp_path / "copy")


def wrong(folder, trust):
    """Every sentence of what is wrong, by check."""
    verdict = verify(folder, trust)
    assert verdict.ok == all(each.ok for each in verdict.checks)
    assert [each.name for each in verdict.checks] == ["files", "signer", "parties", "plan", "privacy", "card", "trust"]
    return {each.name: "\n".join(each.sentences) for each in verdict.checks if not each.ok}


def resealed(folder, federation, change):
    """Sign the manifest again as the coordinator would, after changing its fields."""
    fields = json.loads((folder / "manifest.json").read_bytes())
    del fields["kind"]
    change(fields)
    signed = sign(federation.coordinator, manifest.KIND, fields)
    (folder / "manifest.json").write_bytes(signed.payload)
    (folder / "manifest.sig").write_bytes(signed.signature)


@pytest.mark.slow
@pytest.mark.parametrize("trusted", [True, False])
def test_a_folder_that_was_left_alone_passes(federation, original, trusted):
    assert {path.relative_to(original).as_posix() for path in original.rglob("*") if path.is_file()} == set(FILES)
    assert wrong(original, federation.trust if trusted else None) == {}


@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("path", FILES)
def test_one_flipped_byte_of_any_file_is_found(federation, folder, path, where):
    content = bytearray((folder / path).read_bytes())
    content[{"first": 0, "middle": len(content) // 2, "last": -1}[where]] ^= 1
    (folder / path).write_bytes(content)
    for trust in (None, federation.trust):
        found = wrong(folder, trust)
        if path == "manifest.json":
            assert "manifest.json" in found["signer"] or "manifest.json" in found["files"]
        elif path == "manifest.sig":
            assert set(found) == {"signer"}
            assert "does not bear the signature" in found["signer"]
        else:
            assert f"{path} was altered" in found["files"]


@pytest.mark.parametrize("path", FILES)
def test_a_file_that_is_missing_or_larger_is_named(federation, folder, path):
    content = (folder / path).read_bytes()
    (folder / path).unlink()
    found = wrong(folder, federation.trust)
    assert f"{path} is missing." in "\n".join(found.values())
    (folder / path).write_bytes(content + b"\n")
    found = wrong(folder, federation.trust)
    assert "signer" in found if path.startswith("manifest.") else f"{path} has " in found["files"]


def test_a_file_that_was_added_is_named(federation, folder):
    (folder / "attestations/notes.txt").write_text("hello")
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    found = wrong(folder, federation.trust)
    assert "pytorch_model.bin was not there when the folder was signed." in found["files"]
    assert "attestations/notes.txt belongs to no party" in found["parties"]


def test_links_and_devices_are_named_and_never_opened(federation, folder, tmp_path):
    (tmp_path / "elsewhere.txt").write_bytes((folder / "vectors.txt").read_bytes())
    (folder / "vectors.txt").unlink()
    (folder / "vectors.txt").symlink_to(tmp_path / "elsewhere.txt")
    (folder / "up").symlink_to("..")
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")
    found = wrong(folder, federation.trust)
    assert "vectors.txt is a symbolic link" in found["files"]
    assert "up is a symbolic link" in found["files"]
    assert "README.md is not a plain file" in found["files"]
    assert "README.md is missing" in found["card"]


def test_a_folder_that_was_added_is_named_though_it_is_empty(federation, folder):
    (folder / "1_Pooling/inner").mkdir(parents=True)
    assert wrong(folder, federation.trust) == {
        "files": "1_Pooling is a folder that holds nothing that was signed.\n"
        "1_Pooling/inner is a folder that holds nothing that was signed."
    }


def test_a_hard_link_is_named_though_its_content_is_what_was_signed(federation, folder, tmp_path):
    os.link(folder / "vectors.txt", tmp_path / "elsewhere.txt")
    assert wrong(folder, federation.trust) == {
        "files": "vectors.txt is a hard link: the same file has another name. Copy the folder."
    }


@pytest.mark.parametrize(
    "path", ["../copy/vectors.txt", "/etc/passwd", "a//b", "./vectors.txt", "manifest.json", "a\\b"]
)
def test_a_path_that_leaves_the_folder_is_refused_though_it_is_signed(federation, folder, path):
    resealed(folder, federation, lambda fields: fields["files"].update({path: {"sha256": "0" * 64, "bytes": 1}}))
    assert set(found := wrong(folder, federation.trust)) == {"files"}
    assert f"The manifest lists {path}, which is no path inside the folder." in found["files"]


def test_an_attestation_that_is_taken_away_is_missed_even_when_the_rest_is_signed_anew(federation, folder, tmp_path):
    for path in (folder / "attestations").glob("north.*"):
        path.unlink()
    found = wrong(folder, federation.trust)
    assert "attestations/north.json is missing." in found["files"]
    assert "north's attestation: attestations/north.json is missing." in found["parties"]
    silent = federation.publish(tmp_path / "silent", attestations={"north": None})
    assert wrong(silent, federation.trust) == {"parties": "north attests nothing, and nothing says why."}
    excused = federation.publish(
        tmp_path / "excused", attestations={"north": None}, not_attested={"north": "no answer"}
    )
    found = wrong(excused, federation.trust)
    assert set(found) == {"parties"}
    assert found["parties"].startswith("north took part to the end and attests nothing (no answer)")


@pytest.mark.slow
def test_a_party_that_was_lost_on_the_way_needs_no_attestation_and_is_named(federation, tmp_path):
    priced = price_of(plan(signals=("counts", "hidden")))
    own = {name: federation.attestation(name, priced=priced) for name in PARTIES}
    folder = federation.publish(
        tmp_path / "student",
        priced=priced,
        attestations=own | {"west": None},
        not_attested={"west": "no answer for 60 s"},
        sums={"answers": ("east", "north", "south")},
        alter=lambda privacy: privacy["parties"].update(in_the_sum=3),
    )
    verdict = verify(folder, federation.trust)
    assert verdict.ok, verdict.checks
    (sentence,) = verdict.checks[2].sentences
    assert sentence.startswith("3 of 4 attestations, none altered (the promise needs 3); signed at ")
    assert sentence.endswith("; west attests nothing (no answer for 60 s)")


def forge(federation, name, how):
    """An attestation in north's place that is not north's of this run."""
    stranger = new_authority("another consortium")
    now = datetime.now(UTC)
    if how == "another party's":
        return federation.attestation("south")
    if how == "another party's, renamed":
        return federation.attestation(name, signer=federation.parties["south"])
    if how == "of another authority":
        return federation.attestation(name, signer=identity(stranger, name))
    if how == "of another run":
        return federation.attestation(name, run="9c01-earlier")
    if how == "of another plan":
        return federation.attestation(name, priced=price_of(plan(seed=8)))
    if how == "by a coordinator":
        return federation.attestation(name, signer=identity(federation.authority, name, Role.COORDINATOR))
    if how == "expired":
        long_ago = {"not_before": now - timedelta(days=9), "days": 2}
        return federation.attestation(name, signer=identity(federation.authority, name, **long_ago))
    if how == "altered":
        own = federation.attestation(name)
        return Signed(own.payload.replace(b'"simulation":false', b'"simulation":true'), own.signature, own.certificate)
    assert how == "of another kind"
    own = json.loads(federation.attestation(name).payload)
    del own["kind"]
    return sign(federation.parties[name], "conclave describe 1", own)


@pytest.mark.parametrize(
    ("how", "says", "without"),
    [
        ("another party's", "was shown where party north was expected", True),
        ("another party's, renamed", "was shown where party north was expected", True),
        ("of another authority", "was issued by another authority", False),
        ("of another run", "north attests run 9c01-earlier, not this run 7f3a-demo.", True),
        ("of another plan", "north attests a run of another plan.", True),
        ("by a coordinator", "is not a party's for signing", True),
        ("expired", "expired at", True),
        ("altered", "does not bear the signature", True),
        ("of another kind", 'is signed but is a "conclave describe 1"', True),
    ],
)
def test_a_foreign_attestation_fails_though_the_coordinator_signed_the_folder(federation, tmp_path, how, says, without):
    folder = federation.publish(tmp_path / "student", attestations={"north": forge(federation, "north", how)})
    found = wrong(folder, federation.trust)
    assert set(found) == {"parties"}
    assert says in found["parties"]
    assert (wrong(folder, None) == {}) != without


def test_an_attestation_that_is_swapped_for_the_same_partys_older_key_is_found(federation, folder):
    resealed(folder, federation, lambda fields: fields["parties"]["north"].update(fingerprint="SHA256:" + "0" * 64))
    assert wrong(folder, federation.trust) == {
        "parties": "north's attestation is signed with another key than the manifest names."
    }


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"unit": "user"}, "north attests unit user; privacy.json says record."),
        ({"record": "pair"}, "north attests record pair; privacy.json says document."),
        ({"relation": "replace one"}, "north attests relation replace one;"),
        ({"insecure_reproducible_noise": True}, "north attests insecure_reproducible_noise True;"),
        ({"releases": []}, "north is in the sum of counts and does not attest its cost."),
        (
            {"releases": [{"name": "counts", "attempt": 0, "event": to_json(GaussianDpEvent(0.1))}]},
            "north attests another event for counts than privacy.json has",
        ),
        (
            {"releases": [{"name": "more", "attempt": 0, "event": {"kind": "no-op"}}]},
            "north attests a charge for more, which privacy.json does not know.",
        ),
        ({"releases": [{"name": "counts", "attempt": 0, "event": {"kind": "free"}}]}, "that cannot be read"),
        ({"releases": 5}, "attestations/north.json: releases = 5 should be a valid list."),
        ({"signed_at": -1}, "attestations/north.json: signed_at = -1 should be greater than or equal to 0."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_an_attestation_of_something_else_fails(federation, tmp_path, changes, says):
    own = federation.attestation("north", **changes)
    found = wrong(federation.publish(tmp_path / "student", attestations={"north": own}), federation.trust)
    assert says in found["parties"]


def test_a_party_whose_first_attempt_was_refunded_attests_the_later_one_alone(federation, tmp_path):
    (release,) = federation.priced.releases
    later = [{"name": "counts", "attempt": 2, "event": to_json(release.event)}]
    own = {name: federation.attestation(name, releases=later) for name in ("north", "south")}
    verdict = verify(federation.publish(tmp_path / "student", attestations=own), federation.trust)
    assert verdict.ok, verdict.checks
    assert "more time" not in verdict.checks[2].sentences[0]


@pytest.mark.slow
def test_a_party_that_was_charged_twice_is_priced_for_it(federation, tmp_path):
    often = {"north": federation.attestation("north", times=2)}
    found = wrong(federation.publish(tmp_path / "student", attestations=often), federation.trust)
    assert set(found) == {"privacy"}
    (release,) = federation.priced.releases
    truly = price([release.event, release.event], 1e-6).epsilon
    said = re.fullmatch(
        r"Recomputed from the events that north attests, epsilon is (.*), above the stated 5\.99\d+\.", found["privacy"]
    )
    assert float(said[1]) == pytest.approx(truly, rel=1e-3)
    priced = price_of(plan(epsilon=20.0, noise_multiplier=4.0))
    own = {name: federation.attestation(name, priced=priced) for name in PARTIES}
    own["north"] = federation.attestation("north", priced=priced, times=2)

    def more(privacy):
        privacy |= {"epsilon": 3.0, "sampler_delta": 1e-12}

    folder = federation.publish(tmp_path / "paid", priced=priced, attestations=own, alter=more)
    verdict = verify(folder, federation.trust)
    assert verdict.ok, verdict.checks
    assert verdict.checks[2].sentences[0].endswith("; north was charged counts 1 more time")


EXTRA = {"name": "more", "attempt": 0, "event": to_json(GaussianDpEvent(0.5))}
OVER = "it was charged for more than this run's plan"


def charged_more(federation, *names):
    """Attestations of a paid run, and of these parties of a charge besides that no plan of it knows."""
    (release,) = federation.priced.releases
    paid = {"name": release.name, "attempt": 0, "event": to_json(release.event)}
    return {name: federation.attestation(name, releases=[paid, EXTRA]) for name in names}


def test_a_charge_that_no_plan_knows_is_that_partys_affair_where_the_promise_leaves_it_out(federation, tmp_path):
    own = charged_more(federation, "north")
    folder = federation.publish(tmp_path / "student", attestations=own, left_out={"north": OVER})
    verdict = verify(folder, federation.trust)
    assert verdict.ok, verdict.checks
    assert f"; north is left out of the promise: {OVER}" in verdict.checks[2].sentences[0]
    assert f"Nothing is promised for north: {OVER}." in (folder / "README.md").read_text()
    kept = wrong(federation.publish(tmp_path / "kept", attestations=own), federation.trust)
    assert kept["parties"].startswith("north attests a charge for more, which privacy.json does not know.")


def test_a_party_that_was_charged_too_often_is_left_out_alone(federation, tmp_path):
    own = {"north": federation.attestation("north", times=2)}
    folder = federation.publish(tmp_path / "student", attestations=own, left_out={"north": OVER})
    assert wrong(folder, federation.trust) == {}


def test_a_party_that_attests_nothing_is_left_out_where_the_promise_says_so(federation, tmp_path):
    folder = federation.publish(
        tmp_path / "student",
        attestations={"north": None},
        not_attested={"north": "it signed nothing that counts"},
        left_out={"north": "what the run cost there is the coordinator's word alone"},
    )
    verdict = verify(folder, federation.trust)
    assert verdict.ok, verdict.checks
    assert verdict.checks[2].sentences[0].startswith("3 of 4 attestations")
    assert "; north is left out of the promise: what the run cost there" in verdict.checks[2].sentences[0]


def test_parties_that_are_left_out_do_not_count_for_the_promise_of_the_others(federation, tmp_path):
    own, out = charged_more(federation, "north", "west"), {"north": OVER, "west": OVER}
    found = wrong(federation.publish(tmp_path / "student", attestations=own, left_out=out), federation.trust)
    assert found == {"parties": "2 of 4 parties attest validly what the run cost them, and the promise needs 3."}


def test_a_card_that_does_not_say_who_is_left_out_fails(federation, tmp_path):
    folder = federation.publish(
        tmp_path / "student",
        attestations=charged_more(federation, "north"),
        left_out={"north": OVER},
        card=f"# demo\n\n{(federation.publish(tmp_path / 'other') / 'README.md').read_text()}",
    )
    assert wrong(folder, federation.trust) == {"card": "README.md does not promise what privacy.json states."}


@pytest.mark.slow
def test_each_sum_needs_as_many_attestations_as_the_promise(federation, tmp_path):
    """Three parties attest, and one of them is not in the sum of answers: two vouch for its noise."""
    priced = price_of(plan(signals=("counts", "hidden")))
    counts, answers = priced.releases if priced.releases[0].name == "counts" else priced.releases[::-1]
    own = {name: federation.attestation(name, priced=priced) for name in PARTIES}
    paid = [{"name": counts.name, "attempt": 0, "event": to_json(counts.event)}]
    own |= {"east": federation.attestation("east", priced=priced, releases=paid), "west": None}
    folder = federation.publish(
        tmp_path / "student",
        priced=priced,
        attestations=own,
        not_attested={"west": "no answer"},
        sums={"counts": ("east", "north", "south"), answers.name: ("north", "south", "west")},
        alter=lambda privacy: privacy["parties"].update(in_the_sum=2),
    )
    assert wrong(folder, federation.trust) == {
        "parties": "2 of 3 parties in the sum of answers attest validly what it cost, and the promise needs 3."
    }


def test_a_plan_that_asks_for_nobody_needs_one_attestation_all_the_same(federation, tmp_path):
    binding = plan_pb2.Plan()
    binding.CopyFrom(federation.priced.binding)
    binding.terms.minimum_parties = 0
    silent = dict.fromkeys(PARTIES, "no answer")
    folder = federation.publish(
        tmp_path / "student",
        binding=binding,
        attestations=dict.fromkeys(PARTIES),
        not_attested=silent,
        left_out=silent,
    )
    found = wrong(folder, federation.trust)
    assert found["parties"] == "0 of 4 parties attest validly what the run cost them, and the promise needs 1."
    assert "The plan goes on with 0 parties, and counts counts on the noise of 3" in found["privacy"]


def swapped(privacy):
    privacy["releases"][0]["event"]["noise_multiplier"] *= 2


def smaller(privacy):
    privacy["epsilon"] *= 0.999


def larger(privacy):
    privacy["epsilon"] = 7.0


def other_delta(privacy):
    privacy["delta"] = 1e-5


def all_delta(privacy):
    privacy["sampler_delta"] = 9e-7


def no_sampler(privacy):
    privacy["sampler_delta"] = 0.0


def other_mechanism(privacy):
    privacy["releases"][0]["mechanism"]["clip"] = 1.0


def no_release(privacy):
    privacy["releases"][0]["name"] = "answers"


def no_values(privacy):
    privacy["releases"][0]["values"] = 0


def few(privacy):
    privacy["releases"][0]["parties"] = ["east", "north"]


def strange(privacy):
    privacy["releases"][0]["parties"] = ["east", "north", "zenith"]


def other_trust(privacy):
    privacy["trust"] = "secure-sum"


def other_run(privacy):
    privacy["run"] = "9c01-earlier"


def none_claimed(privacy):
    privacy["epsilon"] = privacy["delta"] = None


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (swapped, "privacy.json has another event for counts than the plan's mechanism costs."),
        (smaller, "Recomputed from the events in privacy.json, epsilon is"),
        (larger, "The stated epsilon 7 is above the 6 of the plan."),
        (other_delta, "privacy.json says delta 1e-05; by the plan it is 1e-06."),
        (all_delta, "privacy.json says the sampler takes 9e-07 of delta, more than a run admits."),
        (no_sampler, "of delta; privacy.json says 0."),
        (other_mechanism, "privacy.json describes another mechanism for counts than the plan has."),
        (no_release, "privacy.json lists other releases than the plan."),
        (no_values, "privacy.json says that no value was released under counts"),
        (few, "2 parties are in the sum of counts and the plan needs 3"),
        (strange, "privacy.json names parties in the sum of counts that the plan does not have"),
        (other_trust, "privacy.json says trust secure-sum; by the plan it is trusted-aggregator."),
        (other_run, "privacy.json is of another run than the manifest."),
        (none_claimed, "privacy.json states no epsilon and delta"),
    ],
)
def test_a_promise_that_does_not_follow_fails_though_the_coordinator_signed_it(federation, tmp_path, alter, says):
    found = wrong(federation.publish(tmp_path / "student", alter=alter), federation.trust)
    assert says in found["privacy"]


def test_an_event_that_the_coordinator_swapped_is_not_what_the_parties_signed(federation, tmp_path):
    found = wrong(federation.publish(tmp_path / "student", alter=swapped), federation.trust)
    for name in PARTIES:
        assert f"{name} attests another event for counts than privacy.json has" in found["parties"]


def test_another_plan_fails_whoever_signed_it(federation, folder, tmp_path):
    other = price_of(plan(seed=8)).binding
    (folder / "plan.json").write_bytes(canonical(other))
    found = wrong(folder, federation.trust)
    assert "plan.json was altered" in found["files"] or "plan.json has" in found["files"]
    assert found["plan"] == "plan.json is another plan than the one that this run was bound to."
    signed = wrong(federation.publish(tmp_path / "signed", binding=other), federation.trust)
    assert set(signed) == {"parties"}
    assert signed["parties"].count("attests a run of another plan.") == len(PARTIES)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lambda plan: json.dumps(json.loads(plan)).encode(), "plan.json is not in canonical form"),
        (lambda plan: plan.replace(b'"terms"', b'"rules"'), "plan.json is no plan"),
        (lambda plan: plan.replace(b'"seed":"7"', b'"seed":NaN'), "NaN is no number"),
        (lambda plan: plan.replace(b'"seed":"7"', b'"seed":"7","seed":"7"'), "a key is there twice"),
        (lambda plan: b"\xff" + plan, "plan.json is not UTF-8 text (byte 0)."),
    ],
    ids=["spaces", "another shape", "NaN", "a key twice", "no text"],
)
def test_a_plan_that_is_none_is_told(federation, folder, content, says):
    (folder / "plan.json").write_bytes(content((folder / "plan.json").read_bytes()))
    assert says in wrong(folder, federation.trust)["plan"]


def test_a_card_that_promises_more_fails_though_it_is_signed(federation, tmp_path):
    folder = federation.publish(tmp_path / "student", card="# demo\n\nepsilon = 0.100, up to delta = 1e-06.\n")
    assert wrong(folder, federation.trust) == {"card": "README.md does not promise what privacy.json states."}


def test_whoever_signs_a_changed_folder_anew_is_found_by_the_authority_alone(federation, tmp_path):
    other = Federation()
    other.priced = federation.priced
    folder = other.publish(tmp_path / "student")
    assert wrong(folder, None) == {}
    found = wrong(folder, federation.trust)
    assert "was issued by another authority" in found["signer"]
    assert found["parties"].count("was issued by another authority") == len(PARTIES)
    *_, last = verify(folder).checks
    assert (last.name, last.ok) == ("trust", True)
    assert "can only find accidental damage" in last.sentences[0]


@pytest.mark.parametrize(
    ("role", "dates", "says"),
    [
        (Role.PARTY, {}, "is not a coordinator's for signing"),
        (Role.COORDINATOR, {"not_before": datetime(2020, 1, 1, tzinfo=UTC), "days": 30}, "expired at 2020-01-31"),
        (Role.COORDINATOR, {"not_before": datetime(2999, 1, 1, tzinfo=UTC)}, "is not valid before 2999-01-01"),
    ],
    ids=["a party's", "expired", "not yet valid"],
)
def test_a_signer_with_the_wrong_certificate_fails(federation, tmp_path, role, dates, says):
    signer = identity(federation.authority, "coordinator", role, **dates)
    found = wrong(federation.publish(tmp_path / "student", coordinator=signer), federation.trust)
    assert set(found) == {"signer"}
    assert says in found["signer"]


THEN = datetime(2020, 1, 10, tzinfo=UTC)
DATES = {"not_before": datetime(2020, 1, 1, tzinfo=UTC), "days": 30}


def of_then(federation, at=THEN):
    """Attestations of that time, under certificates that have expired since."""
    return {
        name: federation.attestation(
            name, signer=identity(federation.authority, name, **DATES), signed_at=at.timestamp()
        )
        for name in PARTIES
    }


def test_a_certificate_that_expired_after_it_signed_is_well_where_others_vouch_for_the_time(federation, tmp_path):
    signer = identity(federation.authority, "coordinator", Role.COORDINATOR, **DATES)
    folder = federation.publish(
        tmp_path / "student", coordinator=signer, attestations=of_then(federation), signed_at=THEN.timestamp()
    )
    verdict = verify(folder, federation.trust)
    assert verdict.ok, verdict.checks
    (sentence,) = verdict.checks[1].sentences
    assert sentence == (
        "coordinator, signed at 2020-01-10 00:00 UTC, certificate expired on 2020-01-31, after it signed this"
    )
    assert "signed at 2020-01-10 00:00 UTC, received at 2020-01-10 00:00 UTC" in verdict.checks[2].sentences[0]


def test_a_coordinator_that_expired_cannot_date_a_run_of_today_back(federation, tmp_path):
    signer = identity(federation.authority, "coordinator", Role.COORDINATOR, **DATES)
    for number, attested_at in enumerate((THEN.timestamp(), time.time())):
        folder = federation.publish(
            tmp_path / f"{number}", coordinator=signer, signed_at=THEN.timestamp(), attested_at=attested_at
        )
        assert "signer" in wrong(folder, federation.trust)
    assert wrong(folder, federation.trust)["signer"].startswith(
        "manifest.json says that it was signed at 2020-01-10 00:00 UTC, and what it lists is of "
    )


def test_a_party_that_expired_cannot_date_its_statement_back(federation, tmp_path):
    own = {"north": of_then(federation)["north"]}
    found = wrong(federation.publish(tmp_path / "student", attestations=own), federation.trust)
    assert found["parties"].startswith(
        "north says that it signed at 2020-01-10 00:00 UTC, and the coordinator that this came at "
    )


def test_a_certificate_has_to_be_valid_at_both_of_the_times_that_are_stated(federation, tmp_path):
    now = datetime.now(UTC)
    signer = identity(federation.authority, "north", not_before=now - timedelta(days=9), days=8)
    own = {"north": federation.attestation("north", signer=signer, signed_at=(now - timedelta(hours=30)).timestamp())}
    found = wrong(federation.publish(tmp_path / "student", attestations=own), federation.trust)
    assert found["parties"].startswith(
        "north's attestation: when the coordinator received it, the certificate of party north expired at "
    )


def test_without_a_second_word_on_the_time_an_expired_certificate_fails(federation, tmp_path):
    signer = identity(federation.authority, "coordinator", Role.COORDINATOR, **DATES)
    folder = federation.publish(
        tmp_path / "student", coordinator=signer, attestations=of_then(federation), signed_at=THEN.timestamp()
    )
    fields = json.loads((folder / "manifest.json").read_bytes())
    del fields["kind"], fields["attested_at"]
    signed = sign(signer, manifest.KIND, fields)
    (folder / "manifest.json").write_bytes(signed.payload)
    (folder / "manifest.sig").write_bytes(signed.signature)
    found = wrong(folder, federation.trust)
    assert found["signer"].endswith("and nobody else vouches for the time of its signature.")
    for name in PARTIES:
        assert f"Nobody but {name} says when it signed: " in found["parties"]


def test_a_manifest_that_says_nothing_of_when_it_had_the_attestations_stands_while_certificates_do(federation, folder):
    resealed(folder, federation, lambda fields: fields.pop("attested_at"))
    assert wrong(folder, federation.trust) == {}


def test_a_signature_of_the_future_fails(federation, tmp_path):
    later = time.time() + 3 * 86400
    attestations = {"north": federation.attestation("north", signed_at=later)}
    folder = federation.publish(
        tmp_path / "student", signed_at=later, attested_at=time.time(), attestations=attestations
    )
    found = wrong(folder, federation.trust)
    assert found["signer"] == "manifest.json says that it was signed in the future; a clock is wrong."
    assert found["parties"].startswith("north says that it signed in the future")


@pytest.mark.parametrize("who", ["coordinator", "north"])
def test_a_revoked_certificate_fails(federation, original, tmp_path, who):
    end = federation.coordinator if who == "coordinator" else federation.parties[who]
    (tmp_path / "ca.pem").write_bytes(pem_of(federation.authority.certificate))
    for serials, ok in (([], True), ([end.signing.serial_number], False)):
        (tmp_path / "revoked.pem").write_bytes(federation.authority.revocation_list(serials))
        found = wrong(original, Trust.read(tmp_path / "ca.pem", tmp_path / "revoked.pem"))
        assert (found == {}) == ok
    assert "was revoked by the federation's authority" in found["signer" if who == "coordinator" else "parties"]


def test_a_run_without_a_guarantee_claims_none(federation, tmp_path):
    priced = price_of(plan(insecure_reproducible_noise=True))
    own = {name: federation.attestation(name, priced=priced, simulation=True) for name in PARTIES}
    verdict = verify(federation.publish(tmp_path / "student", priced=priced, attestations=own), federation.trust)
    assert verdict.ok, verdict.checks
    said = {each.name: each.sentences[0] for each in verdict.checks}
    assert said["privacy"].startswith("no guarantee claimed")
    assert "nothing is claimed between its parties" in said["trust"]

    def claimed(privacy):
        privacy |= {"epsilon": 1.0, "delta": 1e-6}

    found = wrong(
        federation.publish(tmp_path / "claimed", priced=priced, attestations=own, alter=claimed), federation.trust
    )
    assert "privacy.json states an epsilon, and the noise can be reproduced" in found["privacy"]


def test_self_made_identities_are_well_where_no_authority_is_named(federation, tmp_path):
    made = {name: self_made(name, Role.PARTY, None) for name in PARTIES}
    own = {name: federation.attestation(name, signer=signer) for name, signer in made.items()}
    coordinator = self_made("coordinator.local", Role.COORDINATOR, None)
    folder = federation.publish(tmp_path / "student", attestations=own, coordinator=coordinator)
    assert wrong(folder, None) == {}
    assert set(wrong(folder, federation.trust)) == {"signer", "parties"}


HOSTILE = {
    "nothing": b"",
    "no JSON": b"\x00\x01\x02",
    "no text": b'{"format": "\xff"}',
    "no object": b"[]",
    "NaN": b'{"format": NaN}',
    "infinity": b'{"format": 1e999}',
    "a long number": b'{"format": ' + b"9" * 10_000 + b"}",
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep object": b'{"format":' * 500 + b"1" + b"}" * 500,
    "a key twice": b'{"format": 1, "format": 1}',
    "keys missing": b"{}",
    "other types": json.dumps(
        {key: [[]] for key in ("format", "run", "files", "releases", "parties", "epsilon", "delta", "terms", "kind")}
    ).encode(),
    "half a character": b'{"run": "\\ud800", "document": "\\ud800"}',
}


@pytest.mark.parametrize("path", ["manifest.json", "privacy.json", "plan.json", "attestations/north.json"])
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_whatever_a_file_holds_ends_in_sentences(federation, folder, path, content):
    (folder / path).write_bytes(content)
    for trust in (None, federation.trust):
        found = wrong(folder, trust)
        assert found
        for sentence in "\n".join(found.values()).splitlines():
            assert sentence.isprintable()
            assert sentence.endswith(".")
            assert len(sentence) < 800


@pytest.mark.parametrize(
    "path", ["coordinator.pem", "attestations/north.pem", "manifest.sig", "attestations/north.sig"]
)
@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 64, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_whatever_a_certificate_or_signature_holds_ends_in_sentences(federation, folder, path, content):
    (folder / path).write_bytes(content)
    found = wrong(folder, federation.trust)
    assert found["signer" if "/" not in path else "parties"].isprintable()


@pytest.mark.parametrize("path", ["manifest.json", "privacy.json", "plan.json", "README.md", "attestations/north.json"])
def test_a_file_that_is_too_large_is_not_read(federation, folder, path):
    with (folder / path).open("r+b") as file:
        file.truncate(LARGEST_TEXT + 1)  # sparse
    found = wrong(folder, federation.trust)
    assert f"{path} is larger than 16 MiB, so it was not read." in "\n".join(found.values())


def test_words_of_the_folder_cannot_write_on_the_terminal(federation, folder):
    (folder / "vectors\x1b[2J.txt").write_text("x")
    resealed(
        folder, federation, lambda fields: fields["not_attested"].update(zenith="gone\x1b]0;owned\x07" + "x" * 999)
    )
    said = "\n".join(sentence for each in verify(folder, federation.trust).checks for sentence in each.sentences)
    assert "vectors?[2J.txt was not there" in said
    assert "\x1b" not in said
    assert len(said) < 2000


def test_all_that_is_wrong_is_told_not_the_first_alone(federation, folder):
    (folder / "vectors.txt").unlink()
    (folder / "README.md").write_text("# other\n")
    (folder / "extra.txt").write_text("")
    (folder / "attestations/south.sig").write_bytes(bytes(64))
    (folder / "manifest.sig").write_bytes(bytes(64))
    found = wrong(folder, federation.trust)
    assert set(found) == {"files", "signer", "parties", "card"}
    for path in ("vectors.txt", "README.md", "extra.txt", "attestations/south.sig"):
        assert path in found["files"]


def test_the_command_ends_with_what_it_found(federation, original, folder, tmp_path, capsys):
    (tmp_path / "ca.pem").write_bytes(pem_of(federation.authority.certificate))
    command = ["verify", str(original), "--trust", str(tmp_path / "ca.pem"), "--json"]
    assert main(command) == 0
    *shown, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["files", "signer", "parties", "plan", "privacy", "card", "trust"]
    assert "18 of 18 match the signed manifest" in shown[0]
    assert re.search(r"coordinator.consortium.example, signed at .{20}, certificate valid until", shown[1])
    assert re.search(r"4 of 4 attestations, .* signed at .{20}, received at .{20} by the coordinator's clock", shown[2])
    assert "<= stated 6.000 (delta 1e-06); the plan promised 6" in shown[4]
    found = json.loads(last)
    assert (found["ok"], found["run"]) == (True, RUN)
    assert {name: each["ok"] for name, each in found["checks"].items()} == dict.fromkeys(found["checks"], True)
    (folder / "vectors.txt").write_text("2 2\n")
    assert main(["verify", str(folder), "--json"]) == 1
    told = capsys.readouterr()
    assert told.err == f"{folder} does not verify: a line above says why. [C801]\n"
    *shown, last = told.out.splitlines()
    assert "files      WRONG: vectors.txt has 4 bytes" in shown[0]
    assert json.loads(last)["checks"]["files"]["ok"] is False


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["nowhere"], 1, "nowhere is not a folder."),
        (["student", "--revoked", "revoked.pem"], 2, "--revoked needs --trust"),
        (["student", "--trust", "absent.pem"], 1, "absent.pem cannot be read"),
        (["student", "--trust", "revoked.pem"], 1, "revoked.pem is not one certificate."),
        (["student", "--trust", "ca.pem", "--revoked", "ca.pem"], 1, "ca.pem is not a list of revoked certificates"),
    ],
)
def test_wrong_options_are_told(federation, original, tmp_path, monkeypatch, capsys, options, code, says):
    shutil.copytree(original, tmp_path / "student")
    (tmp_path / "ca.pem").write_bytes(pem_of(federation.authority.certificate))
    (tmp_path / "revoked.pem").write_bytes(federation.authority.revocation_list([]))
    monkeypatch.chdir(tmp_path)
    assert main(["verify", *options]) == code
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said


def test_what_is_signed_must_be_canonical(federation, folder):
    """Two readers must not see two manifests in the same bytes."""
    fields = json.loads((folder / "manifest.json").read_bytes())
    loose = json.dumps(fields).encode()
    assert loose != canonical_json(fields)
    (folder / "manifest.json").write_bytes(loose)
    (folder / "manifest.sig").write_bytes(federation.coordinator.signing_key.sign(loose))
    assert "is not canonical JSON" in wrong(folder, federation.trust)["signer"]


def test_a_plan_that_would_take_hours_to_price_is_told_at_once(federation, tmp_path):
    binding = plan_pb2.Plan()
    binding.CopyFrom(federation.priced.binding)
    counts = binding.terms.releases[0].counts
    counts.shares, counts.levels, counts.noise_multiplier = 2**32 - 1, 2**16, 4.0
    found = wrong(federation.publish(tmp_path / "student", binding=binding), federation.trust)
    assert "counts on the noise of 4294967295 of 4 parties" in found["privacy"]


def test_a_word_of_the_plan_that_is_unknown_is_told(federation, tmp_path):
    binding = plan_pb2.Plan()
    binding.CopyFrom(federation.priced.binding)
    binding.terms.privacy.unit = 99
    found = wrong(federation.publish(tmp_path / "student", binding=binding), federation.trust)
    assert "privacy.json says unit record; by the plan it is the unknown number 99." in found["privacy"]


@pytest.mark.parametrize("form", [0, *(each for each in plan_pb2.Form.values() if each > plan_pb2.FORM_SUMMED), 99])
def test_a_form_that_contradicts_the_mechanism_is_told(federation, tmp_path, form):
    """A plan that calls counts free, or one party's own, would have them counted on for less."""
    binding = plan_pb2.Plan()
    binding.CopyFrom(federation.priced.binding)
    binding.terms.releases[0].form = form
    found = wrong(federation.publish(tmp_path / "student", binding=binding), federation.trust)
    assert f"it is of the form {word(plan_pb2.Form, form)}, which counts never are." in found["privacy"]


def test_more_events_than_a_run_has_are_not_priced(federation, tmp_path):
    def many(privacy):
        parts = [
            {"kind": "poisson-sampled", "sampling_probability": 0.5, "event": to_json(GaussianDpEvent(1 + number / 99))}
            for number in range(17)
        ]
        privacy["releases"][0]["event"] = {"kind": "composed", "events": parts}

    found = wrong(federation.publish(tmp_path / "student", alter=many), federation.trust)
    assert "privacy.json lists more events than a run has." in found["privacy"]
