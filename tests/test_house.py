"""The house: imports go one way, help answers at once, a wheel has all it needs, and what we borrow is still there."""

import ast
import importlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FIXTURES, ROOT, golden
from safetensors.torch import save_file

import hf_dualpath


PACKAGE = ROOT / "hf_dualpath"
# Each room may import from those before it.
ROOMS = ["errors", "toy", "model", "paths", "inference", "evaluation", "training", "apps", "client"]


def imported_rooms(file: Path) -> set[str]:
    """Rooms of ours that a file imports, wherever in the file it does."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            names = [*parts[: -node.level], *(node.module or "").split(".")]
            found |= {name for name in names[:1] if name}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hf_dualpath."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("hf_dualpath.")}
    return found


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_go_one_way(file):
    room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room in ("__init__", "__main__", "_registration"):
        return
    allowed = {room} if room == "model" else set(ROOMS[: ROOMS.index(room) + 1])
    assert imported_rooms(file) <= allowed


def test_public_names_are_there():
    assert hf_dualpath.__all__ == sorted(hf_dualpath.__all__) and len(hf_dualpath.__all__) > 20
    for name in hf_dualpath.__all__:
        assert callable(getattr(hf_dualpath, name))


def processor_seconds(*command: str) -> float:
    """Of a process, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, capture_output=True, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("arguments", [["--help"], ["translate", "--help"]])
def test_help_answers_at_once(arguments):
    """In 0.3 s of processor time, with the start of Python; it takes 0.06 s. An idle machine's clock says the same, a
    busy one's far more. The best of three counts: a first start may have to compile our files."""
    assert min(processor_seconds("-m", "hf_dualpath", *arguments) for _ in range(3)) < 0.3


@pytest.mark.parametrize("arguments", [["--help"], ["translate", "--help"]])
def test_help_imports_no_large_library(arguments):
    code = f"import sys; from hf_dualpath.apps.cli import main\ntry: main({arguments})\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'transformers', 'datasets', 'gradio'} & set(sys.modules), sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)


ORDERS = (
    "import hf_dualpath; from transformers import AutoModelForSeq2SeqLM, AutoConfig",
    "from transformers import AutoModelForSeq2SeqLM, AutoConfig; import hf_dualpath",
    "import hf_dualpath; from transformers import MarianMTModel, AutoModelForSeq2SeqLM, AutoConfig",
)


@pytest.mark.parametrize("imports", ORDERS)
def test_auto_classes_know_our_models(imports):
    code = f"{imports}\nassert type(AutoConfig.for_model('simt')) in AutoModelForSeq2SeqLM._model_mapping"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_light_commands_leave_the_library_evaluate_alone():
    code = "import sys, hf_dualpath.evaluation.report, hf_dualpath.inference.streaming\n"
    code += "assert not {'evaluate', 'datasets', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# What we use of libraries beyond their documented interface. If a release moves one, this test names it.
INTERNALS = (
    "transformers.cache_utils.EncoderDecoderCache.crop",
    "transformers.initialization.xavier_uniform_",
    "transformers.masking_utils.create_bidirectional_mask",
    "transformers.masking_utils.create_causal_mask",
    "transformers.modeling_layers.GradientCheckpointingLayer",
    "transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS",
    "transformers.models.bart.modeling_bart.eager_attention_forward",
    "transformers.models.bart.modeling_bart.shift_tokens_right",
    "transformers.utils.generic.maybe_autocast",
    "transformers.utils.output_capturing.OutputRecorder",
    "transformers.utils.output_capturing.capture_outputs",
    "transformers.generation.utils.GenerationMixin._get_logits_processor",
    "transformers.generation.utils.GenerationMixin._prepare_generation_config",
    "transformers.generation.utils.GenerationMixin._prepare_special_tokens",
    "transformers.core_model_loading.revert_weight_conversion",
    "transformers.trainer.Trainer._get_num_items_in_batch",
    "transformers.trainer.Trainer._get_output_dir",
    "transformers.trainer.Trainer._save",
    "transformers.trainer.Trainer._save_checkpoint",
    "transformers.trainer_utils.PREFIX_CHECKPOINT_DIR",
    "sacrebleu.metrics.bleu.BLEUScore.estimate_ci",
    "sacrebleu.significance.PairedTest",
)


@pytest.mark.parametrize("name", INTERNALS)
def test_what_we_borrow_is_still_there(name):
    module, rest = name, []
    while True:
        try:
            found = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest.insert(0, last)
    for part in rest:
        assert hasattr(found, part), f"{name} has moved"
        found = getattr(found, part)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The package as a wheel, installed in a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, ROOT], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", *folder.glob("*.whl")], check=True)
    return folder


def test_a_wheel_is_enough(wheel):
    """Recipes, templates and converters come with it: it trains, converts and exports far from the repository."""

    def dualpath(*arguments) -> str:
        environment = os.environ | {"PYTHONPATH": str(wheel / "site")}
        command = [sys.executable, "-m", "hf_dualpath", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=wheel, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    sizes = "--d_model 16 --ffn_dim 16 --attention_heads 2 --encoder_layers 1 --decoder_layers 1 --vocab_size 320"
    short = "--max_steps 2 --save_steps 2 --max_train_pairs 100 --max_validation_pairs 2 --disable_tqdm true"
    dualpath("train", "toy", "--output_dir", "runs/toy", *sizes.split(), *short.split())
    assert "Dual paths, de-en" in (wheel / "runs/toy/README.md").read_text()
    dualpath("translate", "--model", "runs/toy", "Ein Hund.")
    dualpath("demo", "--model", "runs/toy", "--export-space", "space")
    assert (wheel / "space/hf_dualpath/training/recipes/toy.yaml").is_file()
    tensors, _ = golden("exact_a")
    save_file({name: tensor for name, tensor in tensors.items() if name.startswith("w.")}, wheel / "w.safetensors")
    dualpath("convert", "fairseq", "w.safetensors", "--config", FIXTURES / "exact_a.json", "--output", "converted")
    assert json.loads((wheel / "converted/config.json").read_text())["model_type"] == "dual_path"
