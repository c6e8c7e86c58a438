"""Latency of simultaneous translation (AP, AL, DAL, LAAL) as an `evaluate` module."""

import datasets
import evaluate

from hf_dualpath.paths.latency import latency_metrics


_DESCRIPTION = (
    "Average proportion, average lagging, differentiable and length-adaptive average lagging of READ/WRITE paths."
)
_KWARGS = """
Args:
    predictions (list of list of int): for each sentence, the source tokens (or words) read before each target token.
    references (list of int): length of each source, in the same unit.
    reference_lengths (list of int, optional): lengths of the reference translations, for SimulEval's convention.
"""


class Latency(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_KWARGS,
            features=datasets.Features(
                {"predictions": datasets.Sequence(datasets.Value("int32")), "references": datasets.Value("int32")}
            ),
        )

    def _compute(self, predictions, references, reference_lengths=None):
        lengths = [None] * len(predictions) if reference_lengths is None else reference_lengths
        rows = [
            latency_metrics(path, source, reference_length=reference)
            for path, source, reference in zip(predictions, references, lengths, strict=True)
        ]
        return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
