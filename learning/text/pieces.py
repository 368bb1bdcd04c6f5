"""A file's XML in pieces: the elements of one name, each parsed by itself, so that no piece spoils another.

XML that is not well-formed ends a parser, and with it all that comes after. Here an element begins where its start tag
stands and ends at the next end tag, or where the next begins, whatever is between.
"""

import re
from collections.abc import Iterator
from typing import IO, Final

CHUNK: Final = 1 << 16
LONGEST: Final = 64 * 1024 * 1024
"""The most bytes of one element, and of what stands before the first; a longer element is left out."""
_TAG: Final = 256
"""More bytes than an end tag has, which may begin in one chunk and end in the next."""
_DECLARED: Final = re.compile(rb"^\s*(?:\xef\xbb\xbf)?(<\?xml[^>]*\?>)?", re.DOTALL)


def pieces(stream: IO[bytes], root: str, name: str) -> Iterator[bytes | None]:
    """Each element called `name` as a document of its own below `root`, with its namespaces; None for one too long.

    stream: of a file whose outermost element is `root`; both have one prefix or none. Elements of this name are in none
    of their own. Raises SyntaxError for a file that does not begin with `root`, and for one that ends before it does.
    """
    head, opened = _head(stream, root)
    prefix = opened[1]
    begins = re.compile(rb"<" + re.escape(prefix + name.encode()) + rb"(?=[\s/>])")
    ends = re.compile(rb"</" + re.escape(prefix + name.encode()) + rb"\s*>|" + begins.pattern)
    declared = _DECLARED.match(head)
    before = (declared[1] or b"" if declared else b"") + opened[0]
    after = b"</" + prefix + root.encode() + b">"
    held, last, most = head[opened.end() :], b"", len(prefix) + len(name) + 2
    while True:
        start = begins.search(held)
        if start is not None:
            piece, held = _piece(stream, held[start.start() :], ends)
            yield None if piece is None else before + piece + after
            last = b""
            continue
        last, held = (last + held[:-most])[-_TAG:], held[-most:]  # a start tag may begin in the one chunk
        if not (more := stream.read(CHUNK)):
            break
        held += more
    if re.search(re.escape(after[:-1]) + rb"\s*>\s*(<!--.*-->\s*)?$", last + held, re.DOTALL) is None:
        raise SyntaxError(f"its {root} ends early")


def _head(stream: IO[bytes], root: str) -> tuple[bytes, re.Match[bytes]]:
    opening = re.compile(rb"<((?:[A-Za-z_][\w.-]*:)?)" + root.encode() + rb"(?:\s[^>]*)?>")
    head = b""
    while (found := opening.search(head)) is None:
        more = stream.read(CHUNK)
        head += more
        if not more or len(head) > LONGEST:
            raise SyntaxError(f"it has no {root}")
    if found[0].endswith(b"/>"):
        raise SyntaxError(f"its {root} is empty")
    return head, found


def _piece(stream: IO[bytes], held: bytes, ends: re.Pattern[bytes]) -> tuple[bytes | None, bytes]:
    """The element at the beginning of `held`, None if it is too long, and what comes after it."""
    whole, searched, dropped = bytearray(held), 1, False
    while True:
        tag = -1 if dropped else whole.find(b">")
        if tag > 0 and whole[tag - 1 : tag] == b"/":
            return bytes(whole[: tag + 1]), bytes(whole[tag + 1 :])
        end = ends.search(whole, searched)
        if end is not None:
            stop = end.end() if end[0].startswith(b"</") else end.start()
            return None if dropped else bytes(whole[:stop]), bytes(whole[stop:])
        if not (more := stream.read(CHUNK)):
            return None if dropped else bytes(whole), b""
        searched = max(1, len(whole) - _TAG)
        whole += more
        if len(whole) > LONGEST:
            dropped, searched = True, 1
            del whole[:-_TAG]
