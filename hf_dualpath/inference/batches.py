"""A whole test set at full speed: batches of similar length, each sentence with the path that a stream would take."""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from .splitting import SentenceCutter, SentenceSplitter, Splitter, replace_surrogates, whole_words
from .words import WordAssembler


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass
class Translation:
    """One translated sentence.

    Args:
        source (`str`), text (`str`): The sentence and its translation.
        source_tokens, tokens (`list[int]`): Both as tokens, with the end-of-sentence token (unless it was cut off).
        path (`list[int]`): Source tokens read before each target token.
        words (`list[str]`), word_path (`list[int]`): The words written, and the source words read before each.
        source_words (`int`): Number of source words.
        seconds (`list[float]`, *optional*): Of a stream: the computing time that each word took.
    """

    source: str
    text: str
    source_tokens: list[int]
    tokens: list[int]
    path: list[int]
    words: list[str]
    word_path: list[int]
    source_words: int
    seconds: list[float] | None = None


def translate_corpus(
    model,
    source_tokenizer: "PreTrainedTokenizerFast",
    target_tokenizer: "PreTrainedTokenizerFast",
    sources: Sequence[str],
    batch_size: int = 64,
    progress: bool = True,
    description: str = "Translating",
    **generate_kwargs,
) -> tuple[list[Translation], float]:
    """Translates all sentences with one direction's model; also returns the seconds that decoding took."""
    encoded = encode_test_set(model, source_tokenizer, sources)
    return _translate(model, target_tokenizer, sources, encoded, batch_size, progress, description, **generate_kwargs)


def translate_texts(
    model,
    source_tokenizer: "PreTrainedTokenizerFast",
    target_tokenizer: "PreTrainedTokenizerFast",
    texts: Sequence[str],
    splitter: Callable[[str | None], Splitter] | None = SentenceSplitter,
    max_sentence_words: int | None = None,
    batch_size: int = 64,
    progress: bool = True,
    **generate_kwargs,
) -> tuple[list[list[Translation]], float]:
    """Translates whole texts, each cut into sentences and written as [`SimultaneousTranslator`] does; also returns the
    seconds that decoding took."""
    longest = model.config.max_position_embeddings - 1
    cutter = SentenceCutter(model.config.source_language, splitter, max_sentence_words, longest)
    words = [whole_words(text) for text in texts]
    encoded = encode_sources(source_tokenizer, words, longest)
    sentences = [cutter.cut(zip(text, lengths)) for text, (_, lengths) in zip(words, encoded)]
    flat = [sentence for text in sentences for sentence in text]
    encoded = encode_sources(source_tokenizer, flat, longest)
    sources = [" ".join(sentence) for sentence in flat]
    found, seconds = _translate(
        model, target_tokenizer, sources, encoded, batch_size, progress, "Translating", **generate_kwargs
    )
    rest = iter(found)
    return [list(islice(rest, len(text))) for text in sentences], seconds


def _translate(
    model,
    target_tokenizer: "PreTrainedTokenizerFast",
    sources: Sequence[str],
    encoded: list["Encoded"],
    batch_size: int,
    progress: bool,
    description: str,
    **generate_kwargs,
) -> tuple[list[Translation], float]:
    if batch_size < 1:
        raise ValueError(f"The batch size is a number of sentences, at least 1, not {batch_size}.")
    order = sorted(range(len(sources)), key=lambda index: -len(encoded[index][0]))
    decode = decode_whole if model.reads_everything else decode_live
    results: list[Translation | None] = [None] * len(sources)
    training, began = model.training, time.perf_counter()
    model.eval()
    with tqdm(total=len(sources), desc=description, disable=not progress, unit=" sentences") as bar:
        ordered = {index: encoded[index] for index in order}
        for index, tokens, path in decode(model, ordered, batch_size, **generate_kwargs):
            results[index] = assemble(sources[index], *encoded[index], tokens, path, target_tokenizer)
            bar.update()
    model.train(training)
    return results, time.perf_counter() - began


Encoded = tuple[list[int], list[int]]  # tokens with the end, and how many of them each word has


def decode_live(
    model, sources: dict[int, Encoded], batch_size: int, **kwargs
) -> Iterator[tuple[int, list[int], list[int]]]:
    """Tokens and path of each source, as streams of one engine: where one ends, the next takes its slot."""
    engine, settings = model.open_engine(min(batch_size, len(sources)) or 1), model.stream_settings(**kwargs)
    waiting, running = deque(sources.items()), {}
    while waiting or running:
        while waiting and len(running) < batch_size:
            index, encoded = waiting.popleft()
            running[index] = stream = engine.open(**settings)
            for word in words_of(*encoded):
                stream.feed(word)
            stream.end()
        engine.tick()
        for index in [index for index, stream in running.items() if stream.done]:
            written = [action for action in running.pop(index).take() if action is not None]
            yield index, [token for token, _ in written], [read for _, read in written]


