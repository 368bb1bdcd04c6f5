"""The rows that parties released, as a run stores them: of either form, one matrix of each party."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import IntegrityError
from aggregation.mechanisms.samples import SamplesMechanism
from coordinator.errors import RunError
from coordinator.store.store import RunStore
from coordinator.systems.nvdp.releases import SAMPLES

Part = TypeVar("Part", covariant=True)
KEPT: Final = "artefacts/samples.safetensors"


class Rows(NamedTuple):
    """All parties' rows. vectors: float64 [rows, dimensions]. labels: int64 [rows]. parties: how many released."""

    vectors: NDArray[np.float64]
    labels: NDArray[np.int64]
    parties: int


class Releasing(Protocol[Part]):
    """A mechanism under which each party releases rows of its own."""

    def released(self, rows: NDArray[np.int64]) -> Part: ...


def odd_matrix(mechanism: Releasing[object], what: str) -> Callable[[NDArray[np.int64]], str]:
    """A function that says why a party's matrix is not what it should have released; empty where it is."""

    def odd(matrix: NDArray[np.int64]) -> str:
        try:
            mechanism.released(matrix)
        except IntegrityError as error:
            return f"what it released are no {what}: {error}"
        return ""

    return odd


def keep_matrices(store: RunStore, file: str, release: str, matrices: Mapping[str, NDArray[np.int64]]) -> None:
    """Store the matrix of every party. They are released: whatever protects them is in them."""
    from safetensors.numpy import save

    store.write(file, save({name: matrix.astype(np.int32) for name, matrix in matrices.items()}))
    store.begin_sum(release, list(matrices))


def kept_parts(store: RunStore, file: str, mechanism: Releasing[Part]) -> list[Part]:
    """What each party released, in the order of their names. Raises `RunError` where the file is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = store.folder / file
    try:
        kept = load(path.read_bytes())
        return [mechanism.released(kept[name].astype(np.int64)) for name in sorted(kept)]
    except (SafetensorError, OSError, IntegrityError) as error:
        raise RunError(f"{path} is damaged: {error} The run cannot go on. Run its plan again.", code="C802") from None


def odd_rows(mechanism: SamplesMechanism) -> Callable[[NDArray[np.int64]], str]:
    return odd_matrix(mechanism, "rows")


def keep_rows(store: RunStore, matrices: Mapping[str, NDArray[np.int64]]) -> None:
    keep_matrices(store, KEPT, SAMPLES, matrices)


def rows_of(store: RunStore, mechanism: SamplesMechanism) -> Rows:
    """The stored rows, party after party. Raises `RunError` where they are damaged."""
    parts = kept_parts(store, KEPT, mechanism)
    vectors, labels = zip(*parts, strict=True)
    return Rows(np.concatenate(vectors), np.concatenate(labels), len(parts))
