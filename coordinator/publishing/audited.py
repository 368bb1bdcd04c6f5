"""Shows an audit, as a table with sentences for a terminal or a page and as a picture, and keeps both in a folder."""

import io
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from aggregation.errors import IntegrityError
from coordinator.errors import RunError
from coordinator.pricing.release import rounded_up
from coordinator.published.audit import AUDIT, Against, Audit, Exposed, Extracted, Membership
from coordinator.reading import shaped
from coordinator.store.private_files import write_whole

PICTURE = "audit.png"
HEADS = ("attacked", "canaries", "guesses", "right", "epsilon at least", "claimed")
ROC = "audit-roc.png"
_ATTACKS: Final = {"lira": "LiRA", "rmia": "RMIA"}
_KINDS = {"worst": "worst case", "natural": "natural text", "numbers": "numbers"}


_AGAINST: Final[dict[Against, str]] = {
    "gaussian": "one Gaussian release as loud as all of the plan's together",
    "sampled": "the privacy profile of all the plan's releases together",
    "renyi": "epsilon and delta, and the Renyi divergences of all the plan's releases together",
}


def rows(audit: Audit) -> list[list[str]]:
    """A row of `HEADS` for each attack."""
    return [
        [
            each.attacked,
            f"{each.count:,} {_KINDS[each.canaries]}",
            f"{each.guesses:,}",
            f"{each.right:,}",
            f"{each.lower:.2f}",
            _claimed(audit, 2),
        ]
        for each in audit.attacks
    ]


def summary(audit: Audit) -> list[str]:
    """The sentences below the table: how to read it, and what was found."""
    lines = [
        f"How to read it: a coin put each canary ({audit.unit}) into a simulation of the plan or left it out, and an "
        f"attacker who saw the output guessed which. With so many guesses right, no epsilon below the lower bound can "
        f"be true at delta {audit.delta:g}; all bounds hold together at {100 * audit.confidence:g}%.",
        *_gate(audit),
        verdict(audit),
    ]
    for each in audit.exposures:
        lines.append(
            f"Exposure of {each.count:,} numbers of {each.digits} digits in {each.attacked}: {each.mean:+.2f} bits "
            f"({each.low:+.2f} to {each.high:+.2f}) beside a model that never saw them; ranks as "
            f"small as these come with p = {each.p:.3f} where nothing leaked."
        )
        if each.extracted is not None:
            lines.append(_extracted(each, each.extracted))
    lines += [_inferred(each) for each in audit.memberships]
    return [*lines, *audit.says]


def verdict(audit: Audit) -> str:
    """What the audit says of the claim, in one sentence."""
    if audit.claimed is None:
        return (
            f"There is no claim: the plan promises nothing. The largest lower bound that attacks show is "
            f"{audit.lower:.2f}; it bounds nothing from above."
        )
    claimed = rounded_up(audit.claimed)
    if audit.broken:
        worst = max(audit.attacks, key=lambda each: (each.refuted, each.lower))
        shows = f"epsilon {worst.lower:.2f} or more, and the plan claims {claimed}"
        said = (
            f"shows {shows}."
            if audit.gate is None
            else f"guesses right more often than mechanisms that keep the claim let it in one audit of "
            f"{1 / (1 - audit.gate):,.0f}; at {100 * audit.confidence:g}% it shows {shows}."
        )
        return f"REFUTED: the attack on {worst.attacked} {said} The mechanism does not keep what the plan promises."
    if audit.lower > audit.claimed:
        return (
            f"No attack refutes the claim, though the largest lower bound, {audit.lower:.2f}, is above the claimed "
            f"{claimed}: at {100 * audit.confidence:g}%, up to one honest audit in {1 / (1 - audit.confidence):,.0f} "
            "has such a bound. Audit again: if it stays above the claim, look at the mechanism."
        )
    return (
        f"No attack refutes the claim: the largest lower bound is {audit.lower:.2f}, and the plan claims "
        f"{claimed}. A bound from below is no guarantee; the guarantee is the accountant's."
    )


def _extracted(each: Exposed, found: Extracted) -> str:
    """How many numbers an attacker reads off the student, in a sentence."""
    return (
        f"Among the {found.most:,} likeliest of the {10**each.digits:,} numbers are {found.present_student:,} of the "
        f"{found.present:,} that are in and {found.absent_student:,} of the {found.absent:,} that are out; under the "
        f"public model {found.present_public:,} and {found.absent_public:,}."
    )


