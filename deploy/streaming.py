"""The `ray` streamer: Ray Data processes a corpus with a pool of workers that each load the model once.

Little is sent: a part's number to a worker, and its rows back. A worker reads the part's texts itself, in place,
through the corpus's index. Corpus, index and model must therefore have the same paths on every machine: on a cluster,
on storage that its machines share.
"""

import gc
import logging
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from coordinator.text_models.corpus_numbers import FloatRows, Part
from deploy.cluster import joined
from deploy.embedded import embedded
from deploy.launching import LaunchError
from learning.selection.text_rows import TextRows, Work
from learning.text.corpus import Corpus

AHEAD: Final = 16 * 2**20
"""Bytes of rows that may wait for the caller."""
STOP_SECONDS: Final = 10.0
WAITING: Final = 2
"""Tasks that a worker has, including the one under way."""
TASKS: Final = 1000
"""The most tasks that the parts are divided into."""
ATTEMPTS: Final = 3
"""After this many starts with new workers, none of which did a part before one died, the work is given up."""

_OUTER: Final = ("ray.data", "ray")


class StreamError(ConclaveError):
    """Rows that Ray could not compute. The message says why."""

    CODE = "C306"


@dataclass(frozen=True, slots=True)
class RayStreamer:
    """Processes a corpus on Ray, `workers` parts at a time.

    address: of a cluster, "HOST:PORT", called with the token of this process' environment; None uses the Ray that this
    process is connected to, or else starts one of its own, as `deploy.launch` does, and stops it again. workers: number
    of processes, with one processor each; where None, as many as Ray has processors. Memory: here, one part's rows; in
    Ray's object store, about `AHEAD` bytes of rows, and 16 bytes a part; in each worker, the model and one part's texts
    and rows.
    """

    address: str | None = None
    workers: int | None = None

    def rows(self, corpus: Corpus, work: TextRows, parts: Sequence[Part]) -> Iterator[tuple[int, FloatRows]]:
        """See `coordinator.text_models.corpus_numbers.Streamer`. Raises `StreamError`; `LaunchError` without Ray."""
        if not parts:
            return
        with _ray(self.address, self.workers or len(parts)) as ray, _settings(ray) as data:
            processors = int(ray.cluster_resources().get("CPU", 0))
            workers = min(self.workers or processors, processors, len(parts))
            if workers < 1:
                raise LaunchError("This Ray has no processor for a worker. Start it with one or more.")
            left, fruitless = dict(parts), 0
            while left:
                before = len(left)
                try:
                    for first, rows in _streamed(ray, data, corpus, work, left, workers):
                        del left[first]
                        yield first, rows
                    return
                except ray.exceptions.RayError as error:
                    fruitless = 0 if len(left) < before else fruitless + 1
                    if fruitless == ATTEMPTS:
                        raise StreamError(f"Ray could not work out the corpus: {_said(error)}.") from error


class Worker:
    """One process of the pool. The model is loaded with the first part, and used by one thread."""

    def __init__(self, corpus: Corpus, work: TextRows, parts: NDArray[np.int64]) -> None:
        self._corpus, self._work, self._parts = corpus, work, parts
        self._do: Work | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Process one part by its position: returns its first row's number and its rows as bytes, or why there are
        none.
        """
        first, end = (int(each) for each in self._parts[int(batch["place"][0])])
        try:
            rows, why = self._rows(first, end), ""
        except ConclaveError as error:
            rows, why = np.empty((0, 0), np.float32), str(error)
        return {"first": [first], "width": [rows.shape[1]], "rows": [rows.tobytes()], "why": [why]}

    def _rows(self, first: int, end: int) -> FloatRows:
        if self._do is None:
            import torch

            torch.set_num_threads(1)
            self._do = self._work.load()
        return self._do(list(self._corpus.rows(range(first, end))))


def _streamed(
    ray: Any, data: Any, corpus: Corpus, work: TextRows, left: dict[int, int], workers: int
) -> Iterator[tuple[int, FloatRows]]:
    parts, threads = np.array(list(left.items()), np.int64), set(threading.enumerate())
    # Not `data.range`: its reading tasks would wait for a processor, and the workers have them all.
    places = data.from_items(
        [{"place": place} for place in range(len(parts))], override_num_blocks=min(len(parts), TASKS)
    )
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # `max_restarts` has no other way yet
        dataset = places.map_batches(
            Worker,
            fn_constructor_args=(corpus, work, parts),
            batch_size=1,
            compute=data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=WAITING),
            num_cpus=1,
            max_restarts=0,  # Ray's core would print that it can start them again, and would do so forever
        )
    found = dataset.iter_internal_ref_bundles()  # `iter_batches` leaves a thread behind when it is closed early
    del dataset
    try:
        for bundle in found:
            for block in bundle.block_refs:
                for record in ray.get(block).to_pylist():
                    if record["why"]:
                        raise StreamError(record["why"])
                    rows = np.frombuffer(record["rows"], np.float32)
                    yield record["first"], rows.reshape(-1, record["width"])
            del bundle, block, record, rows  # so that Ray may forget them while the next is awaited
    finally:
        del found
        gc.collect()  # what was not exhausted ends when nothing holds it
        deadline = time.monotonic() + STOP_SECONDS
        for thread in set(threading.enumerate()) - threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        gc.collect()  # a thread that ended late held the workers until now, perhaps in a cycle


def _said(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).strip().rstrip(".")[:300]


@contextmanager
def _ray(address: str | None, most: int) -> Iterator[Any]:
    """The Ray to use: this process' own connection, a new one of its own, or the cluster; what is started here is
    stopped here.
    """
    already = sys.modules.get("ray")  # an import here would read Ray's token before there is one
    connected = already is not None and already.is_initialized()
    if connected and address is not None:
        raise LaunchError("this process is connected to a Ray already. Call ray.shutdown() first.")
    if connected:
        yield already
    elif address is None:
        with embedded(most) as started:
            yield started
    else:
        with joined(address) as cluster:
            yield cluster


@contextmanager
def _settings(ray: Any) -> Iterator[Any]:
    """Ray Data's settings inside the context: silent, every part handed over when it is done, bounded."""
    from ray import data

    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # from Ray's own copies
        mine = data.DataContext.get_current().copy()
    mine.enable_progress_bars = False
    mine.print_on_execution_start = False
    mine.enable_rich_progress_bars = False
    mine.execution_options.verbose_progress = False
    mine.target_max_block_size = 1
    mine.execution_options.resource_limits = data.ExecutionResources.for_limits(object_store_memory=AHEAD)
    mine.execution_no_progress_timeout_s = -1
    levels = {name: logging.getLogger(name).level for name in _OUTER}
    for name in _OUTER:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with data.DataContext.current(mine):
            yield data
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
