"""A checkpoint over a test set: quality, latency, paths and speed in one report."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import mean

import torch
from sacrebleu.metrics import BLEU, CHRF
from transformers import AutoModelForSeq2SeqLM

from .checkpoints import load_config
from .configuration_dualpath import DualPathConfig
from .corpus import Translation, encode_sources, translate_corpus
from .data import DataError, PairCollator, read_lines
from .latency import latency_metrics
from .path_metrics import duality_iou, necessity, parse_alignment, sufficiency
from .streaming import load_direction
from .tokenization import load_tokenizers


# What each figure means, for the reader of a report.
CONVENTIONS = {
    "bleu": "sacreBLEU of detokenised text, with a 95 % bootstrap interval",
    "bleu_lowercase": "the same, lower-cased (the paper's tables)",
    "chrf": "chrF2",
    "token": "subword tokens with the end-of-sentence token on both sides; "
    "AL and AP with the hypothesis' length (the paper)",
    "word": "words; AL and AP with the reference's length, LAAL with the longer of both, "
    "DAL with the hypothesis' (SimulEval); empty translations are left out of the means",
    "CR": "average consecutive reads: source length over the number of reading spells that end in a write",
    "sufficiency": "A_suf on the reference, forced through the model: aligned source word read before the target word",
    "necessity": "A_nec on the reference: aligned position over what was read, where that sufficed",
    "iou": "agreement of the forward path and the transposed backward path on the references, by head",
}


@dataclass
class DirectionReport:
    """Figures of one direction, and the sentences behind them."""

    direction: str
    quality: dict
    latency: dict[str, dict[str, float]]
    speed: dict[str, float]
    paths: dict[str, float] = field(default_factory=dict)
    sentences: list[dict] = field(default_factory=list, repr=False)

    def summary(self) -> dict:
        return {name: value for name, value in asdict(self).items() if name != "sentences"}


@dataclass
class Report:
    """Everything about one checkpoint on one test set."""

    model: str
    dials: dict
    directions: dict[str, DirectionReport]
    iou: float | None = None

    def summary(self) -> dict:
        directions = {name: report.summary() for name, report in self.directions.items()}
        return {
            "model": self.model,
            "dials": self.dials,
            "directions": directions,
            "iou": self.iou,
            "conventions": CONVENTIONS,
        }

    def markdown(self) -> str:
        lines = [f"# {self.model}", ""]
        if self.dials:
            lines += ["Dials: " + ", ".join(f"{name} = {value}" for name, value in self.dials.items()), ""]
        lines += ["| | " + " | ".join(self.directions) + " |", "|---|" + "---|" * len(self.directions)]
        lines += [f"| {name} | " + " | ".join(values) + " |" for name, values in self.rows()]
        signature = next(iter(self.directions.values())).quality["bleu_signature"]
        lines += ["", f"BLEU: `{signature}`", ""]
        lines += [f"- {name}: {meaning}" for name, meaning in CONVENTIONS.items()]
        return "\n".join(lines) + "\n"

    def rows(self) -> list[tuple[str, list[str]]]:
        """Names and formatted figures, one column a direction."""
        reports = list(self.directions.values())
        rows = [
            ("BLEU", [f"{r.quality['bleu']:.2f} ± {r.quality['bleu_interval']:.2f}" for r in reports]),
            ("BLEU, lower-cased", [f"{r.quality['bleu_lowercase']:.2f}" for r in reports]),
            ("chrF", [f"{r.quality['chrf']:.2f}" for r in reports]),
        ]
        for unit in ("token", "word"):
            for metric in reports[0].latency[unit]:
                rows.append((f"{metric} ({unit}s)", [f"{r.latency[unit][metric]:.3f}" for r in reports]))
        for metric in sorted({name for r in reports for name in r.paths}):
            rows.append((metric, [f"{r.paths[metric]:.4f}" if metric in r.paths else "" for r in reports]))
        if self.iou is not None:
            rows.append(("iou", [f"{self.iou:.4f}"] * len(reports)))
        rows.append(("words/s", [f"{r.speed['words_per_second']:.0f}" for r in reports]))
        rows.append(("ms per written word", [f"{r.speed['milliseconds_per_word']:.2f}" for r in reports]))
        return rows

    def save(self, folder: str | Path):
        """`report.json`, `report.md` and one JSON-lines file a direction with every sentence."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, report in self.directions.items():
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in report.sentences)
            (folder / f"sentences.{name}.jsonl").write_text(text, encoding="utf-8")
        (folder / "report.md").write_text(self.markdown(), encoding="utf-8")
        (folder / "report.json").write_text(json.dumps(self.summary(), indent=1, ensure_ascii=False), encoding="utf-8")


