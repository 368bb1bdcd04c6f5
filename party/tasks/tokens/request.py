"""The request for clipped counts of tokens."""

from dataclasses import dataclass
from typing import ClassVar, Final

from party.releasing.mechanisms import answering
from party.tasks.task import Given, Work, cannot_give, wrong
from party.tasks.text.request import TokenizerFiles, coded_of, tokenizer_of
from protos.conclave.v1 import party_pb2, plan_pb2


@dataclass(frozen=True, slots=True)
class TokensWork(Work):
    """A checked `party_pb2.TokensTask`.

    model: how the language model reads text. coded: the plan's control codes in hexadecimal, empty for none: they
    shorten what is left to a text, and a text without one is none of the model's. by_code: whether texts of each code
    are counted apart.
    """

    kind: ClassVar[str] = "tokens"

    model: TokenizerFiles
    coded: str
    by_code: bool = False


WORK: Final = TokensWork


def checked(task: party_pb2.TokensTask, given: Given) -> TokensWork:
    """Check the request. Raises `Refusal`: REQUEST for a release that is not of counts, where a record is no text, or
    for counts of each code under a plan without codes; and as `tokenizer_of` and `coded_of` do.
    """
    answering(given.release)
    if given.release.WhichOneof("mechanism") != "counts":
        raise cannot_give(TokensWork.kind, given.release)
    if given.run.terms.privacy.record == plan_pb2.RECORD_PAIR:
        raise wrong('tokens are counted in texts, and a record is a pair of words; plan with record = "document".')
    coded = coded_of(given)
    if task.by_code and not coded:
        raise wrong("tokens are to be counted by control code, and the plan has no codes.")
    return TokensWork(tokenizer_of(task.model, given), coded, task.by_code)


def fits(work: TokensWork, release: plan_pb2.Release, memory: int) -> None:
    """Nothing: what is counted takes 16 MiB at most (`learning.text.codes.MOST_COUNTS`), and any party's limit
    is more.
    """


def paid_before(work: TokensWork) -> plan_pb2.Release | None:
    """None: the release itself is charged."""
    return None
