from pathlib import Path

import evaluate
import pytest

import hf_dualpath


MODULES = Path(hf_dualpath.__file__).parent / "evaluation" / "evaluate_modules"


def test_latency():
    metric = evaluate.load(str(MODULES / "latency"))
    result = metric.compute(predictions=[[1, 2, 3], [3, 3, 3]], references=[3, 3])
    assert result == pytest.approx({"AP": 5 / 6, "AL": 2, "DAL": 2, "LAAL": 2})
    longer = metric.compute(predictions=[[2, 2]], references=[2], reference_lengths=[4])
    assert longer["AP"] == pytest.approx(0.5)


def test_path_quality():
    metric = evaluate.load(str(MODULES / "path_quality"))
    result = metric.compute(predictions=[[2, 2, 4, 4, 5]], references=["2-0 1-1 0-2 4-3 3-4"], source_lengths=[5])
    assert result == pytest.approx({"sufficiency": 3 / 5, "necessity": 41 / 60})


def test_duality():
    metric = evaluate.load(str(MODULES / "duality"))
    assert metric.compute(predictions=[[2, 2, 2, 3, 3, 5]], references=[[3, 3, 5, 6, 6]])["iou"] == 1
    # Backward 1, 1, 3 transposes to the path 2, 3, 3; against 1, 2, 3 that shares 1 + 2 + 3 of 2 + 3 + 3 cells.
    assert metric.compute(predictions=[[1, 2, 3]], references=[[1, 1, 3]])["iou"] == pytest.approx(6 / 8)
