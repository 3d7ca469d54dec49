"""The tables that `heddle engram inspect` shows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heddle.cli.text_table import text_table
from heddle.errors import EngramError
from heddle.extensions.engrams.format import Vocabulary
from heddle.extensions.engrams.survey import OrderFigures, survey

if TYPE_CHECKING:
    from heddle.extensions.engrams.format import Header
    from heddle.extensions.engrams.reader import Engram
    from heddle.extensions.engrams.records import Entry
    from heddle.text.tokenizer.tokenizer import Tokenizer

_FOLLOWERS = 5
"""Tokens shown after an n-gram."""


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of a table, with n-grams as text if there is a tokenizer.

    Attributes:
        name: path of the table.
        size: of the file, in bytes.
        header: of the table.
        filter_ones: bits of the filter that are set.
        figures: for each length of n-grams.
        tokenizer: of the model; None: no model was named, or it has another vocabulary.
        fits: whether the table is for the model's vocabulary; None if that is not known.
        find: the text to look up; None: nothing to look up.
        found: the entry of that text; None: the table has none, or there was nothing to look up.
    """

    name: str
    size: int
    header: Header
    filter_ones: int
    figures: list[OrderFigures]
    tokenizer: Tokenizer | None
    fits: bool | None
    find: str | None
    found: Entry | None

    @classmethod
    def of(cls, table: Engram, tokenizer: Tokenizer | None, find: str | None, show: int) -> Report:
        """Read the whole table. `show`: how many n-grams of a length to show.

        Raises:
            EngramError: `find` is given, and the table is not for the tokenizer's vocabulary.
            EngramFileError: the table is damaged.
        """
        fits, found = None, None
        if tokenizer is not None and table.header.version == 2:
            known = Vocabulary.of(tokenizer.vocabulary_entries())
            fits = known.fingerprint == table.header.fingerprint
        if tokenizer is not None and find is not None:
            if fits is False:
                raise EngramError(
                    f"{table.path} was built for another vocabulary than the model's. Give --find"
                    " with the model that it was built for."
                )
            ids = tokenizer.encode(find, add_special=False, parse_special=False)
            found = table.look_up(ids)
        return cls(
            name=str(table.path),
            size=table.size,
            header=table.header,
            filter_ones=table.filter_ones(),
            figures=survey(table, show),
            tokenizer=None if fits is False else tokenizer,
            fits=fits,
            find=find,
            found=found,
        )

    @property
    def load(self) -> float:
        """The share of slots that are used."""
        return self.header.entries / self.header.table_size

    @property
    def passing(self) -> float:
        """The share of absent n-grams that the filter does not stop: it tests two bits."""
        bits = self.header.filter_bits
        return (self.filter_ones / bits) ** 2 if bits else 1.0

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        header = self.header
        return {
            "path": self.name,
            "bytes": self.size,
            "version": header.version,
            "shortest": header.shortest,
            "longest": header.longest,
            "entries": header.entries,
            "table_size": header.table_size,
            "load": self.load,
            "filter_bits": header.filter_bits,
            "filter_passes": self.passing,
            "vocabulary": header.vocabulary or None,
            "fingerprint": header.fingerprint.hex() or None,
            "fits": self.fits,
            "orders": [
                {
                    "order": each.order,
                    "entries": each.entries,
                    "followers": each.followers,
                    "total": each.total,
                    "top": [{"total": total, **self._json(entry)} for total, entry in each.top],
                }
                for each in self.figures
            ],
            "found": None if self.found is None else self._json(self.found),
        }

    def as_text(self) -> str:
        """The report for people."""
        header = self.header
        lines = [
            f"{self.name}: {self.size:,} bytes, version {header.version}",
            f"vocabulary: {self._vocabulary()}",
            f"hash table: {header.table_size:,} slots, {self.load:.0%} used",
        ]
        if header.filter_bits:
            share = self.filter_ones / header.filter_bits
            lines.append(
                f"filter: {header.filter_bits:,} bits, {share:.1%} set; {self.passing:.2%} of"
                " absent n-grams pass it"
            )
        rows = [
            (str(each.order), f"{each.entries:,}", f"{each.followers:,}", f"{each.total:,}")
            for each in self.figures
        ]
        heads = ("tokens", "n-grams", "followers", "counts")
        lines += ["", text_table(heads, rows, right={0, 1, 2, 3})]
        for each in self.figures:
            lines += ["", f"most frequent n-grams of length {each.order}:"] if each.top else []
            lines += [f"  {total:,}  {self._line(entry)}" for total, entry in each.top]
        if self.find is not None:
            shown = "nothing" if self.found is None else self._line(self.found)
            lines += ["", f"after {json.dumps(self.find, ensure_ascii=False)}: {shown}"]
        return "\n".join(lines)

    def _vocabulary(self) -> str:
        if self.header.version == 1:
            return "not known; version 1 does not say"
        fits = {None: "", True: "; the model has it", False: "; the model has another one"}
        short = self.header.fingerprint.hex()[:16]
        return f"{self.header.vocabulary:,} tokens, fingerprint {short}...{fits[self.fits]}"

    def _line(self, entry: Entry) -> str:
        total = sum(frequency for _, frequency in entry.followers)
        shown = ", ".join(
            f"{self._text((token,))} {frequency / total:.0%}"
            for token, frequency in entry.followers[:_FOLLOWERS]
        )
        more = ", ..." if len(entry.followers) > _FOLLOWERS else ""
        known = f"hash {entry.hash:016x}" if entry.ngram is None else self._text(entry.ngram)
        return f"{known} -> {shown}{more}"

    def _json(self, entry: Entry) -> dict[str, Any]:
        shown = {
            "hash": f"{entry.hash:016x}",
            "ngram": entry.ngram,
            "followers": entry.followers,
        }
        if self.tokenizer is not None and entry.ngram is not None:
            shown["text"] = self.tokenizer.decode(entry.ngram, skip_special=False)
        return shown

    def _text(self, tokens: tuple[int, ...]) -> str:
        """The tokens as text in quotes; as ids without a model that has them."""
        known = self.tokenizer
        if known is None or max(tokens) >= known.vocabulary_size:
            return " ".join(map(str, tokens))
        return json.dumps("".join(map(known.token_text, tokens)), ensure_ascii=False)
