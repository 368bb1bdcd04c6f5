"""A frozen public encoder by torch, ONNX Runtime and OpenVINO: texts a second, how near the vectors are, and whether a
text's bits depend on its neighbours.

    python benchmarks/encoding.py [--rounds 5] [--threads 1,2] [--ways torch,onnx] [--out FILE]

The encoder is the packaged MiniLM as a classifier with the mean for pooling, and its vectors are those that a head is
trained on. *together* is texts in batches as for public text (`learning.models.features.features`, 8,192 tokens at
once or 512, whichever is faster), *apart* is as for private text (`features_apart`): padded lengths and sizes of
batches at which a text's bits are its own alone, found for each backend by the same trial, one text at a time where
there is no larger one. Sentence-transformers tokenises, too, and its vectors are its own: they are compared with those
of its torch backend. Backends take turns on phrases of SST-2 and on texts of 64 tokens; a rate is the best of the
rounds, by the processor's time on one thread and by the clock on more, and a ratio is the median of the rounds'.
OpenVINO's int8 is calibrated on passages of novels; ONNX Runtime's has scales made anew for every batch. It needs
CONCLAVE_DATA (or ../shared/data) and keeps the graphs in benchmarks/work; a backend that is not installed is left out,
in a sentence.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

DATA = Path(os.environ.get("CONCLAVE_DATA") or Path(__file__).resolve().parents[2] / "shared/data")
WORK = Path(__file__).resolve().parent / "work/encoding"
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
ONNX = {"onnx": "", "onnx-int8-avx2": "QUInt8", "onnx-int8-avx512": "QInt8"}
LONGEST, HEADS, WIDTH = 64, 12, 384
PHRASES, LONG = 64, 16
COMPARED = {"phrases": 300, "64 tokens": 48}
NEIGHBOURS = 4
NEEDS = {
    "onnx": (("onnxruntime", "onnx", "sympy"), "onnxruntime onnx sympy"),
    "openvino": (("openvino",), "openvino"),
    "openvino-int8": (("openvino", "nncf"), "openvino nncf"),
    "st-onnx": (("optimum.onnxruntime",), "'sentence-transformers[onnx]'"),
    "st-openvino": (("optimum.intel",), "'sentence-transformers[openvino]'"),
}
VERSIONS = {"torch", "transformers", "sentence-transformers", "onnxruntime", "openvino", "nncf", "optimum-intel"}
ALL = ("torch", *ONNX, "openvino", "openvino-int8", "st-torch", "st-onnx", "st-openvino")

Run = Callable[..., np.ndarray]


def missing(way: str) -> str:
    """The sentence for a backend that is not installed; empty where it is."""
    modules, packages = NEEDS.get("onnx" if way in ONNX else way, ((), ""))
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        return f"{way} is left out: {error.name} is not installed. Install it: pip install {packages}"
    return ""


def encoder():
    """The packaged encoder as a classifier of which the head is trained, and its tokenizer."""
    from learning.models.adapting import adapt
    from learning.models.checkpoints import PACKAGED
    from learning.models.encoders import classifier
    from learning.text.labelled import LabelMap

    model, tokenizer = classifier(PACKAGED, LabelMap(("negative", "positive")), seed=0, pool="mean")
    adapt(model, "head", seed=0)
    return model.eval(), tokenizer


def exported(model) -> Path:
    """The encoder up to its head's input as an ONNX graph, batch and length free."""
    import torch

    from learning.models.batching import Tokens, inputs_of

    class Vectors(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = model.bert  # its own, so that weights become the graph's, which quantisation finds

        def forward(self, *inputs):
            return self.bert(**dict(zip(INPUTS, inputs, strict=True))).pooler_output

    rows = [Tokens(np.arange(1000, 1000 + length, dtype=np.int32), length) for length in (24, 17, 3)]
    given = inputs_of(model.config, rows)
    path = WORK / "encoder.onnx"
    torch.onnx.export(
        Vectors(), tuple(given[name] for name in INPUTS), path, dynamo=False, opset_version=17,
        input_names=list(INPUTS), output_names=["vectors"],
        dynamic_axes={name: {0: "texts", 1: "tokens"} for name in INPUTS},
    )  # fmt: skip
    return path


def onnx_run(model, way: str, threads: int) -> Run:
    """ONNX Runtime on the graph with its transformer operators fused; weights of `ONNX[way]`, 8 bits, if any."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer

    from learning.models.batching import inputs_of

    fused, path = WORK / "fused.onnx", WORK / f"{way}.onnx"
    if not fused.exists():
        found = optimizer.optimize_model(str(exported(model)), "bert", HEADS, WIDTH, opt_level=0)
        found.save_model_to_file(str(fused))
    if not ONNX[way]:
        path = fused
    elif not path.exists():
        quantize_dynamic(
            fused, path, weight_type=QuantType[ONNX[way]], per_channel=True,
            op_types_to_quantize=["MatMul", "Attention"], extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(rows, length=0):
        inputs = inputs_of(model.config, rows, length)
        return session.run(None, {name: inputs[name].numpy() for name in names})[0]

    return run


def openvino_run(model, way: str, threads: int, calibration: Callable[[], Sequence]) -> Run:
    """OpenVINO on the same graph, in float32 or quantised beforehand with scales that no later text changes."""
    import openvino

    from learning.models.batching import inputs_of

    path, quantised = WORK / "encoder.onnx", WORK / "openvino-int8.xml"
    core = openvino.Core()
    if way == "openvino-int8" and not quantised.exists():
        import nncf

        def inputs(row):
            return {name: each.numpy() for name, each in inputs_of(model.config, [row]).items()}

        graph = core.read_model(path if path.exists() else exported(model))
        given = nncf.Dataset(list(calibration()), inputs)
        kind, preset = nncf.ModelType.TRANSFORMER, nncf.QuantizationPreset.MIXED
        openvino.save_model(nncf.quantize(graph, given, model_type=kind, preset=preset), quantised)
    if way == "openvino-int8":
        path = quantised
    elif not path.exists():
        exported(model)
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    request, names = compiled.create_infer_request(), [each.any_name for each in compiled.inputs]

    def run(rows, length=0):
        given = inputs_of(model.config, rows, length)
        return np.array(request.infer({name: given[name].numpy() for name in names})[compiled.output(0)])

    return run


def torch_run(model) -> Run:
    """The project's own way: torch's forward pass as far as the head."""
    from learning.models.encoders import last_layer
    from learning.models.features import _seen

    layer = last_layer(model)
    return lambda rows, length=0: _seen(model, layer, rows, length).numpy()


def together(run: Run, rows: Sequence, tokens: int) -> np.ndarray:
    """As `learning.models.features.features`, by any backend."""
    from learning.models.batching import batches

    found = np.empty((len(rows), WIDTH), np.float32)
    for places in batches(rows, tokens):
        found[places] = run([rows[place] for place in places])
    return found


def sizes_apart(run: Run, rows: Sequence) -> dict[int, tuple[int, ...]]:
    """The sizes of batches of each padded length at which a text's bits are its own, by the trial of the project."""
    import torch

    from learning.models.agreement import agreeing, made_up_rows, rounded
    from learning.models.features import AT_ONCE

    def sizes(length: int) -> tuple[int, ...]:
        made_up = {number: made_up_rows(8000, length, number)[0] for number in range(4)}
        return agreeing(
            lambda numbers: [torch.from_numpy(run([made_up[each] for each in numbers], length))], AT_ONCE // length
        )

    return {length: sizes(length) for length in sorted({rounded(len(row), LONGEST) for row in rows})}


def apart(run: Run, rows: Sequence, known: dict[int, tuple[int, ...]]) -> np.ndarray:
    """As `learning.models.features.features_apart`, by any backend; a lone text is not padded."""
    from learning.models.agreement import divided, made_up_rows, rounded

    found = np.empty((len(rows), WIDTH), np.float32)
    lengths = np.array([rounded(len(row), LONGEST) for row in rows])
    for length in np.unique(lengths).tolist():
        places, start = np.flatnonzero(lengths == length), 0
        for size in divided(len(places), known[length]):
            some = places[start : start + size]
            fill = [made_up_rows(8000, length, 0)[0]] * (size - len(some))
            padded = 0 if known[length] == (1,) else length
            found[some] = run([*(rows[place] for place in some), *fill], padded)[: len(some)]
            start += size
    return found


def neighbours(run: Run, rows: Sequence) -> dict[str, float]:
    """How vectors change when other texts of the same shape stand beside a text, which keeps its place."""
    from learning.models.agreement import rounded

    length = 16 if any(len(row) <= 16 for row in rows) else LONGEST
    some = [row for row in rows if rounded(len(row), LONGEST) == length][: 3 * NEIGHBOURS]
    changed, largest, lowest = 0, 0.0, 1.0
    for place, row in enumerate(some):
        others = [each for other, each in enumerate(some) if other != place]
        first, second = others[: NEIGHBOURS - 1], others[1 - NEIGHBOURS :]
        one, other = run([row, *first], length)[0], run([row, *second], length)[0]
        changed += not np.array_equal(one, other)
        largest = max(largest, float(np.abs(one - other).max()))
        lowest = min(lowest, float(cosines(one[None], other[None])[0]))
    return {"changed": round(changed / len(some), 3), "largest": largest, "lowest_cosine": round(lowest, 6)}


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Of each row with the same row of the other."""
    return (one * other).sum(1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))


def near(found: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """Mean cosine, that which 1% of the texts are under, and the least."""
    each = cosines(found.astype(np.float64), wanted.astype(np.float64))
    return {
        "mean": round(float(each.mean()), 5),
        "worst_hundredth": round(float(np.quantile(each, 0.01)), 5),
        "least": round(float(each.min()), 5),
    }


def works_of(
    runs: dict[str, Run], transformers: dict, rows: Sequence, words: list[str], known: dict[str, dict]
) -> dict[tuple[str, str], Callable[[], object]]:
    """What is timed: each backend on the same texts, together and apart."""
    from learning.models.batching import TOKENS

    works: dict[tuple[str, str], Callable[[], object]] = {}
    for way, run in runs.items():
        for form, tokens in (("together", TOKENS), ("together, 512", 512)):
            works[way, form] = lambda run=run, tokens=tokens: together(run, rows, tokens)
        works[way, "apart"] = lambda run=run, sizes=known[way]: apart(run, rows, sizes)
    for way, each in transformers.items():
        works[way, "together"] = lambda each=each: each.encode(words, show_progress_bar=False)
    return works


def measure(ways: Sequence[str], texts: dict[str, list[str]], threads: int, rounds: int, compared: bool) -> list[dict]:
    """Every way on every kind of text, in turns; vectors are compared where they are to be."""
    import torch
    from sentence_transformers import SentenceTransformer

    from learning.models.batching import TOKENS, encode
    from learning.models.checkpoints import PACKAGED, place_of

    torch.set_num_threads(threads)
    model, tokenizer = encoder()

    def calibration():
        with (DATA / "novels/passages.jsonl").open(encoding="utf-8") as lines:
            passages = [json.loads(line)["text"] for line in islice(lines, 100)]
        return encode(tokenizer, passages, longest=LONGEST).rows

    runs: dict[str, Run] = {}
    for way in ways:
        if way == "torch":
            runs[way] = torch_run(model)
        elif way in ONNX:
            runs[way] = onnx_run(model, way, threads)
        elif way.startswith("openvino"):
            runs[way] = openvino_run(model, way, threads, calibration)
    transformers = {
        way: SentenceTransformer(place_of(PACKAGED), backend=way.removeprefix("st-"), device="cpu")
        for way in ways
        if way.startswith("st-")
    }
    for each in transformers.values():
        each.max_seq_length = LONGEST
    clock = time.process_time if threads == 1 else time.perf_counter
    rows_of = {kind: encode(tokenizer, given, longest=LONGEST).rows for kind, given in texts.items()}
    report = []
    for kind, rows in rows_of.items():
        count = PHRASES if kind == "phrases" else LONG
        given, words = rows[:count], texts[kind][:count]
        known = {way: sizes_apart(run, given) for way, run in runs.items()}
        works = works_of(runs, transformers, given, words, known)
        seconds: dict[tuple[str, str], list[float]] = {key: [] for key in works}
        for number in range(rounds + 1):  # the first warms up
            for key, work in works.items():
                began = clock()
                work()
                if number:
                    seconds[key].append(clock() - began)
        if compared:
            wanted = together(runs["torch"], rows, TOKENS)
            own = {way: each.encode(texts[kind], show_progress_bar=False) for way, each in transformers.items()}
        for way in ways:
            row: dict[str, object] = {"threads": threads, "texts": kind, "way": way, "rounds": rounds}
            for form in ("together", "apart"):
                keys = [key for key in works if key[0] == way and key[1].startswith(form)]
                if not keys:
                    continue
                key = min(keys, key=lambda each: min(seconds[each]))
                torchs = [each for (name, how), each in seconds.items() if name == "torch" and how.startswith(form)]
                base = [min(each) for each in zip(*torchs, strict=True)]
                ratios = [of_torch / own for of_torch, own in zip(base, seconds[key], strict=True)]
                row[form] = {
                    "per_second": round(count / min(seconds[key]), 1),
                    "ratio": round(statistics.median(ratios), 2),
                    "ratio_of_bests": round(min(base) / min(seconds[key]), 2),
                }
            if way in runs:
                row["sizes"] = {str(length): sizes for length, sizes in known[way].items()}
            if compared and way in runs:
                row["cosine"] = near(together(runs[way], rows, TOKENS), wanted)
                row["neighbours"] = neighbours(runs[way], rows)
            elif compared and "st-torch" in own:
                row["cosine"] = near(own[way], own["st-torch"])
            report.append(row)
            print(json.dumps(row), flush=True)
    return report


def phrases() -> dict[str, list[str]]:
    """Phrases of SST-2 in a random order, and texts of at least 64 tokens made of these."""
    with (DATA / "sst2/train.jsonl").open(encoding="utf-8") as lines:
        found = [json.loads(line)["text"] for line in lines]
    order = np.random.default_rng(0).permutation(len(found))
    some, step = [found[place] for place in order], 15
    return {
        "phrases": some[: COMPARED["phrases"]],
        "64 tokens": [" ".join(some[start : start + step]) for start in range(0, step * COMPARED["64 tokens"], step)],
    }


def versions() -> dict[str, str]:
    """Of the packages that encode, those that are installed."""
    return {each.name: each.version for each in importlib.metadata.distributions() if each.name in VERSIONS}


def main() -> int:
    """Measure the backends that are there; torch always is."""
    parser = argparse.ArgumentParser(description="Measure ways of encoding texts with a frozen public encoder.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", default="1,2", help="numbers of threads, with commas")
    parser.add_argument("--ways", default=",".join(ALL), help=f"with commas, of {', '.join(ALL)}")
    parser.add_argument("--texts", default=",".join(COMPARED), help=f"with commas, of {', '.join(COMPARED)}")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if not (DATA / "sst2/train.jsonl").is_file() or not (DATA / "novels").is_dir():
        print(f"needs sst2 and novels in CONCLAVE_DATA or {DATA}", file=sys.stderr)
        return 1
    wanted = dict.fromkeys(("torch", *options.ways.split(",")))
    left_out = [sentence for way in wanted if (sentence := missing(way))]
    for sentence in left_out:
        print(sentence, file=sys.stderr)
    ways = [way for way in wanted if not missing(way)]
    report: dict[str, object] = {"processor": _processor(), "versions": versions(), "left_out": left_out}
    texts = {kind: given for kind, given in phrases().items() if kind in options.texts.split(",")}
    rows: list[dict] = []
    WORK.mkdir(parents=True, exist_ok=True)
    for threads in map(int, options.threads.split(",")):
        rows += measure(ways, texts, threads, options.rounds, compared=threads == 1)
        report["rows"] = rows
        if options.out:
            options.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _processor() -> str:
    """The processor's name and the instructions that matter here."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = [each for each in said.get("flags", "").split() if each.startswith(("avx2", "avx512", "avx_vnni", "amx"))]
    return f"{said.get('model name', platform.processor())} ({', '.join(flags)})"


if __name__ == "__main__":
    sys.exit(main())
