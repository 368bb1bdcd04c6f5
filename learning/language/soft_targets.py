"""What teachers say might stand in the place of every token of a text: kept once, read from disk in every pass.

Of each place the most probable tokens are kept, with their probabilities; what is left of 1 is the mass of all others.
A token's number takes 2 bytes (4 where there are more than 65,536), its probability 2: with 64 tokens 256 bytes a
place, where all of 8,192 take 32 KiB. A probability p is kept as round(-ln(p) / `STEP`), so that it is off by a factor
of at most exp(`STEP` / 2), about 0.02%, from 1 down to `SMALLEST`; what is smaller is kept as that.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggregation.errors import ConclaveError, IntegrityError
from learning.language.generation import Texts, write_whole
from learning.language.memory import freed_is_kept
from learning.language.speaker import Speaker, own_logits
from learning.models.batching import Tokens, batches
from learning.models.encoders import digest

LARGEST_CODE: Final = 2**16 - 1
RANGE: Final = 24.0
STEP: Final = RANGE / LARGEST_CODE
SMALLEST: Final = math.exp(-RANGE)
_BLOCK: Final = 256
"""Texts that are graded, stored and marked together."""
_TOKENS: Final = 1024
_PLACES: Final = 1024
"""Places whose mean over teachers is taken together."""
_ABOUT: Final = "about.json"
_DONE: Final = "done.json"


@dataclass(frozen=True, slots=True)
class Targets:
    """What is kept of every token of some texts, in the order of the texts; on disk.

    ids: uint16 or uint32 [tokens, top]. codes: uint16 [tokens, top], see the module. hidden: float16 [tokens, width],
    the first teacher's last hidden states, None where they are not kept. stops: as of the texts. temperature: of the
    teachers, or, where every place had its own, the constant one of the student. weights: float32 [tokens], from 0 to
    1, how much of what is said of a token is to be heeded; None where all of it is.
    """

    ids: NDArray[Any]
    codes: NDArray[np.uint16]
    hidden: NDArray[np.float16] | None
    stops: NDArray[np.int64]
    temperature: float
    weights: NDArray[np.float32] | None = None

    @property
    def tokens(self) -> int:
        """How many places there are."""
        return len(self.ids)

    @property
    def bytes(self) -> int:
        """Of what is kept."""
        return int(self.ids.nbytes + self.codes.nbytes + (0 if self.hidden is None else self.hidden.nbytes))

    def of(self, text: int) -> tuple[Tensor, Tensor]:
        """The most probable tokens at each place of a text, int64 [length, top], and their log-probabilities."""
        part = slice(int(self.stops[text]), int(self.stops[text + 1]))
        ids = torch.from_numpy(self.ids[part].astype(np.int64))
        return ids, torch.from_numpy(self.codes[part].astype(np.float32)) * -STEP

    def several(self, texts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The same of several texts, one after the other."""
        ids, logs = zip(*(self.of(text) for text in texts), strict=True)
        return torch.cat(ids), torch.cat(logs)

    def heeded(self, texts: Sequence[int]) -> Tensor | None:
        """How much of what is said of each token of some texts is to be heeded, one text after the other, float32
        [tokens]; None where it is all.
        """
        if self.weights is None:
            return None
        return _several(self.weights, self.stops, texts)

    def states(self, text: int) -> Tensor:
        """The hidden states at each place of a text, float32 [length, width]."""
        assert self.hidden is not None
        part = slice(int(self.stops[text]), int(self.stops[text + 1]))
        return torch.from_numpy(self.hidden[part].astype(np.float32))


