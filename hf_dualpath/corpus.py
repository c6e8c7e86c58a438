"""A whole test set at full speed: batches of like length, each sentence with the path that a stream would take."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast

from .data import PairCollator
from .tokenization import WordAssembler


@dataclass
class Translation:
    """One translated sentence.

    Args:
        source (`str`), text (`str`): The sentence and its translation.
        source_tokens, tokens (`list[int]`): Both as tokens, with the end-of-sentence token (unless it was cut off).
        path (`list[int]`): Source tokens read before each target token.
        words (`list[str]`), word_path (`list[int]`): The words written, and the source words read before each.
        source_words (`int`): Number of source words.
    """

    source: str
    text: str
    source_tokens: list[int]
    tokens: list[int]
    path: list[int]
    words: list[str]
    word_path: list[int]
    source_words: int


def translate_corpus(
    model,
    source_tokenizer: PreTrainedTokenizerFast,
    target_tokenizer: PreTrainedTokenizerFast,
    sources: Sequence[str],
    batch_size: int = 64,
    progress: bool = True,
    description: str = "Translating",
    **generate_kwargs,
) -> tuple[list[Translation], float]:
    """Translates all sentences with one direction's model; also returns the seconds that decoding took."""
    encoded = encode_sources(source_tokenizer, sources)
    limit = model.config.max_position_embeddings
    for number, (tokens, _) in enumerate(encoded, 1):
        if len(tokens) > limit:
            raise ValueError(f"Sentence {number} has {len(tokens)} tokens, more than the model's limit of {limit}.")
    order = sorted(range(len(sources)), key=lambda index: -len(encoded[index][0]))
    collate = PairCollator(model.config.pad_token_id)
    offline = model.config.policy == "offline"
    results: list[Translation | None] = [None] * len(sources)
    seconds = 0.0
    training = model.training
    model.eval()
    with tqdm(total=len(sources), desc=description, disable=not progress, unit=" sentences") as bar:
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            batch = collate([{"input_ids": encoded[index][0], "labels": [0]} for index in indices])
            inputs = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
            if offline:
                longest = inputs["input_ids"].shape[1]
                limits = {
                    "max_length": min(2 * longest + 11, limit),
                    "suppress_tokens": [model.config.pad_token_id],
                }
            else:
                limits = {}
            began = time.perf_counter()
            output = model.generate(**inputs, return_dict_in_generate=True, **limits, **generate_kwargs)
            seconds += time.perf_counter() - began
            sequences = output.sequences[:, 1:].tolist()
            paths = None if offline else output.path.tolist()
            for row, index in enumerate(indices):
                source_tokens, word_lengths = encoded[index]
                tokens = until_end(sequences[row], model.config)
                path = [len(source_tokens)] * len(tokens) if offline else paths[row][: len(tokens)]
                results[index] = assemble(sources[index], source_tokens, word_lengths, tokens, path, target_tokenizer)
            bar.update(len(indices))
    model.train(training)
    return results, seconds


def encode_sources(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
    """Tokens of each sentence, word by word as a stream reads it, with its end; and how many tokens each word has."""
    words = sorted({word for text in texts for word in text.split()})
    tokens = dict(zip(words, tokenizer(words, add_special_tokens=False)["input_ids"])) if words else {}
    encoded = []
    for text in texts:
        pieces = [tokens[word] for word in text.split()]
        encoded.append(
            ([token for piece in pieces for token in piece] + [tokenizer.eos_token_id], list(map(len, pieces)))
        )
    return encoded


def encode_source(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Tokens of one sentence with its end."""
    return encode_sources(tokenizer, [text])[0][0]


def until_end(tokens: list[int], config) -> list[int]:
    """Tokens up to the end-of-sentence token, without the padding behind it."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    for index, token in enumerate(tokens):
        if token in ends:
            return tokens[: index + 1]
        if token == config.pad_token_id:
            return tokens[:index]
    return tokens


def assemble(
    source: str,
    source_tokens: list[int],
    word_lengths: list[int],
    tokens: list[int],
    path: list[int],
    target_tokenizer: PreTrainedTokenizerFast,
) -> Translation:
    """Words and their path from tokens and theirs."""
    first_tokens = [sum(word_lengths[:index]) for index in range(len(word_lengths))]
    assembler = WordAssembler(target_tokenizer)
    words, word_path, read = [], [], 0

    def write(word: str | None):
        if word is not None:
            words.append(word)
            word_path.append(read)

    for token, tokens_read in zip(tokens, path):
        read = sum(first < tokens_read for first in first_tokens)
        write(assembler.push(token))
    write(assembler.finish())
    return Translation(source, " ".join(words), source_tokens, tokens, path, words, word_path, len(word_lengths))
