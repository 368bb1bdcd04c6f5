"""Numbers that are read off a student: a model that learned them by heart says them, a private one does not."""

from types import SimpleNamespace

import numpy as np
import pytest

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.noise.stream import NoiseStream
from coordinator.auditing.attacks import Seen
from coordinator.auditing.canaries import Canary, flipped
from coordinator.language_models.audit import MOST, exposures, numbered
from coordinator.progress.progress import Silent
from learning.models.adapting import adapt
from learning.models.batching import encode_documents, losses
from learning.models.encoders import language_model
from learning.models.optimisers import Schedule
from learning.private_training.dp_sgd import train_private
from learning.private_training.optimisation import Optimisation
from learning.private_training.text_units import TextUnits
from learning.text.source import Document

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def extracted(tiny_gpt2):
    """`extracted(noise)`: what is read off a model that learned half of 40 numbers by steps of this noise."""
    start, tokenizer = language_model(str(tiny_gpt2))
    public = SimpleNamespace(pairs=None, tokenizer=tokenizer)
    rows = [Document("0", "a text", {})]
    texts = numbered(tokenizer, 40, rows, np.random.default_rng(0), lambda: "film")
    planted = flipped([Canary("worst", (each,)) for each in texts], 0)

    def found(noise):
        student, _ = language_model(str(tiny_gpt2))
        adapt(student, "full", seed=0)
        own = encode_documents(tokenizer, [row.text for row in planted.rows], longest=24).rows
        count = sum(each.numel() for each in student.parameters() if each.requires_grad)
        mechanism = GradientMechanism(1.0, 1 << 16, noise, 1.0, 40, count)
        settings = Optimisation(float(len(own)), 0.01, "adamw", Schedule("constant", 0.0), momentum=0.9)
        units = TextUnits(student.config, own, None)
        train_private(student, units, losses, mechanism, settings, stream=NoiseStream.from_key(bytes(32)))
        seen = Seen(planted, None, None, None, rows, Silent())
        (exposed,) = exposures(public, seen, student, start)
        return exposed

    return found


def test_a_student_that_learned_numbers_by_heart_says_them(extracted):
    exposed = extracted(1e-4)
    found = exposed.extracted
    assert (found.most, found.present + found.absent) == (MOST, 40)
    assert exposed.count == found.present
    assert found.present_student > found.present / 2
    assert found.absent_student < found.absent / 4
    assert max(found.present_public, found.absent_public) <= 3
    assert exposed.low > 3


def test_a_private_student_says_them_no_more_than_the_public_model(extracted):
    """By chance one in a hundred is found."""
    exposed = extracted(20.0)
    assert exposed.extracted.present_student <= 2
    assert exposed.extracted.absent_student <= 2
    assert exposed.low < 0.5
