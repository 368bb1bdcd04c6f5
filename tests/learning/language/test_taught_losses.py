"""The loss of a student that is shown text and what a teacher says of it."""

import numpy as np
import pytest
import torch

from aggregation.errors import ConclaveError
from learning.language.speaker import Speaker
from learning.language.taught_losses import taught_losses
from learning.models.batching import BEGINS, Tokens, inputs_of, logits_of, losses
from learning.models.encoders import language_model

ROWS = [
    Tokens(np.array([1, 5, 9, 7, 3, 2], np.int32), 2),
    Tokens(np.array([1, 8, 4], np.int32), 1),
    Tokens(np.array([6], np.int32), 1),
]


@pytest.fixture(scope="module")
def models(tiny_gpt2):
    """A student, a teacher that says something else, and the inputs of ROWS."""
    student, teacher = language_model(str(tiny_gpt2))[0], language_model(str(tiny_gpt2))[0]
    with torch.no_grad():
        for each in teacher.parameters():
            each.add_(0.3 * torch.randn(each.shape, generator=torch.Generator().manual_seed(3)))
    return student, teacher, inputs_of(student.config, ROWS, documents=True)


def test_without_the_teachers_part_it_is_the_loss_of_a_language_model(models):
    student, teacher, inputs = models
    found = taught_losses(Speaker(teacher), 0.0)(student, inputs, None)
    torch.testing.assert_close(found, losses(student, inputs, None))


def test_it_is_the_mean_over_own_tokens_of_both_parts(models):
    student, teacher, inputs = models
    tilt = torch.linspace(-1, 1, student.config.vocab_size)
    speaker = Speaker(teacher, tilt)
    found = taught_losses(speaker, 0.7)(student, inputs, None)
    said, wanted = (
        torch.log_softmax(logits_of(model, inputs) + add, -1) for model, add in ((student, 0), (teacher, tilt))
    )
    for place, row in enumerate(ROWS):
        expected = []
        for position in range(max(int(inputs[BEGINS][place]), 1), len(row)):
            q, p = said[place, position - 1], wanted[place, position - 1]
            expected.append(-0.3 * q[int(row.ids[position])] - 0.7 * (p.exp() * q).sum())
        mean = torch.stack(expected).mean() if expected else torch.zeros(())
        torch.testing.assert_close(found[place], mean)


def test_a_student_that_is_its_teacher_has_nothing_to_learn_from_it_and_the_teacher_learns_nothing(models):
    student, teacher, inputs = models
    student.zero_grad()
    found = taught_losses(Speaker(student), 1.0)(student, inputs, None).sum()
    found.backward()
    steepest = max(float(each.grad.abs().max()) for each in student.parameters() if each.grad is not None)
    assert steepest < 1e-6
    student.zero_grad()
    taught_losses(Speaker(teacher), 1.0)(student, inputs, None).sum().backward()
    assert max(float(each.grad.abs().max()) for each in student.parameters() if each.grad is not None) > 1e-3
    assert all(each.grad is None for each in teacher.parameters())


def test_padding_and_other_examples_have_no_part_in_an_examples_loss(models):
    student, teacher, inputs = models
    taught = taught_losses(Speaker(teacher), 0.5)
    whole = taught(student, inputs, None)
    for place, row in enumerate(ROWS):
        torch.testing.assert_close(
            taught(student, inputs_of(student.config, [row], documents=True), None)[0], whole[place]
        )


def test_a_share_that_makes_no_sense_is_refused(models):
    with pytest.raises(ConclaveError, match="0 to 1"):
        taught_losses(Speaker(models[1]), 1.5)
