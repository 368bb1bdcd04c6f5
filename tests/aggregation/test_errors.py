"""An error's code: its own, else that of the error whose sentence it repeats, else its class's."""

import errno
import os
import pickle

import pytest

from aggregation.errors import BudgetExhausted, ConclaveError, IntegrityError, code_of


def again(error, make):
    """What is raised while `error` is handled."""

    def made():
        try:
            raise error
        except type(error) as found:
            raise make(found) from None

    with pytest.raises(ConclaveError) as caught:
        made()
    return caught.value


def system(number):
    return OSError(number, os.strerror(number), "notes.txt")


def test_a_code_is_of_the_class_unless_it_is_given():
    assert ConclaveError("no.").code == ConclaveError.CODE
    assert IntegrityError("no.", code="C406").code == "C406"


def test_an_error_made_of_another_ones_sentence_has_its_code():
    assert again(BudgetExhausted("too dear."), lambda error: ConclaveError(f"[privacy] {error}")).code == "C602"
    assert again(BudgetExhausted("too dear."), lambda _: ConclaveError("something else.")).code == ConclaveError.CODE
    assert again(BudgetExhausted("too dear."), lambda error: ConclaveError(str(error), code="C105")).code == "C105"


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, "C301"), (errno.EDQUOT, "C301"), (errno.ENOENT, "C102"), (errno.EACCES, "C302")],
)
def test_an_error_made_of_the_systems_has_the_code_of_what_the_system_said(number, code):
    assert code_of(system(number)) == code
    assert again(system(number), lambda error: IntegrityError(f"notes: {error.strerror}.")).code == code
    assert again(system(number), lambda error: IntegrityError(f"notes: {error.strerror.lower()}.")).code == code
    assert again(system(number), lambda _: IntegrityError("notes are damaged.")).code == IntegrityError.CODE


def test_a_bug_has_none_and_repeating_it_gives_none():
    assert code_of(ZeroDivisionError("division by zero")) == ""
    assert again(ValueError("odd"), lambda error: ConclaveError(f"{error}.")).code == ConclaveError.CODE
    assert again(ValueError(), lambda _: ConclaveError("no.")).code == ConclaveError.CODE


def test_a_code_survives_a_process_border():
    assert pickle.loads(pickle.dumps(IntegrityError("no.", code="C406"))).code == "C406"  # noqa: S301
