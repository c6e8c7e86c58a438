"""The comparison of both backends, on a tiny model."""

import pytest
from conftest import save_model
from test_experiments import script

from hf_dualpath.toy import generate_pairs


@pytest.mark.slow
def test_both_backends_are_compared(tmp_path):
    pairs = generate_pairs(60)
    checkpoint = save_model(tmp_path / "model", pairs, encoder_layers=1, decoder_layers=1)
    files = []
    for side in ("source", "target"):
        (tmp_path / side).write_text("\n".join(getattr(pair, side) for pair in pairs[:9]))
        files += [f"--{side}", tmp_path / side]
    text = script("backends.py", "--model", checkpoint, *files, "--limit", 7)
    assert "| de-en | 7 | 7 |" in text and "| en-de | 7 | 7 |" in text
    assert text.count("ONNX Runtime, int8") == 3 and "first word (s)" in text
