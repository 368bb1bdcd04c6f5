"""Teachers whose parameters no party lets out: each writes and grades at its party, and what they said is pooled here.

Both are post-processing of trainings that parties charged, and so are free. Everything that parties are told is public.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import IntegrityError
from aggregation.mechanisms.said import FreeTargets, FreeTexts
from coordinator.errors import RunError
from coordinator.federation.federation import Federation
from coordinator.language_models.floor import Floor
from coordinator.language_models.students import PublicTeacher
from coordinator.pricing.release import PricedPlan, unpromised
from coordinator.store.private_files import private_folder
from coordinator.store.store import RunStore
from coordinator.systems.distildp.plan import DistilDpPlan
from coordinator.systems.distildp.pooling import Cells, Floats, drawn, pooled
from coordinator.systems.distildp.releases import GRADED, WRITTEN
from coordinator.text_models.federated_training import alone_request
from coordinator.text_models.messages import model_message
from protos.conclave.v1 import party_pb2
from protos.digest import artefact_digest

if TYPE_CHECKING:
    from learning.language.generation import Texts
    from learning.language.soft_targets import Targets

SAID: Final = "artefacts/said.safetensors"
TARGETS: Final = "artefacts/targets"
_ROWS: Final = 4096
"""Rows of a matrix in one request."""

Odd: TypeAlias = Callable[[NDArray[np.int64]], str]
"""Why a party's matrix cannot be used; empty where it can."""


async def said_by_parties(
    priced: PricedPlan[DistilDpPlan],
    public: PublicTeacher,
    shares: Floats,
    federation: Federation,
    store: RunStore,
    *,
    floor: Floor | None,
    tilt: bytes,
) -> dict[str, int]:
    """Have every party train a teacher, write texts with it and grade those of all; how many parties are in each
    release.

    shares: of each control code among the texts, [codes]. tilt: the digest of what is added to logits in training,
    which parties have; empty for nothing. What is stored is not asked again. Raises `RunError` where nothing is left
    to learn from, before it is graded.
    """
    plan = priced.plan
    voice = party_pb2.Voice()
    if floor is not None:
        content = b"".join(np.ascontiguousarray(each, "<f4").tobytes() for each in floor.voices(plan.floor.code_tilt))
        await federation.provide("voices", content)
        voice = party_pb2.Voice(voices_sha256=artefact_digest(content), weight=plan.floor.weight)
    if not (store.folder / SAID).exists():
        await _write(priced, public, shares, federation, store, voice, tilt)
    if not store.fact("graded"):
        texts, cells, _ = pooled(public, *said(priced, public, shares, store))
        await _grade(priced, public, texts, cells, federation, store, voice)
    return {name: len(store.summed(name)) for name in (WRITTEN, GRADED)}


def said(
    priced: PricedPlan[DistilDpPlan], public: PublicTeacher, shares: Floats, store: RunStore
) -> "tuple[list[Texts], list[Cells]]":
    """The stored texts of each party that wrote some, and their control codes. Raises `RunError` where they are
    damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    from learning.language.generation import Texts

    plan, mechanism = priced.plan, _texts(priced)
    names = sorted(plan.federation.names)
    own = dict(zip(names, drawn(plan, shares, len(names)), strict=True))
    path = store.folder / SAID
    try:
        kept = load(path.read_bytes())
        parts = {name: mechanism.texts(kept[name].astype(np.int64)) for name in sorted(kept)}
    except (SafetensorError, OSError, IntegrityError) as error:
        raise RunError(f"{path} is damaged: {error} The run cannot go on. Run its plan again.", code="C802") from None
    return [Texts.joined(part, public.end) for part in parts.values()], [own[name] for name in parts]


def said_of(plan: DistilDpPlan, public: PublicTeacher, texts: "Texts", store: RunStore) -> "Targets":
    """The mean of what the parties' teachers said of every token, as it is stored."""
    from learning.language.soft_targets import opened

    settings = plan.distil
    return opened(store.folder / TARGETS, texts.stops, settings.top, public.tokens, settings.temperature)


