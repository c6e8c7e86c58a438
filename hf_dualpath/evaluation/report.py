"""A checkpoint over a test set: quality, latency, paths and speed in one report."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from ..errors import DataError
from ..inference.batches import encode_sources, stream_corpus, translate_corpus, words_read
from ..inference.checkpoints import Direction, load_directions
from ..inference.collator import PairCollator
from ..inference.text import as_file_name, read_lines
from ..model.policies_dualpath import Dials
from ..paths.quality import Alignment, duality_iou, parse_alignment
from .metrics import METRICS, Sentence, TestSet, bleu_signature
from .tables import as_markdown


@dataclass
class DirectionReport:
    """Figures of one direction by the names of `METRICS`, and the sentences behind them."""

    direction: str
    figures: dict[str, float]
    reads_everything: bool = False
    sentences: list[Sentence] = field(default_factory=list, repr=False)


@dataclass
class Report:
    """Everything about one checkpoint on one test set."""

    model: str
    dials: dict
    directions: dict[str, DirectionReport]

    def summary(self) -> dict:
        return {
            "model": self.model,
            "dials": self.dials,
            "directions": {
                name: {"figures": report.figures, "reads_everything": report.reads_everything}
                for name, report in self.directions.items()
            },
            "bleu_signature": bleu_signature(),
            "meanings": {name: METRICS[name].meaning for name in self.metrics()},
        }

    def metrics(self) -> list[str]:
        """Names of what was measured, in the order of the table of metrics."""
        return [name for name in METRICS if any(name in report.figures for report in self.directions.values())]

    def rows(self) -> list[dict[str, str]]:
        """One row a metric, one column a direction."""
        return [
            {"": name} | {key: METRICS[name].show(report.figures.get(name)) for key, report in self.directions.items()}
            for name in self.metrics()
        ]

    def markdown(self) -> str:
        dials = ", ".join(f"{name} = {value}" for name, value in self.dials.items())
        meanings = [f"- {name}: {METRICS[name].meaning}" for name in self.metrics()]
        parts = [
            f"# {self.model}",
            *([f"Dials: {dials}"] if dials else []),
            as_markdown(self.rows()).rstrip(),
            f"BLEU: `{bleu_signature()}`",
            "\n".join(meanings),
        ]
        return "\n\n".join(parts) + "\n"

    def save(self, folder: str | Path):
        """`report.json`, `report.md` and one JSON-lines file a direction with every sentence."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, report in self.directions.items():
            text = "".join(json.dumps(sentence_row(row), ensure_ascii=False) + "\n" for row in report.sentences)
            (folder / f"sentences.{as_file_name(name)}.jsonl").write_text(text, encoding="utf-8")
        (folder / "report.md").write_text(self.markdown(), encoding="utf-8")
        (folder / "report.json").write_text(json.dumps(self.summary(), indent=1, ensure_ascii=False), encoding="utf-8")


def sentence_row(sentence: Sentence) -> dict:
    """Everything about one sentence, as it goes into the JSON-lines file."""
    figures = {name: metric.sentence(sentence) for name, metric in METRICS.items() if metric.sentence is not None}
    return (
        asdict(sentence.translation)
        | {"reference": sentence.reference, "forced_path": sentence.forced_path}
        | {"figures": {name: value for name, value in figures.items() if value is not None}}
    )


@dataclass
class ParallelText:
    """A test set: its two sides and, where there are any, gold alignments."""

    sources: list[str]
    targets: list[str]
    alignments: list[Alignment] | None = None

    def flipped(self) -> "ParallelText":
        links = None if self.alignments is None else [[(j, i) for i, j in one] for one in self.alignments]
        return ParallelText(self.targets, self.sources, links)


