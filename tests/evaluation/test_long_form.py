"""Whole speeches: the log that OmniSTEval reads, and its figures."""

import json

import pytest
from conftest import fails, run, save_model

from hf_dualpath import SimultaneousTranslator
from hf_dualpath.evaluation.long_form import LOG, REFERENCES, SEGMENTS, WORD, score_log
from hf_dualpath.toy import generate_pairs


PAIRS = generate_pairs(40)
SPEECHES = [PAIRS[:5], PAIRS[5:8]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), PAIRS)


@pytest.fixture
def files(tmp_path):
    for name in ("source", "target"):
        text = "\n\n".join("\n".join(getattr(pair, name) for pair in speech) for speech in SPEECHES)
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    return ["--source", str(tmp_path / "source"), "--target", str(tmp_path / "target")]


def test_a_speech_is_one_stream(model, files, tmp_path, capsys):
    pytest.importorskip("omnisteval")
    text = run(capsys, "evaluate", "--model", model, *files, "--long-form", "--output", str(tmp_path / "out"))
    assert all(name in text for name in ("BLEU", "chrF", "LongYAAL", "LongLAAL", "de-en", "en-de"))
    log = [json.loads(line) for line in (tmp_path / "out" / "de-en" / LOG).read_text().splitlines()]
    translator = SimultaneousTranslator.from_pretrained(model, direction="de-en")
    for row, speech in zip(log, SPEECHES):
        source = " ".join(pair.source for pair in speech)
        for word in source.split():
            translator.push(f"{word} ")
        translator.finish()
        assert row["prediction"] == translator.text and row["delays"] == [WORD * read for read in translator.path]
        assert row["source_length"] == WORD * len(source.split())
    figures = json.loads((tmp_path / "out" / "long-form.json").read_text())
    assert figures["en-de"] == score_log(tmp_path / "out" / "en-de")


def test_figures_of_a_known_translator(tmp_path):
    """It writes each sentence of the reference right when that sentence has been read: nothing is wrong, and by hand
    the first word of a segment of n words lags n behind, the next 1 less (n words, too), and so on."""
    pytest.importorskip("omnisteval")
    segments, log, references = [], [], []
    for number, lengths in enumerate(([4, 6, 5], [3, 7])):
        words, delays, read = [], [], 0
        for index, length in enumerate(lengths):
            sentence = [f"w{number}x{index}y{position}" for position in range(length)]
            segments.append({"wav": f"speech-{number}", "offset": read, "duration": length})
            read += length
            references.append(" ".join(sentence))
            words += sentence
            delays += [WORD * read] * length
        row = {"source": [f"speech-{number}"], "prediction": " ".join(words), "delays": delays, "elapsed": delays}
        log.append(row | {"index": number, "source_length": WORD * read})
    (tmp_path / SEGMENTS).write_text(json.dumps(segments))
    (tmp_path / REFERENCES).write_text("\n".join(references) + "\n")
    (tmp_path / LOG).write_text("".join(json.dumps(row) + "\n" for row in log))
    figures = score_log(tmp_path)
    assert figures["BLEU"] == pytest.approx(100) and figures["chrF"] == pytest.approx(100)
    assert figures["LongLAAL"] == pytest.approx((4 + 6 + 5 + 3 + 7) / 5), "up to the first word after the segment"


def test_speeches_that_do_not_match(model, files, tmp_path, capsys):
    command = ["evaluate", "--model", model, *files, "--long-form", "--output", str(tmp_path / "out")]
    assert "--alignments" in fails(capsys, *command, "--alignments", str(tmp_path / "source"))
    (tmp_path / "target").write_text("a\nb\n")
    assert "do not match" in fails(capsys, *command)
    lines = (tmp_path / "source").read_text().splitlines()
    (tmp_path / "target").write_text("\n".join("x" for _ in lines) + "\n")
    assert "Line 6 is blank" in fails(capsys, *command)
