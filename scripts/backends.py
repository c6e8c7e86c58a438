"""Torch and ONNX Runtime side by side: the same events? int8's quality; what it takes to start.

    python scripts/backends.py --source test.de.gz --target test.en.gz [--model DIR] [--limit 1000]

Each sentence is a live stream on both backends, and float32 graphs must give the same events. Start, memory and the
first word are those of a fresh process of one thread; the median of three.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from hf_dualpath.apps.examples import DEFAULT_MODEL
from hf_dualpath.evaluation.report import evaluate_checkpoint
from hf_dualpath.evaluation.tables import as_markdown
from hf_dualpath.inference.checkpoints import load_directions
from hf_dualpath.inference.events import as_dict
from hf_dualpath.inference.export import export_checkpoint
from hf_dualpath.inference.streaming import SimultaneousTranslator
from hf_dualpath.inference.text import read_lines


START = """
import time; began = time.perf_counter()
from hf_dualpath import SimultaneousTranslator
translator = SimultaneousTranslator.from_pretrained({model!r}, backend={backend!r}); loaded = time.perf_counter()
next(event for event in translator.stream([{text!r}]) if hasattr(event, "seconds"))
first = time.perf_counter()
import psutil
print(loaded - began, first - began, psutil.Process().memory_info().rss / 1e6)
"""


def events(translator: SimultaneousTranslator, text: str) -> list[dict]:
    """All events of one text, without the time that they took."""
    found = [*translator.push(text), *translator.finish()]
    return [{name: value for name, value in as_dict(event).items() if name != "seconds"} for event in found]


def compare_events(model: str, graphs: Path, sides: list[list[str]]) -> list[dict]:
    rows = []
    for (direction, loaded), (_, exported), sources in zip(
        load_directions(model).items(), load_directions(graphs, backend="onnx").items(), sides
    ):
        first, second = SimultaneousTranslator(*loaded), SimultaneousTranslator(*exported)
        same = sum(events(first, text) == events(second, text) for text in sources)
        rows.append({"direction": direction, "sentences": len(sources), "same events": same})
    return rows


def compare_quality(models: dict[str, tuple[str, str]], files: list[str], limit: int) -> list[dict]:
    rows = []
    for name, (model, backend) in models.items():
        report = evaluate_checkpoint(model, *files, limit=limit, backend=backend, progress=False)
        for direction, found in report.summary()["directions"].items():
            figures = {key: f"{found['figures'][key]:.2f}" for key in ("BLEU", "AL (words)", "AL (tokens)")}
            rows.append({"runs on": name, "direction": direction} | figures)
    return rows


def compare_start(models: dict[str, tuple[str, str]], text: str) -> list[dict]:
    rows = []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for name, (model, backend) in models.items():
        code = START.format(model=model, backend=backend, text=text)
        command = [sys.executable, "-m", "hf_dualpath", "translate", "--model", model, "--backend", backend, text]
        taken, whole = [], []
        for _ in range(3):
            printed = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
            taken.append([float(number) for number in printed.stdout.split()])
            began = time.perf_counter()
            subprocess.run(command, env=environment, check=True, capture_output=True)
            whole.append(time.perf_counter() - began)
        loaded, first, memory = (statistics.median(column) for column in zip(*taken))
        rows.append(
            {
                "runs on": name,
                "imported and loaded (s)": f"{loaded:.2f}",
                "first word (s)": f"{first:.2f}",
                "`dualpath translate` (s)": f"{statistics.median(whole):.2f}",
                "resident (MB)": f"{memory:.0f}",
            }
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(DEFAULT_MODEL), help="A checkpoint; default: the one that ships.")
    parser.add_argument("--source", required=True, help="Sentences of the forward direction's source.")
    parser.add_argument("--target", required=True, help="Their translations.")
    parser.add_argument("--limit", type=int, default=1000, help="Only the first so many sentences.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = [arguments.source, arguments.target]
    with TemporaryDirectory() as folder:
        graphs = {name: Path(folder) / name for name in ("float32", "int8")}
        for name, home in graphs.items():
            export_checkpoint(arguments.model, home, int8=name == "int8")
        models = {"torch": (arguments.model, "torch")}
        models |= {f"ONNX Runtime, {name}": (str(home), "onnx") for name, home in graphs.items()}
        sides = [read_lines(file)[: arguments.limit] for file in files]
        print(as_markdown(compare_events(arguments.model, graphs["float32"], sides)), flush=True)
        print(as_markdown(compare_quality(models, files, arguments.limit)), flush=True)
        print(as_markdown(compare_start(models, sides[0][0])))


if __name__ == "__main__":
    main()
