"""What has no guarantee is not priced, and is in no plan that promises something."""

import pytest
from dp_accounting import NonPrivateDpEvent, SelfComposedDpEvent

from aggregation.mechanisms.mechanism import HEURISTIC
from coordinator.errors import PlanError
from coordinator.pricing.priced_plan import price_plan
from coordinator.pricing.release import NO_GUARANTEE, unpromised
from party.admission.admit import event_of
from party.releasing.mechanisms import form_of, mechanism_of
from protos.digest import canonical

PROMISE = {"epsilon": 8.0, "delta": 1e-6}


def test_a_plan_without_a_guarantee_binds_both_ends_to_that(heuristic):
    priced = price_plan(heuristic())
    privacy = priced.binding.terms.privacy
    assert (privacy.unproven, privacy.epsilon, privacy.delta) == (True, 0.0, 0.0)
    assert not priced.private
    assert priced.guarantee is NO_GUARANTEE
    (message,) = priced.binding.terms.releases
    (release,) = priced.releases
    assert (mechanism_of(message), form_of(message)) == (release.mechanism, release.form)
    assert event_of(message) == release.event == SelfComposedDpEvent(NonPrivateDpEvent(), 40)
    assert unpromised(priced.plan) == HEURISTIC


def test_a_plan_with_a_guarantee_does_not_mention_it(heuristic):
    priced = price_plan(heuristic("counts", **PROMISE))
    assert priced.private
    assert not priced.binding.terms.privacy.unproven
    assert b"unproven" not in canonical(priced.binding), "the hash of such a plan is the one that it always had"
    assert unpromised(priced.plan) == ""


@pytest.mark.parametrize(
    ("releases", "privacy", "said"),
    [
        (("outcomes",), PROMISE, "promises epsilon and delta, and no proof covers its release outcomes"),
        (("counts", "outcomes"), PROMISE, "promises epsilon and delta, and no proof covers its release outcomes"),
        (("outcomes",), PROMISE | {"noise_multiplier": 3.0}, "no proof covers its release outcomes"),
        (("counts",), {"guarantee": False}, "guarantee = false, and its release counts has a guarantee"),
        (("outcomes", "counts"), {"guarantee": False}, "guarantee = false, and its release counts has a guarantee"),
    ],
)
def test_releases_of_the_other_kind_are_refused_by_name(heuristic, releases, privacy, said):
    with pytest.raises(PlanError, match=said) as error:
        price_plan(heuristic(*releases, **privacy))
    assert str(error.value).endswith("Nothing ran.")
