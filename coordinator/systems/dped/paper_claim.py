"""The epsilon that the paper's own formula gives for a run, reported beside the accountant's."""

import math

from aggregation.accounting.claims import paper_epsilon
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.thresholded import ThresholdedVotes
from coordinator.pricing.release import PricedPlan
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.releases import ANSWERS


def paper_claim(priced: PricedPlan[DpedPlan]) -> float | None:
    """The epsilon that DPED's own formula gives for the same noise, or None where it covers none of the releases.

    The formula does not know counts and would take them for votes, so it is given only for plans of votes and hidden
    states.
    """
    plan = priced.plan
    votes = hidden = None
    for release in priced.releases:
        if release.form == Form.CLEAR_VOTES:
            votes = release.under(ThresholdedVotes).noise
        elif release.name == ANSWERS and release.form == Form.SUMMED:
            joint = release.under(JointMechanism)
            votes = joint.votes.noise if joint.votes is not None else votes
            hidden = joint.hidden.noise if joint.hidden is not None else hidden
        else:
            return None
    claimed = paper_epsilon(plan.queries, votes, hidden, plan.dped.hidden_clip, plan.privacy.delta)
    return claimed if math.isfinite(claimed) else None
