"""What was copied is found wherever it stands, and nothing else is."""

import numpy as np
import pytest

from aggregation.errors import ConclaveError
from learning.language.copying import RUN, copied


def rows(*lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 500, length).astype(np.int32) for length in lengths]


def test_text_that_was_never_learned_has_no_copy():
    found = copied(rows(40, 50, 3, seed=1), rows(60, 60, 60, seed=2))
    assert (found.texts, found.tokens) == (0, 0)


def test_a_run_is_found_in_the_middle_of_other_text():
    learned = rows(60, 60)
    own = rows(30, 30, seed=1)
    own[1][5 : 5 + RUN] = learned[1][20 : 20 + RUN]
    found = copied(own, learned)
    assert found.texts == 0.5
    assert found.tokens == RUN / 60


def test_a_run_that_is_one_token_short_is_none():
    (learned,) = rows(60)
    (own,) = rows(30, seed=1)
    own[: RUN - 1] = learned[: RUN - 1]
    assert copied([own], [learned]).texts == 0
    assert copied([own], [learned], RUN - 1).texts == 1


def test_runs_do_not_reach_from_one_text_into_the_next():
    learned = rows(20, 20)
    assert copied([np.concatenate([learned[0][-10:], learned[1][:10]])], learned).texts == 0


def test_the_order_of_tokens_counts():
    (learned,) = rows(RUN)
    assert copied([learned[::-1].copy()], [learned]).texts == 0
    assert copied([learned], [learned]).tokens == 1


def test_nothing_is_written_or_learned():
    assert copied([], rows(20)).texts == 0
    assert copied(rows(20), []).tokens == 0
    with pytest.raises(ConclaveError, match="none"):
        copied([], [], 0)


def test_where_nothing_was_learned_nothing_is_copied():
    assert copied(rows(40, 50), []) == copied(rows(40, 50), rows(3, 4))
    assert copied(rows(40), []).texts == 0
