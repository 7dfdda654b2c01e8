"""Documents packed into rows of one length, first-fit, so that no document that fits into a row is cut.

The mask of a row says whether each token counts as a target. The first token of a document does not, as nothing before
it belongs to the document; the filler at a row's end does not either. A document longer than a row is cut into pieces
that share one token, so that each of its tokens after the first is a target once. A piece without a target is left out,
so every row has one.
"""

from collections.abc import Iterable, Iterator

import numpy as np

OPEN = 1024
"""Rows that are not full and take further documents; beyond these the oldest is written as it is."""

Ids = tuple[np.ndarray, np.ndarray]
"""Token ids and their mask, which says whether each counts as a target (uint8); both of one length."""


def pack_rows(documents: Iterable[Ids], row: int, filler: int) -> Iterator[Ids]:
    """Rows of documents.

    Args:
        row: tokens of a row; a sequence and one.
        filler: the id of what fills a row up.
    Cost: holds `OPEN` rows.
    """
    rows = list[list[Ids]]()
    room = list[int]()

    def close(index: int) -> Ids:
        room.pop(index)
        return _fill_row(rows.pop(index), row, filler)

    for document in documents:
        for piece in _pieces(document, row):
            size = len(piece[0])
            with_room = (index for index, free in enumerate(room) if free >= size)
            index = next(with_room, len(rows))
            if index == OPEN:
                yield close(0)
                index -= 1
            if index == len(rows):
                rows.append([])
                room.append(row)
            rows[index].append(piece)
            room[index] -= size
            if room[index] < 2:  # a token is a target after another
                yield close(index)
    while rows:
        yield close(0)


def _pieces(document: Ids, row: int) -> Iterator[Ids]:
    """The pieces of a document that fit into a row, and have a target."""
    ids, mask = document
    for start in range(0, len(ids) - 1, row - 1):
        piece_mask = mask[start : start + row].copy()
        piece_mask[0] = 0
        if piece_mask.any():
            yield ids[start : start + row], piece_mask


def _fill_row(pieces: list[Ids], row: int, filler: int) -> Ids:
    ids, mask = map(np.concatenate, zip(*pieces, strict=True))
    free_tokens = row - len(ids)
    return np.append(ids, np.full(free_tokens, filler, ids.dtype)), np.append(mask, np.zeros(free_tokens, np.uint8))
