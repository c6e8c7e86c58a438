"""The notebook runs from top to bottom, and its outputs are what its text says."""

import nbformat
import pytest
from conftest import ROOT
from nbclient import NotebookClient


@pytest.mark.slow
def test_the_tour(tmp_path, monkeypatch):
    short = "--max_steps 4 --max_train_pairs 300 --max_validation_pairs 4 --d_model 32 --ffn_dim 32 --vocab_size 400"
    monkeypatch.setenv("TOUR_SETTINGS", short)
    notebook = nbformat.read(ROOT / "scripts" / "tour.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("../model_cards", str(ROOT / "model_cards"))
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    shown = [
        "".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells if "outputs" in cell
    ]
    assert "READ  Mann," in shown[0] and "WRITE The" in shown[0]
    paths = [line.split("[")[1] for line in shown[1].splitlines()]
    assert len(paths) == 3 and paths[0] < paths[2], "a higher threshold reads more before it writes"
    assert (tmp_path / "path.png").stat().st_size > 10_000
    assert "AL (tokens)" in shown[-1] and "A_nec" in shown[-1]