def decode_whole(
    model, sources: dict[int, Encoded], batch_size: int, **kwargs
) -> Iterator[tuple[int, list[int], list[int]]]:
    """The same for an offline model, through the library's `generate`."""
    from .collator import PairCollator  # the light runtime has no torch, and no offline models

    collate, pad = PairCollator(model.config.pad_token_id), model.config.pad_token_id
    for indices in batched(sources, batch_size):
        batch = collate([{"input_ids": sources[index][0], "labels": [0]} for index in indices])
        inputs = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
        longest = min(2 * inputs["input_ids"].shape[1] + 11, model.config.max_position_embeddings)
        output = model.generate(**inputs, max_length=longest, suppress_tokens=[pad], **kwargs)
        for index, row in zip(indices, output[:, 1:].tolist()):
            tokens = until_end(row, model.config)
            yield index, tokens, [len(sources[index][0])] * len(tokens)


def batched(items: Iterable, size: int) -> Iterator[list]:
    """Lists of so many items, the last one shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def stream_corpus(
    model,
    source_tokenizer: "PreTrainedTokenizerFast",
    target_tokenizer: "PreTrainedTokenizerFast",
    sources: Sequence[str],
    progress: bool = True,
    description: str = "Streaming",
    **dials,
) -> tuple[list[Translation], float]:
    """[`translate_corpus`] as live streams, one after another: the same translations, and what each word cost."""
    results, total = [], 0.0
    for source, (tokens, lengths) in tqdm(
        list(zip(sources, encode_test_set(model, source_tokenizer, sources))),
        desc=description,
        disable=not progress,
        unit=" sentences",
    ):
        began = before = time.perf_counter()
        written, path, seconds = [], [], []
        for token, read in filter(None, word_by_word(model.open_stream(**dials), tokens, lengths)):
            written.append(token)
            path.append(read)
            before, spent = time.perf_counter(), time.perf_counter() - before
            seconds.append(spent)
        total += time.perf_counter() - began
        results.append(assemble(source, tokens, lengths, written, path, target_tokenizer, seconds))
    return results, total


def word_by_word(stream, tokens: list[int], word_lengths: list[int]) -> Iterator[tuple[int, int] | None]:
    """The actions of a stream whose source arrives in words, then its end."""
    for word in words_of(tokens, word_lengths):
        yield from stream.push(word)
    yield from stream.finish()


def words_of(tokens: list[int], word_lengths: list[int]) -> Iterator[list[int]]:
    """The tokens of each word, then the end."""
    ends = list(accumulate(word_lengths))
    for start, end in zip([0, *ends], [*ends, len(tokens)]):
        yield tokens[start:end]


def encode_sources(
    tokenizer: "PreTrainedTokenizerFast", texts: Sequence[str | list[str]], longest_word: int | None = None
) -> list[tuple[list[int], list[int]]]:
    """Tokens of each sentence, word by word as a stream reads it, with its end; and how many tokens each word has.

    A sentence is a text, or a list of its words. Of a word only the first `longest_word` tokens count.
    """
    sentences = [replace_surrogates(text).split() if isinstance(text, str) else text for text in texts]
    words = sorted({word for sentence in sentences for word in sentence})
    found = tokenizer(words, add_special_tokens=False)["input_ids"] if words else []
    tokens = {word: pieces[:longest_word] for word, pieces in zip(words, found)}
    encoded = []
    for sentence in sentences:
        pieces = [tokens[word] for word in sentence]
        encoded.append(
            ([token for piece in pieces for token in piece] + [tokenizer.eos_token_id], list(map(len, pieces)))
        )
    return encoded


def encode_test_set(
    model, tokenizer: "PreTrainedTokenizerFast", sources: Sequence[str]
) -> list[tuple[list[int], list[int]]]:
    """[`encode_sources`] of sentences that must fit the model as they are."""
    encoded, limit = encode_sources(tokenizer, sources), model.config.max_position_embeddings
    for number, (tokens, _) in enumerate(encoded, 1):
        if len(tokens) > limit:
            raise ValueError(f"Sentence {number} has {len(tokens)} tokens, more than the model's limit of {limit}.")
    return encoded


def encode_source(tokenizer: "PreTrainedTokenizerFast", text: str) -> list[int]:
    """Tokens of one sentence with its end."""
    return encode_sources(tokenizer, [text])[0][0]


def until_end(tokens: list[int], config) -> list[int]:
    """Tokens up to the end-of-sentence token, without the padding behind it."""
    for index, token in enumerate(tokens):
        if token in config.end_tokens:
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
    target_tokenizer: "PreTrainedTokenizerFast",
    seconds: list[float] | None = None,
) -> Translation:
    """Words, their path and what they cost, from tokens and theirs."""
    assembler = WordAssembler(target_tokenizer)
    words, word_path, word_ends = [], [], [0]
    reads = [*words_read(path, word_lengths), *words_read(path[-1:], word_lengths)]
    for count, (token, read) in enumerate(zip([*tokens, None], reads), 1):
        word = assembler.finish() if token is None else assembler.push(token)
        if word is not None:
            words.append(word)
            word_path.append(read)
            word_ends.append(count)
    spent = None
    if seconds is not None:
        spent = [sum(seconds[start:end]) for start, end in zip(word_ends, word_ends[1:])]
    text, count = " ".join(words), len(word_lengths)
    return Translation(source, text, source_tokens, tokens, path, words, word_path, count, spent)


def words_read(tokens_read: Sequence[int], word_lengths: Sequence[int]) -> list[int]:
    """Source words begun after so many source tokens, where word n has `word_lengths[n]` tokens."""
    first_tokens = list(accumulate(word_lengths, initial=0))[:-1]
    return [bisect_left(first_tokens, tokens) for tokens in tokens_read]