async def _write(
    priced: PricedPlan[DistilDpPlan],
    public: PublicTeacher,
    shares: Floats,
    federation: Federation,
    store: RunStore,
    voice: party_pb2.Voice,
    tilt: bytes,
) -> None:
    """Have every party train its teacher and write its texts; store these."""
    from safetensors.numpy import save

    plan, mechanism = priced.plan, _texts(priced)
    start = np.ascontiguousarray(public.start, "<f4").tobytes()
    await federation.provide("parameters", start)
    settings = plan.generation
    (codes,) = drawn(plan, shares, 1)
    content = _json(openings=public.openings, codes=codes.tolist())
    await federation.provide("written", content)
    request = alone_request(plan, public, WRITTEN, start, tilt)
    request.text_model.writing.CopyFrom(
        party_pb2.Writing(
            written_sha256=artefact_digest(content),
            voice=voice,
            top_k=settings.top_k,
            top_p=settings.top_p,
            temperature=settings.temperature,
            batch=settings.batch,
        )
    )
    await federation.train(request, doing="training")
    matrices = await federation.gather(
        WRITTEN,
        settings.texts // len(plan.federation.names),
        mechanism.columns,
        _ROWS,
        unpromised(plan),
        odd=_odd_texts(mechanism, public),
    )
    store.begin_sum(WRITTEN, list(matrices))
    store.write(SAID, save({name: matrix.astype(np.int32) for name, matrix in matrices.items()}))


async def _grade(
    priced: PricedPlan[DistilDpPlan],
    public: PublicTeacher,
    texts: "Texts",
    cells: Cells,
    federation: Federation,
    store: RunStore,
    voice: party_pb2.Voice,
) -> None:
    """Have every party say what might stand in every token's place; store the mean."""
    from learning.language.soft_targets import averaged

    plan = priced.plan
    mechanism = _targets(priced)
    content = _json(openings=public.openings, codes=cells.tolist(), texts=[each.tolist() for each in texts])
    await federation.provide("written", content)
    request = party_pb2.TrainRequest(operation_id=GRADED)
    request.grading.CopyFrom(
        party_pb2.GradingTask(
            release=GRADED,
            model=model_message(plan, public),
            written_sha256=artefact_digest(content),
            voice=voice,
            temperature=plan.distil.temperature,
        )
    )
    await federation.train(request, doing="grading")
    matrices = await federation.gather(
        GRADED, len(texts.ids), mechanism.columns, _ROWS, unpromised(plan), odd=_odd_targets(mechanism)
    )
    folder = store.folder / TARGETS
    private_folder(folder)
    averaged(
        [mechanism.targets(matrices.pop(name)) for name in sorted(matrices)],
        stops=texts.stops,
        tokens=public.tokens,
        temperature=plan.distil.temperature,
        folder=folder,
    )
    store.begin_sum(GRADED, list(federation.present))
    store.note(graded=True)


def _texts(priced: PricedPlan[DistilDpPlan]) -> FreeTexts:
    release = priced.release(WRITTEN)
    assert release is not None
    return release.under(FreeTexts)


def _targets(priced: PricedPlan[DistilDpPlan]) -> FreeTargets:
    release = priced.release(GRADED)
    assert release is not None
    return release.under(FreeTargets)


def _odd_texts(mechanism: FreeTexts, public: PublicTeacher) -> Odd:
    known = len(public.tokenizer)

    def odd(rows: NDArray[np.int64]) -> str:
        try:
            mechanism.texts(rows)
        except IntegrityError:
            return "what it wrote are no texts"
        return "" if rows.max(initial=0) <= known else "it wrote tokens that the tokenizer does not have"

    return odd


def _odd_targets(mechanism: FreeTargets) -> Odd:
    def odd(rows: NDArray[np.int64]) -> str:
        try:
            mechanism.targets(rows)
        except IntegrityError:
            return "what it says of the texts are no outcomes of tokens"
        return ""

    return odd


def _json(**what: object) -> bytes:
    return json.dumps(what, separators=(",", ":")).encode()
