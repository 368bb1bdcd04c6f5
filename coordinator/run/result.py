"""What a program, or a notebook, gets of a finished run and of an audit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.identity.provisioning import CA
from coordinator.pricing.release import rounded_up
from coordinator.published.audit import Audit
from coordinator.publishing.report import Statement
from coordinator.run import handing_out
from coordinator.run.driver import Drive
from coordinator.run.page import in_notebook
from coordinator.verifying.check import Trust
from coordinator.verifying.verify import Verdict, verify


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run.

    run: its id. epsilon, delta: None where there is no guarantee. student: the published folder, an absolute path.
    statement: what is published of the run. neighbours: the nearest words of a few common ones. verdict: what `verify`
    found of the folder, trusting `authority`. authority: the certificate that a verifier needs; None where nobody
    vouches for the parties. folder: of the run, whose page a notebook shows.
    """

    run: str
    student: Path
    epsilon: float | None
    delta: float | None
    statement: Statement
    neighbours: dict[str, list[str]]
    verdict: Verdict
    authority: Path | None
    folder: Path

    def __repr__(self) -> str:
        said = "no guarantee" if self.epsilon is None else f"epsilon {rounded_up(self.epsilon)} at delta {self.delta:g}"
        return f"<run {self.run}: {said}, verify {'ok' if self.verdict.ok else 'WRONG'}, student in {self.student}>"

    @property
    def metrics(self) -> dict[str, Any]:
        """Measurements on public text."""
        return self.statement.metrics

    def track(self, to: str, *, student: bool = False) -> str:
        """Tell an experiment tracker of the run, as `coordinator.api.track` does. Returns where it is shown."""
        return handing_out.track(self.folder, to, student=student)

    def _repr_html_(self) -> str | None:
        return in_notebook(self.folder)


@dataclass(frozen=True, slots=True)
class Audited:
    """A finished audit. audit: what was found. folder: holds `audit.json` and its picture, an absolute path."""

    audit: Audit
    folder: Path

    def __repr__(self) -> str:
        found = len(self.audit.attacks)
        return f"<audit: {found} attacks, {'BROKEN' if self.audit.broken else 'no claim is refuted'}, in {self.folder}>"


def driven(drive: Drive) -> Result:
    """Drive a run to its end, and verify what it published."""
    statement, neighbours = drive.to_the_end()
    delta = None if statement.epsilon is None else drive.priced.plan.privacy.delta
    own, folder = drive.own, drive.student_folder
    trust = None if own.authority is None else Trust(own.authority, own.identity.revoked)
    authority = None if trust is None else own.folder / CA
    return Result(
        drive.store.id,
        folder,
        statement.epsilon,
        delta,
        statement,
        neighbours,
        verify(folder, trust),
        authority,
        drive.store.folder,
    )
