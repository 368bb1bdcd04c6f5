"""The figures of a student at an experiment tracker, MLflow or Weights & Biases, by the tracker's own client.

A tracker gets what is public already: the figures of `privacy.json` and of the report, the settings of the plan that is
published, and the card. Nothing of this machine goes with them: no user, host, path, commit, package list or output.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Final

from coordinator.errors import RunError
from coordinator.published.manifest import CARD, PLAN, PRIVACY
from coordinator.publishing.report import promised

MLFLOW: Final = "mlflow"
WANDB: Final = "wandb"
EXPERIMENT: Final = "conclave"
"""Where runs go in MLflow, unless `MLFLOW_EXPERIMENT_NAME` says otherwise."""
_PROJECT: Final = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
_TOGETHER: Final = 100
"""Settings that MLflow takes in one call."""
_LONGEST: Final = 6000
"""Characters of a setting that MLflow takes."""
_ODD: Final = re.compile(r"[^/\w.\- :]")
"""What names of settings cannot hold there."""
_COUNTED: Final = ("epsilon", "delta", "epsilon_by_rdp", "epsilon_by_the_papers_formula")


@dataclass(frozen=True, slots=True)
class Tracked:
    """What a tracker is told of a run. figures: numbers by name. settings: of the published plan, by table and key.

    about: short facts that runs are found by. promise: the guarantee in a sentence. files: that go along.
    """

    name: str
    figures: Mapping[str, float]
    settings: Mapping[str, str]
    about: Mapping[str, str]
    promise: str
    files: tuple[Path, ...]


def tracked(run: str, name: str, metrics: Mapping[str, Any], folder: Path, *, student: bool) -> Tracked:
    """What is told of a finished run whose published folder verifies. student: whether the whole folder goes along."""
    privacy = json.loads((folder / PRIVACY).read_text("utf-8"))
    document = json.loads(json.loads((folder / PLAN).read_text("utf-8"))["document"])
    figures = {key: privacy[key] for key in _COUNTED} | dict(_flat(metrics))
    parties = privacy["parties"]
    about = {
        "conclave.run": run,
        "conclave.plan_hash": privacy["plan_hash"],
        "conclave.version": version("conclave-distill"),
        "recipe": document["run"]["recipe"],
        "unit": privacy["unit"] if privacy["unit"] == "user" else privacy["record"],
        "trust": privacy["trust"],
        "parties": f"{parties['in_the_sum']} of {parties['planned']}",
    }
    settings = {key: value if isinstance(value, str) else json.dumps(value) for key, value in _flat(document)}
    return Tracked(
        name,
        {key: float(value) for key, value in figures.items() if _is_number(value)},
        {_ODD.sub("_", key): value[:_LONGEST] for key, value in settings.items() if value != "null"},
        about,
        promised(privacy),
        (folder,) if student else (folder / CARD, folder / PRIVACY),
    )


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Values by their path, with points between the names."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def tracker(to: str) -> tuple[str, str]:
    """The tracker that "mlflow", "mlflow:URI" or "wandb:PROJECT" names, and what follows. Raises `RunError`."""
    kind, _, place = to.partition(":")
    if kind == MLFLOW or (kind == WANDB and _PROJECT.fullmatch(place)):
        return kind, place
    raise RunError(
        f'--to "{to}" names no tracker. Write {MLFLOW}:URI, for example {MLFLOW}:http://127.0.0.1:5000, or {MLFLOW} '
        f"alone where MLFLOW_TRACKING_URI is set; or {WANDB}:PROJECT or {WANDB}:ENTITY/PROJECT."
    )


def track(told: Tracked, to: str) -> str:
    """Tell a tracker, all or nothing. Returns where it is shown, or kept. Raises `RunError`."""
    kind, place = tracker(to)
    return _to_mlflow(told, place) if kind == MLFLOW else _to_wandb(told, place)


def _to_mlflow(told: Tracked, uri: str) -> str:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    with _installed(MLFLOW, "MLflow"):
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
    try:
        client = MlflowClient(tracking_uri=uri or None)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = client.get_experiment_by_name(name)
        number = client.create_experiment(name) if experiment is None else experiment.experiment_id
        run = client.create_run(number, run_name=told.name).info.run_id
        try:
            tags = {**told.about, "mlflow.note.content": told.promise}
            figures = [Metric(key, value, 0, 0) for key, value in told.figures.items()]
            client.log_batch(run, metrics=figures, tags=[RunTag(*each) for each in tags.items()])
            waiting = iter(told.settings.items())
            while some := [Param(*each) for each in islice(waiting, _TOGETHER)]:
                client.log_batch(run, params=some)
            for file in told.files:
                if file.is_dir():
                    client.log_artifacts(run, str(file), "student")
                else:
                    client.log_artifact(run, str(file))
            client.set_terminated(run)
        except BaseException:
            with suppress(MlflowException, OSError):
                client.delete_run(run)
            raise
    except (MlflowException, OSError) as error:
        raise RunError(f"Nothing was tracked: MLflow says: {_first(error)}") from None
    shown = re.sub(r"//[^/@]*@", "//", uri or os.environ.get("MLFLOW_TRACKING_URI", "mlruns"))
    if shown.startswith("http"):
        return f"{shown.rstrip('/')}/#/experiments/{number}/runs/{run}"
    return f"run {run} of experiment {name} in {shown}"


def _to_wandb(told: Tracked, project: str) -> str:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_SILENT", "true")
    with _installed(WANDB, "Weights & Biases"):
        import wandb
    entity, _, name = project.rpartition("/")
    nothing_else = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        save_code=False,
        silent=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    run = None
    try:
        run = wandb.init(
            entity=entity or None,
            project=name,
            name=told.name,
            notes=told.promise,
            config={**told.settings, **told.about},
            settings=nothing_else,
        )
        run.summary.update(dict(told.figures))
        files = wandb.Artifact(told.name, type="model", description=told.promise)
        for file in told.files:
            files.add_dir(str(file)) if file.is_dir() else files.add_file(str(file))
        run.log_artifact(files)
        place = run.url or f"{Path(run.dir).parent} (offline: `wandb sync` sends it)"
        run.finish()
    except (wandb.Error, ValueError, OSError) as error:
        if run is not None:
            run.finish(exit_code=1)
        raise RunError(f"Nothing was tracked: Weights & Biases says: {_first(error)}") from None
    return place


@contextmanager
def _installed(extra: str, name: str) -> Iterator[None]:
    """Raises `RunError` where a tracker's client cannot be imported."""
    try:
        yield
    except ImportError:
        raise RunError(
            f"The client of {name} is not installed, and nothing was tracked: pip install 'conclave-distill[{extra}]'."
        ) from None


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