def _inferred(each: Membership) -> str:
    """What one membership inference found, in a sentence."""
    rates = " and ".join(
        f"{100 * rate.true:.2f}% at {100 * rate.false:g}%" for rate in each.rates if rate.true is not None
    )
    few = [f"{100 * rate.false:g}%" for rate in each.rates if rate.true is None]
    rest = f"; too few canaries are out for {' and '.join(few)}" if few else ""
    return (
        f"Membership inference against the student ({_ATTACKS[each.attack]}, {_KINDS[each.canaries]}, {each.models:,} "
        f"models, each with the others as its shadows): area {each.area:.3f}, 0.5 for guesses; members found at a rate "
        f"of false positives: {rates or 'none'}{rest}."
    )


def _gate(audit: Audit) -> list[str]:
    """What it takes to refute the claim, in a sentence; nothing where there is none, or it is the lower bound."""
    if audit.gate is None or audit.against is None:
        return []
    return [
        f"A claim is refuted at {100 * audit.gate:g}%, by guesses that are right too often for "
        f"{_AGAINST[audit.against]}."
    ]


def _claimed(audit: Audit, digits: int = 3) -> str:
    """What the plan claims, as it stands in a table."""
    return "no claim" if audit.claimed is None else rounded_up(audit.claimed, digits)


def _held(audit: Audit) -> str:
    """The same in a sentence."""
    return "no claim" if audit.claimed is None else f"claimed {rounded_up(audit.claimed, 2)}"


def lines(audit: Audit) -> list[str]:
    """Every attack in a line, and the sentences, for a report."""
    found = [
        f"{each.attacked} ({each.count:,} {_KINDS[each.canaries]}): {each.right:,} of {each.guesses:,} guesses right, "
        f"epsilon {each.lower:.2f} or more; {_held(audit)}"
        for each in audit.attacks
    ]
    return [*found, *summary(audit)]


def markdown(audit: Audit) -> str:
    """The table and its sentences, as the card of a student has them."""
    lines = ["## Audit", "", f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows(audit)]
    return "\n".join([*lines, "", *(f"{line}\n" for line in summary(audit))])


def content_of(audit: Audit) -> bytes:
    """The content of `audit.json`."""
    return (json.dumps(audit.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n").encode()


def keep(audit: Audit, folder: Path) -> None:
    """Write an audit and its picture into a run's folder, in place of an earlier one. Raises `RunError`."""
    write_whole(folder / AUDIT, content_of(audit))
    write_whole(folder / PICTURE, drawn(audit))
    if audit.memberships:
        write_whole(folder / ROC, curves(audit))
    else:
        (folder / ROC).unlink(missing_ok=True)


def kept(folder: Path) -> Audit | None:
    """The audit in a run's folder, None where there is none. Raises `RunError` for a file that is damaged."""
    path = folder / AUDIT
    if not os.path.exists(path):
        return None
    try:
        return shaped(path.read_bytes(), AUDIT, Audit)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None
    except IntegrityError as error:
        raise RunError(f"{path} is damaged: {error} Remove it, and audit the run again.", code="C802") from None


def curves(audit: Audit) -> bytes:
    """A picture of every membership inference: rates of true over false positives, PNG."""
    from learning.audits.roc import Roc, draw

    found = {}
    for each in audit.memberships:
        false, true = (np.array([point[place] for point in each.curve]) for place in range(2))
        name = f"{_ATTACKS[each.attack]}, {_KINDS[each.canaries]}"
        found[name] = Roc(false, true, each.members, each.others)
    with TemporaryDirectory(prefix="conclave-audit-") as place:
        draw(found, Path(place) / ROC, epsilon=audit.claimed, delta=audit.delta)
        return (Path(place) / ROC).read_bytes()


def drawn(audit: Audit) -> bytes:
    """A picture of every lower bound, beside the claim where there is one, PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [f"{each.attacked}, {_KINDS[each.canaries]}" for each in audit.attacks]
    figure, axes = pyplot.subplots(figsize=(7, 1.4 + 0.35 * len(names)), layout="constrained")
    axes.barh(names[::-1], [each.lower for each in audit.attacks][::-1], color="#33658a")
    if audit.claimed is None:
        axes.set_title("no claim: a measurement")
        axes.set_xlim(0, 1.1 * max(1.0, audit.lower))
    else:
        axes.axvline(audit.claimed, color="#c1121f", linestyle="--", label=f"claimed: {_claimed(audit, 2)}")
        axes.set_xlim(0, 1.1 * max(audit.claimed, audit.lower))
        axes.legend(loc="lower right", frameon=False)
    axes.set_xlabel(f"epsilon at least, at {100 * audit.confidence:g}% for all attacks together")
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120, format="png")
    pyplot.close(figure)
    return picture.getvalue()
