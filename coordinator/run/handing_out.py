"""Hands out the student of a finished run once more, if it verifies: into a folder, to a model hub, its figures to an
experiment tracker.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import RunError
from coordinator.published.manifest import MANIFEST
from coordinator.publishing import tracking
from coordinator.publishing.handing_out import copy, hub_name, upload
from coordinator.store.faults import sound
from coordinator.store.index import RunIndex
from coordinator.store.store import FINISHED, RunStore
from coordinator.verifying.verify import Verdict, verify


@dataclass(frozen=True, slots=True)
class Published:
    """A student that was handed out. place: the folder, or the address of a hub's commit. verdict: of what it holds."""

    place: str
    verdict: Verdict


def publish(run: str | Path, to: Path | str, *, public: bool = False) -> Published:
    """Hand out the student of a finished run, or of a published folder: into a folder, or to a model hub.

    to: a folder that is not there yet, or "hub:OWNER/NAME", on the hub that `HF_ENDPOINT` names, else Hugging Face's. A
    repository that is made for it is private unless `public`. Only what verifies is handed out. Raises `RunError`.
    """
    folder, name = _student_of(run), hub_name(str(to))
    verdict = _verified(folder)
    if name is not None:
        return Published(upload(folder, name, public=public), verdict)
    place = Path(to).absolute()
    copy(folder, place)
    return Published(str(place), verdict)


def track(run: str | Path, to: str, *, student: bool = False) -> str:
    """Tell an experiment tracker of a finished run: its figures, the settings of its plan, its card and `privacy.json`.

    to: "mlflow:URI" ("mlflow" alone takes `MLFLOW_TRACKING_URI`), or "wandb:PROJECT" or "wandb:ENTITY/PROJECT".
    student: whether the student's folder goes along. Only a student that verifies is told of, and nothing but what is
    published. Returns where the tracker shows it. Raises `RunError`.
    """
    tracking.tracker(to)
    with closing(RunIndex().find(str(run))) as store, sound(store.folder):
        folder = _finished(store)
        name, metrics, number = str(store.fact("name")), store.fact("metrics") or {}, store.id
    _verified(folder)
    return tracking.track(tracking.tracked(number, name, metrics, folder, student=student), to)


def _verified(folder: Path) -> Verdict:
    """What `verify` finds of a folder that is in order. Raises `RunError` for any other."""
    verdict = verify(folder, None)
    if not verdict.ok:
        raise RunError(
            f"{folder} does not verify, so nothing was handed out. `coordinator verify` says what is wrong with it.",
            code="C801",
        )
    return verdict


def _student_of(run: str | Path) -> Path:
    """The published folder of a run, or the folder itself. Raises `RunError`."""
    if (Path(run) / MANIFEST).is_file():
        return Path(run).absolute()
    with closing(RunIndex().find(str(run))) as store, sound(store.folder):
        return _finished(store)


def _finished(store: RunStore) -> Path:
    """The published folder of a finished run. Raises `RunError` for any other."""
    if store.status() != FINISHED:
        raise RunError(f"run {store.id} is {store.status()}, and only a finished run has a student to hand out.")
    return Path(str(store.fact("student")))
