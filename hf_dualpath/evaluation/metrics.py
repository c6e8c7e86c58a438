"""The one table of metrics: reports, comparisons, sweeps, cards and the trainer all read it.

A metric is a name, a unit, what it means, how it is printed, and a function: of one sentence (the value of a test set
is then the mean over its sentences that have one), or of a whole test set. A new one is one line here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import mean

from sacrebleu.metrics import BLEU, CHRF

from ..inference.batches import Translation
from ..paths.latency import latency_metrics
from ..paths.quality import Alignment, necessity, sufficiency


@dataclass
class Sentence:
    """A translated sentence, its reference, and what else is known of it.

    Args:
        translation ([`Translation`]): What the system wrote, and when.
        reference (`str`): The reference translation.
        forced_path (`list[int]`, *optional*):
            Source words read before each word of the reference, when the model is made to write that.
        alignment (*optional*): Gold links between the words of the source and of the reference.
        iou (`float`, *optional*): Agreement of both directions' paths on this pair.
    """

    translation: Translation
    reference: str
    forced_path: list[int] | None = None
    alignment: Alignment | None = None
    iou: float | None = None

    @cached_property
    def token_latency(self) -> dict[str, float]:
        path, length = self.translation.path, len(self.translation.source_tokens)
        return latency_metrics(path, length) | {"CR": consecutive_reads(path, length)} if path else {}

    @cached_property
    def word_latency(self) -> dict[str, float]:
        path, length = self.translation.word_path, self.translation.source_words
        if not path:
            return {}
        return latency_metrics(path, length, reference_length=len(self.reference.split())) | {
            "CR": consecutive_reads(path, length)
        }

    @cached_property
    def elapsed_latency(self) -> dict[str, float]:
        """As SimulEval does for speech: to each delay comes all computing so far, here in words of a speaker."""
        translation = self.translation
        if translation.seconds is None or not translation.word_path:
            return {}
        spent = [seconds * SPEAKING_RATE for seconds in accumulate(translation.seconds)]
        elapsed = [read + late for read, late in zip(translation.word_path, spent)]
        return latency_metrics(elapsed, translation.source_words, reference_length=len(self.reference.split()))


@dataclass
class TestSet:
    """All sentences of one direction, and the seconds that decoding them took."""

    __test__ = False  # not a test of pytest's

    sentences: list[Sentence]
    seconds: float

    @property
    def hypotheses(self) -> list[str]:
        return [sentence.translation.text for sentence in self.sentences]

    @property
    def references(self) -> list[str]:
        return [sentence.reference for sentence in self.sentences]

    @property
    def words(self) -> int:
        return sum(len(sentence.translation.words) for sentence in self.sentences)


@dataclass(frozen=True)
class Metric:
    """One row of the table; either `sentence` or `test_set` computes it."""

    name: str
    meaning: str
    format: str = ".2f"
    sentence: Callable[[Sentence], float | None] | None = None
    test_set: Callable[[TestSet], float] | None = None

    def __call__(self, measured: TestSet) -> float | None:
        """The figure of a test set; None where it does not apply."""
        if self.test_set is not None:
            return self.test_set(measured)
        values = [value for value in map(self.sentence, measured.sentences) if value is not None]
        return mean(values) if values else None

    def show(self, value: float | None) -> str:
        return "" if value is None else format(value, self.format)


def consecutive_reads(path: Sequence[int], source_length: int) -> float:
    """Source length over the number of times that reading stops for a write."""
    return source_length / sum(now > before for before, now in zip([0, *path], path))


def latency(name: str, unit: str, meaning: str) -> Metric:
    return Metric(
        f"{name} ({unit}s)",
        f"{meaning}, in {UNITS[unit]}",
        ".3f",
        lambda sentence: getattr(sentence, f"{unit}_latency").get(name),
    )


UNITS = {
    "token": "subword tokens with the end of the sentence on both sides; I is the hypothesis' length (the paper)",
    "word": "words; I is the reference's length, for LAAL the longer of both, for DAL the hypothesis' (SimulEval)",
}
LATENCIES = {
    "AL": "average lagging: how far the translation runs behind the source",
    "LAAL": "length-adaptive average lagging",
    "AP": "average proportion of the source read before a write",
    "DAL": "differentiable average lagging",
    "CR": "consecutive reads: source length over the number of reading spells that end in a write",
}
SPEAKING_RATE = 2.5  # words per second: 150 words per minute
BLEU_SCORER, LOWERCASE_SCORER, CHRF_SCORER = BLEU(), BLEU(lowercase=True), CHRF()

METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "BLEU",
            "sacreBLEU of detokenised text",
            test_set=lambda m: BLEU_SCORER.corpus_score(m.hypotheses, [m.references]).score,
        ),
        Metric(
            "BLEU ±",
            "half of BLEU's 95 % interval, from 1,000 bootstrap samples",
            test_set=lambda m: bleu_interval(m.hypotheses, m.references),
        ),
        Metric(
            "BLEU, lower-cased",
            "BLEU of lower-cased text (the paper's tables)",
            test_set=lambda m: LOWERCASE_SCORER.corpus_score(m.hypotheses, [m.references]).score,
        ),
        Metric(
            "chrF",
            "chrF2: overlap in characters",
            test_set=lambda m: CHRF_SCORER.corpus_score(m.hypotheses, [m.references]).score,
        ),
        *(latency(name, unit, meaning) for unit in UNITS for name, meaning in LATENCIES.items()),
        *(
            Metric(
                f"{name} CA (words)",
                f"the same, computation-aware: with the computing time, at {60 * SPEAKING_RATE:.0f} words per minute",
                ".3f",
                lambda sentence, name=name: sentence.elapsed_latency.get(name),
            )
            for name in ("AL", "LAAL", "DAL")
        ),
        Metric(
            "A_suf",
            "sufficiency: share of reference words written after their aligned source words were read",
            ".4f",
            lambda s: None if s.alignment is None else sufficiency(s.forced_path, s.alignment),
        ),
        Metric(
            "A_nec",
            "necessity: aligned position over what was read, where that sufficed; 1 means nothing too much",
            ".4f",
            lambda s: None if s.alignment is None else necessity(s.forced_path, s.alignment),
        ),
        Metric(
            "IoU",
            "agreement of the forward path and the transposed backward path on the references, by head",
            ".4f",
            lambda s: s.iou,
        ),
        Metric(
            "words/s", "target words written in a second of decoding", ".0f", test_set=lambda m: m.words / m.seconds
        ),
        Metric(
            "ms per word",
            "milliseconds of decoding for each word written",
            test_set=lambda m: 1000 * m.seconds / max(m.words, 1),
        ),
    )
}


def bleu_interval(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    return BLEU().corpus_score(hypotheses, [references], n_bootstrap=1000)._ci


def bleu_signature() -> str:
    """What sacreBLEU did, for a table's footnote; known once something was scored."""
    return str(BLEU_SCORER.get_signature())
