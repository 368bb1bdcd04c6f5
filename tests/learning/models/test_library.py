"""What importing a model costs, that nothing else misses what is left out, and that models compute the same."""

import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

USED = """
import sys
from pathlib import Path
import torch
from learning.models import checkpoints
from learning.models.optimisers import uncompiled
kinds = {"bert": "classifier", "gpt2": "language model", "t5": "sequence-to-sequence model"}
kinds["bart"] = kinds["t5"]
for folder in sys.argv[1:]:
    kind = kinds[checkpoints.config_of(folder).model_type]
    model, tokenizer = (loaded := checkpoints.load(folder, kind, checkpoints.config_of(folder))).model, loaded.tokenizer
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.1)
    more = {"decoder_input_ids": ids} if kind.startswith("seq") else {}
    out = model(input_ids=ids, **more).logits
    out.square().sum().backward()
    gradient = sum(float(each.grad.double().square().sum()) for each in model.parameters() if each.grad is not None)
    print(out.double().sum().item().hex(), gradient.hex())
    with uncompiled():
        torch.optim.AdamW(model.parameters(), 0.1).step()
    print(sum(float(each.double().square().sum()) for each in model.parameters()).hex())
    checkpoints.save(model, tokenizer, Path(folder, "saved"))
    print(sorted(path.name for path in Path(folder, "saved").iterdir()))
"""
HEAVY = """
print([name for name in ("torch._dynamo", "torch.distributed.tensor", "scipy.optimize") if name in sys.modules])
import transformers
from transformers.utils import import_utils
print(transformers.utils.is_torch_distributed_available(), import_utils.is_torch_distributed_available())
print(torch.compiler.disable.__module__, transformers.masking_utils.TransformGetItemToIndex().__class__.__name__)
import torch._dynamo, torch.distributed.tensor, scipy.optimize
print(torch._dynamo.is_compiling(), torch.distributed.tensor.DTensor.__name__)
print(scipy.optimize.linear_sum_assignment([[1.0]])[0].tolist())
"""
ADAPTED = """
import sys
import torch
from learning.models import checkpoints
from learning.models.adapting import adapt, flatten
for folder in sys.argv[1:]:
    config = checkpoints.config_of(folder)
    kind = {"bert": "classifier", "gpt2": "language model"}.get(config.model_type, "sequence-to-sequence model")
    for how in ("lora", "lora-all"):
        torch.manual_seed(1)
        model = checkpoints.load(folder, kind, config).model
        adapt(model, how, seed=0)
        print(folder, how, flatten(model).double().square().sum().item().hex())
print("torch.distributed.tensor" in sys.modules)
"""
PLAIN = "import transformers.modeling_utils, transformers.generation\n"
BROKEN = """
from contextlib import contextmanager
from aggregation import imports

@contextmanager
def later(modules):
    yield
    if "scipy.optimize" in modules:
        raise AttributeError("another version of the library")

imports.later = later
"""


def said(code: str, *folders: object) -> list[str]:
    given = [sys.executable, "-P", "-c", code, *map(str, folders)]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_models_are_the_same_without_a_compiler_and_clusters_which_others_find(
    tiny_bert, tiny_gpt2, tiny_sequence, tmp_path
) -> None:
    made = (tiny_bert, tiny_gpt2, tiny_sequence("t5"), tiny_sequence("bart"))
    folders = [shutil.copytree(each, tmp_path / each.name) for each in made]
    *ours, heavy, asked, names, others, found = said(USED + HEAVY, *folders)
    assert heavy == "[]"
    assert asked == "True True"
    assert names == "torch.compiler TransformGetItemToIndex"
    assert (others, found) == ("False DTensor", "[0]")
    assert ours == said(PLAIN + USED, *folders)
    assert ours == said(BROKEN + USED, *folders)


def test_adapters_are_the_same_where_clusters_were_never_imported(tiny_bert, tiny_gpt2, tiny_sequence) -> None:
    """Whatever a test before this one imported, for it has a process of its own."""
    folders = (tiny_bert, tiny_gpt2, tiny_sequence("t5"), tiny_sequence("bart"))
    *ours, imported = said(ADAPTED, *folders)
    assert (len(ours), imported) == (8, "False")
    *plain, imported = said("import torch.distributed.tensor\n" + PLAIN + ADAPTED, *folders)
    assert (ours, imported) == (plain, "True")
