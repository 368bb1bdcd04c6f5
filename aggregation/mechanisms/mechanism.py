"""The interface of a mechanism: one object that bounds, noises, combines, prices and describes, used at both ends."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

import numpy as np
from scipy import sparse

from aggregation.arrays import FloatArray, IntArray
from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Contribution: TypeAlias = IntArray | sparse.csr_array
"""Integers on the mechanism's public grid, dense or with the zeros left out."""

HEURISTIC: Final = "no guarantee: a heuristic"
"""What stands wherever an epsilon would, of a release or a run that no proof covers."""


class Form(StrEnum):
    """The form of a release: what leaves a party, who adds the noise, and what is charged before it is made."""

    SUMMED = "summed"
    """Rows of one sum over all parties, under the noise of all parties together; charged once."""
    STEPPED = "stepped"
    """The sum of every step of a joint training; each sum is a release of its own and charged by itself."""
    WEIGHTS = "weights"
    """The parameters of a model that each party trained alone, under its own noise."""
    TRAINING = "training"
    """Nothing leaves: each party trains alone and charges the training, which pays for free answers later."""
    CLEAR_VOTES = "clear-votes"
    """Votes without noise, for a trusted aggregator that draws the noise; a cap on all votes is charged."""
    FREE = "free"
    """Rows of one sum that a training has already paid for; nothing is charged again."""
    SAID = "said"
    """What a model says that each party trained alone, in no sum: the training has paid for it, or nothing protects it
    but a heuristic.
    """
    SAMPLES = "samples"
    """Rows of a data set, one a text, under each party's own noise, in no sum; charged once."""

    @property
    def alone(self) -> bool:
        """Whether each party trains alone, so that no other party's noise is counted on and none can be lost."""
        return self in (Form.WEIGHTS, Form.TRAINING, Form.SAID, Form.SAMPLES)

    @property
    def gives(self) -> bool:
        """Whether anything leaves a party."""
        return self != Form.TRAINING

    @property
    def retried(self) -> bool:
        """Whether a sum that failed may be made again, under fresh noise that is charged again."""
        return self in (Form.SUMMED, Form.STEPPED, Form.CLEAR_VOTES)


@dataclass(frozen=True, slots=True)
class Released:
    """The released output of a mechanism.

    values: the noisy sum in the signal's own units.
    sigma: standard deviation of the noise on each value, same units, counting every party's share that is in the sum.
    """

    values: FloatArray
    sigma: float


class Priced:
    """Defaults that mechanisms share."""

    __slots__ = ()
    zeros: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    guaranteed: ClassVar[bool] = True

    @property
    def most(self) -> int:
        """0: the bound of one unit in one cell does not bound the sum."""
        return 0

    def event(self) -> "DpEvent":
        """The event of one release; every mechanism overrides it. Raises `NotImplementedError`."""
        raise NotImplementedError

    def queries(self, charges: int) -> int:
        """The number of charges, one a query."""
        return charges

    def noise_multiplier_charged(self) -> float:
        """The noise multiplier of its event; see `Mechanism`."""
        # Imported here: the import takes a second, and a party's training process never prices.
        from aggregation.accounting.events import noise_multiplier_of

        return noise_multiplier_of(self.event())


class Free(Priced):
    """What costs nothing: post-processing of a training that was charged before.

    Sensitivity: none is charged, under add-or-remove of one unit as under any other relation.
    Source: post-processing (Dwork & Roth 2014, "The Algorithmic Foundations of Differential Privacy", proposition 2.1).
    """

    __slots__ = ()
    shares: ClassVar[int] = 0

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """No noise: zeros."""
        return np.zeros(shape, dtype=np.int64)

    def event(self) -> "DpEvent":
        """No event: the ledger has the training's."""
        from dp_accounting import NoOpDpEvent

        return NoOpDpEvent()

    def slack(self, rows: int, columns: int, epsilon: float, attempts: int = 1) -> float:
        """Zero."""
        return 0.0

    def queries(self, charges: int) -> int:
        """None: the training was checked instead."""
        return 0


class Mechanism(Protocol):
    """A way for parties to answer together under differential privacy.

    `contribute` and `noise_share` run at a party and determine its privacy; `event` states the cost. A mechanism whose
    contributions are added up also has `release` and `sensitivity` (`Summed`).

    kind: its name, by which the registry finds it; also the field of a plan's message that holds its numbers.
    forms: the forms in which it may be released, the usual one first.
    zeros: those of its numbers for which a message's 0 stands for another value, with that value.
    guaranteed: whether a proof covers it; `event` is a `NonPrivateDpEvent` where none does.
    shares: how many parties' noise shares the guarantee counts on; more may arrive, fewer must not be released. 0 where
    parties add none, and 1 where each adds all of its own.
    most: the largest amount that one unit adds to one cell of the sum, grid units; 0 where units are not summed.
    """

    kind: ClassVar[str]
    forms: ClassVar[tuple[Form, ...]]
    zeros: ClassVar[Mapping[str, Any]]
    guaranteed: ClassVar[bool]

    @property
    def shares(self) -> int: ...

    @property
    def most(self) -> int: ...

    def contribute(self, signal: Any, /) -> Contribution:
        """Bound every unit and put it on the grid. Raises `IntegrityError` on NaN or infinity."""
        ...

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """Draw this party's part of the noise: zero-mean integers in grid units, zeros where parties add none."""
        ...

    def event(self) -> "DpEvent":
        """The cost of one release, under add-or-remove of one unit, for the accountant."""
        ...

    def slack(self, rows: int, columns: int, epsilon: float, attempts: int = 1) -> float:
        """The delta to add at the claimed epsilon, because the noise is not exactly what `event` charges.

        rows, columns: of the released matrix. attempts: how many times the noise of the whole matrix may be drawn.
        """
        ...

    def queries(self, charges: int) -> int:
        """How many queries a release with this many charges may ask, as a party's `maximum_queries` counts them."""
        ...

    def noise_multiplier_charged(self) -> float:
        """Standard deviation of the noise in the whole sum over its L2 sensitivity; infinite where nothing is charged.

        It is what `aggregation.accounting.events.noise_multiplier_of` reads from the event.
        """
        ...

    def described(self, rows: int, columns: int, form: Form) -> str:
        """A release of so many rows and columns, its bounds and its noise, as a sentence without its full stop."""
        ...


class OfTeachers(Mechanism, Protocol):
    """A mechanism under which teachers answer queries.

    classes: words that a vote may name, 0 without votes. layers, width: of hidden states, layers 0 without them.
    """

    @property
    def classes(self) -> int: ...

    @property
    def layers(self) -> int: ...

    @property
    def width(self) -> int: ...


class Summed(Mechanism, Protocol):
    """A mechanism whose contributions are added up over parties.

    sensitivity: L2 change of the summed integer contribution when one unit is added or removed, in grid units.
    """

    @property
    def sensitivity(self) -> float: ...

    def release(self, total: IntArray, present: int) -> Any:
        """Turn the sum over `present` parties back into the signal's units; post-processing of the noisy sum.

        Raises `IntegrityError` if present < shares.
        """
        ...