def read_test_set(
    source_file: str, target_file: str, alignment_file: str | None = None, limit: int | None = None
) -> ParallelText:
    """The first `limit` sentences of a test set, checked."""
    if limit is not None and limit < 1:
        raise DataError(f"A limit is a number of sentences, at least 1, not {limit}.")
    sides = [read_lines(file)[:limit] for file in (source_file, target_file)]
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{source_file} has {len(sides[0])} lines and {target_file} {len(sides[1])}: they are no test set."
        )
    if not sides[0]:
        raise DataError(f"{source_file} is empty.")
    for file, side in zip((source_file, target_file), sides):
        if "" in side:
            raise DataError(f"{file}, line {side.index('') + 1}, is empty.")
    if alignment_file is None:
        return ParallelText(*sides)
    lines = read_lines(alignment_file)[:limit]
    if len(lines) != len(sides[0]):
        raise DataError(f"{alignment_file} has {len(lines)} lines for {len(sides[0])} sentences.")
    alignments = [
        parse_alignment(line, len(source.split()), len(target.split()), number)
        for number, (line, source, target) in enumerate(zip(lines, *sides), 1)
    ]
    return ParallelText(*sides, alignments)


def evaluate_checkpoint(
    path: str,
    source_file: str,
    target_file: str,
    direction: str | None = None,
    alignment_file: str | None = None,
    batch_size: int = 64,
    progress: bool = True,
    limit: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    policy: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    backend: str = "torch",
    stream: bool = False,
    **dials,
) -> Report:
    """A report of one checkpoint. The files are the sides of its forward direction; a dual one is measured both ways.

    Args:
        path (`str`): Folder or Hub id.
        source_file, target_file (`str`): The test set, source and target of the forward direction (or of `direction`).
        direction (`str`, *optional*): Only this one, and the files are its source and target.
        alignment_file (`str`, *optional*): Gold alignments, source-target, a line a sentence.
        limit (`int`, *optional*): Only the first so many sentences.
        device, dtype, trust_remote_code, policy, source_language, target_language, backend: See
            [`load_directions`].
        stream (`bool`, *optional*, defaults to `False`):
            One live stream after another instead of batches, for computation-aware latency.
        dials: Latency dials.
    """
    text = read_test_set(source_file, target_file, alignment_file, limit)
    languages = source_language, target_language
    directions = load_directions(path, direction, device, dtype, trust_remote_code, policy, *languages, backend)
    name = Path(path).name if policy is None else f"{Path(path).name}, {policy}"
    return evaluate_models(name, directions, text, batch_size, progress, stream=stream, **dials)


def evaluate_models(
    name: str,
    directions: dict[str, Direction],
    text: ParallelText,
    batch_size: int = 64,
    progress: bool = True,
    with_duality: bool = True,
    stream: bool = False,
    **dials,
) -> Report:
    """A report of the loaded directions of a checkpoint, see [`load_directions`]; the second one reads the targets."""
    texts = dict(zip(directions, (text, text.flipped())))
    measured = {
        key: measure(*loaded, texts[key], key, batch_size, progress, stream, **dials)
        for key, loaded in directions.items()
    }
    models = [model for model, _, _ in directions.values()]
    if with_duality and len(models) == 2 and models[0].can_be_forced and not models[0].reads_everything:
        _, *tokenizers = next(iter(directions.values()))
        scores = duality_scores(*models, *tokenizers, text, batch_size, Dials(**Dials.given_in(dials)))
        for test_set in measured.values():
            for sentence, score in zip(test_set.sentences, scores):
                sentence.iou = score
    reports = {}
    for (key, test_set), model in zip(measured.items(), models):
        if not test_set.words:
            raise ValueError(f"Every translation of {key} is empty: there is no latency to measure.")
        figures = {name: value for name, metric in METRICS.items() if (value := metric(test_set)) is not None}
        reports[key] = DirectionReport(key, figures, model.reads_everything, test_set.sentences)
    return Report(name, dials, reports)


