"""The plan of the recipe `nvdp`: its tables `[samples]`, `[public]` and `[bottleneck]`."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from coordinator.plan.public_text import SourceTable
from coordinator.plan.table import Table
from coordinator.text_models.plan import ClassifierPlan


class SamplesTable(Table):
    """`[samples]`: what each party releases.

    form: "certified", one vector a text under noise that has a proof; "published", the paper's layer (`[bottleneck]`),
    which has none. The other keys but `rows` and `bins` belong to the certified form, and the published one needs
    `labels = "public"`. rows: of every party, whatever it holds: one a text, the others noise. dimensions: numbers of a
    text's vector. levels: grid steps in a vector's largest norm. labels: "private", under randomised response that
    costs `label_epsilon` of the plan's epsilon; or "public", which nothing protects. label_epsilon: that part; by
    default what leaves a text's class the least noise. bins: of a regression's scores, which leave as the part of the
    range that they are in. texts: of one user, where users are protected.
    """

    form: Literal["certified", "published"] = "certified"
    rows: Annotated[int, Field(ge=1, le=1 << 20)] = 5000
    dimensions: Annotated[int, Field(ge=1, le=1024)] = 8
    levels: Annotated[int, Field(ge=16, le=1 << 20)] = 4096
    labels: Literal["private", "public"] = "private"
    label_epsilon: Annotated[float, Field(gt=0, le=20)] | None = None
    bins: Annotated[int, Field(ge=2, le=64)] = 4
    texts: Annotated[int, Field(ge=1, le=1024)] = 1

    @model_validator(mode="after")
    def _public_labels_cost_nothing(self) -> "SamplesTable":
        if self.labels == "public" and self.label_epsilon is not None:
            raise ValueError(
                '[samples] label_epsilon is spent on private labels, and labels = "public". Leave one out.'
            )
        return self


class PublicTable(SourceTable):
    """`[public]`: the text that the projection is fitted on.

    source, text: the text. label: a column of the plan's labels, if the text has one: the first directions are then
    those that its classes differ along. second: the column of second texts, where the plan reads pairs. alike: of pairs
    of two classes without labels, the class of those whose texts are alike; what public text says of the classes is
    then their cosine alone. limit: of how many texts, drawn evenly by the plan's seed.
    """

    second: str | None = None
    alike: str | None = None
    limit: Annotated[int, Field(ge=100, le=200_000)] = 5000


class BottleneckTable(Table):
    """`[bottleneck]`: the paper's layer, in a run of the published form and in the rows of a comparison.

    kind: of the layer in a run; a comparison has a row of each. texts: of each party in a comparison, the first of its
    shard. tokens: of a text; longer ones are cut. width: of a noisy vector, a multiple of `heads`. heads: of its
    attention. weight: of both divergences from the prior, in training. sigma: the noise of "vib-fixed". passes: over
    the texts, in each training. order: of the divergence that is measured.
    """

    kind: Literal["nvib", "vtdp", "vib-fixed", "vib-learned"] = "nvib"
    texts: Annotated[int, Field(ge=1, le=20_000)] = 2000
    tokens: Annotated[int, Field(ge=4, le=128)] = 32
    width: Annotated[int, Field(ge=8, le=768)] = 64
    heads: Annotated[int, Field(ge=1, le=16)] = 8
    weight: Annotated[float, Field(ge=0, le=100)] = 1e-2
    sigma: Annotated[float, Field(ge=0.01, le=7)] = 1.0
    passes: Annotated[int, Field(ge=1, le=100)] = 6
    order: Annotated[float, Field(gt=1, le=100)] = 1.1

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "BottleneckTable":
        if self.width % self.heads:
            raise ValueError(
                f"[bottleneck] heads = {self.heads} do not divide width = {self.width}. Use one that does."
            )
        return self


class NvdpPlan(ClassifierPlan):
    """A plan whose parties release a noisy vector of each text, or a noisy sequence."""

    UNPROVEN = True

    public: PublicTable
    samples: SamplesTable = SamplesTable()
    bottleneck: BottleneckTable | None = None

    @property
    def shares_noise(self) -> bool:
        return False

    @property
    def published(self) -> bool:
        """Whether what leaves is sampled by the paper's layer, which is a heuristic."""
        return self.samples.form == "published"

    @property
    def layer(self) -> BottleneckTable:
        """How the paper's layer samples: as the plan says, or by default."""
        return self.bottleneck or BottleneckTable()

    @property
    def label_epsilon(self) -> float:
        """What a text's label costs: the plan's figure, or what leaves its class means the least noise; 0 where labels
        are public.
        """
        if self.samples.labels == "public":
            return 0.0
        if self.samples.label_epsilon is not None:
            return self.samples.label_epsilon
        from coordinator.systems.nvdp.splitting import label_epsilon

        return label_epsilon(self.privacy.epsilon, self.privacy.delta, self.classes, self.samples.texts)

    @property
    def classes(self) -> int:
        """Values that a released label has."""
        return self.samples.bins if self.text.kind == "regression" else len(self.text.labels)

    def divide_again(self, tables: dict[str, Any], factor: float) -> None:
        samples = tables.get("samples", {})
        if samples.get("label_epsilon") is not None:
            samples["label_epsilon"] *= factor

    def _check_learning(self) -> None:
        privacy, samples = self.privacy, self.samples
        if self.model.adapt != "head":
            raise ValueError(
                f'[model] adapt = "{self.model.adapt}": nothing of the public encoder is trained. Leave it out.'
            )
        if privacy.noise != "gaussian":
            raise ValueError(
                f'[privacy] noise = "{privacy.noise}": every party adds all noise itself, and no sum needs shares of '
                "it. Leave it out."
            )
        if privacy.dropouts or privacy.colluders or privacy.attempts > 1:
            raise ValueError(
                "[privacy] dropouts, colluders and attempts belong to sums, and every party's rows are its own. Leave "
                "them out, and set [federation] minimum_parties to as many as have to stay."
            )
        if self.published == privacy.guarantee:
            wanted = "guarantee = false" if self.published else "an epsilon and a delta, and no guarantee = false"
            raise ValueError(
                f'[samples] form = "{samples.form}" {"has no proof" if self.published else "has a guarantee"}: write '
                f"[privacy] {wanted}, or choose the other form."
            )
        if self.published:
            self._check_published()
            return
        if privacy.unit == "record" and samples.texts != 1:
            raise ValueError(f"[samples] texts = {samples.texts} is of one user, and the plan protects records.")
        if samples.labels == "private" and self.label_epsilon * samples.texts >= privacy.epsilon:
            raise ValueError(
                f"[samples] label_epsilon = {self.label_epsilon:g} for {samples.texts} texts leaves nothing of "
                f"[privacy] epsilon = {privacy.epsilon:g} for the texts. Use less."
            )
        self._check_pairs()

    def _check_published(self) -> None:
        """Check what the published form needs, and that nothing is asked of it that it has not."""
        samples, usual = self.samples, SamplesTable()
        of_vectors = ("dimensions", "levels", "label_epsilon", "texts")
        if odd := [key for key in of_vectors if getattr(samples, key) != getattr(usual, key)]:
            raise ValueError(
                f'[samples] {odd[0]} belongs to form = "certified". Leave it out; [bottleneck] says what the layer '
                "makes."
            )
        if samples.labels != "public":
            raise ValueError(
                '[samples] form = "published" protects no label: it leaves as it is. Say labels = "public", or use the '
                "certified form."
            )
        if self.text.pairs:
            raise ValueError(
                '[samples] form = "published" samples single texts, and [text] reads pairs. Use the certified form.'
            )
        if self.public.label is None or self.public.second is not None:
            raise ValueError(
                "[public] label is missing: the layer is trained on public texts with labels of the plan's. Name the "
                "column."
                if self.public.label is None
                else f'[public] second = "{self.public.second}" is of pairs, and [text] reads one text. Leave it out.'
            )
        if self.privacy.unit != "record":
            raise ValueError(
                f'[privacy] unit = "{self.privacy.unit}": the published form protects nobody, and counts texts alone. '
                'Use unit = "record".'
            )

    def _check_pairs(self) -> None:
        """Check the columns of public and of the parties' pairs, and what is said of pairs that are alike."""
        public, shards, kind = self.public, self.federation.shards, self.text.kind
        if self.text.pairs and public.second is None:
            raise ValueError("[public] second is missing: the column that holds the second texts.")
        if not self.text.pairs and public.second is not None:
            raise ValueError(
                f'[public] second = "{public.second}" is of pairs, and [text] reads one text. Leave it out.'
            )
        tables = {"[public]": public, "[evaluation]": self.evaluation, "[federation.shards]": shards}
        for name, table in tables.items():
            if self.text.pairs and table is not None and table.second in (table.text, table.label):
                raise ValueError(
                    f'{name} second = "{table.second}" is the text or the label already. Name the column of second '
                    "texts."
                )
        guessed = kind == "pair" and len(self.text.labels) == 2 and public.label is None
        if guessed and public.alike is None:
            raise ValueError(
                "[public] alike is missing: these pairs have no labels, so say which class is that of texts that are "
                f'alike, for example alike = "{self.text.labels[-1]}". Or name a label column.'
            )
        if public.alike is not None and not guessed:
            raise ValueError(
                f'[public] alike = "{public.alike}" belongs to pairs of two classes without labels. Leave it out.'
            )
        if public.alike is not None and public.alike not in self.text.labels:
            raise ValueError(
                f'[public] alike = "{public.alike}" is none of the [text] labels, {", ".join(self.text.labels)}. Name '
                "one of them."
            )
