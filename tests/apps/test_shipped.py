"""The checkpoint that ships: complete, small, in step with the package, and it translates."""

import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from transformers import AutoModelForSeq2SeqLM

from hf_dualpath import SimultaneousTranslator
from hf_dualpath.apps.examples import DEFAULT_MODEL, SHIPPED_EXAMPLES
from hf_dualpath.inference.checkpoints import push


def test_it_is_complete_and_small():
    names = {path.name for path in push(DEFAULT_MODEL, "me/model", dry_run=True)}
    assert {"README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    assert {path.name for path in DEFAULT_MODEL.iterdir()} == names, "all of it would be published"
    assert sum(path.stat().st_size for path in DEFAULT_MODEL.iterdir()) < 25e6


@pytest.mark.parametrize("path", sorted(DEFAULT_MODEL.glob("*.py")), ids=lambda path: path.name)
def test_its_code_is_the_packages(path):
    message = f"the package has changed: cp hf_dualpath/model/{path.name} {path.relative_to(ROOT)}"
    assert path.read_text() == (ROOT / "hf_dualpath" / "model" / path.name).read_text(), message


def test_it_streams_what_it_generates():
    assert AutoModelForSeq2SeqLM.from_pretrained(DEFAULT_MODEL).dtype == torch.float32
    for direction, texts in SHIPPED_EXAMPLES.items():
        translator = SimultaneousTranslator.from_pretrained(DEFAULT_MODEL, direction=direction)
        for text in texts:
            ids = torch.tensor([translator.source_tokenizer(text)["input_ids"]])
            whole = translator.target_tokenizer.decode(translator.model.generate(ids)[0], skip_special_tokens=True)
            assert translator.fork().translate(text) == whole
    assert translator.translate("I have no time.") == "Ich habe keine Zeit."


FIVE_LINES = """
import sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
ids = model.generate(tokenizer("Ich habe keine Zeit.", return_tensors="pt").input_ids, direction="de-en")
assert "hf_dualpath" not in sys.modules
print(tokenizer.decode(ids[0], skip_special_tokens=True))
"""


def test_it_carries_its_code(tmp_path):
    command = [sys.executable, "-c", FIVE_LINES, str(DEFAULT_MODEL)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    ours = SimultaneousTranslator.from_pretrained(DEFAULT_MODEL, direction="de-en").translate("Ich habe keine Zeit.")
    assert done.stdout.strip() == ours == "I have no time.", done.stdout + done.stderr


def test_quickstart():
    done = subprocess.run([sys.executable, ROOT / "scripts/quickstart.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for direction, texts in SHIPPED_EXAMPLES.items():
        for text in texts:
            start = lines.index(f"{direction}: {text}")
            end = next(index for index in range(start, len(lines)) if lines[index].startswith("  = "))
            reads = [line.split()[1] for line in lines[start:end] if line.startswith("  READ")]
            writes = [line.split()[1] for line in lines[start:end] if line.strip().startswith("WRITE")]
            assert reads == text.split() and " ".join(writes) == lines[end].removeprefix("  = ")
    kinds = [line.split()[0] for line in lines if line.strip().startswith(("READ", "WRITE"))]
    assert "WRITE READ" in " ".join(kinds), "it writes before it has read all"
