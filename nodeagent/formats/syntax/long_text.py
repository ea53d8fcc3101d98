"""Long texts with a piece for each pod of a state. The pieces are joined once at the end.

A state usually differs from the previous state in only one pod, so nearly all pieces are cached (core/model/podmap.py).
Only the result is copied as a long text.
"""

from collections.abc import Callable

from nodeagent.core.model.podmap import Fold
from nodeagent.core.model.promises import PodPromises
from nodeagent.formats.syntax.fnv import Piece

_PIECE = 2048
"""Maximum total length, in characters, up to which two neighbouring pieces are joined into one."""

Pieces = tuple[tuple[str, ...], tuple[Piece, ...]]
"""Pieces of two texts, in the order of the pods. The first pieces form the file's text, joined by commas. The second pieces form the text
whose checksum is computed, joined by spaces.
"""

NO_PIECES: Pieces = ((), ())


def pieces_of(entry: Callable[[str, PodPromises], tuple[str, str] | None]) -> Fold[PodPromises, Pieces]:
    """Create the Fold (core/model/podmap.py) that collects the pieces of all pods. `entry` returns None for a pod without pieces."""

    def leaf(uid: str, pod: PodPromises) -> Pieces:
        found = entry(uid, pod)
        return NO_PIECES if found is None else ((found[0],), (Piece(found[1].encode()),))

    return Fold(NO_PIECES, leaf, _join_pieces)


def _join_pieces(a: Pieces, b: Pieces) -> Pieces:
    if not a[0]:
        return b
    if not b[0]:
        return a
    (file_a, hashed_a), (file_b, hashed_b) = a, b
    are_short = len(file_a) == len(file_b) == 1 and len(file_a[0]) + len(file_b[0]) < _PIECE
    file = (f"{file_a[0]},{file_b[0]}",) if are_short else file_a + file_b
    are_short = len(hashed_a) == len(hashed_b) == 1 and len(hashed_a[0].data) + len(hashed_b[0].data) < _PIECE
    return file, (hashed_a[0].then(hashed_b[0]),) if are_short else hashed_a + hashed_b
