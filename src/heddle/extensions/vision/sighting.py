"""The eyes of a loaded model: they prepare pictures and lay prompts out with them."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from heddle.errors import InvalidRequestError, OverloadedError
from heddle.pictures import Laid, Look, Pictures, Span
from heddle.state import PICTURE_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from heddle.extensions.vision.kinds.kind import Kind
    from heddle.extensions.vision.processors.prepared import Prepared, Processor
    from heddle.pictures import Encoder, Illustrated, Picture
    from heddle.text.tokenizer.tokenizer import Tokenizer

_MOST_WAITING = 1 << 30
"""Most bytes of patches that wait for the eyes. More pictures are refused for a moment."""


@dataclass(slots=True, eq=False, kw_only=True)
class Seen(Look):
    """A look, and what stands for it in a prompt.

    Attributes:
        text: stands in the prompt for the mark.
        grid: rows of the look from top to bottom and from left to right, if it is one grid.
    """

    text: str
    grid: tuple[int, int]


class SeenPictures:
    """The pictures that were seen last, within a budget of bytes. Any thread may use it.

    A picture that a request still needs is found also if it is over the budget.
    """

    def __init__(self, most_bytes: int, eyes: bytes) -> None:
        """Other `eyes` make other rows of the same pictures."""
        self._most, self._eyes = most_bytes, eyes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Seen] = OrderedDict()
        self._looks: WeakValueDictionary[str, Seen] = WeakValueDictionary()

    def find(self, digest: str) -> Seen | None:
        """The picture with this digest, if it is known."""
        with self._lock:
            found = self._kept.get(digest)
            if found is not None:
                self._kept.move_to_end(digest)
                return found
            return self._looks.get(digest)

    def add(self, digest: str, prepared: Prepared, kind: Kind, grid: tuple[int, int]) -> Seen:
        """Add a picture, unless another thread has added it meanwhile.

        Raises:
            OverloadedError: too many pictures wait for the eyes.
        """
        scenes = kind.scenes(prepared.tiles)
        arrange = kind.arrange(prepared.tiles, prepared.kept)
        rows = kind.count(prepared.tiles, prepared.kept)
        content = hashlib.sha256(self._eyes + repr((prepared.text, prepared.kept)).encode())
        for scene in scenes:
            content.update(scene.places.tobytes() + scene.runs.tobytes())
            content.update(scene.values.data)
        with self._lock:
            seen = self._looks.get(digest)
            if seen is None:
                size = sum(scene.values.nbytes for scene in scenes)
                if size + self._waiting() > _MOST_WAITING:
                    raise OverloadedError(
                        "too many pictures wait to be seen; try again later", retry_after=5.0
                    )
                key = PICTURE_KEYS.key_of(content.digest())
                seen = Seen(key, rows, scenes, arrange, text=prepared.text, grid=grid)
                self._looks[digest] = seen
            self._kept[digest] = seen
            self._kept.move_to_end(digest)
            self._evict()
            return seen

    def _waiting(self) -> int:
        """Bytes of the patches of all looks without rows."""
        looks = list(self._looks.values())
        return sum(scene.values.nbytes for look in looks for scene in look.scenes)

    def _evict(self) -> None:
        """Forget the pictures that were used least recently, as long as there are too many."""
        sizes = {digest: _bytes_of(seen) for digest, seen in self._kept.items()}
        total = sum(sizes.values())
        for digest, size in list(sizes.items())[:-1]:
            if total <= self._most:
                return
            del self._kept[digest]
            total -= size


def _bytes_of(look: Look) -> int:
    rows = 0 if look.rows is None else look.rows.nbytes
    return rows + sum(scene.values.nbytes for scene in look.scenes)


class ModelEyes:
    """See :class:`heddle.pictures.Sighted`."""

    def __init__(
        self,
        kind: Kind,
        processor: Processor,
        encoder: Encoder,
        tokenizer: Tokenizer,
        row_id: int,
        blank_id: int,
        cache_bytes: int,
        *,
        summary: str,
        most_patches: int,
        has_axes: bool,
        whole: bool,
        files: str = "",
    ) -> None:
        """`row_id` is the token of a row in texts, and `blank_id` that in sequences.

        `has_axes` says whether the model turns heads by axes.

        `files` is equal only if the files of the eyes are, and in another process, too, if pages go
        to disk.

        With `whole`, all tokens of a picture see one another.
        """
        self.encoder = encoder
        self.summary = summary
        self.mark = processor.placeholder
        self.whole = whole
        self._kind, self._processor, self._tokenizer = kind, processor, tokenizer
        self._row_id, self._blank_id = row_id, blank_id
        self._has_axes = has_axes
        self._most_patches = most_patches
        self.bits = files, most_patches
        self._seen = SeenPictures(cache_bytes, repr(self.bits).encode())

    def count(self, width: int, height: int) -> int:
        return self._processor.count(width, height)

    def lay(self, prompt: Illustrated) -> Laid:
        parts = prompt.text.split(self.mark)
        row, pictures = self._processor.row_token, prompt.pictures
        strange = row != self.mark and row in prompt.text
        if len(parts) != len(pictures) + 1 or strange:
            raise InvalidRequestError(
                f"the text has a mark of pictures of its own ({row if strange else self.mark});"
                f" there are {len(pictures)} pictures, and only they may have marks. Leave it out"
                " of the text",
                param="messages",
            )
        seen = [self._see(picture) for picture in pictures]
        text = parts[0] + "".join(
            one.text + part for one, part in zip(seen, parts[1:], strict=True)
        )
        encode = self._tokenizer.encode_chat if prompt.rendered else self._tokenizer.encode
        tokens = encode(text)
        spans = list(self._spans(tokens, seen))
        for span in spans:
            tokens[span.first : span.end] = [self._blank_id] * span.count
        grids = (one.grid for one in seen)
        places = places_of(len(tokens), spans, grids) if self._has_axes else None
        return Laid(tokens, Pictures(spans, places, whole=self.whole))

    def _see(self, picture: Picture) -> Seen:
        found = self._seen.find(picture.digest)
        if found is not None:
            return found
        prepared = self._processor.prepare(picture.pixels)
        grid = self._kind.grid(prepared.tiles)
        largest = max(self._kind.patches(tile) for tile in prepared.tiles)
        if largest > self._most_patches:
            raise InvalidRequestError(
                f"a picture has {largest} patches, and at most {self._most_patches} are possible"
                " (image_tokens). Send a smaller picture",
                param="messages",
            )
        return self._seen.add(picture.digest, prepared, self._kind, grid)

    def _spans(self, tokens: Sequence[int], seen: Sequence[Seen]) -> Iterator[Span]:
        """The runs of tokens that are rows of pictures.

        Raises:
            InvalidRequestError: there are not as many of these tokens as the pictures have rows.
        """
        rows = np.flatnonzero(np.asarray(tokens) == self._row_id)
        if len(rows) != sum(one.count for one in seen):
            raise InvalidRequestError(
                f"the prompt has {len(rows)} tokens for rows of pictures, and its pictures have"
                f" {sum(one.count for one in seen)} rows. Leave marks of pictures out of the"
                " text",
                param="messages",
            )
        begin = 0
        for one in seen:
            places = rows[begin : begin + one.count]
            begin += one.count
            breaks = np.flatnonzero(np.diff(places) != 1) + 1
            for part in np.split(np.arange(len(places)), breaks):
                yield Span(int(places[part[0]]), one, int(part[0]), len(part))


def places_of(
    count: int, spans: Sequence[Span], grids: Iterable[tuple[int, int]]
) -> NDArray[np.int32]:
    """Time, height and width of `count` tokens (Wang et al. 2024, arXiv:2409.12191, section 2.1).

    A picture has one time; its rows have the places of its grid after the text before it. The text
    after it goes on behind the largest of its places.
    """
    places = np.zeros((count, 3), np.int32)
    position = after = 0
    for span, (down, across) in zip(spans, grids, strict=True):
        text = span.first - position
        places[position : span.first] = (after + np.arange(text))[:, None]
        after += text
        grid = np.indices((down, across)).reshape(2, -1).T
        places[span.first : span.end, 0] = after
        places[span.first : span.end, 1:] = after + grid
        after += max(down, across)
        position = span.end
    places[position:] = (after + np.arange(count - position))[:, None]
    return places
