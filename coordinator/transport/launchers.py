"""Launchers start a run's parties, here or on a cluster, or simulate them without nodes.

A launcher other than `connect` is found through the entry-point group `conclave.launchers`, under the name that a plan
gives in `launch`. So the coordinator starts parties without importing the code that runs them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aggregation.mechanisms.joint import TeacherSignal
from coordinator.errors import PlanError
from coordinator.transport.link import PartyLink, Way
from protos.conclave.v1 import plan_pb2
from protos.identity.requests import read_request

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from learning.models.batching import Tokens
    from learning.models.pairs import PairForm


@dataclass(frozen=True, slots=True)
class PartyAddress:
    """Where a party's node listens. token: what it expects of its caller, empty for none. together: how many parties'
    nodes share its process, this one included; process: which, the same for all of them, empty where it shares none.
    way: to a party that dials the coordinator; the address is then that of its place at the gate.
    """

    name: str
    address: str
    token: str = ""
    together: int = 1
    process: str = ""
    way: Way | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """What a party needs of its machine, in Ray's resources and labels. gpus: may be a fraction; a party computes on
    them where it has any.
    """

    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster, and how parties are put on its machines.

    address: "HOST:PORT" of its head, or "auto" on one of its machines. folder: for the parties' files on their
    machines; where None, the run's own. ports: the first and the last that nodes may listen on; where None, any.
    places: by party. tasks: into how many Ray tasks a party's teachers are divided; where None, they stay on its
    machine.
    """

    address: str
    folder: Path | None = None
    ports: tuple[int, int] | None = None
    places: Mapping[str, Place] = field(default_factory=dict)
    tasks: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """The parties to start.

    parties: for each name the tables of a party file (`shard`, `policy`, ...), as `party serve` would read them.
    folder: a private folder of the run for all the parties' files; relative paths in the tables start at `base`. vouch:
    returns the certificates (PEM) for the request (PEM) that a party of this name made, whose private keys never leave
    it; raises `ConclaveError` for anything but a request in that name. cluster: machines to start them on; None is this
    one. say: told what people should know of the machines. parties_per_actor: the most parties that share a process;
    None leaves it to the launcher.
    """

    parties: Mapping[str, Mapping[str, Any]]
    folder: Path
    base: Path
    vouch: Callable[[str, bytes], bytes]
    cluster: Cluster | None = None
    say: Callable[[str], None] = lambda sentence: None
    parties_per_actor: int | None = None

    def keys(self, requests: Mapping[str, bytes]) -> dict[str, str]:
        """The fingerprints of the parties' signing keys, from their requests (PEM)."""
        return {name: read_request(request).fingerprint for name, request in requests.items()}

    def introduced(self, requests: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
        """The parties' tables, each with `peers`: the other parties' signing keys from their requests (PEM)."""
        keys = self.keys(requests)
        return {
            name: {**table, "peers": {other: key for other, key in keys.items() if other != name}}
            for name, table in self.parties.items()
        }


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """Whose text a simulation reads, and how it is counted. parties, base: as in `LaunchRequest`.

    vocabulary: the bytes of the public vocabulary, empty where no words are counted; window: for counting. folder: for
    working files. processes: how many of one thread train small models at once. beside: a simulation whose memory this
    one shares, so that what both make of the same records is made once.
    """

    parties: Mapping[str, Mapping[str, Any]]
    folder: Path
    base: Path
    vocabulary: bytes
    window: int
    record: Literal["document", "sentence", "pair"]
    by_user: bool
    processes: int = 1
    beside: "Simulation | None" = None


@dataclass(frozen=True, slots=True)
class PreviewRequest:
    """Whose text is looked at before a run, and what the plan reads of it. parties, base: as in `LaunchRequest`.

    record, by_user: as in `SimulationRequest`. cache: for what a source downloads, and for a working file without a
    name. labelled, coded: as parties join under them, None without. vocabulary: the bytes of the public vocabulary,
    empty where no words are counted. most: rows of the source that are read; None reads all.
    """

    parties: Mapping[str, Mapping[str, Any]]
    base: Path
    cache: Path
    record: Literal["document", "sentence", "pair"]
    by_user: bool
    labelled: plan_pb2.LabelledText | None = None
    coded: plan_pb2.CodedText | None = None
    vocabulary: bytes = b""
    most: int | None = None


class Look(Protocol):
    """What a plan would use of one simulated party's part. units: of the guarantee. passages: records, or sentences.

    labels: examples by label or code. left_out: rows that make no example, by reason. unreadable: rows of the whole
    source that cannot be read, by reason. words, covered: how many, and how many of these are in the vocabulary.
    values: of the column that the source is divided by, with their rows; empty where no column divides it.
    """

    @property
    def units(self) -> int: ...
    @property
    def passages(self) -> int: ...
    @property
    def labels(self) -> Mapping[str, int]: ...
    @property
    def left_out(self) -> Mapping[str, int]: ...
    @property
    def unreadable(self) -> Mapping[str, int]: ...
    @property
    def words(self) -> int: ...
    @property
    def covered(self) -> int: ...
    @property
    def values(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Looked:
    """All parties' looks by name. rows: how many rows of the source were read. whole: whether these are all."""

    parties: Mapping[str, Look]
    rows: int
    whole: bool


@dataclass(frozen=True, slots=True)
class TeachersWanted:
    """The teachers that a simulation trains at every party, and their queries: the fields of
    `party_pb2.TeachersTask`.
    """

    teachers_per_party: int
    alignment: Literal["initialisation", "procrustes"]
    queries: Sequence[int]
    classes: Sequence[int]
    layers: Sequence[Literal["centre", "context"]]
    vote: Literal["probable", "lift"]
    seed: int


@dataclass(frozen=True, slots=True)
class TextWanted:
    """How a text model takes labelled text.

    text: which columns of rows are read, as parties join under it. tokenizer: the public model's. longest: maximum
    length of an example in tokens.
    """

    text: plan_pb2.LabelledText
    tokenizer: "PreTrainedTokenizerBase"
    longest: int


@dataclass(frozen=True, slots=True)
class DocumentsWanted:
    """How a language model takes text.

    coded: the control codes as parties join under them, None without. tokenizer: the public model's. longest: maximum
    length of a document in tokens, its code included. pairs: how answers to inputs are read, which are documents then.
    """

    coded: plan_pb2.CodedText | None
    tokenizer: "PreTrainedTokenizerBase"
    longest: int
    pairs: "PairForm | None" = None


class LabelledPart(Protocol):
    """One party's units in clear, in the form that training takes
    (`learning.private_training.text_units.TextUnits`).
    """

    @property
    def rows(self) -> Sequence["Tokens"]: ...

    @property
    def labels(self) -> NDArray[np.int64] | NDArray[np.float32]:
        """Class indices, or standard scores, [examples]."""
        ...

    @property
    def members(self) -> Sequence[Sequence[int]] | None:
        """For every unit the positions of its examples; None where every example is a unit."""
        ...


class DocumentPart(Protocol):
    """One party's units in clear as documents of a language model."""

    @property
    def rows(self) -> Sequence["Tokens"]: ...

    @property
    def members(self) -> Sequence[Sequence[int]] | None:
        """For every unit the positions of its documents; None where every document is a unit."""
        ...


class Simulation(Protocol):
    """Simulated parties' text in clear, for comparing methods on data that is not secret."""

    def links(self) -> Sequence[PartyLink]:
        """Every party as a recipe asks it, for plans on this text: no identity, no ledger, no secure sum."""
        ...

    def bounded(self, release: str) -> tuple[sparse.csr_array | NDArray[np.int32], ...]:
        """Each party's bounded sum of a release that was trained under the last plan, without noise."""
        ...

    def counts(self) -> tuple[sparse.csr_array, ...]:
        """Each party's pair counts, unit by unit: [units, words * words]."""
        ...

    def answers(self, reference: bytes, wanted: TeachersWanted) -> tuple[TeacherSignal, ...]:
        """Each party's teachers' votes and hidden states, before anything bounds them."""
        ...

    def labelled(self, wanted: TextWanted) -> tuple[LabelledPart, ...]:
        """Each party's labelled text, tokenised."""
        ...

    def documents(self, wanted: DocumentsWanted) -> tuple[DocumentPart, ...]:
        """Each party's documents, tokenised, each after its control code where there are codes."""
        ...

    def vectors(self, model: "PreTrainedModel", rows: Sequence["Tokens"]) -> NDArray[np.float32]:
        """The input vectors of a model's last layer, [texts, width]; every encoder reads the same texts once."""
        ...


class Launcher(Protocol):
    """Starts one node a party, in processes of their own or shared ones.

    It ends all of them when the context closes, whatever happened inside it.
    """

    def begun(self, parties: Sequence[str], recipe: str = "", most: int | None = None) -> AbstractContextManager[None]:
        """Begin in the background what a launch of these parties on this machine needs and what no plan decides.

        recipe: whose tasks take long to import, so that importing them begins too; empty for none. most: of the parties
        that share a process, as `LaunchRequest.parties_per_actor`.
        `launch` in this context goes on from there, once; what it started may then still be ending until this context
        closes. Nothing is raised before `launch`.
        """
        ...

    def launch(self, request: LaunchRequest) -> AbstractContextManager[tuple[PartyAddress, ...]]:
        """Start the parties and wait until each reports its address. Raises `ConclaveError` when one cannot start."""
        ...

    def look(self, cluster: Cluster) -> str:
        """Describe the cluster in a sentence, if it has room for the parties. Raises `ConclaveError` saying why not."""
        ...

    def preview(self, request: PreviewRequest) -> Looked:
        """What a run would use of each party's text. Raises `ConclaveError` where parties have text of their own."""
        ...

    def simulate(self, request: SimulationRequest) -> Simulation:
        """The same parties without nodes, in clear. Raises `ConclaveError` where parties have text of their own."""
        ...


def find_launcher(name: str) -> Launcher:
    """The launcher that a plan names. Raises `PlanError` naming the installed ones."""
    known = {point.name: point for point in entry_points(group="conclave.launchers")}
    if name not in known:
        names = ", ".join(f'"{each}"' for each in ["connect", *sorted(known)])
        raise PlanError(f'[federation] launch = "{name}" is not installed here. There is {names}.', code="C106")
    launcher: Launcher = known[name].load()()
    return launcher
