r"""Pre-tokenizers: how BPE vocabularies cut text into words before merging, by llama.cpp's names.

The patterns apply in order. Each pattern cuts the words that the previous pattern left. Text that
no pattern matches stays a word of its own. Sources: llama.cpp `src/llama-vocab.cpp` and
`src/unicode.cpp`. Case-insensitive contractions are spelled out as in llama.cpp, because `(?i:'s)`
would also match U+017F.

Letters, digits and punctuation follow Unicode 16 here (Oniguruma's tables) and 15.1 in llama.cpp.
So ids can differ next to the 4,400 or so characters that are new in Unicode 16, all of rare
scripts. They differ nowhere else (measured over all code points below U+33500 and every 97th
above).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import Regex, pre_tokenizers

from heddle.errors import UnsupportedModelError
from heddle.text.tokenizer.linear import is_linear

if TYPE_CHECKING:
    from heddle.weights.checkpoint import TokenizerSpec

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASELESS = (
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to cut text into words.

    Attributes:
        patterns: regular expressions (Oniguruma), in order.
        whole_words: whether a word that is in the vocabulary becomes one token without merging.
        add_bos: whether texts begin with BOS if the file has no such setting.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer for the `tokenizers` library. It ends with the byte-level alphabet."""
        patterns = (_FASTER.get(pattern, pattern) for pattern in self.patterns)
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*steps, byte_level])


_FASTER = {r"\s+$": r"(?<!\s)\s+$"}
"""Patterns with equal matches. The first takes quadratic time: it tries each space of a run."""

_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%(end)s|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%(end)s|"
    r"\p{N}%(digits)s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern that Tekken and GPT-4o's tokenizer publish. It cuts words where lower case ends.

llama.cpp writes its classes of letters as [^a-z] and [^A-Z], so there capitals outside ASCII end no
word."""
_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"

_GPT2_WORDS = PreTokenizer((_GPT2,))
_DIGITS_APART = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3 = PreTokenizer((_CASELESS % "{1,3}",), whole_words=True, add_bos=True)
_MERGED_LLAMA3 = PreTokenizer(_LLAMA3.patterns)
_QWEN2 = PreTokenizer((_CASELESS % "",))
_GPT4O = PreTokenizer((_CASED % {"end": _CONTRACTION, "digits": "{1,3}"},))
_TEKKEN = PreTokenizer((_CASED % {"end": "", "digits": ""},), whole_words=True, add_bos=True)
_SEED = PreTokenizer(
    (
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
        r" ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)

_QWEN35 = PreTokenizer(
    (
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|"
        r"\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
_NOT_HAN = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI = PreTokenizer(
    (
        r"[\p{Han}]+|"
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_NOT_HAN}*[\p{{Ll}}{_NOT_HAN}+{_CONTRACTION}|"
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}{_NOT_HAN}+[\p{{Ll}}{_NOT_HAN}*{_CONTRACTION}|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
"""The pattern that Moonshot AI publishes (`tokenization_kimi.py`). Chinese characters are words of
their own. llama.cpp does not cut where lower case ends."""
_CASED_LETTERS = (
    "\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-"
    "\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-"
    "\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18"
    "-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-"
    "\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124"
    "\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183"
    "\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21"
    "-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = PreTokenizer(
    (
        r"[\r\n]",
        rf"\s?[A-Za-z{_CASED_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _CJK,
        r"\p{N}",
    )
)
"""DeepSeek-V2's files cut digits one by one. llama.cpp takes them together; no token has two."""
_DEEPSEEK_CODER = PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"))
_DEEPSEEK_V3 = PreTokenizer(
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)

PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "mpt", "olmo", "phi-2", "exaone4", "trillion"), _GPT2_WORDS),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), _DIGITS_APART),
    **dict.fromkeys(("llama-bpe", "llama-v3", "llama3", "falcon3", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _MERGED_LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "tekken": _TEKKEN,
    "seed-coder": _SEED,
    "qwen35": _QWEN35,
    "kimi-k2": _KIMI,
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK_V3),
}
"""Granite's files say refact, OLMo's olmo or dbrx, Phi-4's dbrx or gpt-4o, SmolLM3's smaug-bpe."""


def pre_tokenizer_of(spec: TokenizerSpec) -> PreTokenizer:
    """The pre-tokenizer that a checkpoint names, or describes by patterns.

    Raises:
        UnsupportedModelError: no pre-tokenizer has the name, or a pattern may take too long.
    """
    if spec.patterns is None:
        return pre_tokenizer(spec.pre_tokenizer, spec.label("pre_tokenizer"))
    label = spec.label("pre_tokenizer")
    if len(spec.patterns) > _MOST_PATTERNS:
        raise UnsupportedModelError(
            f"{label} has {len(spec.patterns)} patterns; supported: at most {_MOST_PATTERNS}",
            param=label,
        )
    for pattern in spec.patterns:
        if spelled_out(pattern) not in _KNOWN and not is_linear(spelled_out(pattern)):
            raise UnsupportedModelError(
                f"{label} has the pattern {pattern!r}, which is not known, and which may take"
                " exponential time. Use a GGUF file of this model: it names its pre-tokenizer",
                param=label,
            )
    return PreTokenizer(spec.patterns, spec.whole_words)


_MOST_PATTERNS = 16
_SPELLED_OUT = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_OTHER_SPELLINGS = {
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?": _CONTRACTION,
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)": _SPELLED_OUT,
    "'(?i:[sdmt]|ll|ve|re)": _SPELLED_OUT,
    "\r": r"\r",
    "\n": r"\n",
}


def spelled_out(pattern: str) -> str:
    """An equal pattern in the spelling of this module."""
    for other, ours in _OTHER_SPELLINGS.items():
        pattern = pattern.replace(other, ours)
    return pattern


_KNOWN = frozenset(pattern for known in PRE_TOKENIZERS.values() for pattern in known.patterns)


def pre_tokenizer(name: str | None, label: str = "pre-tokenizer") -> PreTokenizer:
    """The pre-tokenizer `name`; without a name, `default`. Errors name the field `label`.

    Raises:
        UnsupportedModelError: no pre-tokenizer has that name.
    """
    found = PRE_TOKENIZERS.get(name or "default")
    if found is None:
        raise UnsupportedModelError(
            f"pre-tokenizer {name!r} is not supported; supported: {', '.join(PRE_TOKENIZERS)}",
            param=label,
        )
    return found
