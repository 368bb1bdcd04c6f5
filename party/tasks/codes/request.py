"""The request for the clipped histogram of control codes."""

from dataclasses import dataclass
from typing import ClassVar, Final

from party.releasing.mechanisms import answering
from party.tasks.task import Given, Work, cannot_give, wrong
from party.tasks.text.request import coded_of
from protos.conclave.v1 import party_pb2, plan_pb2


@dataclass(frozen=True, slots=True)
class CodesWork(Work):
    """A checked `party_pb2.CodesTask`. coded: the plan's control codes, in hexadecimal."""

    kind: ClassVar[str] = "codes"

    coded: str


WORK: Final = CodesWork


def checked(task: party_pb2.CodesTask, given: Given) -> CodesWork:
    """Check the request. Raises `Refusal`: REQUEST for a release that is not of counts, or a plan without codes, and as
    `coded_of` does.
    """
    answering(given.release)
    if given.release.WhichOneof("mechanism") != "counts":
        raise cannot_give(CodesWork.kind, given.release)
    coded = coded_of(given)
    if not coded:
        raise wrong("the plan declares no control codes, and codes counts them.")
    return CodesWork(coded)


def fits(work: CodesWork, release: plan_pb2.Release, memory: int) -> None:
    """Nothing: there are 4,096 codes at most."""


def paid_before(work: CodesWork) -> plan_pb2.Release | None:
    """None: the release itself is charged."""
    return None
