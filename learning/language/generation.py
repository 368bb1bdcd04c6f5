"""A speaker writes texts: many at a time, keys and values kept, in blocks that are stored as soon as they are whole.

A block's texts follow from the seed, its number and its openings, so a writing that was killed goes on after the last
whole block and ends with the same bytes on the same machine. Openings of one length are written together, so that there
is no padding, and a text that has ended leaves its block.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggregation.errors import ConclaveError, IntegrityError
from learning.language.memory import freed_is_kept
from learning.language.speaker import Speaker
from learning.models.batching import Tokens, inputs_of
from learning.models.compute import device_of, passing
from learning.models.encoders import digest
from learning.models.forked import allowed, in_processes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ABOUT: Final = "about.json"
_LEAVE: Final = 0.75
"""Ended texts leave once no more than this part of a block still goes on: taking them out copies what is kept."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How texts are drawn. longest: tokens of a text, its end included. top_k, top_p: only so many of the most probable
    tokens, and of these the fewest whose probabilities reach top_p; 0 and 1 for all. temperature: of the model, not of
    the floor. batch: texts at a time. Raises `ConclaveError` for values that write nothing.

    Source: top-k, Fan et al. 2018; top-p, Holtzman et al. 2020.
    """

    longest: int = 128
    top_k: int = 50
    top_p: float = 0.9
    temperature: float = 1.0
    batch: int = 64

    def __post_init__(self) -> None:
        if self.longest < 1 or self.batch < 1 or self.top_k < 0 or not 0 < self.top_p <= 1 or self.temperature <= 0:
            raise ConclaveError(
                f"Texts of {self.longest} tokens, {self.batch} at a time, of the best {self.top_k} tokens and "
                f"{self.top_p:g} of the mass, at temperature {self.temperature:g}, cannot be drawn."
            )


@dataclass(frozen=True, slots=True)
class Texts(Sequence[NDArray[np.int32]]):
    """Texts as tokens without their openings, their end token included where they reached it: 4 bytes a token.

    ids: int32 [tokens]. stops: int64 [texts + 1], where each begins and the last ends. end: the end token.
    """

    ids: NDArray[np.int32]
    stops: NDArray[np.int64]
    end: int

    def __len__(self) -> int:
        return len(self.stops) - 1

    def __getitem__(self, place: int) -> NDArray[np.int32]:  # type: ignore[override]
        place = range(len(self))[place]
        return self.ids[self.stops[place] : self.stops[place + 1]]

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self[place] for place in range(len(self)))

    def distinct(self, read: Callable[[NDArray[np.int32]], str]) -> NDArray[np.int64]:
        """The places of texts that are not blank and that read as no earlier text does, in order.

        read: a text's words of its tokens, without the end: other tokens may read the same.
        """
        seen: set[bytes] = set()
        found = []
        for place, ids in enumerate(self):
            said = read(ids[:-1] if len(ids) and ids[-1] == self.end else ids).strip()
            key = hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if said and key not in seen:
                seen.add(key)
                found.append(place)
        return np.array(found, np.int64)

    def of(self, places: NDArray[np.int64]) -> "Texts":
        """Some of the texts, in this order."""
        return Texts.joined([self[int(place)] for place in places], self.end)

    @classmethod
    def joined(cls, texts: Sequence[NDArray[np.int32]], end: int) -> "Texts":
        """Texts in one array."""
        stops = np.concatenate([[0], np.cumsum([len(each) for each in texts], dtype=np.int64)]).astype(np.int64)
        return cls(np.concatenate([np.empty(0, np.int32), *texts]).astype(np.int32), stops, end)


def generate(
    speaker: Speaker,
    openings: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    end: int,
    seed: int,
    folder: Path,
    known: int,
    cells: Sequence[int] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Texts:
    """A text after each opening, in the order of the openings.

    openings: token numbers, one or more each. cells: their control codes, as of `Speaker`. end: the token that ends a
    text. known: how many tokens the tokenizer has; a model padded beyond it says none of the others. folder: for the
    blocks; those of the same writing that are there are kept. Blocks are written in as many processes as are allowed
    (`learning.models.forked`), and are the same in any order. Memory: 4 bytes a token; of one batch keys, values and
    distributions [batch, vocabulary]. Raises `IntegrityError` for blocks that are damaged.
    """
    blocks = _blocks(openings, sampling.batch)
    codes = [-1] * len(openings) if cells is None else [int(each) for each in cells]
    _claim(folder, speaker, openings, codes, sampling, end, seed, known)
    paths = [folder / f"block-{number:06d}.npz" for number in range(len(blocks))]

    def make(number: int) -> None:
        chance = torch.Generator().manual_seed(int(np.random.SeedSequence([seed, number]).generate_state(1)[0]))
        own = torch.tensor([codes[place] for place in blocks[number]])
        texts = _written(speaker, [openings[place] for place in blocks[number]], own, sampling, end, known, chance)
        write_whole(paths[number], _packed(Texts.joined(texts, end)))

    missing = [number for number, path in enumerate(paths) if not path.exists()]
    done = len(openings) - sum(len(blocks[number]) for number in missing)
    if done:
        progress(done, len(openings))
    for number, _ in in_processes(make, missing, allowed()):
        done += len(blocks[number])
        progress(done, len(openings))
    found: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * len(openings)
    for path, places in zip(paths, blocks, strict=True):
        for place, ids in zip(places, _unpacked(path, end, len(places)), strict=True):
            found[place] = ids
    return Texts.joined(found, end)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, whole or not at all, also after a power cut."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _blocks(openings: Sequence[Sequence[int]], batch: int) -> list[list[int]]:
    """The places of openings of one length, `batch` at a time."""
    by_length: dict[int, list[int]] = {}
    for place, each in enumerate(openings):
        if not len(each):
            raise ConclaveError("A text needs an opening of one token or more: name a tokenizer with a first token.")
        by_length.setdefault(len(each), []).append(place)
    return [
        places[start : start + batch]
        for _, places in sorted(by_length.items())
        for start in range(0, len(places), batch)
    ]


def _claim(
    folder: Path,
    speaker: Speaker,
    openings: Sequence[Sequence[int]],
    cells: Sequence[int],
    sampling: Sampling,
    end: int,
    seed: int,
    known: int,
) -> None:
    """Note which writing the folder holds; blocks of another are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    sums = [
        digest(speaker.model).hex(),
        hashlib.sha256(json.dumps([[list(map(int, e)) for e in openings], cells]).encode()).hexdigest(),
    ]
    for each in (speaker.tilt, speaker.floor):
        sums.append("" if each is None else hashlib.sha256(each.numpy().tobytes()).hexdigest())
    about = json.dumps([sums, speaker.weight, asdict(sampling), end, seed, known]).encode()
    path = folder / ABOUT
    if path.exists() and path.read_bytes() == about:
        return
    for left in folder.glob("block-*.npz"):
        left.unlink()
    write_whole(path, about)


