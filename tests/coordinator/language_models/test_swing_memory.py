"""What a forecast says of a party's memory while its teachers are asked holds for a large vocabulary."""

import subprocess
import sys
import textwrap

import pytest

from coordinator.systems.swing.forecast import ASKED_BYTES
from party.tasks.worker import training_environment

VOCABULARY = 50_257


@pytest.mark.slow
def test_asking_a_teacher_takes_no_more_memory_than_is_forecast():
    source = f"""
    import re
    import numpy as np
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    from learning.language.generation import Texts
    from learning.language.speaker import Speaker
    from learning.swing.answers import cells_of_texts

    config = GPT2Config(vocab_size={VOCABULARY}, n_embd=32, n_layer=1, n_head=1, n_positions=128)
    speaker = Speaker(GPT2LMHeadModel(config).eval())
    rng = np.random.default_rng(0)
    texts = Texts.joined([rng.integers(0, {VOCABULARY}, rng.integers(20, 100)) for _ in range(50)], 0)

    # Of this program alone: what getrusage says begins at the size of the process that started it.
    def most() -> int:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])

    before = most()
    cells_of_texts(speaker, texts, [[0]] * len(texts), np.ones(len(texts.ids)), 64)
    print(most() - before)
    """
    asked = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(asked, env=training_environment(), check=True, capture_output=True, text=True)
    taken = int(done.stdout) << 10
    assert ASKED_BYTES * VOCABULARY / 3 < taken <= ASKED_BYTES * VOCABULARY
