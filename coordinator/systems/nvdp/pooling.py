"""The rows that parties released, as a run stores them."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import IntegrityError
from aggregation.mechanisms.samples import SamplesMechanism
from coordinator.errors import RunError
from coordinator.store.store import RunStore
from coordinator.systems.nvdp.releases import SAMPLES

KEPT: Final = "artefacts/samples.safetensors"


class Rows(NamedTuple):
    """All parties' rows. vectors: float64 [rows, dimensions]. labels: int64 [rows]. parties: how many released."""

    vectors: NDArray[np.float64]
    labels: NDArray[np.int64]
    parties: int


def odd_rows(mechanism: SamplesMechanism) -> Callable[[NDArray[np.int64]], str]:
    """A function that says why a party's matrix is no rows of the release; empty where it is."""

    def odd(matrix: NDArray[np.int64]) -> str:
        try:
            mechanism.released(matrix)
        except IntegrityError as error:
            return f"what it released are no rows: {error}"
        return ""

    return odd


def keep_rows(store: RunStore, matrices: Mapping[str, NDArray[np.int64]]) -> None:
    """Store the rows of every party. They are released: whatever protects them is in them."""
    from safetensors.numpy import save

    store.write(KEPT, save({name: matrix.astype(np.int32) for name, matrix in matrices.items()}))
    store.begin_sum(SAMPLES, list(matrices))


def rows_of(store: RunStore, mechanism: SamplesMechanism) -> Rows:
    """The stored rows, party after party. Raises `RunError` where they are damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = store.folder / KEPT
    try:
        kept = load(path.read_bytes())
        parts = [mechanism.released(kept[name].astype(np.int64)) for name in sorted(kept)]
    except (SafetensorError, OSError, IntegrityError) as error:
        raise RunError(f"{path} is damaged: {error} The run cannot go on. Run its plan again.") from None
    vectors, labels = zip(*parts, strict=True)
    return Rows(np.concatenate(vectors), np.concatenate(labels), len(parts))
