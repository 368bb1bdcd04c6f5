"""The source of noise: a cryptographic stream of uniform words.

Noise for privacy comes from a `NoiseStream` and from nothing else; `numpy.random.Generator` is for science. The two
types differ so that they cannot be swapped by mistake.
"""

import os
import sys

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from aggregation.errors import ConclaveError

KEY_BYTES = 32
_ZEROS = bytes(1 << 18)  # what is encrypted, in pieces


class NoiseStream:
    """A stream of uniform 64-bit words: AES-256 in counter mode under a key of its own.

    Assumption without which no guarantee holds: the key is uniform, secret and used for one stream, and AES-256 cannot
    be distinguished from a random permutation. Guarantees that rest on a stream are therefore computational.

    The same key gives the same words. Noise must never be used for two different sums: their difference would show
    without any noise. Take `child` with labels that name one release of one run, and store what was sent instead of
    drawing it again for other data.

    It must not be used by two threads at once. After a fork a stream raises, because parent and child would draw the
    same words.
    """

    __slots__ = ("_aside", "_cipher", "_key", "_process", "_secure")

    def __init__(self, key: bytes, *, secure: bool) -> None:
        """Use `from_system`, `from_key` or `insecure`, which say where the key came from."""
        if len(key) != KEY_BYTES:
            raise ConclaveError(f"A noise key has {KEY_BYTES} bytes, this one has {len(key)}.")
        self._key = key
        self._secure = secure
        self._process = os.getpid()
        self._aside: NoiseStream | None = None
        words = _derive(key, b"words")
        self._cipher = Cipher(algorithms.AES256(words), modes.CTR(bytes(16))).encryptor()

    @classmethod
    def from_system(cls) -> "NoiseStream":
        """A stream under a fresh key from the operating system."""
        return cls(os.urandom(KEY_BYTES), secure=True)

    @classmethod
    def from_key(cls, key: bytes) -> "NoiseStream":
        """The stream of a 32-byte key that the caller drew from the operating system and keeps secret."""
        return cls(key, secure=True)

    @classmethod
    def insecure(cls, seed: int, *labels: str | int) -> "NoiseStream":
        """A stream that anyone who knows the seed can repeat, for `insecure_reproducible_noise`: no guarantee."""
        return cls(_derive(_encode((seed, *labels)), b"insecure"), secure=False)

    @property
    def secure(self) -> bool:
        """Whether a guarantee may rest on this stream; False for everything made by `insecure`, children included."""
        return self._secure

    def child(self, *labels: str | int) -> "NoiseStream":
        """The stream named by the labels, from its start: independent of this one and of every other child (HKDF).

        The same labels give the same words, whatever was drawn before; the text "1" and the number 1 differ.
        """
        return NoiseStream(_derive(self._key, b"child" + _encode(labels)), secure=self._secure)

    def uint64(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words `[count]`, uniform on 0 .. 2^64 - 1, the same on every machine.

        Raises `RuntimeError` after a fork.
        """
        words = np.empty(count, dtype=np.uint64)
        self.fill(words)
        return words

    def fill(self, words: NDArray[np.uint64]) -> None:
        """The same into an array `[n]`, contiguous: no new memory."""
        self._check_process()
        content = words.view(np.uint8).data
        for start in range(0, len(content), len(_ZEROS)):
            piece = content[start : start + len(_ZEROS)]
            self._cipher.update_into(memoryview(_ZEROS)[: len(piece)], piece)
        if sys.byteorder == "big":
            words.byteswap(inplace=True)

    @property
    def aside(self) -> "NoiseStream":
        """A stream that goes on beside this one, independent of it and of every child (HKDF), for what is seldom drawn.

        Each goes at its own pace: what comes of this stream's words does not depend on when the other's were drawn.
        """
        self._check_process()
        if self._aside is None:
            self._aside = NoiseStream(_derive(self._key, b"aside"), secure=self._secure)
        return self._aside

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("a noise stream was carried through a fork; make a new one in the new process")

    def __repr__(self) -> str:
        return f"NoiseStream(secure={self._secure})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a noise stream is not copied or sent: its copy would draw the same noise twice")


def _derive(secret: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=b"conclave noise v1", info=info).derive(secret)


def _encode(labels: tuple[str | int, ...]) -> bytes:
    """Labels as bytes, different for every sequence of labels: kind, length and text of each."""
    parts = []
    for label in labels:
        text = str(label).encode()
        parts.append(b"%c%d:%s" % (b"t" if isinstance(label, str) else b"n", len(text), text))
    return b"".join(parts)
