"""What the coordinator computes a run with: `[run]` of its plan, checked before anything is asked of a party."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from coordinator.errors import PlanError, RunError
from coordinator.plan.plan import Plan
from coordinator.store.faults import sound
from coordinator.store.store import RunStore
from learning.errors import ComputeError
from learning.models.compute import PROCESSOR, Available, Compute, available, current, running
from learning.models.machine import check_threads, may_accelerate, settled
from protos.computed import Computed

FACT: Final = "computed"
_HERE: Final = ""


def compute_of(plan: Plan) -> Compute:
    """What the coordinator computes with under a plan; "auto" stays where there may be an accelerator."""
    run = plan.run
    wanted = Compute(run.device, run.precision, run.threads)
    return settled(wanted, models=plan.MODELS, reproducible=plan.privacy.insecure_reproducible_noise)


@contextmanager
def computing(plan: Plan) -> Iterator[Computed]:
    """Within it, models run on what the plan's `[run]` says, which is yielded.

    Raises `PlanError`, before anything is asked or spent, for a device or precision that is not there and for more
    threads than processors.
    """
    wanted = compute_of(plan)
    try:
        check_threads(wanted)
        context = running(wanted)
        context.__enter__()
    except ComputeError as error:
        raise PlanError(f"[run]: {error}") from None
    try:
        yield here(wanted)
    finally:
        context.__exit__(None, None, None)


def here(wanted: Compute) -> Computed:
    """What is computed with inside of `running`, in the words of a report."""
    if wanted == PROCESSOR:
        return Computed()
    found = current()
    return Computed(found.device.type, found.precision)


def devices(plan: Plan) -> tuple[str, ...]:
    """The devices of this machine in words; empty where there can be none besides the processor."""
    return tuple(map(str, available())) if plan.MODELS and may_accelerate() else ()


def device_here(plan: Plan) -> Available | None:
    """The device that is computed with inside of `computing`; None for the processor."""
    if compute_of(plan).device == "cpu":
        return None
    found = current().device
    return next((each for each in available() if found.type != "cpu" and each.device == str(found)), None)


@contextmanager
def memory_told(run: str) -> Iterator[None]:
    """Raises `RunError`, with what to do, where a device of the coordinator has too little memory for a run's work."""
    try:
        yield
    except ComputeError as error:
        raise RunError(_too_little(str(error), run), code="C304") from None
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError" and "backend out of memory" not in str(error):
            raise
        raise RunError(_too_little("The device of [run] has too little free memory.", run), code="C304") from None


def _too_little(sentence: str, run: str) -> str:
    return (
        f"{sentence} The run is stored, and nothing of it is paid again. End other programs on the device, or set "
        f'[run] device = "cpu" or a lower precision in the plan:  coordinator resume {run}'
    )


def note(store: RunStore, parties: Mapping[str, Computed], coordinator: Computed) -> None:
    """Store what a run is computed with; where it is resumed on something else, both are kept, in order."""
    kept = {name: list(several) for name, several in _kept(store).items()}
    for name, each in {**parties, _HERE: coordinator}.items():
        several = kept.setdefault(name, [])
        if each not in several:
            several.append(each)
    store.note(**{FACT: {name: [[each.device, each.precision] for each in kept[name]] for name in kept}})


def noted(store: RunStore) -> tuple[dict[str, tuple[Computed, ...]], tuple[Computed, ...]]:
    """All that each party computed with, by its name, and all that the coordinator did."""
    kept = _kept(store)
    own = kept.pop(_HERE, (Computed(),))
    return kept, own


def _kept(store: RunStore) -> dict[str, tuple[Computed, ...]]:
    found: Any = store.fact(FACT) or {}
    with sound(store.folder):
        return {str(name): tuple(Computed(str(a), str(b)) for a, b in several) for name, several in found.items()}
