"""What every test may count on."""

import collections
import gc
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

RAY = (
    "tests/deploy/",
    "tests/coordinator/run/test_run.py",
    "tests/coordinator/run/test_privdistil_run.py::test_a_corpus_that_ray_works_through",
)
"""What starts Ray: two of them at once are more than two processors start in time."""

EARLY = (
    "tests/coordinator/run/",
    "tests/coordinator/comparing/",
    "tests/fuzz/test_twins.py",
    "tests/golden/",
    "tests/party/shard/test_plain.py",
    "tests/party/tasks/",
)
"""Files of few tests that take long. They come first, or one process works at them when the others have ended."""

WORDS = "the a film was is good bad great awful dull bright plot actor and not very slow fast end start story we saw it"
"""What the small models' tokenizers know as whole words."""

# An input that took long on a busy machine says nothing of the code.
settings.register_profile("any clock", parent=settings.default, deadline=None)
settings.load_profile("any clock")

# Processes of tests side by side share the processors, which torch would else take whole in each of them.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile` files are shared out among processes whole, and all of `RAY` to one process."""
    from xdist.scheduler import LoadFileScheduling

    class Sharing(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return "ray" if nodeid.startswith(RAY) else super()._split_scope(nodeid)

    config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`
    return Sharing(config, log) if config.getvalue("dist") == "loadfile" else None


ALL_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path, config):
    """Where slow tests alone are wanted, files without any are not imported; where quick ones, files of slow ones."""
    wanted = str(config.option.markexpr)
    if collection_path.suffix != ".py":
        return None
    if wanted == "not slow":
        return True if ALL_SLOW.search(collection_path.read_text("utf-8")) else None
    if not wanted.startswith(("slow", "long")):
        return None
    said = [collection_path, collection_path.with_name("conftest.py")]
    return None if any("mark.slow" in path.read_text("utf-8") for path in said if path.is_file()) else True


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported stays: Python need not look through it for garbage, neither meanwhile nor ever after."""
    gc.disable()
    found = yield
    gc.freeze()
    gc.enable()
    return found


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Every second process reads the folders backwards. On a new checkout pytest rewrites the assertions of each file
    and keeps what it made: processes that meet in the middle rewrite half of the files each.
    """
    report = yield
    if isinstance(collector, pytest.Directory) and int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 2:
        report.result = report.result[::-1]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """The longest are marked so (`long.py`). Among processes: first the files that take long, then those of many tests.
    The second device is there before any gradient is, for torch counts devices once.
    """
    long = tuple(beside("long").LONG)
    for item in items:
        if item.nodeid.startswith(long):
            item.add_marker(pytest.mark.long)
    if any("elsewhere" in item.fixturenames for item in items):
        beside("second_device").register()
        config.second_device = True
    if hasattr(config, "workerinput"):
        files = collections.Counter(item.nodeid.split("::")[0] for item in items)

        def place(item):
            file = item.nodeid.split("::")[0]
            return not file.startswith(EARLY), -files[file], file

        items.sort(key=place)


def pytest_pyfunc_call(pyfuncitem):
    """A test that has to be alone is run by another pytest where this process has a second device."""
    if pyfuncitem.get_closest_marker("alone") is None or not getattr(pyfuncitem.config, "second_device", False):
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "alone"]
    done = subprocess.run([*command, pyfuncitem.nodeid], cwd=pyfuncitem.config.rootpath, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "1 passed" in done.stdout
    return True


# A shell that starts the suite in the background makes it ignore Ctrl-C, and so every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def beside(name):
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"tests_{name}", Path(__file__).parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def warm_parties():
    """What forks `party` processes, which saves two seconds of imports each."""
    with beside("faults/warm").Warm("party") as warm:
        yield warm


@pytest.fixture(scope="session")
def own_recipes(tmp_path_factory):
    """A folder that, on the search path, brings the recipes that this tree's pyproject.toml names, whichever it named
    when it was installed.
    """
    told = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    points = told["project"]["entry-points"]["conclave.recipes"]
    site = tmp_path_factory.mktemp("recipes")
    described = site / "own_recipes-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: own-recipes\nVersion: 1.0\n")
    lines = [f"{name} = {place}" for name, place in points.items()]
    (described / "entry_points.txt").write_text("\n".join(["[conclave.recipes]", *lines, ""]))
    return site


@pytest.fixture
def distildp(own_recipes, monkeypatch):
    """The name of the recipe of language models, which parties then know."""
    monkeypatch.syspath_prepend(own_recipes)
    return "distildp"


@pytest.fixture
def elsewhere(monkeypatch):
    """Within it a second device is asked for, and there (`second_device`): whatever meets it on the processor fails."""
    import torch

    from learning.models import compute

    with beside("second_device").second_device() as second:
        monkeypatch.setattr("torch.inference_mode", torch.no_grad)  # which a device written in Python does not know
        monkeypatch.setattr(compute, "placement", lambda asked: compute.Placement(second.device, asked.precision))
        with compute.running(compute.Compute("cuda")):
            yield second


def _tokenizer(folder: Path, special: dict[str, str], around: str | None) -> int:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    if around:
        letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
        # Not trained: the trainer numbers tokens that are as frequent in another order every time.
        known = dict.fromkeys([*special.values(), *letters, *(f"##{each}" for each in letters), *sorted(WORDS.split())])
        vocabulary = {token: place for place, token in enumerate(known)}
        found = Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk_token"]))
        found.normalizer = normalizers.Lowercase()
        found.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        found = Tokenizer(models.BPE())
        found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=300, special_tokens=list(special.values()), initial_alphabet=alphabet, show_progress=False
        )
        found.train_from_iterator([WORDS] * 5, trainer)
    if around:
        found.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", found.token_to_id("[CLS]")), ("[SEP]", found.token_to_id("[SEP]"))],
        )
    else:
        found.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=found, **special).save_pretrained(folder)
    return int(found.get_vocab_size())


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    """The folder of a BERT without a head, its dropout on: 2 layers of width 32, 32 tokens at most."""
    import torch
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny") / "bert"
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    size = _tokenizer(folder, special, "bert")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory):
    """The folder of a GPT-2 with its language head and no padding token: 2 layers of width 32, 32 tokens at most."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("tiny") / "gpt2"
    size = _tokenizer(folder, {"bos_token": "<|end|>", "eos_token": "<|end|>"}, None)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=size, n_positions=32, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_sequence(tiny_gpt2, tmp_path_factory):
    """`tiny_sequence(kind)`: the folder of a BART ("bart") or T5 ("t5") with the tokenizer of `tiny_gpt2`."""
    where = tmp_path_factory.mktemp("sequence")
    return cache(lambda kind: _sequence(kind, tiny_gpt2, where / kind))


def _sequence(kind, tiny_gpt2, where):
    """A small model of a kind, made from scratch, beside the tokenizer of the small GPT-2."""
    import torch
    from transformers import (
        AutoTokenizer,
        BartConfig,
        BartForConditionalGeneration,
        T5Config,
        T5ForConditionalGeneration,
    )

    tokenizer = AutoTokenizer.from_pretrained(tiny_gpt2)
    size = len(tokenizer)
    torch.manual_seed(3)
    if kind == "bart":
        config = BartConfig(
            vocab_size=size, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=40,
            init_std=0.3, pad_token_id=1, bos_token_id=0, eos_token_id=0, decoder_start_token_id=2,
            forced_eos_token_id=None,
        )  # fmt: skip
        model = BartForConditionalGeneration(config)
    else:
        config = T5Config(
            vocab_size=size, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, pad_token_id=1, eos_token_id=0,
            decoder_start_token_id=1, initializer_factor=1.0,
        )  # fmt: skip
        model = T5ForConditionalGeneration(config)
    model.save_pretrained(where)
    tokenizer.save_pretrained(where)
    return where
