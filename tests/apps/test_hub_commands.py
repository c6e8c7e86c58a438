"""Every command takes a translator of the Hub."""

import json

import pytest
from conftest import fails, run
from published import ENGLISH, GERMAN, published

from hf_dualpath.apps.sessions import Models
from hf_dualpath.apps.space import export_space
from hf_dualpath.evaluation.report import evaluate_checkpoint


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    home = tmp_path_factory.mktemp("hub")
    (home / "test.de").write_text("\n".join(GERMAN[:4]), encoding="utf-8")
    (home / "test.en").write_text("\n".join(ENGLISH[:4]), encoding="utf-8")
    folder, languages = published("nllb", home)
    flags = [word for name, value in languages.items() for word in (f"--{name.replace('_', '-')}", value)]
    return home, folder, languages, ["--model", str(folder), *flags]


def test_translate_in_batches_and_live(setting, capsys):
    home, _, _, model = setting
    options = [*model, "--policy", "align_att", "--frontier", "1", "--max-lag", "4"]
    batched = run(capsys, "translate", *options, "--file", str(home / "test.de")).split()
    live = [word for text in GERMAN[:4] for word in run(capsys, "translate", *options, text).split()]
    assert batched == live
    shown = run(capsys, "translate", *options, "--json", GERMAN[0]).splitlines()
    assert json.loads(shown[0]) == {"event": "read", "word": GERMAN[0].split()[0]}
    assert "such as deu_Latn" in fails(capsys, "translate", "--model", model[1], "Ein Hund.")
    assert "dualpath replay" in fails(capsys, "plot-path", *model, "Ein Hund.")
    assert "Wrote" in run(capsys, "replay", *model, "Ein Hund.", "--output", str(home / "replay.svg"))


def test_evaluate_and_sweep(setting, capsys):
    home, folder, languages, model = setting
    files = ["--source", str(home / "test.de"), "--target", str(home / "test.en")]
    run(capsys, "evaluate", *model, "--policy", "wait_k", "--stream", *files, "--output", str(home / "report"))
    report = json.loads((home / "report" / "report.json").read_text())
    figures = report["directions"]["deu_Latn-eng_Latn"]["figures"]
    assert report["model"] == "nllb, wait_k" and figures["AL CA (words)"] > figures["AL (words)"]
    batched = evaluate_checkpoint(
        str(folder), home / "test.de", home / "test.en", progress=False, policy="wait_k", **languages
    ).directions["deu_Latn-eng_Latn"]
    for name in ("BLEU", "AL (words)", "AL (tokens)", "DAL (words)"):
        assert batched.figures[name] == pytest.approx(figures[name])
    assert "AL CA (words)" not in batched.figures
    output = ["--output", str(home / "curve")]
    table = run(capsys, "sweep", *model, "--policy", "align_att", "--frontier", "1", "4", *files, *output)
    assert "frontier 1" in table and "frontier 4" in table
    (home / "links").write_text("0-0\n" * 4)
    assert "Gold alignments" in fails(capsys, "evaluate", *model, *files, "--alignments", str(home / "links"))


def test_the_page_has_the_dials_of_the_policy(setting, tmp_path):
    _, folder, languages, _ = setting
    dials = {"wait_k": {"wait_k": 3}, "local_agreement": {"agreement": 2}, "align_att": {"frontier": 2}}
    for policy, expected in dials.items():
        models = Models(folder, policy=policy, **languages)
        assert models.dials == {"max_lag": 20} | expected and list(models.translators) == ["deu_Latn-eng_Latn"]
    export_space(folder, tmp_path / "space", policy="align_att", **languages)
    app = (tmp_path / "space" / "app.py").read_text()
    assert "policy='align_att', source_language='deu_Latn', target_language='eng_Latn')" in app