def _packed(texts: Texts) -> bytes:
    content = io.BytesIO()
    np.savez(content, ids=texts.ids, stops=texts.stops)
    return content.getvalue()


def _unpacked(path: Path, end: int, count: int) -> Texts:
    try:
        with np.load(path, allow_pickle=False) as kept:
            found = Texts(kept["ids"], kept["stops"], end)
        whole = len(found) == count and found.stops[-1] == len(found.ids)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise IntegrityError(f"{path} is damaged: {error}. Remove it, and go on.") from None
    if not whole:
        raise IntegrityError(f"{path} is damaged: it is of other texts. Remove it, and go on.")
    return found


def _written(
    speaker: Speaker,
    openings: Sequence[Sequence[int]],
    cells: Tensor,
    sampling: Sampling,
    end: int,
    known: int,
    chance: torch.Generator,
) -> list[NDArray[np.int32]]:
    """The texts of one block, whose openings have one length."""
    model = speaker.model
    device = device_of(model)
    read = torch.tensor([list(each) for each in openings], dtype=torch.int64)
    count = len(read)
    texts = torch.full((count, sampling.longest), end, dtype=torch.int64)
    lengths = torch.full((count,), sampling.longest)
    rows = torch.arange(count)  # which text each row of what is kept belongs to
    going = torch.ones(count, dtype=torch.bool)
    with torch.inference_mode(), passing(device), freed_is_kept():
        reading = (_Paired if getattr(model.config, "is_encoder_decoder", False) else _Alone)(model, read)
        logits = reading.begun()
        for step in range(sampling.longest):
            logits[:, known:] = -torch.inf
            said_of = speaker.log_probabilities(logits, sampling.temperature, cells[rows])
            drawn = _drawn(said_of.cpu()[:, :known], sampling, chance)
            texts[rows[going], step] = drawn[going]
            ended = going & (drawn == end)
            lengths[rows[ended]] = step + 1
            going &= ~ended
            if not going.any():
                break
            if going.float().mean() <= _LEAVE:
                reading.keep(going.nonzero()[:, 0].to(device))
                drawn, rows = drawn[going], rows[going]
                going = going[going]
            if step + 1 < sampling.longest:
                logits = reading.after(drawn)
    return [texts[place, : lengths[place]].numpy().astype(np.int32) for place in range(count)]


