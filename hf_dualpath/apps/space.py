"""`dualpath demo --export-space`: the demo as a Hugging Face Space."""

import shutil
from importlib.metadata import requires, version
from pathlib import Path

from ..inference.checkpoints import checkpoint_folder, load_config, published_files


APP = '''"""A Hugging Face Space that runs the page of hf_dualpath."""

from hf_dualpath.apps.demo import launch


launch("model", host="0.0.0.0", port=7860, open_browser=False, name={name!r}{options})
'''
README = """---
title: Simultaneous translation
emoji: 🎧
colorFrom: blue
colorTo: red
sdk: gradio
sdk_version: {gradio}
app_file: app.py
license: apache-2.0
---

Translation while you type, with hf_dualpath: a learned READ/WRITE path decides when to wait and when to write.
"""


def requirements() -> list[str]:
    """What the package and its demo need, in the versions that `pyproject.toml` allows."""
    needs = [requirement.partition(";") for requirement in requires("hf_dualpath")]
    return [name.strip() for name, _, marker in needs if "extra ==" not in marker or '"demo"' in marker]


def not_for_others(folder: str, names: list[str]) -> list[str]:
    """What stays at home: hidden files, links (they may lead anywhere) and compiled code."""
    return [name for name in names if name.startswith((".", "__pycache__")) or (Path(folder) / name).is_symlink()]


def export_space(model: str | Path, folder: str | Path, **options):
    """Writes a Space: its app, requirements and header, the model (a folder or a Hub id) and the package's source.

    `options` are the policy and languages of a translator of the Hub.
    """
    checkpoint, folder = checkpoint_folder(model), Path(folder)
    load_config(checkpoint)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty.")
    for path in published_files(checkpoint):
        copy = folder / "model" / path.relative_to(checkpoint)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    shutil.copytree(Path(__file__).parents[1], folder / "hf_dualpath", ignore=not_for_others)
    given = "".join(f", {name}={value!r}" for name, value in options.items() if value is not None)
    texts = {
        "app.py": APP.format(name=Path(model).resolve().name, options=given),
        "requirements.txt": "\n".join(requirements()) + "\n",
        "README.md": README.format(gradio=version("gradio")),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