@freed_is_kept()
def graded(
    speakers: Sequence[Speaker],
    texts: Texts,
    openings: Sequence[Sequence[Sequence[int]]],
    *,
    top: int,
    temperature: float,
    folder: Path,
    cells: Sequence[int] | None = None,
    hidden: bool = False,
    temperatures: NDArray[np.float64] | None = None,
    protect: Callable[[Tensor, str], Tensor] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Targets:
    """Have teachers say what might stand in every token's place, and keep the mean of what they say.

    openings: of each teacher, what stands before each text as it reads it: one token or more. cells: the control code
    of each text, as of `Speaker`. temperatures: of each token's place, float64 [tokens], above 0; `temperature` for all
    where it is None, and else that of the student. protect: what is done to the mean of a text's places before the best
    are taken: of log-probabilities [length, tokens], and a label that no other text and no other grading has, such
    again; its `repr` tells what it does. folder: for what is kept; what is there of the same grading is kept. Memory:
    of one batch the distributions of 1,024 tokens; the rest is on disk. Raises `ConclaveError` where there is no text,
    `top` is more than the tokens, or temperatures are of other texts or not above 0.
    """
    sizes = {each.model.config.vocab_size for each in speakers}
    if not len(texts) or not speakers or top > min(sizes) or len(sizes) > 1:
        raise ConclaveError(
            f"{len(texts):,} texts cannot be graded by the best {top:,} tokens of {len(speakers)} teachers."
        )
    if temperatures is not None and (
        temperatures.shape != texts.ids.shape or not (np.isfinite(temperatures) & (temperatures > 0)).all()
    ):
        raise ConclaveError(
            f"Temperatures of {temperatures.shape} places are not those of these {len(texts.ids):,} tokens, or one is "
            "not above 0."
        )
    kind, count = (np.uint16 if max(sizes) <= 2**16 else np.uint32), len(texts.ids)
    width = int(speakers[0].model.config.hidden_size) if hidden else 0
    folder.mkdir(parents=True, exist_ok=True)
    after = np.full(len(texts), -1) if cells is None else np.asarray(cells)
    how: list[Any] = [top, temperature, hidden]
    if temperatures is not None or protect is not None:
        asked = b"" if temperatures is None else temperatures.tobytes()
        how += [hashlib.sha256(asked).hexdigest(), repr(protect)]
    done, name = _claim(folder, speakers, texts, openings, after, how)
    ids = _kept(folder / "ids", kind, (count, top))
    codes = _kept(folder / "codes", np.uint16, (count, top))
    states = _kept(folder / "hidden", np.float16, (count, width)) if hidden else None
    for start in range(done, len(texts), _BLOCK):
        block = range(start, min(start + _BLOCK, len(texts)))
        for places in batches([_row(texts[place], openings[0][place]) for place in block], _TOKENS):
            some = [block[int(place)] for place in places]
            asked_of = temperature if temperatures is None else _several(temperatures, texts.stops, some)[:, None]
            said, held = _said(speakers, texts, openings, after, some, asked_of, hidden)
            if protect is not None:
                parts = torch.split(said, [len(texts[place]) for place in some])
                said = torch.cat([protect(part, f"{name}/{each}") for part, each in zip(parts, some, strict=True)])
            best, named = said.topk(top, dim=-1)
            coded = (best / -STEP).round().clamp(0, LARGEST_CODE).numpy().astype(np.uint16)
            begin = 0
            for place in some:
                part = slice(int(texts.stops[place]), int(texts.stops[place + 1]))
                rows = slice(begin, begin + part.stop - part.start)
                ids[part], codes[part] = named[rows].numpy().astype(kind), coded[rows]
                if states is not None and held is not None:
                    states[part] = held[rows].numpy().astype(np.float16)
                begin = rows.stop
        for each in (ids, codes, states):
            if each is not None:
                each.flush()
        write_whole(folder / _DONE, json.dumps(block.stop).encode())
        progress(block.stop, len(texts))
    return Targets(ids, codes, states, texts.stops, temperature)


def averaged(
    parts: Sequence[tuple[NDArray[Any], NDArray[np.uint16]]],
    *,
    stops: NDArray[np.int64],
    tokens: int,
    temperature: float,
    folder: Path,
) -> Targets:
    """Keep the mean of what several teachers said of the same texts, where only each one's likeliest tokens are known.

    parts: of each teacher, numbers of tokens, all different, and codes, both [places, top]. tokens: of the models. A
    token that a teacher did not name gets an equal share of what was left of its 1. The best `top` of the mean are
    kept. Memory: the parts; of `_PLACES` places some arrays of all teachers' outcomes.
    """
    count, top = parts[0][0].shape
    folder.mkdir(parents=True, exist_ok=True)
    ids = _kept(folder / "ids", np.uint16 if tokens <= 2**16 else np.uint32, (count, top))
    codes = _kept(folder / "codes", np.uint16, (count, top))
    for start in range(0, count, _PLACES):
        some = slice(start, min(start + _PLACES, count))
        named, chances = _mean([(each[some], codes[some]) for each, codes in parts], tokens, top)
        ids[some] = named
        codes[some] = (np.log(chances) / -STEP).round().clip(0, LARGEST_CODE)
    ids.flush()
    codes.flush()
    return Targets(ids, codes, None, stops, temperature)


def stored(
    ids: NDArray[np.int64],
    chances: NDArray[np.float64],
    *,
    stops: NDArray[np.int64],
    tokens: int,
    temperature: float,
    folder: Path,
    weights: NDArray[np.float64] | None = None,
) -> Targets:
    """Keep tokens and their probabilities, both [places, top], as `averaged` does; `opened` opens them, but for the
    weights, float64 [places], which stay in memory.

    A probability below `SMALLEST` is kept as that. Raises `ConclaveError` for other places than those of the texts, or
    weights that are not between 0 and 1.
    """
    if weights is not None and (weights.shape != (len(ids),) or not ((weights >= 0) & (weights <= 1)).all()):
        raise ConclaveError(f"Weights of {weights.shape} are not between 0 and 1, one of each of {len(ids):,} tokens.")
    if ids.shape != chances.shape or len(ids) != stops[-1]:
        raise ConclaveError(f"Probabilities of {chances.shape} places are not those of {int(stops[-1]):,} tokens.")
    folder.mkdir(parents=True, exist_ok=True)
    named = _kept(folder / "ids", np.uint16 if tokens <= 2**16 else np.uint32, ids.shape)
    codes = _kept(folder / "codes", np.uint16, ids.shape)
    named[:] = ids
    codes[:] = (np.log(np.maximum(chances, SMALLEST)) / -STEP).round().clip(0, LARGEST_CODE)
    named.flush()
    codes.flush()
    heeded = None if weights is None else weights.astype(np.float32)
    return Targets(named, codes, None, stops, temperature, heeded)


def opened(folder: Path, stops: NDArray[np.int64], top: int, tokens: int, temperature: float) -> Targets:
    """What `averaged` or `stored` kept. Raises `IntegrityError` where it is not there, or of other texts."""
    count, kind = int(stops[-1]), np.uint16 if tokens <= 2**16 else np.uint32
    for name, size in (("ids", np.dtype(kind).itemsize), ("codes", 2)):
        path = folder / name
        if not path.exists() or path.stat().st_size != size * count * top:
            raise IntegrityError(f"{path} is damaged: it is not of these texts. Run the plan again.")
    return Targets(
        _kept(folder / "ids", kind, (count, top)), _kept(folder / "codes", np.uint16, (count, top)), None, stops,
        temperature,
    )  # fmt: skip


def _mean(
    parts: Sequence[tuple[NDArray[Any], NDArray[np.uint16]]], tokens: int, top: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The `top` likeliest tokens of the mean at some places, and their probabilities, both [places, top]."""
    places = np.arange(len(parts[0][0]))[:, None]
    keys, values, rest = [], [], np.zeros(len(places))
    for ids, codes in parts:
        chances = np.exp(-STEP * codes.astype(np.float64))
        left = np.clip(1 - chances.sum(axis=1), 0, None) / max(1, tokens - top)
        keys.append((places * tokens + ids.astype(np.int64)).ravel())
        values.append((chances - left[:, None]).ravel())
        rest += left
    found, of = np.unique(np.concatenate(keys), return_inverse=True)
    total = np.bincount(of, np.concatenate(values))
    place, token = np.divmod(found, tokens)
    chance = np.maximum((total + rest[place]) / len(parts), SMALLEST)
    order = np.lexsort((token, -chance, place))
    first = np.searchsorted(place[order], places[:, 0])
    best = order[first[:, None] + np.arange(top)]
    return token[best], chance[best]


def _row(ids: NDArray[np.int32], opening: Sequence[int]) -> Tokens:
    return Tokens(np.concatenate([np.asarray(opening, np.int32), ids]), len(opening))


def _said(
    speakers: Sequence[Speaker],
    texts: Texts,
    openings: Sequence[Sequence[Sequence[int]]],
    cells: NDArray[np.int64],
    some: Sequence[int],
    temperature: float | Tensor,
    hidden: bool,
) -> tuple[Tensor, Tensor | None]:
    """The mean log-probabilities of every own token's place, text after text, [tokens, vocabulary], and the hidden
    states of the first teacher there.
    """
    total: Tensor | None = None
    held: Tensor | None = None
    for number, (speaker, before) in enumerate(zip(speakers, openings, strict=True)):
        rows = [_row(texts[place], before[place]) for place in some]
        with torch.inference_mode():
            logits, states = own_logits(speaker.model, rows, hidden=hidden and number == 0)
            lengths = torch.tensor([len(texts[place]) for place in some])
            own_cells = torch.from_numpy(cells[list(some)]).repeat_interleave(lengths)
            at = temperature.to(logits.device) if isinstance(temperature, Tensor) else temperature
            said = speaker.log_probabilities(logits, at, own_cells)
            total = said if total is None else torch.logaddexp(total, said)
            if states is not None:
                held = states.cpu()
    assert total is not None
    return (total - math.log(len(speakers))).cpu(), held


def _kept(path: Path, kind: Any, shape: tuple[int, int]) -> Any:
    """An array on disk, which its owner alone may read; what is there already of this size stays."""
    there = path.exists() and path.stat().st_size == np.dtype(kind).itemsize * shape[0] * shape[1]
    path.touch(mode=0o600)
    return np.memmap(path, kind, "r+" if there else "w+", shape=shape)


def _claim(
    folder: Path,
    speakers: Sequence[Speaker],
    texts: Texts,
    openings: Sequence[Sequence[Sequence[int]]],
    cells: NDArray[np.int64],
    how: Sequence[Any],
) -> tuple[int, str]:
    """How many texts the folder holds of this very grading, and a name of it; what is there of another is removed."""
    sums = [hashlib.sha256(texts.ids.tobytes() + texts.stops.tobytes() + cells.tobytes()).hexdigest()]
    for speaker, before in zip(speakers, openings, strict=True):
        parts = [digest(speaker.model), json.dumps([list(map(int, each)) for each in before]).encode()]
        parts += [b"" if each is None else each.numpy().tobytes() for each in (speaker.tilt, speaker.floor)]
        sums.append(hashlib.sha256(b"".join(parts) + repr(speaker.weight).encode()).hexdigest())
    about = json.dumps([sums, *how]).encode()
    name = hashlib.sha256(about).hexdigest()
    if (folder / _ABOUT).exists() and (folder / _ABOUT).read_bytes() == about and (folder / _DONE).exists():
        try:
            return int(json.loads((folder / _DONE).read_bytes())), name
        except (ValueError, TypeError) as error:
            raise IntegrityError(f"{folder / _DONE} is damaged: {error}. Remove {folder}, and go on.") from None
    for left in ("ids", "codes", "hidden", _DONE):
        (folder / left).unlink(missing_ok=True)
    write_whole(folder / _ABOUT, about)
    return 0, name


def _several(each: NDArray[Any], stops: NDArray[np.int64], some: Sequence[int]) -> Tensor:
    """What is said of each token of some texts, one after the other, float32 [tokens]."""
    parts = [each[int(stops[place]) : int(stops[place + 1])] for place in some]
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))