class _Alone:
    """A causal model that has read openings of one length [texts, length] and goes on, keys and values kept."""

    def __init__(self, model: "PreTrainedModel", read: Tensor) -> None:
        self._model, self._ids, self._device = model, read, device_of(model)
        self._places = torch.arange(read.shape[1]).expand(len(read), -1)
        self._kept: Any = None

    def begun(self) -> Tensor:
        """Logits of each text's next token, float32 [texts, tokens]."""
        said = self._model(
            input_ids=self._ids.to(self._device),
            attention_mask=torch.ones(len(self._ids), int(self._places[0, -1]) + 1, dtype=torch.int64).to(self._device),
            position_ids=self._places.to(self._device),
            past_key_values=self._kept,
            use_cache=True,
        )
        self._kept = said.past_key_values
        logits: Tensor = said.logits[:, -1].float()
        return logits

    def after(self, drawn: Tensor) -> Tensor:
        """The same after one more token of each text, int64 [texts]."""
        self._ids, self._places = drawn[:, None], self._places[:, -1:] + 1
        return self.begun()

    def keep(self, rows: Tensor) -> None:
        """Go on with these texts alone."""
        self._kept.batch_select_indices(rows)
        self._places = self._places[rows.cpu()]


class _Paired:
    """The same of a model whose encoder has read the openings, and whose decoder goes on."""

    def __init__(self, model: "PreTrainedModel", read: Tensor) -> None:
        self._model, self._device = model, device_of(model)
        self._seen = model.get_encoder()(input_ids=read.to(self._device)).last_hidden_state
        self._kept: Any = None
        start = inputs_of(model.config, [Tokens(read[0].numpy().astype(np.int32), read.shape[1])])["decoder_input_ids"]
        self._first = start[:, 0].expand(len(read))

    def begun(self) -> Tensor:
        return self.after(self._first)

    def after(self, drawn: Tensor) -> Tensor:
        said = self._model(
            encoder_outputs=(self._seen,),
            decoder_input_ids=drawn[:, None].to(self._device),
            past_key_values=self._kept,
            use_cache=True,
        )
        self._kept = said.past_key_values
        logits: Tensor = said.logits[:, -1].float()
        return logits

    def keep(self, rows: Tensor) -> None:
        self._kept.batch_select_indices(rows)
        self._seen = self._seen[rows]


def _drawn(said: Tensor, sampling: Sampling, chance: torch.Generator) -> Tensor:
    """The next tokens, int64 [rows], of log-probabilities [rows, tokens]."""
    if not sampling.top_k and sampling.top_p == 1:
        return _one_of(said.exp(), chance)[:, 0]
    best, ids = said.topk(min(sampling.top_k or said.shape[1], said.shape[1]), dim=-1)
    chances = torch.softmax(best, dim=-1)
    if sampling.top_p < 1:
        before = chances.cumsum(dim=-1) - chances
        chances = chances.masked_fill(before >= sampling.top_p, 0.0)
    return ids.gather(1, _one_of(chances, chance))[:, 0]


def _one_of(chances: Tensor, chance: torch.Generator) -> Tensor:
    """A place of each row by its chances [rows, places], int64 [rows, 1]; one of chance 0 never."""
    upto = chances.double().cumsum(dim=-1)
    drawn = torch.rand(len(chances), 1, generator=chance, dtype=torch.float64) * upto[:, -1:]
    return torch.searchsorted(upto, drawn, right=True).clamp(max=chances.shape[1] - 1)
