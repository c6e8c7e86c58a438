"""Sufficiency and necessity of READ/WRITE paths against gold alignments as an `evaluate` module."""

import datasets
import evaluate

from hf_dualpath.paths.quality import necessity, parse_alignment, sufficiency


_DESCRIPTION = "A_suf and A_nec: was the aligned source word read in time, and was no more read than that?"
_KWARGS = """
Args:
    predictions (list of list of int): for each sentence, the source words read before each target word.
    references (list of str): gold alignments, source-target, in Pharaoh format (i-j or i?j).
    source_lengths (list of int): words of each source.
"""


class PathQuality(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_KWARGS,
            features=datasets.Features(
                {"predictions": datasets.Sequence(datasets.Value("int32")), "references": datasets.Value("string")}
            ),
        )

    def _compute(self, predictions, references, source_lengths):
        links = [
            parse_alignment(line, source, len(path), number)
            for number, (line, source, path) in enumerate(zip(references, source_lengths, predictions, strict=True), 1)
        ]
        results = {}
        for name, function in (("sufficiency", sufficiency), ("necessity", necessity)):
            values = [function(path, alignment) for path, alignment in zip(predictions, links)]
            values = [value for value in values if value is not None]
            results[name] = sum(values) / len(values)
        return results
