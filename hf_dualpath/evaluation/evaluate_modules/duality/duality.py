"""Agreement of the READ/WRITE paths of two directions (IoU) as an `evaluate` module."""

import datasets
import evaluate
import torch

from hf_dualpath.paths.quality import duality_iou


_DESCRIPTION = "Intersection over union of the forward path and the transposed backward path of a sentence pair."
_KWARGS = """
Args:
    predictions (list of list of int): forward paths, source tokens read before each target token.
    references (list of list of int): backward paths, target tokens read before each source token.
"""


class Duality(evaluate.Metric):
    def _info(self):
        paths = datasets.Sequence(datasets.Value("int32"))
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_KWARGS,
            features=datasets.Features({"predictions": paths, "references": paths}),
        )

    def _compute(self, predictions, references):
        return {"iou": sum(map(pair_iou, predictions, references)) / len(predictions)}


def pair_iou(forward, backward) -> float:
    """A forward path has one entry a target token, the backward one an entry a source token."""
    source, target = len(backward), len(forward)
    masks = torch.ones(1, source, dtype=torch.bool), torch.ones(1, target, dtype=torch.bool)
    alphas = (
        torch.nn.functional.one_hot(torch.tensor([[path]]) - 1, length).float()
        for path, length in ((forward, source), (backward, target))
    )
    return duality_iou(*alphas, *masks).item()
