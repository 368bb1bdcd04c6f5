import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregation.errors import ConclaveError
from learning.models.optimisers import Schedule

KINDS = st.sampled_from(["linear", "cosine", "constant"])


@given(KINDS, st.floats(0, 0.99), st.integers(1, 400))
def test_a_rate_rises_then_never_rises_again_and_no_step_is_taken_at_zero(kind, warm_up: float, steps: int) -> None:
    scales = [Schedule(kind, warm_up).scale(step, steps) for step in range(steps)]
    top = scales.index(max(scales))
    assert max(scales) == 1
    assert min(scales) > 0
    assert top == int(warm_up * steps)
    assert all(a < b for a, b in itertools.pairwise(scales[: top + 1]))
    assert all(a >= b for a, b in itertools.pairwise(scales[top:]))


def test_the_falls_have_their_shapes() -> None:
    assert [Schedule("linear").scale(step, 4) for step in range(4)] == [1, 0.75, 0.5, 0.25]
    assert Schedule("cosine").scale(2, 4) == pytest.approx(0.5)
    assert Schedule("constant", 0.5).scale(3, 4) == 1


@pytest.mark.parametrize("step", [-1, 10])
def test_a_step_that_is_none_of_them_is_an_error(step: int) -> None:
    with pytest.raises(ValueError, match="none of 10"):
        Schedule().scale(step, 10)


def test_a_schedule_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConclaveError, match="warm-up of 1"):
        Schedule("linear", 1.0)
    with pytest.raises(ConclaveError, match="no schedule 'step'"):
        Schedule("step")  # type: ignore[arg-type]
