"""The load test itself, small: it starts a service, and its figures are of all words."""

import pytest


pytestmark = pytest.mark.slow


def test_a_few_streams_and_a_short_soak(tmp_path):
    from load_test import main, talk

    row = main(["--streams", "3", "--seconds", "4", "--output", str(tmp_path / "load.json")])
    assert row["streams"] == 3 and row["words_out"] > 10 and row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    soaked = main(["--soak", "--streams", "2", "--words", "60"])
    assert soaked["words_in"] == 120 and soaked["memory_mb"]["end"] > 50
    assert talk(0, 50) != talk(1, 50) and len(talk(0, 50)) == 50
