"""The tables `[text]`, `[model]`, `[codes]`, `[floor]` and `[generation]` of a plan of language models."""

from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, model_validator

from coordinator.text_models.tables import DpSgdTable, ModelTable
from learning.text.codes import CodeError, Codes
from learning.text.labelled import LabelMap, LabelMapError
from protos.console.settings import Settings

MOST_TEXTS = 10_000_000
MOST_APART = 16
"""Control codes whose texts are counted apart unless a plan says so: noise adds up where counts of many are joined."""


class LanguageTextTable(Settings):
    """`[text]`: how the parties' text is read. longest: tokens of a document, its code included; others are cut."""

    longest: Annotated[int, Field(ge=16, le=4096)] = 128


class PairedTextTable(LanguageTextTable):
    """`[text]` of a plan that may learn the answers to inputs.

    kind: "single", texts; "pair", of every row the column `second` as the answer to `text`, both in `longest` tokens.
    separator: what stands between them where one model reads both; an encoder of its own reads the input alone. answer:
    tokens of an answer, its end included; longer ones are cut, and inputs to the rest of `longest`.
    """

    kind: Literal["single", "pair"] = "single"
    separator: Annotated[str, Field(min_length=1, max_length=200)] = "\n"
    answer: Annotated[int, Field(ge=2, le=4096)] = 32


class LanguageModelTable(ModelTable):
    """`[model]`: the public causal language model that the teacher starts from, and what is trained of it.

    name: a local folder, or a name on the model hub. adapt: "lora", low-rank adapters of the attention; "lora-all",
    adapters of every linear layer; "full". rank, alpha: of the adapters.
    """

    name: Annotated[str, Field(min_length=1)]
    adapt: Literal["lora", "lora-all", "full"] = "lora-all"
    pooling: Literal["auto"] = "auto"


class LanguageDpSgdTable(DpSgdTable):
    """`[dp_sgd]`: as of other text models, with learning rates that were tried on language models (see
    docs/results/distildp.md).
    """

    RATES = MappingProxyType(DpSgdTable.RATES | {"lora-all": 0.008, "full": 0.0005})


class CodeColumnTable(Settings):
    """`[codes.columns.NAME]`: one column of the control codes.

    values: all values there can be, as codes show them. stored: what the column holds for each, by default the values.
    column: its name in `[federation.shards]`, by default that of the table; a party elsewhere says in its own file
    which of its columns it is.
    """

    values: Annotated[list[str], Field(min_length=2)]
    stored: list[str] = Field(default_factory=list)
    column: str | None = None


class CodesTable(Settings):
    """`[codes]`: what stands before a text when the teacher reads or writes it.

    template: words with columns in braces. columns: those of the template, each a table. epsilon: the part of the
    plan's epsilon that the joint histogram of the codes spends, by default a twentieth. clip: L2 norm of one unit's
    counts; a record has one code. student: whether the student is shown codes, too.
    """

    template: Annotated[str, Field(min_length=1)]
    columns: Annotated[dict[str, CodeColumnTable], Field(min_length=1)]
    epsilon: Annotated[float, Field(gt=0)] | None = None
    clip: Annotated[float, Field(gt=0)] = 1.0
    student: bool = False

    @model_validator(mode="after")
    def _can_be_read(self) -> "CodesTable":
        try:
            self.codes()
        except (CodeError, LabelMapError) as error:
            raise ValueError(f"[codes] {error}") from None
        return self

    def codes(self) -> Codes:
        """The template and its public values. Raises `CodeError`, `LabelMapError`."""
        columns = {name: LabelMap(tuple(each.values), tuple(each.stored)) for name, each in self.columns.items()}
        return Codes(self.template, columns)


class FloorTable(Settings):
    """`[floor]`: counts of tokens that parties release once, and what is made of them without any training.

    epsilon: the part of the plan's epsilon that the counts spend, by default 0.35 of it. clip: L2 norm of one unit's
    counts. tilt: how far the teacher's logits are moved towards the counts, from 0, not at all, to 1, until its mean is
    theirs; the teacher is trained on top of that. weight: the share of the counts' own distribution in what the teacher
    says in the end. by_code: whether texts of each control code are counted apart, which costs no more; by default
    where there are no more than `MOST_APART` codes. code_tilt: how far what is said after a code is moved from the
    counts of all texts to those of the code's. use: false asks for no counts.
    """

    use: bool = True
    epsilon: Annotated[float, Field(gt=0)] | None = None
    clip: Annotated[float, Field(gt=0)] = 6.0
    tilt: Annotated[float, Field(ge=0, le=1)] = 0.5
    weight: Annotated[float, Field(ge=0, lt=1)] = 0.1
    by_code: bool | None = None
    code_tilt: Annotated[float, Field(ge=0, le=1)] = 0.75


class GenerationTable(Settings):
    """`[generation]`: the texts that the teacher writes for its student.

    texts: how many; those that repeat others are left out. longest: tokens of one, its end included; by default as in
    `[text]`. top_k, top_p: the most probable tokens among which the next is drawn, by default all (0 and 1); top_p
    after top_k. 50 and 0.9, the paper's, make texts that are nicer to read, and a worse student in trials.
    temperature: above 1 more various, below 1 less. batch: texts written at a time. where: "coordinator", which needs
    the parameters of what was trained; "parties", each with the teacher that it trained alone and keeps.
    """

    texts: Annotated[int, Field(ge=10, le=MOST_TEXTS)] = 10_000
    longest: Annotated[int, Field(ge=8, le=4096)] | None = None
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    temperature: Annotated[float, Field(gt=0)] = 1.0
    batch: Annotated[int, Field(ge=1, le=65_536)] = 256
    where: Literal["coordinator", "parties"] = "coordinator"