def evaluate_checkpoint(
    path: str,
    source_file: str,
    target_file: str,
    direction: str | None = None,
    alignment_file: str | None = None,
    batch_size: int = 64,
    progress: bool = True,
    limit: int | None = None,
    **dials,
) -> Report:
    """A report of one checkpoint. The files are the sides of its forward direction; a dual one is measured both ways.

    Args:
        path (`str`): Folder or Hub id.
        source_file, target_file (`str`): The test set, source and target of the forward direction (or of `direction`).
        direction (`str`, *optional*): Only this one, and the files are its source and target.
        alignment_file (`str`, *optional*): Gold alignments, source-target, a line a sentence.
        limit (`int`, *optional*): Only the first so many sentences.
        dials: Latency dials.
    """
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
    alignments = None
    if alignment_file is not None:
        lines = read_lines(alignment_file)[:limit]
        if len(lines) != len(sides[0]):
            raise DataError(f"{alignment_file} has {len(lines)} lines for {len(sides[0])} sentences.")
        alignments = [
            parse_alignment(line, len(source.split()), len(target.split()), number)
            for number, (line, source, target) in enumerate(zip(lines, *sides), 1)
        ]
    config = load_config(path)
    if not isinstance(config, DualPathConfig) or direction is not None:
        model, *tokenizers = load_direction(path, direction)
        name = direction or f"{model.config.source_language}-{model.config.target_language}"
        report = evaluate_direction(model, *tokenizers, *sides, name, alignments, batch_size, progress, **dials)
        return Report(Path(path).name, dials, {name: report})

    model, tokenizers = AutoModelForSeq2SeqLM.from_pretrained(path), load_tokenizers(path)
    ahead, back = config.forward_direction, config.backward_direction
    flipped = None if alignments is None else [[(j, i) for i, j in sentence] for sentence in alignments]
    reports = {
        name: evaluate_direction(model.direction(name), *order, *texts, name, links, batch_size, progress, **dials)
        for name, order, texts, links in (
            (ahead, tokenizers, sides, alignments),
            (back, tokenizers[::-1], sides[::-1], flipped),
        )
    }
    iou = None
    if config.forward_config.policy != "offline":
        iou = mean(evaluate_duality(model, *tokenizers, *sides, batch_size))
    return Report(Path(path).name, dials, reports, iou)


def evaluate_direction(
    model,
    source_tokenizer,
    target_tokenizer,
    sources: Sequence[str],
    references: Sequence[str],
    name: str = "",
    alignments: Sequence[Sequence[tuple[int, int]]] | None = None,
    batch_size: int = 64,
    progress: bool = True,
    **dials,
) -> DirectionReport:
    """Quality, latency, speed and, with gold alignments, path quality of one direction."""
    found, seconds = translate_corpus(
        model, source_tokenizer, target_tokenizer, sources, batch_size, progress, f"Translating {name}", **dials
    )
    sentences = [sentence_row(translation, reference) for translation, reference in zip(found, references)]
    words = sum(len(translation.words) for translation in found)
    report = DirectionReport(
        name,
        quality([translation.text for translation in found], references),
        {unit: mean_of([row[unit] for row in sentences]) for unit in ("token", "word")},
        {
            "seconds": seconds,
            "words_per_second": words / seconds,
            "milliseconds_per_word": 1000 * seconds / max(words, 1),
        },
        sentences=sentences,
    )
    if alignments is not None:
        paths = forced_word_paths(model, source_tokenizer, target_tokenizer, sources, references, batch_size)
        for metric, function in (("sufficiency", sufficiency), ("necessity", necessity)):
            values = [function(path, links) for path, links in zip(paths, alignments)]
            for row, value in zip(sentences, values):
                row[metric] = value
            report.paths[metric] = mean(value for value in values if value is not None)
    return report


def quality(hypotheses: Sequence[str], references: Sequence[str]) -> dict:
    metric, lower, chrf = BLEU(), BLEU(lowercase=True), CHRF()
    score = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
    return {
        "bleu": score.score,
        "bleu_interval": score._ci,
        "bleu_signature": str(metric.get_signature()),
        "bleu_lowercase": lower.corpus_score(hypotheses, [references]).score,
        "bleu_lowercase_signature": str(lower.get_signature()),
        "chrf": chrf.corpus_score(hypotheses, [references]).score,
        "chrf_signature": str(chrf.get_signature()),
    }


