"""What the coordinator does with a text model, on a second device (`elsewhere`) beside the processor."""

import json

import numpy as np
import pytest

from coordinator.progress.progress import Silent
from coordinator.systems.registry import check_plan
from coordinator.text_models.folder import write
from coordinator.text_models.non_private import Pooled, trained
from coordinator.text_models.public import prepare
from coordinator.text_models.student import student_of
from learning.models.batching import encode
from learning.models.compute import PROCESSOR, device_of, running

pytestmark = pytest.mark.slow

TEXTS = ["a good film", "the end was dull", "fast and bright", "a very slow story"] * 3


@pytest.fixture
def plan(tiny_bert, tmp_path):
    def makes(how):
        (tmp_path / "held.jsonl").write_text(
            "".join(json.dumps({"text": text, "label": str(n % 2)}) + "\n" for n, text in enumerate(TEXTS))
        )
        tables = {
            "run": {"name": "devices", "recipe": "dp_sgd", "seed": 7},
            "privacy": {"epsilon": 4.0, "delta": 1e-6, "trust": "trusted-aggregator", "declared_size": 1000},
            "federation": {
                "shards": {
                    "source": "x.jsonl",
                    "text": "text",
                    "label": "label",
                    "split": {"by": "hash", "parties": 2},
                },
                "launch": "ray",
            },
            "text": {"kind": "single", "labels": ["no", "yes"], "values": ["0", "1"], "longest": 16},
            "model": {"name": str(tiny_bert), "adapt": how, "pooling": "mean"},
            "dp_sgd": {"form": "federated", "steps": 2, "batch": 10, "clip": 1.0, "learning_rate": 0.1},
            "fine_tune": {"epochs": 1, "batch": 4},
            "evaluation": {"source": "held.jsonl", "label": "label"},
        }
        return check_plan(tables, "plan.toml", "")

    return makes


@pytest.mark.parametrize("how", ["head", pytest.param("lora", marks=pytest.mark.slow)])
def test_a_model_is_trained_measured_and_published_from_another_device(how, plan, tmp_path, elsewhere):
    def student(of, folder):
        public = prepare(of, tmp_path, tmp_path / "cache")
        rows = encode(public.tokenizer, TEXTS, longest=public.longest).rows
        point = trained(of, public, Pooled(rows, np.arange(len(TEXTS)) % 2), None, Silent())
        found = student_of(of, public, point)
        with elsewhere.paused():  # adapters are merged on the processor
            write(found.student, folder)
        return public, point, found

    with elsewhere.paused(), running(PROCESSOR):
        of = plan(how)
        here, expected, measured = student(of, tmp_path / "here")
    there, point, found = student(of, tmp_path / "there")
    assert device_of(there.model).type != "cpu" == device_of(here.model).type
    assert there.digest == here.digest
    np.testing.assert_array_equal(there.start, here.start)
    np.testing.assert_allclose(point, expected, rtol=1e-5, atol=1e-6)
    assert found.metrics == pytest.approx(measured.metrics, rel=1e-4)
    assert (tmp_path / "there/model.safetensors").exists()
