"""A translator of the Hub with the face of our own models: `open_stream`, `generate` with a path, a configuration."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, normalizers
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    LogitsProcessorList,
    MarianTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ...model.generation_dualpath import REFUSED, SimultaneousOutput
from ...model.modeling_dualpath import SiMTForConditionalGeneration
from ...model.policies_dualpath import Dials
from ..tokenization import SOURCE_FOLDER, load_tokenizers
from ..words import ends_word
from .decoding import Frame, Hypothesis, PrefixDecoder, Request
from .families import Marian, find_family
from .marian import to_marian
from .policies import HubPolicy, find_policy
from .stream import HubEngine, HubStream
from .wait_k import WaitK


DEFAULT_POLICY = "local_agreement"
MOST_LAYERS = 1000
# What `generate` of a translator of the Hub refuses, beside what our own models do.
REFUSED_HERE = REFUSED | {
    **dict.fromkeys(
        ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "forced_bos_token_id"),
        (None, "it is part of the format in which the model was published"),
    ),
    **dict.fromkeys(
        ("output_scores", "output_logits"), (False, "a translation of a prefix may be thrown away, and its scores")
    ),
    "generation_config": (None, "give its fields one by one"),
}


@dataclass(frozen=True)
class HubConfig:
    """What the rest of the package asks of a model's configuration."""

    source_language: str | None
    target_language: str | None
    policy_class: type[HubPolicy]
    pad_token_id: int
    end_tokens: list[int]
    max_position_embeddings: int  # source tokens of a text with its end
    wait_k: int = WaitK.default_k

    @property
    def direction(self) -> str:
        return f"{self.source_language or 'source'}-{self.target_language or 'target'}"


@dataclass(frozen=True)
class Generation:
    """How a stream writes: what changes the scores, and the most tokens that it may write.

    Streams with the same `settings` (of the checkpoint and of `generate`, as JSON) are translated in common batches.
    """

    processors: LogitsProcessorList
    longest: int
    settings: str


