"""Shows an audit: as a table with sentences for a terminal or a page, and as a picture."""

from pathlib import Path

from coordinator.pricing.release import rounded_up
from coordinator.published.audit import Audit

HEADS = ("attacked", "canaries", "guesses", "right", "epsilon at least", "claimed")
_KINDS = {"worst": "worst case", "natural": "natural text", "numbers": "numbers"}


def rows(audit: Audit) -> list[list[str]]:
    """A row of `HEADS` for each attack."""
    return [
        [
            each.attacked,
            f"{each.count:,} {_KINDS[each.canaries]}",
            f"{each.guesses:,}",
            f"{each.right:,}",
            f"{each.lower:.2f}",
            rounded_up(audit.claimed, 2),
        ]
        for each in audit.attacks
    ]


def summary(audit: Audit) -> list[str]:
    """The sentences below the table: how to read it, and what was found."""
    lines = [
        f"How to read it: a coin put every canary in or left it out; an attacker who sees the output guessed which. Under "
        f"epsilon {rounded_up(audit.claimed)} at delta {audit.delta:g} (unit: {audit.unit}) so many right guesses are "
        f"this likely only for an epsilon of the lower bound or more. All bounds hold together at "
        f"{100 * audit.confidence:g}%.",
        verdict(audit),
    ]
    for each in audit.exposures:
        lines.append(
            f"Exposure of {each.count:,} numbers of {each.digits} digits in {each.attacked}: {each.mean:+.2f} bits "
            f"({each.low:+.2f} to {each.high:+.2f}) beside a model that never saw them; p = {each.p:.3f} that nothing "
            "leaked."
        )
    return [*lines, *audit.says]


def verdict(audit: Audit) -> str:
    """What the audit says of the claim, in one sentence."""
    if audit.broken:
        worst = max(audit.attacks, key=lambda each: each.lower)
        return (
            f"REFUTED: the attack on {worst.attacked} shows epsilon {worst.lower:.2f} or more, above the claimed "
            f"{rounded_up(audit.claimed)}. The mechanism does not keep what the plan promises."
        )
    return (
        f"No attack refutes the claim: the largest lower bound is {audit.lower:.2f}, and the plan claims "
        f"{rounded_up(audit.claimed)}. A bound from below is no guarantee; the guarantee is the accountant's."
    )


def markdown(audit: Audit) -> str:
    """The table and its sentences, as the card of a student has them."""
    lines = ["## Audit", "", f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows(audit)]
    return "\n".join([*lines, "", *(f"{line}\n" for line in summary(audit))])


def draw(audit: Audit, path: Path) -> None:
    """Draw every lower bound beside the claim, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [f"{each.attacked}, {_KINDS[each.canaries]}" for each in audit.attacks]
    figure, axes = pyplot.subplots(figsize=(7, 1.2 + 0.35 * len(names)), layout="constrained")
    axes.barh(names[::-1], [each.lower for each in audit.attacks][::-1], color="#33658a")
    axes.axvline(audit.claimed, color="#c1121f", linestyle="--", label=f"claimed: {rounded_up(audit.claimed, 2)}")
    axes.set_xlim(0, 1.1 * max(audit.claimed, audit.lower))
    axes.set_xlabel(f"epsilon at least, at {100 * audit.confidence:g}% for all attacks together")
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
