"""Looks at the parts of one source as its simulated parties would read them, in this process and in one reading."""

from collections.abc import Mapping
from typing import Any

from coordinator.transport.launchers import Looked, PreviewRequest
from learning.text.words import Vocabulary
from party.admission.codes import codes_of
from party.admission.labels import columns_of, targets_of
from party.config import check_config
from party.shard.looking import Look, Wanted, look
from party.shard.routing import Routes, shared
from party.shard_table import located


def looks(request: PreviewRequest) -> Looked:
    """Each party's part of the source, as a plan would use it, by name.

    Raises `ConclaveError` as a party's work would, before the first row where a setting or a column is wrong. Memory:
    eight bytes a row, and the text once on disk.
    """
    words = frozenset(Vocabulary.from_bytes(request.vocabulary).words) if request.vocabulary else None
    routes = Routes(request.most)
    with shared(routes):
        parties = {name: _look(tables, request, words) for name, tables in request.parties.items()}
    return Looked(parties, routes.rows, routes.whole)


def _look(tables: Mapping[str, Any], request: PreviewRequest, words: frozenset[str] | None) -> Look:
    shard = located(check_config(dict(tables), "party").shard, request.base)
    labelled, coded = request.labelled, request.coded
    wanted = Wanted(
        request.record,
        request.by_user,
        None if labelled is None else columns_of(labelled, shard),
        None if labelled is None else targets_of(labelled, shard),
        None if coded is None else codes_of(coded, shard),
        words,
        None if shard.part is None or shard.part.by in ("hash", "dirichlet") else shard.part.by,
    )
    return look(shard, wanted, request.cache)
