import csv
import json

import pytest
from conftest import fails, run, save_model

from hf_dualpath.evaluation.comparison import at_latency, contests, load_systems
from hf_dualpath.evaluation.metrics import METRICS, consecutive_reads
from hf_dualpath.evaluation.report import ParallelText, evaluate_checkpoint, forced_word_paths
from hf_dualpath.inference.checkpoints import load_direction
from hf_dualpath.model.policies_dualpath import Dials
from hf_dualpath.toy import generate_pairs, pharaoh


COUNT = 30


@pytest.fixture(scope="module")
def pairs():
    return generate_pairs(COUNT, seed=5, max_words=8, every=3)


@pytest.fixture(scope="module")
def test_set(pairs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, lines in (
        ("de", [pair.source for pair in pairs]),
        ("en", [pair.target for pair in pairs]),
        ("align", [pharaoh(pair) for pair in pairs]),
    ):
        (folder / f"test.{name}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def checkpoint(pairs, tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), pairs)


def options(checkpoint, test_set, *more: str) -> list[str]:
    return ["--model", checkpoint, "--source", str(test_set / "test.de"), "--target", str(test_set / "test.en"), *more]


def test_report(checkpoint, test_set, tmp_path, capsys):
    arguments = options(
        checkpoint, test_set, "--alignments", str(test_set / "test.align"), "--output", str(tmp_path / "r"), "--stream"
    )
    table = run(capsys, "evaluate", *arguments)
    assert "BLEU" in table and "de-en" in table and "en-de" in table
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    for direction in ("de-en", "en-de"):
        figures = report["directions"][direction]["figures"]
        assert set(figures) == set(METRICS), "everything in the table was measured"
        assert figures["BLEU ±"] >= 0 and figures["words/s"] > 0 and 0 < figures["IoU"] <= 1
        assert 0 <= figures["A_suf"] <= 1 and 0 < figures["A_nec"] <= 1
        rows = [
            json.loads(line) for line in (tmp_path / "r" / f"sentences.{direction}.jsonl").read_text().splitlines()
        ]
        assert len(rows) == COUNT and len(rows[0]["path"]) and any("A_nec" in row["figures"] for row in rows)
        mean = sum(row["figures"]["AL (tokens)"] for row in rows) / COUNT
        assert mean == pytest.approx(figures["AL (tokens)"]), "corpus values are unweighted means"
    assert "version:" in report["bleu_signature"]
    text = (tmp_path / "r" / "report.md").read_text()
    assert "SimulEval" in text and "the paper" in text, "each convention is named"


def test_dials_and_one_direction(checkpoint, test_set):
    report = evaluate_checkpoint(
        checkpoint, test_set / "test.en", test_set / "test.de", "en-de", progress=False, min_lag=3, max_lag=3
    )
    assert list(report.directions) == ["en-de"] and "IoU" not in report.directions["en-de"].figures
    paths = [sentence.translation.path for sentence in report.directions["en-de"].sentences]
    assert all(path[0] == 3 or path[0] < 3 and len(set(path)) == 1 for path in paths)


def test_dials_move_the_path_metrics(checkpoint, test_set):
    """Sufficiency, necessity and IoU are those of the path that the dials make."""
    figures = []
    for threshold in (0.05, 0.5, 0.95):
        report = evaluate_checkpoint(
            checkpoint,
            test_set / "test.de",
            test_set / "test.en",
            alignment_file=test_set / "test.align",
            progress=False,
            write_threshold=threshold,
        )
        figures.append(report.directions["de-en"].figures)
    sufficiency = [row["A_suf"] for row in figures]
    assert sufficiency == sorted(sufficiency) and sufficiency[0] < sufficiency[-1], "who waits longer has read enough"
    assert len({row["IoU"] for row in figures}) == 3


def test_forced_paths_cover_the_reference(checkpoint, pairs):
    model, *tokenizers = load_direction(checkpoint, "de-en")
    text = ParallelText([p.source for p in pairs], [p.target for p in pairs])
    paths = forced_word_paths(model, *tokenizers, text, 7, Dials())
    for path, pair in zip(paths, pairs):
        assert len(path) == len(pair.target.split())
        assert path == sorted(path) and 1 <= path[0] and path[-1] <= len(pair.source.split())


@pytest.mark.parametrize(
    "path, source, expected", [([4] * 6 + [7] * 15, 7, 3.5), ([2, 4, 4, 4], 6, 3.0), ([1, 2, 3], 3, 1.0)]
)
def test_consecutive_reads(path, source, expected):
    assert consecutive_reads(path, source) == expected


def test_bad_input_gets_one_sentence_and_no_report(checkpoint, test_set, tmp_path, capsys):
    output = tmp_path / "none"
    (tmp_path / "short.en").write_text("one\n")
    (tmp_path / "long.de").write_text("wort " * 400 + "\n")
    (tmp_path / "gap.de").write_text("a\n\nb\n")
    (tmp_path / "three.en").write_text("a\nb\nc\n")
    (tmp_path / "bad.align").write_text("0-0\n" * (COUNT - 1) + "99-0\n")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    good = options(checkpoint, test_set)
    for arguments, message in (
        ([*good, "--target", str(tmp_path / "short.en")], "no test set"),
        ([*good, "--source", str(tmp_path / "long.de"), "--target", str(tmp_path / "short.en")], "limit"),
        ([*good, "--source", str(tmp_path / "gap.de"), "--target", str(tmp_path / "three.en")], "line 2, is empty"),
        ([*good, "--alignments", str(tmp_path / "bad.align")], f"line {COUNT}: 99-0 is out of range"),
        ([*good, "--alignments", str(tmp_path / "short.en")], "lines for"),
        ([*good, "--model", str(tmp_path / "broken")], ""),
        ([*good, "--model", str(tmp_path / "nowhere")], "nowhere"),
    ):
        assert message in fails(capsys, "evaluate", *arguments, "--output", str(output))
        assert not output.exists()


def test_compare(checkpoint, pairs, test_set, tmp_path, capsys):
    other = save_model(tmp_path / "other", pairs, seed=1)
    for name, model in (("a", checkpoint), ("b", other)):
        run(capsys, "evaluate", *options(model, test_set, "--output", str(tmp_path / name)))
    table = run(capsys, "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--tolerance", "99", "--samples", "100")
    assert "| a |" in table and "| b |" in table and "paired bootstrap" in table and "a - b" in table
    assert "nothing to test" in run(capsys, "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--tolerance", "0")
    systems = load_systems(tmp_path / "a")
    same = contests([systems[0], systems[0]], samples=50)
    assert same[0].difference == 0 and same[0].p_value == 1 and same[0].verdict == "no significant difference"
    assert "neither a report" in fails(capsys, "compare", str(test_set))


def test_bleu_at_latency():
    points = [("Wait-k", 2.0, 20.0), ("Wait-k", 4.0, 30.0), ("Offline", 9.0, 35.0)]
    rows = [{"system": s, "direction": "de-en", "AL": x, "BLEU": y, "offline": s == "Offline"} for s, x, y in points]
    assert at_latency(rows[::-1], [1, 2.5, 4, 5]) == [
        {"system": "Wait-k", "direction": "de-en", "AL 1": None, "AL 2.5": 22.5, "AL 4": 30.0, "AL 5": None}
    ]


def test_sweep(checkpoint, pairs, test_set, tmp_path, capsys):
    offline = save_model(tmp_path / "offline", pairs, policy="offline")
    run(
        capsys,
        "sweep",
        *options(checkpoint, test_set, "--limit", "8", "--output", str(tmp_path / "curve")),
        "--model",
        checkpoint,
        offline,
        "--label",
        "Dual Paths",
        "Offline",
        "--max-lag",
        "1",
        "4",
    )
    rows = list(csv.DictReader((tmp_path / "curve.csv").open()))
    assert len(rows) == 2 * 2 + 2, "two lags both ways, and offline once both ways"
    lags = [float(row["AL"]) for row in rows if row["direction"] == "de-en" and row["system"] == "Dual Paths"]
    assert lags == sorted(lags)
    assert (
        (tmp_path / "curve.md").read_text().startswith("| system | direction | setting | CR | AP | AL | DAL | BLEU |")
    )
    assert (tmp_path / "curve.png").stat().st_size > 10_000 and (tmp_path / "curve.svg").read_text().startswith(
        "<?xml"
    )