class HubTranslator:
    r"""
    Streams an encoder-decoder translator that was trained on whole sentences.

    Each source prefix is translated as if it were a sentence, greedily and after the text already written, which never
    changes. A policy says how much of that may be written while the source goes on.

    Args:
        model (`PreTrainedModel`): The translator.
        source_tokenizer, target_tokenizer (`PreTrainedTokenizerBase`): Often the same.
        frame ([`Frame`]): What surrounds a text in the model's format.
        positions (`int`): The longest source, and the longest target.
        policy (`str`, *optional*, defaults to `"local_agreement"`): A registered [`HubPolicy`].
        source_language, target_language (`str`, *optional*): Their names or codes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
        frame: Frame,
        positions: int,
        policy: str | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ):
        policy_class = find_policy(policy or DEFAULT_POLICY)
        self.model = model.eval()
        if policy_class.needs_attention:
            model.set_attn_implementation("eager")  # the others do not tell where they look
        self.source_tokenizer = source_tokenizer
        self.source_end, self.target_end = source_tokenizer.eos_token_id, target_tokenizer.eos_token_id
        ends = model.generation_config.eos_token_id
        ends = self.target_end if ends is None else ends
        self.config = HubConfig(
            source_language,
            target_language,
            policy_class,
            pad_token_id=model.config.pad_token_id,
            end_tokens=list(ends) if isinstance(ends, (list, tuple)) else [ends],
            max_position_embeddings=positions - len(frame.before) - len(frame.after) + 1,
        )
        self.longest = positions - len(frame.prompt)
        self.decoder = PrefixDecoder(model, frame, self.config.pad_token_id, self.config.end_tokens)

    # A model among models

    reads_everything = can_be_forced = False

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def generation_config(self):
        return self.model.generation_config

    @property
    def training(self) -> bool:
        return self.model.training

    def eval(self) -> "HubTranslator":
        return self.train(False)

    def train(self, mode: bool = True) -> "HubTranslator":
        self.model.train(mode)
        return self

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor):
        raise ValueError(
            "Only our own models have a path over a given translation: measure a translator of the Hub without gold "
            "alignments, and see its paths with `dualpath replay`."
        )

    # Streams and batches

    def open_engine(self, slots: int = 1, room: int | None = None) -> HubEngine:
        """A pool for many streams, whose prefixes are translated in common batches; it keeps no room."""
        return HubEngine(self)

    def open_stream(self, engine: HubEngine | None = None, **kwargs) -> HubStream:
        """A stream with [`Dials`] and arguments of `generate`. Any number can be open at once, each in an engine of
        its own, or in one that advances them together."""
        engine = self.open_engine() if engine is None else engine
        return engine.open(**self.stream_settings(**kwargs))

    def stream_settings(self, **kwargs) -> dict:
        """What [`HubEngine.open`] takes."""
        return dict(zip(("dials", "generation"), self.prepare_simultaneous(**kwargs)))

    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        return_dict_in_generate: bool = False,
        **kwargs,
    ) -> Tensor | SimultaneousOutput:
        """Translates a batch of whole sources as streams of their own would, their prefixes in common batches.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, source)`):
                Texts, encoded word by word, with their end-of-sentence token, padded on the right.
            attention_mask (`torch.Tensor`, *optional*): 1 at real tokens.
            kwargs: [`Dials`] and arguments of `generate`.

        Returns:
            `torch.LongTensor` of a start token and the translation (without language codes), or
            [`SimultaneousOutput`] with its `path`.
        """
        if attention_mask is None:
            attention_mask = input_ids != self.config.pad_token_id
        settings = self.stream_settings(**kwargs)
        engine, streams = self.open_engine(), []
        for ids, mask in zip(input_ids.tolist(), attention_mask.bool().tolist()):
            streams.append(engine.open(**settings))
            streams[-1].feed([token for token, real in zip(ids, mask) if real])
            streams[-1].end()
        while engine.tick():
            pass
        rows = [[action for action in stream.take() if action is not None] for stream in streams]
        start = self.decoder.frame.prompt[0]
        columns = max(map(len, rows))
        sequences = [[start, *(token for token, _ in row)] for row in rows]
        sequences = [row + [self.config.pad_token_id] * (columns + 1 - len(row)) for row in sequences]
        if not return_dict_in_generate:
            return torch.tensor(sequences, device=input_ids.device)
        path = [[read for _, read in row] + [0] * (columns - len(row)) for row in rows]
        return SimultaneousOutput(
            sequences=torch.tensor(sequences, device=input_ids.device),
            path=torch.tensor(path, device=input_ids.device),
        )

    def prepare_simultaneous(self, **kwargs) -> tuple[Dials, Generation]:
        """The dials, and how tokens are chosen; refuses what cannot be. Beams of the checkpoint are set aside."""
        given = {name: kwargs.pop(name) for name in Dials.names() if name in kwargs}
        given = Dials.given_in(given)
        self.config.policy_class.check_dials(given)
        for name, value in kwargs.items():
            allowed, reason = REFUSED_HERE.get(name, (value, ""))
            if value not in (None, allowed):
                raise ValueError(f"Simultaneous decoding cannot honour `{name}={value}`: {reason}.")
        longest = self.longest
        for name in ("max_new_tokens", "max_length"):
            value = kwargs.get(name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"`{name}` is a number of tokens, at least 1, not {value!r}.")
        if kwargs.get("max_new_tokens") is not None:
            longest = min(longest, kwargs.pop("max_new_tokens"))
        if kwargs.get("max_length") is not None:
            longest = min(longest, kwargs.pop("max_length") - 1)
        prompt = len(self.decoder.frame.prompt)
        greedy = {"num_beams": 1, "do_sample": False, "early_stopping": False, "length_penalty": None}
        settings = {"max_length": longest + prompt, "max_new_tokens": None, "forced_bos_token_id": None}
        config, unused = self.model._prepare_generation_config(None, **(greedy | kwargs | settings))
        if unused:
            raise ValueError(f"Simultaneous decoding does not know {', '.join(f'`{name}`' for name in unused)}.")
        description = config.to_json_string()
        self.model._prepare_special_tokens(config, device=self.device)
        processors = self.model._get_logits_processor(config, prompt, device=self.device)
        return Dials(**given), Generation(processors, longest, description)

    # What a stream asks

    def translate(self, requests: list[Request], generation: Generation) -> list[Hypothesis]:
        return self.decoder.translate(requests, generation.processors)

    def ends_word(self, token: int, following: int) -> bool:
        return ends_word(self.source_tokenizer, token, following)


LoadedTranslator = tuple[HubTranslator, PreTrainedTokenizerBase, PreTrainedTokenizerBase]


def load_translator(path: str | Path, folder: Path, config: PreTrainedConfig, *args, **options) -> LoadedTranslator:
    """A translator of the Hub and its tokenizers, from the folder of a checkpoint that is not ours.

    Args:
        path (`str`): What the user called it, a folder or a Hub id.
        args, options: Policy, languages, whether to trust its code; and options of `from_pretrained`, such as `dtype`.
    """
    try:
        loaded = _load_translator(path, folder, config, *args, **options)
        added = loaded[1].get_added_vocab()  # no text has these
        last = max(index for token, index in loaded[1].get_vocab().items() if token not in added)
        trial = Request(source=[last], written=[], limit=2)  # some mistakes show only now
        loaded[0].translate([trial], loaded[0].stream_settings()["generation"])
    except (OSError, ValueError, ImportError, MemoryError):
        raise
    except Exception as error:  # the library raises nothing more special about sizes and tokens that cannot be
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"The checkpoint in {path} cannot be used: {reason}") from error
    return loaded


def _load_translator(
    path: str | Path,
    folder: Path,
    config: PreTrainedConfig,
    policy: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    trust_remote_code: bool = False,
    **options,
) -> LoadedTranslator:
    find_policy(policy or DEFAULT_POLICY)
    family_class = find_family(path, config)
    source, target = load_published_tokenizers(folder, trust_remote_code)
    family = family_class(config, source, source_language, target_language)
    frame, positions = family.frame(), family.positions()
    if not any(folder.glob("*.safetensors")) and Path(path).is_dir():
        raise ValueError(
            f"There are no weights in {path} as safetensors, and nothing else is opened: save it as such."
        )
    # A repository without safetensors may have them in a pull request of the Hub, which transformers finds by the id.
    weights = folder if any(folder.glob("*.safetensors")) else str(path)
    layers = [value for name, value in config.to_dict().items() if name.endswith("layers") and type(value) is int]
    if max(layers, default=0) > MOST_LAYERS:
        raise ValueError(f"The config.json in {path} asks for {max(layers)} layers; at most {MOST_LAYERS} are made.")
    model, info = AutoModelForSeq2SeqLM.from_pretrained(
        weights, use_safetensors=True, trust_remote_code=trust_remote_code, output_loading_info=True, **options
    )
    learned = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    missing = sorted(learned.intersection(info["missing_keys"]))
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} weights of its model, the first is {missing[0]}.")
    languages = family.source_language, family.target_language
    return HubTranslator(model, source, target, frame, positions, policy, *languages), source, target


def load_published_tokenizers(
    folder: Path, trust_remote_code: bool
) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """As published, or ours. A `</s>` in somebody's text does not end it, and a `>>fra<<` changes no language."""
    if (folder / SOURCE_FOLDER).is_dir():
        return load_tokenizers(folder, trust_remote_code)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, split_special_tokens=True, trust_remote_code=trust_remote_code
        )
    except ImportError as error:
        raise ValueError("This tokenizer needs sentencepiece: pip install 'hf_dualpath[marian]'.") from error
    if isinstance(tokenizer, MarianTokenizer):
        tokenizer.remove_language_code = lambda text: ([], text)  # it would find one at the start of any word
    if tokenizer.is_fast and "word_boundary" not in tokenizer.init_kwargs:
        # A unigram model has its special tokens among the pieces, and would find them in any text, even where the
        # normalizer has made them (of fullwidth letters).
        special = "|".join(map(re.escape, set(tokenizer.all_special_tokens) - {tokenizer.unk_token}))
        steps = [tokenizer.backend_tokenizer.normalizer, normalizers.Replace(Regex(special), tokenizer.unk_token)]
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([step for step in steps if step is not None])
    return tokenizer, tokenizer


def whole_sentence_model(
    model: SiMTForConditionalGeneration,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    policy: str,
) -> LoadedTranslator:
    """An offline model of ours, streamed in the same way."""
    if not model.config.policy_class.reads_everything:
        raise ValueError(
            f"This model has the {model.config.policy} policy of its own: `policy` is for models that read whole "
            "sentences, such as offline ones."
        )
    config, marian = model.config, to_marian(model)
    family = Marian(marian.config, source_tokenizer, config.source_language, config.target_language)
    languages = config.source_language, config.target_language
    translator = HubTranslator(
        marian, source_tokenizer, target_tokenizer, family.frame(), family.positions(), policy, *languages
    )
    return translator, source_tokenizer, target_tokenizer