def measure(
    model,
    source_tokenizer,
    target_tokenizer,
    text: ParallelText,
    name: str,
    batch_size: int,
    progress: bool,
    stream: bool = False,
    **dials,
) -> TestSet:
    """Translations of one direction and, with gold alignments, its paths on the references."""
    task = (model, source_tokenizer, target_tokenizer, text.sources)
    if stream:
        found, seconds = stream_corpus(*task, progress, f"Streaming {name}", **dials)
    else:
        found, seconds = translate_corpus(*task, batch_size, progress, f"Translating {name}", **dials)
    sentences = [Sentence(translation, reference) for translation, reference in zip(found, text.targets)]
    if text.alignments is not None:
        if not model.can_be_forced:
            raise ValueError("Gold alignments need a path over the references, which only our own torch models have.")
        used = Dials(**Dials.given_in(dials))
        paths = forced_word_paths(model, source_tokenizer, target_tokenizer, text, batch_size, used)
        for sentence, path, alignment in zip(sentences, paths, text.alignments):
            sentence.forced_path, sentence.alignment = path, alignment
    return TestSet(sentences, seconds)


# Paths on the references


def forced_batches(source_tokenizer, target_tokenizer, text: ParallelText, model, batch_size: int):
    """Batches of similar length to force a reference through a model, each with the indices of its sentences."""
    encoded, references = (
        encode_sources(source_tokenizer, text.sources),
        encode_sources(target_tokenizer, text.targets),
    )
    limit = model.config.max_position_embeddings
    for number, (tokens, _) in enumerate(references, 1):
        if len(tokens) > limit:
            raise DataError(f"Reference {number} has {len(tokens)} tokens, more than the model's limit of {limit}.")
    order = sorted(range(len(encoded)), key=lambda index: len(encoded[index][0]) + len(references[index][0]))
    collate = PairCollator(model.config.pad_token_id)
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        batch = collate([{"input_ids": encoded[i][0], "labels": references[i][0]} for i in indices])
        yield indices, {name: tensor.to(model.device) for name, tensor in batch.items()}


def forced_alphas(model, input_ids, mask, labels, dials: Dials) -> tuple[torch.Tensor, ...]:
    """The hard path of each deciding layer when the model is made to write `labels`; the scores are not needed."""
    start = model.prepare_decoder_input_ids_from_labels(labels)
    return model.eval().model(input_ids, mask, start, path="hard", dials=dials).alphas


@torch.inference_mode()
def forced_word_paths(
    model, source_tokenizer, target_tokenizer, text: ParallelText, batch_size: int, dials: Dials
) -> list[list[int]]:
    """Source words read before each reference word, when the model is made to write the reference."""
    source_words = [lengths for _, lengths in encode_sources(source_tokenizer, text.sources)]
    target_words = [lengths for _, lengths in encode_sources(target_tokenizer, text.targets)]
    paths: list[list[int]] = [[]] * len(source_words)
    for indices, batch in forced_batches(source_tokenizer, target_tokenizer, text, model, batch_size):
        alphas = forced_alphas(model, batch["input_ids"], batch["attention_mask"], batch["labels"], dials)
        reads = torch.stack([alpha.argmax(-1).amax(1) for alpha in alphas]).amax(0) + 1
        for row, index in enumerate(indices):
            last_tokens = torch.tensor(target_words[index]).cumsum(0) - 1
            paths[index] = words_read(reads[row].cpu()[last_tokens].tolist(), source_words[index])
    return paths


@torch.inference_mode()
def duality_scores(
    forward, backward, source_tokenizer, target_tokenizer, text: ParallelText, batch_size: int, dials: Dials
) -> list[float]:
    """IoU of both directions' paths for each sentence pair."""
    scores = [0.0] * len(text.sources)
    for indices, batch in forced_batches(source_tokenizer, target_tokenizer, text, forward, batch_size):
        source_mask, target_mask = batch["attention_mask"].bool(), batch["labels"] != -100
        targets = batch["labels"].masked_fill(~target_mask, forward.config.pad_token_id)
        ahead = forced_alphas(forward, batch["input_ids"], source_mask, targets, dials)
        back = forced_alphas(backward, targets, target_mask, batch["input_ids"], dials)
        iou = torch.stack([duality_iou(*pair, source_mask, target_mask) for pair in zip(ahead, back)]).mean(0)
        for index, value in zip(indices, iou.tolist()):
            scores[index] = value
    return scores
