"""What the published formats differ in: language codes, prefixes, first tokens, the longest source.

A family knows a `model_type` of transformers. Each says how a source is framed and what the decoder starts with; the
words of a text are encoded one by one, which gives the tokens of the whole text wherever SentencePiece was trained as
usual, with no piece across a space. Another family is one class with `@register_family("its model_type")`.
"""

from collections.abc import Iterable
from typing import ClassVar

from transformers import (
    M2M100Tokenizer,
    MarianTokenizer,
    MBart50Tokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from ..splitting import base_language
from .decoding import Frame


FAMILIES: dict[str, type["Family"]] = {}


def register_family(*model_types: str):
    """Makes a class known for the models of these types."""

    def register(family: type["Family"]) -> type["Family"]:
        FAMILIES.update(dict.fromkeys(model_types, family))
        return family

    return register


def find_family(path, config: PreTrainedConfig) -> type["Family"]:
    if config.model_type not in FAMILIES:
        raise ValueError(
            f"{path} is a checkpoint of type {config.model_type!r}, which cannot be streamed: nothing says how its "
            f"source and target begin and end. Those of type {', '.join(FAMILIES)} can; for another one register a "
            "family (see hub_translators/families.py)."
        )
    return FAMILIES[config.model_type]


class Family:
    """One published format.

    Args:
        config (`PreTrainedConfig`), tokenizer (`PreTrainedTokenizerBase`): Of the checkpoint.
        source_language, target_language (`str`, *optional*): In the codes of the checkpoint.
    """

    example: ClassVar[str]  # of a language code

    def __init__(
        self,
        config: PreTrainedConfig,
        tokenizer: PreTrainedTokenizerBase,
        source_language: str | None,
        target_language: str | None,
    ):
        self.config, self.tokenizer = config, tokenizer
        self.source_language, self.target_language = source_language, target_language

    def frame(self) -> Frame:
        """What surrounds the text, and what the decoder starts with."""
        raise NotImplementedError

    def positions(self) -> int:
        """The longest source, and the longest target."""
        return self.config.max_position_embeddings

    def require(self, codes: Iterable[str], *names: str):
        """Refuses languages that are missing or not among the codes."""
        codes = sorted(codes)
        for name in names:
            given = getattr(self, name)
            if given not in codes:
                what = "is missing" if given is None else f"{given!r} is not one of this translator's"
                known = ", ".join(codes[:40]) + (", ..." if len(codes) > 40 else "")
                raise ValueError(
                    f"The {name.replace('_', ' ')} {what}: give `{name}` (--{name.replace('_', '-')}), such as "
                    f"{self.example}. It knows {known}."
                )


@register_family("marian")
class Marian(Family):
    """`text </s>`, the decoder starts with padding. With many target languages the text begins with `>>code<<`."""

    example = "fra"

    def __init__(self, config, tokenizer, source_language, target_language):
        super().__init__(config, tokenizer, source_language, target_language)
        published = isinstance(tokenizer, MarianTokenizer)  # and not one of ours, of an exported model
        self.codes = {code.strip("<>"): code for code in tokenizer.supported_language_codes} if published else {}
        self.source_language = source_language or (tokenizer.source_lang if published else None)
        self.only_target = tokenizer.target_lang if published and not self.codes else None
        self.target_language = target_language or self.only_target

    def frame(self):
        before = []
        if self.codes:
            self.require(self.codes, "target_language")
            before = [self.tokenizer.convert_tokens_to_ids(self.codes[self.target_language])]
        elif self.only_target and base_language(self.target_language) != base_language(self.only_target):
            self.example = self.only_target
            self.require([self.only_target], "target_language")
        return Frame(before, [self.tokenizer.eos_token_id], [self.config.decoder_start_token_id])


@register_family("m2m_100", "nllb-moe")
class M2M100(Family):
    """M2M-100 and NLLB: `source-code text </s>` (NLLB's older form `text </s> source-code`); the decoder starts with
    `</s> target-code`."""

    @property
    def example(self) -> str:
        return "de" if isinstance(self.tokenizer, M2M100Tokenizer) else "deu_Latn"

    def codes(self) -> dict[str, int]:
        if isinstance(self.tokenizer, M2M100Tokenizer):
            return self.tokenizer.lang_code_to_id
        codes = [token for token in self.tokenizer.all_special_tokens if "_" in token]
        return dict(zip(codes, self.tokenizer.convert_tokens_to_ids(codes)))

    def start(self) -> list[int]:
        return [self.config.decoder_start_token_id]

    def frame(self):
        codes = self.codes()
        self.require(codes, "source_language", "target_language")
        self.tokenizer.src_lang = self.source_language
        before, after = self.tokenizer.prefix_tokens, self.tokenizer.suffix_tokens
        return Frame(list(before), list(after), [*self.start(), codes[self.target_language]])


@register_family("mbart")
class MBart(M2M100):
    """mBART-50: as M2M-100, with codes such as `de_DE`. mBART: `text </s> source-code`, the decoder starts with
    `target-code` alone."""

    example = "de_DE"

    def codes(self):
        return self.tokenizer.lang_code_to_id

    def start(self):
        return super().start() if isinstance(self.tokenizer, MBart50Tokenizer) else []


@register_family("t5", "mt5", "umt5")
class T5(Family):
    """`translate English to German: text </s>`, the decoder starts with padding.

    The prefix is the checkpoint's own (`task_specific_params`) for codes such as `en` and `de`, and made of the names
    for languages such as `English` and `German`. A model that was fine-tuned without one gets none if no language is
    given.
    """

    example = "en"
    longest = 512  # positions are relative; this is what T5 was trained with

    def frame(self):
        before = self.tokenizer.encode(self.prefix(), add_special_tokens=False)
        return Frame(before, [self.tokenizer.eos_token_id], [self.config.decoder_start_token_id])

    def prefix(self) -> str:
        tasks = self.config.to_dict().get("task_specific_params") or {}
        prefixes = {name: task["prefix"] for name, task in tasks.items() if name.startswith("translation_")}
        source, target = self.source_language, self.target_language
        if source is None and target is None and not prefixes:
            return ""
        if f"translation_{source}_to_{target}" in prefixes:
            return prefixes[f"translation_{source}_to_{target}"].strip()
        if source is not None and target is not None and source.istitle() and target.istitle():
            return f"translate {source} to {target}:"
        pairs = [name.removeprefix("translation_").replace("_to_", "-") for name in prefixes]
        known = f"codes that it knows ({', '.join(pairs)}) or " if pairs else ""
        raise ValueError(
            f"A T5 model is told what to translate: give `source_language` and `target_language` (--source-language, "
            f"--target-language) as {known}names such as English and German."
        )

    def positions(self):
        return min(self.longest, self.tokenizer.model_max_length)