def sentence_row(translation: Translation, reference: str) -> dict:
    """Everything about one sentence, as it goes into the JSON-lines file."""
    source_tokens, source_words = len(translation.source_tokens), translation.source_words
    token = latency_metrics(translation.path, source_tokens)
    token["CR"] = consecutive_reads(translation.path, source_tokens)
    word = None
    if translation.words:
        word = latency_metrics(translation.word_path, source_words, reference_length=len(reference.split()))
        word["CR"] = consecutive_reads(translation.word_path, source_words)
    return {
        "source": translation.source,
        "hypothesis": translation.text,
        "reference": reference,
        "token_path": translation.path,
        "source_tokens": source_tokens,
        "word_path": translation.word_path,
        "source_words": source_words,
        "token": token,
        "word": word,
    }


def consecutive_reads(path: Sequence[int], source_length: int) -> float:
    """Source length over the number of times that reading stops for a write."""
    spells = sum(now > before for before, now in zip([0, *path], path))
    return source_length / spells


def mean_of(rows: Sequence[Mapping[str, float] | None]) -> dict[str, float]:
    """Unweighted means over the sentences that have figures."""
    full = [row for row in rows if row is not None]
    if not full:
        raise ValueError("Every translation is empty: there is no latency to measure.")
    return {name: mean(row[name] for row in full) for name in full[0]}


# Paths on the references


def forced_batches(
    source_tokenizer, target_tokenizer, sources: Sequence[str], targets: Sequence[str], model, batch_size: int
):
    """Batches of like length to force a reference through a model, each with the indices of its sentences."""
    encoded, references = encode_sources(source_tokenizer, sources), encode_sources(target_tokenizer, targets)
    limit = model.config.max_position_embeddings
    for number, (tokens, _) in enumerate(references, 1):
        if len(tokens) > limit:
            raise DataError(f"Reference {number} has {len(tokens)} tokens, more than the model's limit of {limit}.")
    order = sorted(range(len(sources)), key=lambda index: len(encoded[index][0]) + len(references[index][0]))
    collate = PairCollator(model.config.pad_token_id)
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        batch = collate([{"input_ids": encoded[i][0], "labels": references[i][0]} for i in indices])
        yield indices, {name: tensor.to(model.device) for name, tensor in batch.items()}


def forced_alphas(
    model, input_ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The hard path of each deciding layer when the model is made to write `labels`; the scores are not needed."""
    alpha = model.eval().model(input_ids, mask, model.prepare_decoder_input_ids_from_labels(labels)).alpha
    return alpha if isinstance(alpha, tuple) else (alpha,)


@torch.inference_mode()
def forced_word_paths(
    model, source_tokenizer, target_tokenizer, sources: Sequence[str], references: Sequence[str], batch_size: int = 64
) -> list[list[int]]:
    """Source words read before each reference word, when the model is made to write the reference."""
    source_words = [lengths for _, lengths in encode_sources(source_tokenizer, sources)]
    target_words = [lengths for _, lengths in encode_sources(target_tokenizer, references)]
    paths: list[list[int]] = [[]] * len(sources)
    batches = forced_batches(source_tokenizer, target_tokenizer, sources, references, model, batch_size)
    for indices, batch in batches:
        if model.config.policy == "offline":
            reads = batch["attention_mask"].sum(-1)[:, None].expand_as(batch["labels"])
        else:
            alphas = forced_alphas(model, batch["input_ids"], batch["attention_mask"], batch["labels"])
            reads = torch.stack([alpha.argmax(-1).amax(1) for alpha in alphas]).amax(0) + 1
        for row, index in enumerate(indices):
            first_tokens = list(accumulate(source_words[index], initial=0))[:-1]
            last_tokens = [total - 1 for total in accumulate(target_words[index])]
            paths[index] = [sum(first < reads[row, last] for first in first_tokens) for last in last_tokens]
    return [list(map(int, path)) for path in paths]


@torch.inference_mode()
def evaluate_duality(
    model, source_tokenizer, target_tokenizer, sources: Sequence[str], targets: Sequence[str], batch_size: int = 64
) -> list[float]:
    """IoU of both directions' paths of a dual model, for each sentence pair."""
    scores = [0.0] * len(sources)
    forward = model.forward_model
    for indices, batch in forced_batches(source_tokenizer, target_tokenizer, sources, targets, forward, batch_size):
        source_mask, target_mask = batch["attention_mask"].bool(), batch["labels"] != -100
        targets_in = batch["labels"].masked_fill(~target_mask, model.config.pad_token_id)
        ahead = forced_alphas(forward, batch["input_ids"], source_mask, targets_in)
        back = forced_alphas(model.backward_model, targets_in, target_mask, batch["input_ids"])
        iou = torch.stack([duality_iou(*pair, source_mask, target_mask) for pair in zip(ahead, back)]).mean(0)
        for index, value in zip(indices, iou.tolist()):
            scores[index] = value
    return scores
