"""scripts/experiments: from a plan to tables and to a release, with models of a few updates."""

import csv
import gzip
import json
import subprocess
import sys
from collections import Counter

import pytest
import torch
import yaml
from conftest import ROOT, save_model
from huggingface_hub import ModelCard
from matplotlib.image import imread

from hf_dualpath import SimultaneousTranslator
from hf_dualpath.inference.checkpoints import load_directions
from hf_dualpath.inference.text import read_lines
from hf_dualpath.inference.tokenization import load_tokenizers
from hf_dualpath.model.monotonic_attention import naive_expected_alignment
from hf_dualpath.toy import generate_pairs, toy_splits
from hf_dualpath.training.settings import parse_recipe


TINY = {
    "d_model": 16,
    "ffn_dim": 16,
    "attention_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "vocab_size": 300,
    "max_steps": 2,
    "save_steps": 2,
    "max_validation_pairs": 4,
    "max_train_pairs": 150,
    "max_tokens": 300,
    "energy_bias": 0,  # not the recipe's, with which so few updates read everything, as Offline does
}


def script(name: str, *arguments) -> str:
    command = [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def drawn(picture) -> bool:
    """Whether there is something on it: pixels of many colours."""
    pixels = imread(picture).reshape(-1, imread(picture).shape[-1])
    return len(pixels) > 10_000 and len({tuple(pixel) for pixel in pixels[::7]}) > 20


def write_test_set(stem, rows: int = 12):
    stem.parent.mkdir(parents=True, exist_ok=True)
    test = toy_splits(train=1)["test"].select(range(rows))
    for name, column in (("de", "source"), ("en", "target"), ("align", "alignment")):
        stem.with_name(f"{stem.name}.{name}").write_text("\n".join(test[column]) + "\n", encoding="utf-8")


@pytest.mark.slow
def test_from_a_plan_to_tables(tmp_path):
    write_test_set(tmp_path / "data" / "t")
    plan = {
        "recipe": "toy",
        "warm_starts": {
            "full": {"system": "offline", "causal_encoder": True, "directions": "both", **TINY},
            "lag": {"start": "full", "system": "wait_k", "multipath_k": 5, "directions": "both", **TINY},
        },
        "common": {"directions": "both", **TINY},
        "runs": {
            "offline": {"label": "Offline", "start": "full", "system": "offline"},
            "agreement": {"label": "Agreement", "streams": "offline", "policy": "local_agreement", "agreement": 2},
            "wait-2": {"label": "Wait-k", "variant_of": "dual", "start": "lag", "system": "wait_k", "wait_k": 2},
            "biased": {
                "label": "biased",
                "variant_of": "dual",
                "start": "lag",
                "system": "dual_paths",
                "script": "train_biased_alpha.py",
            },
            "dual": {"label": "Dual Paths", "start": "lag", "system": "dual_paths"},
            "align": {"label": "AlignAtt", "streams": "offline", "policy": "align_att", "frontier": 1},
            "dual-0.9": {"label": "Dual Paths", "streams": "dual", "write_threshold": 0.9},
        },
        "test_sets": {"test": ["t.de", "t.en"], "gold": ["t.de", "t.en", "t.align"]},
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    where = (tmp_path / "plan.yaml", "--runs", tmp_path / "runs")
    data = ("--data_dir", tmp_path / "data")
    assert "dual: done" in script("experiments/plan.py", "train", *where, *data, "--jobs", "2")
    assert script("experiments/plan.py", "train", *where, *data) == "", "what is there is not made again"
    with pytest.raises(AssertionError, match="there is no .*t.align; --sets"):
        (tmp_path / "data" / "t.align").rename(tmp_path / "t.align")
        script("experiments/plan.py", "evaluate", *where, *data)
    (tmp_path / "t.align").rename(tmp_path / "data" / "t.align")
    script("experiments/plan.py", "evaluate", *where, *data)
    script(
        "experiments/plan.py", "evaluate", *where, *data, "--timed", 3, "--sets", "test", "--only", "agreement", "dual"
    )
    text = script("experiments/plan.py", "tables", *where, "--output", tmp_path / "tables")
    for name in ("Agreement | agreement", "Dual Paths | dual"):
        assert f"| {name} | de-en | " in text, "the cost of a live stream"
    for name in ("Agreement", "AlignAtt", "Dual Paths"):
        assert f"| {name} | en-de |" in text, "a line on the curves"
    assert "| Wait-k | wait-2 |" in text and "A_nec de-en" in text
    assert (tmp_path / "tables" / "tables.md").read_text() == text
    assert "| Dual Paths | en-de |" in text and "| Wait-k | en-de |" not in text, "the curves leave variants out"
    with open(tmp_path / "tables" / "gold.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["direction"]) for row in rows[::2]] == [(name, "de-en") for name in plan["runs"]]
    assert float(rows[-1]["A_nec"]) > 0 and 0 < float(rows[-1]["IoU"]) <= 1, "at other dials, too"
    assert all(row["A_nec"] == "" for row in rows if row["run"] in ("agreement", "align"))
    report = json.loads((tmp_path / "runs/dual/reports/test/report.json").read_text())
    table = json.loads((tmp_path / "tables/test.json").read_text())
    figures = report["directions"]["de-en"]["figures"]
    live = next(row for row in table if row["run"] == "agreement")
    assert live["live AL CA (words)"] > live["live AL (words)"] and table[-1]["live AL CA (words)"] is None
    dual = next(row for row in table if row["run"] == "dual")
    assert dual["AL"] == figures["AL (tokens)"] and dual["word_AL"] == figures["AL (words)"]
    assert drawn(tmp_path / "tables" / "test.png")
    runs = (tmp_path / "runs" / name for name in ("wait-2", "dual"))
    sides = ("--source", tmp_path / "data" / "t.de", "--target", tmp_path / "data" / "t.en")
    found = csv.DictReader(script("experiments/path_gap.py", *runs, *sides).splitlines())
    gaps = {(row["run"], row["direction"]): float(row["gap"]) for row in found}
    assert gaps["wait-2", "de-en"] == gaps["wait-2", "en-de"] == 0, "a fixed path is the same in training and decoding"
    assert gaps["dual", "de-en"] != 0 != gaps["dual", "en-de"]
    with open(tmp_path / "tables" / "test-paired.csv") as file:
        tests = {(row["run"], row["other"]) for row in csv.DictReader(file)}
    rivals = {(name, other) for name in ("dual", "dual-0.9") for other in ("offline", "agreement", "align")}
    assert ("biased", "dual") in tests and tests <= {("wait-2", "dual"), ("biased", "dual")} | rivals


HUB = {"LocalAgreement over Offline": "local_agreement", "AlignAtt over Offline": "align_att"}


@pytest.mark.parametrize("name", ["multi30k", "multi30k-dial", "europarl"])
def test_plans_compare_all_systems(name, tmp_path):
    """On every curve: at least two points of each system, two policies over the offline model among them."""
    plan = yaml.safe_load((ROOT / "scripts" / "experiments" / "plans" / f"{name}.yaml").read_text())
    runs = {run: settings for run, settings in plan["runs"].items() if "variant_of" not in settings}
    points = Counter(settings["label"] for settings in runs.values())
    for system in ("Wait-k", "MMA", "Single Path", "Dual Paths", *HUB):
        assert points[system] >= 3, system
    assert points["Offline"] == 1
    for run, settings in (plan["warm_starts"] | plan["runs"]).items():
        start = settings.get("start") or settings.get("streams")
        assert start is None or start in plan["warm_starts"] | plan["runs"], run
        if settings.get("label") in HUB:
            assert settings["policy"] == HUB[settings["label"]] and plan["runs"][start]["label"] == "Offline"
        elif "streams" not in settings:
            given = (plan["common"] if run in plan["runs"] else {}) | settings
            given = {key: value for key, value in given.items() if key not in ("label", "variant_of", "start")}
            words = [str(word) for key, value in given.items() for word in (f"--{key}", value)]
            parse_recipe(plan["recipe"], [*words, "--output_dir", str(tmp_path)])  # raises at what it does not know


def test_leads_over_several_trainings(tmp_path):
    points = {"Wait-k": ((1, 10.0, 0.5), (4, 40.0, 0.5)), "MMA": ((1, 12.0, 0.2), (3, 32.0, 0.4))}
    points["Single Path"] = points["Dual Paths"] = ((1.8, 20.0, 0.3), (3.8, 40.0, 0.5))
    points["AlignAtt over Offline"] = ((1, 11.0, None), (3, 31.0, None))  # has no path over a given translation
    for name, gain in (("seed-1", 0), ("seed-2", 1)):
        rows = [
            {"system": system, "direction": "de-en", "AL": lag, "BLEU": bleu, "IoU": iou, "offline": False}
            for system, curve in points.items()
            for lag, bleu, iou in curve
        ]
        for row in rows:
            row["BLEU"] += gain * (row["system"] == "Dual Paths")
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.json").write_text(json.dumps(rows))
    folders = [tmp_path / name for name in ("seed-1", "seed-2")]
    text = script("experiments/seeds.py", *folders, "--sets", "test", "--output", tmp_path)
    assert text == (tmp_path / "seeds.md").read_text()
    assert "| Wait-k | 2 | +2.0 (+2.0 to +2.0) |  | +3.0 (+3.0 to +3.0) |  |" in text
    assert "| AlignAtt over Offline | 2 | +1.0 (+1.0 to +1.0) |  | +2.0 (+2.0 to +2.0) |  |" in text
    assert "| MMA | 3 | +0.0 (+0.0 to +0.0) | +0.02 | +1.0 (+1.0 to +1.0) | +0.02 |" in text
    assert "1.5" not in text and "| MMA | 4" not in text, "nothing is read beyond the end of a curve"
    with open(tmp_path / "seeds.csv") as file:
        assert {"seed-1", "seed-2"} == {row["training"] for row in csv.DictReader(file)}


def test_the_biased_alpha_is_exact_but_for_its_epsilon(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts" / "experiments")
    from train_biased_alpha import biased_alignment

    p = torch.rand(2, 3, 7, 9, dtype=torch.float64, generator=torch.manual_seed(0))
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    exact = naive_expected_alignment(p, mask)
    torch.testing.assert_close(biased_alignment(p, mask, epsilon=1e-14), exact, atol=1e-6, rtol=0)
    assert (biased_alignment(p, mask) - exact).abs().max() > 0.01


@pytest.mark.slow
def test_release(tmp_path):
    settings = [str(word) for key, value in TINY.items() for word in (f"--{key}", value)]
    run = tmp_path / "run"
    script("train.py", "toy", "--output_dir", run, "--disable_tqdm", "true", *settings)
    speeches = ("europarl_deen/test", "europarl_deen/speeches.test")
    for stem in ("tatoeba_deen/test", "multi30k_deen/test_2016_flickr", "newstest_deen/newstest2015", *speeches):
        write_test_set(tmp_path / "data" / stem)
        for language in ("de", "en"):
            file = tmp_path / "data" / f"{stem}.{language}"
            subprocess.run(["gzip", file], check=True)
    script(
        "experiments/release.py",
        run,
        "--data",
        tmp_path / "data",
        "--output",
        tmp_path / "card",
        "--write-threshold",
        0.3,
    )
    card = (tmp_path / "card" / "README.md").read_text(encoding="utf-8")
    assert "newstest2015 (out of domain) | en-de" in card and "write_threshold 0.9" in card
    assert "lower-cased, unpunctuated" in card and "LongLAAL" in card and "of 50" in card
    assert json.loads((tmp_path / "card" / "generation_config.json").read_text())["write_threshold"] == 0.3
    assert {"path.png", "dial.png", "replay.gif", "dial.csv", "results.json"} <= {
        path.name for path in (tmp_path / "card").iterdir()
    }
    assert drawn(tmp_path / "card" / "path.png") and drawn(tmp_path / "card" / "dial.png")
    data = ModelCard.load(tmp_path / "card" / "README.md").data
    assert {result.dataset_type for result in data.eval_results} == {"tatoeba", "europarl", "multi30k", "newstest"}
    assert data.datasets == ["tatoeba", "europarl"] and data.metrics == ["bleu"] and data.license == "cc-by-2.0"
    SimultaneousTranslator.from_pretrained(tmp_path / "card", direction="en-de").translate("A dog sleeps.")


def test_mixture_and_transplant(tmp_path):
    """Two corpora in one; then a checkpoint in the vocabulary of that mixture, where old tokens keep their place."""
    pairs = toy_splits(train=60)["train"]
    for folder in ("short", "long"):
        (tmp_path / folder).mkdir()
        for split in ("train", "dev"):
            for language, side in (("de", "source"), ("en", "target")):
                text = "\n".join(f"{folder} {sentence}" for sentence in pairs[side][:])
                (tmp_path / folder / f"{split}.{language}.gz").write_bytes(gzip.compress(text.encode()))
    folders = ("--everyday", tmp_path / "short", "--speeches", tmp_path / "long")
    counts = ("--joined", 5, "--of-speeches", 20)
    script("experiments/mixture.py", *folders, *counts, "--output", tmp_path / "mixture")
    found = list(zip(*(read_lines(tmp_path / "mixture" / f"train.{name}.gz") for name in ("de", "en"))))
    assert len(found) == 2 * 60 + 5 + 20 and {s.count("short") for s, _ in found} == {0, 1, 2, 3}
    assert all(s.count("short") == t.count("short") for s, t in found)

    checkpoint = save_model(tmp_path / "old", generate_pairs(60))
    texts = [tmp_path / "mixture" / f"train.{name}.gz" for name in ("de", "en")]
    script(
        "experiments/transplant.py", checkpoint, "--texts", *texts, "--vocab-size", 500, "--output", tmp_path / "new"
    )
    (old, ids), (new, new_ids) = (
        (load_directions(folder)["de-en"][0].get_input_embeddings().weight, load_tokenizers(folder)[0])
        for folder in (checkpoint, tmp_path / "new")
    )
    same = ids.get_vocab().keys() & new_ids.get_vocab().keys()
    assert len(same) > 50 and len(new_ids) != len(ids)
    for token in same:
        torch.testing.assert_close(new[new_ids.get_vocab()[token]], old[ids.get_vocab()[token]])
    made = next(token for token in new_ids.get_vocab() if token not in ids.get_vocab())
    pieces = [piece.id for piece in ids.backend_tokenizer.model.tokenize(made)]
    torch.testing.assert_close(new[new_ids.get_vocab()[made]], old[pieces].mean(0))

    wide = "--vocab-size", 500, "--ffn-dim", 96, "--output", tmp_path / "wide"
    script("experiments/transplant.py", checkpoint, "--texts", *texts, *wide)
    narrow, wide = (load_directions(tmp_path / name)["de-en"][0].eval() for name in ("new", "wide"))
    assert wide.config.encoder_ffn_dim == wide.config.decoder_ffn_dim == 96 > narrow.config.encoder_ffn_dim
    source, target = torch.randint(3, 400, (2, 3, 7))
    mask = torch.ones_like(source)
    before, after = (model(source, mask, target, path="hard").logits for model in (narrow, wide))
    torch.testing.assert_close(before, after)


def test_phrases_come_more_often(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts" / "experiments")
    from mixture import mixture

    phrase, sentence = ("Guten Abend.", "Good evening."), ("Er geht heute nicht hin.", "He is not going.")
    found = mixture([phrase, sentence], [], repeats=2, in_a_row=0, of_speeches=0, phrase_repeats=3, seed=1)
    assert Counter(found) == {phrase: 5, sentence: 2}


def test_everyday_sentences(tmp_path):
    """A random model: nothing is right, and every sentence of both directions is shown."""
    checkpoint = save_model(tmp_path / "model", generate_pairs(60))
    text = script("experiments/everyday.py", checkpoint, "--output", tmp_path / "everyday.md")
    assert text == (tmp_path / "everyday.md").read_text(encoding="utf-8")
    assert "### de-en: 0 of 50 as the reference" in text and "### en-de: 0 of 50" in text
    assert "| Ich habe Hunger. |" in text and "| I am hungry. |" in text


def test_a_plan_without_such_a_run(tmp_path):
    (tmp_path / "plan.yaml").write_text("runs: {dual: {}}")
    with pytest.raises(AssertionError, match="no run of the plan matches wait"):
        script("experiments/plan.py", "train", tmp_path / "plan.yaml", "--runs", tmp_path, "--only", "wait")
