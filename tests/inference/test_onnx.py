"""An exported model against the torch engine, and alone in an environment that has no torch."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, fails, run, save_model

from hf_dualpath import SimultaneousTranslator
from hf_dualpath.inference.light_tokenizer import LightTokenizer
from hf_dualpath.inference.pool import StreamPool
from hf_dualpath.inference.tokenization import load_tokenizers
from hf_dualpath.toy import generate_pairs


pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
PAIRS = generate_pairs(60, seed=3)
TEXT = " ".join(pair.source for pair in PAIRS[:3])


@pytest.fixture(scope="module", params=["shared_path", "wait_k"])
def exported(request, tmp_path_factory):
    from hf_dualpath.inference.export import export_checkpoint

    folder = tmp_path_factory.mktemp(request.param)
    settings = {"energy_bias": -1.0} if request.param == "shared_path" else {}
    model = save_model(folder / "model", PAIRS, policy=request.param, **settings)
    differences = {}
    for name, int8 in (("float", False), ("int8", True)):
        differences[name] = export_checkpoint(model, folder / name, int8=int8)
    return folder, differences


def events_of(translator, text: str) -> list:
    return [
        (type(event).__name__, event.word, getattr(event, "source_tokens_read", None))
        for event in [*translator.push(text), *translator.finish()]
        if hasattr(event, "word")
    ]


TIMED = ("words/s", "ms per word", "AL CA (words)", "LAAL CA (words)", "DAL CA (words)")
TORCH_ONLY = ("IoU",)  # of paths over the references


def measured(folder) -> dict:
    """A report with its sentences: what both backends measure, and does not depend on how fast the machine is."""
    found = {path.name: path.read_text().splitlines() for path in folder.glob("sentences.*")}
    rows = {name: [json.loads(line) for line in lines] for name, lines in found.items()}
    directions = json.loads((folder / "report.json").read_text())["directions"]
    for part in [*directions.values(), *(row for lines in rows.values() for row in lines)]:
        for name in (*TIMED, *TORCH_ONLY):
            part["figures"].pop(name, None)
        part.pop("seconds", None)
    return directions | rows


def test_graphs_compute_what_the_model_does(exported):
    _, differences = exported
    assert set(differences["float"]) == {"de-en", "en-de"}
    assert max(differences["float"].values()) < 1e-4 < max(differences["int8"].values()) < 1


@pytest.mark.parametrize("direction", ["de-en", "en-de"])
@pytest.mark.parametrize("dials", [{}, {"max_lag": 3}, {"min_lag": 2}])
def test_the_same_events_on_either_backend(exported, direction, dials):
    folder, _ = exported
    torch_side = SimultaneousTranslator.from_pretrained(folder / "model", direction, **dials)
    onnx_side = SimultaneousTranslator.from_pretrained(folder / "float", direction, backend="onnx", **dials)
    for pair in PAIRS[:12]:
        text = pair.source if direction == "de-en" else pair.target
        assert events_of(torch_side, text) == events_of(onnx_side, text)


def test_a_pool_on_onnx_is_each_alone(exported):
    folder, _ = exported
    translator = SimultaneousTranslator.from_pretrained(folder / "float", backend="onnx")
    pool = StreamPool(translator)
    sessions = [pool.open() for _ in PAIRS[:5]]
    for position in range(8):
        for session, pair in zip(sessions, PAIRS):
            session.push(" ".join(pair.source.split()[position : position + 1]) + " ")
        pool.step()
    for session in sessions:
        session.finish()
    while pool.step():
        pass
    for session, pair in zip(sessions, PAIRS):
        assert session.text == translator.translate(" ".join(pair.source.split()[:8]))


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_evaluate_gives_the_same_figures_on_either_backend(exported, tmp_path, capsys, stream):
    folder, _ = exported
    for name, lines in (("de", [pair.source for pair in PAIRS[:8]]), ("en", [pair.target for pair in PAIRS[:8]])):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = ["--source", str(tmp_path / "de"), "--target", str(tmp_path / "en"), *stream]
    for backend, model in (("torch", "model"), ("onnx", "float")):
        output = ["--output", str(tmp_path / backend)]
        run(capsys, "evaluate", "--backend", backend, "--model", str(folder / model), *output, *files)
    found = measured(tmp_path / "onnx")
    assert found == measured(tmp_path / "torch")
    assert {"BLEU", "chrF", "AL (words)", "AL (tokens)"} < set(found["de-en"]["figures"])
    assert len(found["sentences.en-de.jsonl"]) == 8


def test_int8_translates(exported):
    folder, _ = exported
    translator = SimultaneousTranslator.from_pretrained(folder / "int8", backend="onnx")
    assert translator.translate(TEXT)
    sizes = [sum(path.stat().st_size for path in (folder / name).rglob("*.onnx")) for name in ("int8", "float")]
    assert sizes[0] < 0.6 * sizes[1]


def test_what_cannot_be_exported_is_said(tmp_path):
    from hf_dualpath.inference.export import export_checkpoint

    model = save_model(tmp_path / "model", PAIRS, policy="mma")
    with pytest.raises(ValueError, match="mma policy"):
        export_checkpoint(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(FileNotFoundError, match="dualpath export"):
        SimultaneousTranslator.from_pretrained(tmp_path / "model", backend="onnx")


ENTRIES = (
    "direction",
    "source_language",
    "d_model",
    "encoder_layers",
    "encoder_attention_heads",
    "dials",
    "end_tokens",
)


def damaged(folder):
    """Each way of breaking an exported model, with the name of what was broken."""
    entries = json.loads((folder / "export.json").read_text())
    texts = ["[]", "{}", "null", "{", "[{}]", "[" * 100_000]
    for name in ENTRIES:
        texts += [
            json.dumps([entry | {name: value} for entry in entries]) for value in (0, 10**12, "text", None, [[]])
        ]
    broken = {"export.json": texts}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        broken[name] = ["{}", "[]", "null", "", "\xff", "[" * 100_000, None]
    graphs = (folder / "de-en").glob("*.onnx")
    broken |= {f"de-en/{graph.name}": ["", "\xff" * 99, "cut", None] for graph in graphs}
    for name, contents in broken.items():
        whole = (folder / name).read_bytes()
        for content in contents:
            (folder / name).unlink()
            if content is not None:
                (folder / name).write_bytes(whole[:-99] if content == "cut" else content.encode("latin-1"))
            yield name
        (folder / name).write_bytes(whole)


def test_a_damaged_export_is_one_sentence(exported, tmp_path, capsys):
    shutil.copytree(exported[0] / "float", tmp_path / "float")
    command = ["translate", "--backend", "onnx", "--model", str(tmp_path / "float"), "--direction", "de-en", "Hund."]
    for name in damaged(tmp_path / "float"):
        try:
            run(capsys, *command)
            assert name == "export.json", "which may say what makes no difference"
        except SystemExit as stop:
            assert len(str(stop.code).splitlines()) == 1 and str(tmp_path) in stop.code, name
    assert run(capsys, *command)


def test_a_token_that_the_graphs_do_not_have(exported, tmp_path, capsys):
    """Said when the model is loaded, not when a stream meets it."""
    shutil.copytree(exported[0] / "float", tmp_path / "float")
    settings = json.loads((tmp_path / "float" / "tokenizer.json").read_text())
    vocabulary = settings["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 5000
    (tmp_path / "float" / "tokenizer.json").write_text(json.dumps(settings))
    command = ["translate", "--backend", "onnx", "--model", str(tmp_path / "float")]
    assert "is not what `dualpath export` writes" in fails(capsys, *command, "Hund.")


@pytest.mark.parametrize(
    "option", ["--device=cuda", "--dtype=bfloat16", "--policy=wait_k", "--source-language=de", "--target-language=en"]
)
def test_what_only_torch_can_do_is_refused(option, exported, tmp_path, capsys):
    command = ["--backend", "onnx", "--model", str(exported[0] / "float")]
    assert "An exported model has no" in fails(capsys, "translate", *command, option, "Hund.")
    for name in ("t.de", "t.en"):
        (tmp_path / name).write_text("Hund\n")
    files = ["--source", str(tmp_path / "t.de"), "--target", str(tmp_path / "t.en"), "--output", str(tmp_path / "out")]
    assert "An exported model has no" in fails(capsys, "evaluate", *command, option, *files)
    run(capsys, "translate", *command, "--device", "cpu", "Hund.")


def test_unknown_dials_are_refused(exported):
    folder, _ = exported
    with pytest.raises(ValueError, match="repetition_penalty"):
        SimultaneousTranslator.from_pretrained(folder / "float", backend="onnx", repetition_penalty=2.0)


def test_the_light_tokenizer_is_the_tokenizer(exported):
    folder, _ = exported
    heavy, light = load_tokenizers(folder / "float")[0], LightTokenizer(folder / "float")
    texts = [pair.source for pair in PAIRS] + ["Straße </s> 😀 <pad>", "\x00", "e\u0301"]
    assert light(texts, add_special_tokens=False) == {"input_ids": heavy(texts, add_special_tokens=False)["input_ids"]}
    for text in texts:
        tokens = light.encode(text, add_special_tokens=False)
        assert tokens == heavy.encode(text, add_special_tokens=False)
        assert light.decode(tokens) == heavy.decode(tokens)
    assert light.eos_token_id == heavy.eos_token_id and set(light.all_special_ids) == set(heavy.all_special_ids)


@pytest.fixture(scope="module")
def light_python(tmp_path_factory):
    """A virtual environment of the three packages (tqdm comes with tokenizers) as links: nothing is downloaded."""
    home = tmp_path_factory.mktemp("light")
    venv.create(home, symlinks=True)
    site = next(home.glob("lib/python*/site-packages"))
    for name in ("onnxruntime", "tokenizers", "numpy", "tqdm"):
        folder = Path(importlib.util.find_spec(name).origin).parent
        for package in (folder, folder.with_name(f"{name}.libs")):
            if package.exists():
                (site / package.name).symlink_to(package)
    return home / "bin" / "python"


def test_an_exported_model_runs_without_torch(exported, light_python):
    folder, _ = exported
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    options = {"capture_output": True, "text": True, "cwd": light_python.parent, "env": environment}
    absent = "torch", "transformers", "huggingface_hub", "sentencex"
    code = (
        "import importlib.util\n"
        f"assert not any(map(importlib.util.find_spec, {absent}))\n"
        "from hf_dualpath import SimultaneousTranslator\n"
        f"translator = SimultaneousTranslator.from_pretrained({str(folder / 'float')!r}, backend='onnx')\n"
        f"print(translator.translate({TEXT!r}))\n"
    )
    command = ["-m", "hf_dualpath", "translate", "--backend", "onnx", "--model", str(folder / "float"), TEXT]
    translator = SimultaneousTranslator.from_pretrained(folder / "model")
    for arguments in (["-c", code], command):
        found = subprocess.run([str(light_python), *arguments], **options, check=False)
        assert found.returncode == 0, found.stderr
        assert found.stdout.split() == translator.translate(TEXT).split()


def test_the_runtime_reports_to_nobody(exported, tmp_path):
    """Where it may, ONNX Runtime writes a device id and events to send into the home folder."""
    code = "import sys; from hf_dualpath.inference.onnx_backend import load_exported; load_exported(sys.argv[1])"
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", code, str(exported[0] / "int8")], env=environment, check=True, cwd=ROOT)
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".pyc"]


@pytest.mark.slow
def test_the_light_install(exported, tmp_path):
    """The wheel without its dependencies, and three packages: a real environment without torch and transformers."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", str(ROOT)], check=True)
    subprocess.run([*pip, "onnxruntime", "tokenizers", "numpy"], check=True)
    code = "import importlib.util as u; print([u.find_spec(name) for name in ('torch', 'transformers')])"
    found = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert found.stdout.strip() == "[None, None]"
    folder = str(exported[0] / "float")
    command = [str(python.with_name("dualpath")), "translate", "--backend", "onnx", "--model", folder, TEXT]
    found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    written = SimultaneousTranslator.from_pretrained(exported[0] / "model").translate(TEXT)
    assert found.stdout.split() == written.split()


def test_quantisation_keeps_seven_bits():
    from hf_dualpath.inference.onnx_graph import quantise

    matrix = torch.randn(16, 8).numpy()
    quantised, scale = quantise(matrix, axis=0)
    assert np.abs(quantised).max() == 63 and np.abs(quantised * scale - matrix).max() <= scale.max() / 2 + 1e-6
