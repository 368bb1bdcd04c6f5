"""The front matter of a model card: what model hubs read, and show beside the model."""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from coordinator.plan.named import named
from coordinator.plan.plan import Plan
from learning.text.hub import is_hub_name

PRIVATE: Final = "differential-privacy"
"""The tag of a student with a guarantee; one of a form without does not get it."""


class _Shown(NamedTuple):
    """A figure as hubs know it: the kind of metric, and its name."""

    kind: str
    name: str


_SHOWN: Final = {
    "accuracy": _Shown("accuracy", "Accuracy"),
    "macro_f1": _Shown("f1", "Macro F1"),
    "f1": _Shown("f1", "F1 of the second class"),
    "pearson": _Shown("pearsonr", "Pearson correlation"),
    "spearman": _Shown("spearmanr", "Spearman correlation"),
    "perplexity": _Shown("perplexity", "Context perplexity"),
    "token_perplexity": _Shown("perplexity", "Perplexity of a token"),
    "rouge_1": _Shown("rouge", "ROUGE-1"),
    "rouge_2": _Shown("rouge", "ROUGE-2"),
    "rouge_l": _Shown("rouge", "ROUGE-L"),
}


def front_matter(
    plan: Plan,
    *,
    library: str,
    task: str,
    tags: Sequence[str],
    metrics: dict[str, Any],
    pipeline: bool = True,
    base: str | None = None,
) -> str:
    """The front matter between its two lines of dashes, with a line's end.

    task: of hubs, as "text-classification". pipeline: whether the standard library has a pipeline for the student,
    which a hub then offers. base: the public model that the student began as; only one that a hub has is named.
    metrics: what was measured on the public text of `[evaluation]`. Text that was read from a disk is named without its
    path, and the parties' text only where it is a dataset of a hub.
    """
    from huggingface_hub import ModelCardData

    shards = plan.federation.shards
    private = None if shards is None else shards.source
    data = ModelCardData(
        language=plan.student.language,
        license=plan.student.licence,
        library_name=library,
        pipeline_tag=task if pipeline else None,
        base_model=_on_hub(base),
        datasets=None if _on_hub(private) is None else [str(private)],
        tags=[each for each in tags if plan.privacy.guarantee or each != PRIVATE],
    )
    results = _results(plan, task, metrics)
    if results:
        data.model_name, data.eval_results = plan.run.name, results
    return f"---\n{data.to_yaml(line_break=chr(10))}\n---\n"


def _results(plan: Plan, task: str, metrics: dict[str, Any]) -> list[Any]:
    """The figures on public held-out text, for a hub's table of them."""
    from huggingface_hub import EvalResult

    if plan.evaluation is None:
        return []
    name = named(plan.evaluation.source)
    kind = _on_hub(plan.evaluation.source) or "text"
    found: list[EvalResult] = []
    for key, shown in _SHOWN.items():
        value = metrics.get(key)
        if isinstance(value, int | float) and math.isfinite(value):
            figure = float(f"{value:.4g}")
            found.append(
                EvalResult(
                    task_type=task,
                    dataset_type=kind,
                    dataset_name=name,
                    metric_type=shown.kind,
                    metric_value=figure,
                    metric_name=shown.name,
                )
            )
    return found


def _on_hub(name: str | None) -> str | None:
    """A name with its owner's, as hubs have them; None for a file, and for text that comes with Conclave."""
    return name if name is not None and "/" in name and is_hub_name(name) else None
