"""Looks at the text that a plan's simulated parties would have, before anything is started or spent."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aggregation.errors import ConclaveError
from coordinator.errors import PlanError
from coordinator.plan.plan import Plan
from coordinator.run.before.given import PlanLike, plan_given
from coordinator.run.connecting import launcher_of
from coordinator.run.party_files import party_tables
from coordinator.store.private_files import home
from coordinator.systems.registry import prepared, system
from coordinator.transport.launchers import Looked, PreviewRequest
from protos.console.checklist import Line, ok, to_do, warning
from protos.console.mistakes import SettingsError
from protos.refusal import Refusal

ROWS: Final = 20_000
"""Rows of a source that a check reads."""
_FAR: Final = 1.5
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Preview:
    """What a run of a plan would use of each party's text."""

    plan: Plan
    found: Looked

    @property
    def by_user(self) -> bool:
        """Whether all text of a user is one unit."""
        return self.plan.privacy.unit == "user"

    @property
    def unit(self) -> str:
        """What is counted, in the plural; documents where every pair of words is a unit."""
        record = self.plan.privacy.record
        return "users" if self.by_user else "sentences" if record == "sentence" else "documents"

    @property
    def units(self) -> int:
        """Units of the guarantee, of all parties."""
        return sum(each.units for each in self.found.parties.values())

    @property
    def labels(self) -> Counter[str]:
        """Examples of all parties by label or code."""
        return sum((Counter(each.labels) for each in self.found.parties.values()), Counter())

    @property
    def left_out(self) -> Counter[str]:
        """Rows of all parties that make no example, by reason."""
        return sum((Counter(each.left_out) for each in self.found.parties.values()), Counter())

    @property
    def unreadable(self) -> Counter[str]:
        """Rows of the source that cannot be read, by reason."""
        return Counter(next(iter(self.found.parties.values())).unreadable)

    @property
    def coverage(self) -> float | None:
        """The share of words that the vocabulary has; None where no words are counted."""
        words = sum(each.words for each in self.found.parties.values())
        return sum(each.covered for each in self.found.parties.values()) / words if words else None

    @property
    def said(self) -> str:
        """How much text the parties would have, in a line."""
        sizes = [each.units for each in self.found.parties.values()]
        each = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
        return f"{self.rows}; {each} {self.unit} at each of {len(sizes)} parties"

    @property
    def doubts(self) -> tuple[Line, ...]:
        """What to look at before a run: `to_do` where it could only fail."""
        return tuple(_doubts(self))

    @property
    def rows(self) -> str:
        """How many rows were read."""
        return f"{self.found.rows:,} rows" if self.found.whole else f"the first {self.found.rows:,} rows"


def look_over(plan: Plan, base: Path) -> list[Line]:
    """The lines of a check on the first `ROWS` rows of the source that a plan divides on this machine."""
    if not hasattr(launcher_of(plan), "preview"):  # one of before there were previews
        return []
    try:
        found = looked(plan, base, ROWS, words=False)
    except ConclaveError as error:
        return [to_do("data", str(error))]
    doubts = list(found.doubts)
    if any(line.what == "data" for line in doubts):
        return doubts
    return [ok("data", found.said), *doubts]


def preview(plan: PlanLike, most: int | None = None, *, words: bool = True) -> Preview:
    """Look at each simulated party's part of a plan's source; nothing is started, sent or spent.

    most: rows that are read; None reads all. words: whether to read the public text of a plan that counts words, for
    its vocabulary. Raises `PlanError` for parties that run elsewhere, whose text is their own, `DataError` for a source
    that cannot be read.
    """
    asked = plan_given(plan)
    return looked(asked.plan, asked.base, most, words=words)


def looked(plan: Plan, base: Path, most: int | None, *, words: bool) -> Preview:
    """As `preview`, of a plan whose paths start at `base`."""
    launcher = launcher_of(plan)
    if not hasattr(launcher, "preview"):
        raise PlanError(f'launch = "{plan.federation.launch}" is a launcher that cannot show its parties\' text.')
    cache, known = home() / "cache", system(plan.run.recipe).words
    vocabulary = b"" if known is None or not words else known(prepared(plan, base, cache))
    request = PreviewRequest(
        party_tables(plan),
        base,
        cache,
        plan.privacy.record,
        plan.privacy.unit == "user",
        plan.labelled,
        plan.coded,
        vocabulary,
        most,
    )
    try:
        found = launcher.preview(request)
    except (Refusal, SettingsError) as error:
        said = str(error).replace("[shard]", "[federation.shards]")
        raise PlanError(f"The parties could not use this source: {said}") from None
    return Preview(plan, found)


def _doubts(shown: Preview) -> Iterator[Line]:
    parties, plan = shown.found.parties, shown.plan
    empty = [name for name, each in parties.items() if not each.units]
    if not shown.units:
        yield to_do(
            "data",
            f"None of {shown.rows} can be used: {_reasons(shown.unreadable)}. Mend the rows, or name another column.",
        )
        return
    if empty:
        yield _empty(shown, empty)
    examples, left_out = shown.labels.total(), shown.left_out
    if left_out and not examples:
        yield to_do(
            "labels", f"No row makes an example: {_reasons(left_out)}. Correct the plan's columns or its labels."
        )
    elif left_out:
        yield warning(
            "labels",
            f"{left_out.total():,} of {examples + left_out.total():,} rows are left out: {_reasons(left_out)}.",
        )
    classes = [] if plan.labelled is None or not examples else [*plan.labelled.labels]
    missing = [name for name in classes if not shown.labels[name]]
    if missing:
        state = to_do if len(missing) >= len(classes) - 1 else warning
        yield state(
            "labels", f"No row of {shown.rows} has the label {_listed(missing)}. Is that what the column holds?"
        )
    declared = None if plan.privacy.record == "pair" else plan.privacy.declared_size
    if declared is not None and shown.found.whole and not declared / _FAR <= shown.units <= declared * _FAR:
        yield warning(
            "size",
            f"[privacy] declared_size = {declared:,}, and the source gives {shown.units:,} {shown.unit}. Rates and "
            "noise follow what is declared: say a figure near it.",
        )


def _empty(shown: Preview, empty: list[str]) -> Line:
    """Parties without any text: because of the column that divides it, or because there is too little."""
    parties = shown.found.parties
    split = shown.plan.federation.shards
    by = "" if split is None or not any(each.values for each in parties.values()) else split.split.by
    values = len({value for each in parties.values() for value in each.values})
    some = f"{values:,} {'value' if values == 1 else 'values'}"
    if by and values < len(parties):
        why = f'the column "{by}" has {some} for {len(parties)} parties. Use fewer parties, or split by hash.'
    elif by:
        why = (
            f'several values of "{by}" fell to one party (see coordinator preview). Use fewer parties, another '
            "[run] seed, or split by hash."
        )
    else:
        why = "Use fewer parties, or a source with more rows."
    state = to_do if shown.found.whole else warning
    return state("data", f"{_listed(empty)} would have no text of {shown.rows}: {why}")


def _reasons(found: Counter[str]) -> str:
    return ", ".join(f"{reason}: {count:,}" for reason, count in found.most_common(_SHOWN)) or "there is none"


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
