"""Make the folder of a checkpoint that ships: half precision, measured, with tables, pictures and a card.

    python scripts/experiments/release.py runs/tatoeba-small --data DATA --output model_cards/dualpath-tatoeba-de-en

DATA holds the folders tatoeba_deen, multi30k_deen and newstest_deen. What was measured of these very weights is not
measured again.
"""

import argparse
import hashlib
import json
from pathlib import Path
from string import Template

from huggingface_hub import EvalResult, ModelCardData

from hf_dualpath.apps.examples import SHIPPED_EXAMPLES
from hf_dualpath.apps.replay import record, write_replay
from hf_dualpath.evaluation.comparison import COLUMNS as SWEEP_COLUMNS
from hf_dualpath.evaluation.comparison import sweep, sweep_table
from hf_dualpath.evaluation.pictures import path_pictures, plot_paths, quality_latency_curve
from hf_dualpath.evaluation.report import evaluate_checkpoint
from hf_dualpath.evaluation.tables import as_csv, as_markdown
from hf_dualpath.inference.checkpoints import WEIGHTS, average_checkpoints
from hf_dualpath.inference.streaming import SimultaneousTranslator


TEST_SETS = {
    "Tatoeba, test split": "tatoeba_deen/test",
    "Multi30k, test_2016_flickr (out of domain)": "multi30k_deen/test_2016_flickr",
    "newstest2015 (out of domain)": "newstest_deen/newstest2015",
}
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


COLUMNS = ("BLEU", "chrF", "AL (words)", "LAAL (words)", "AL (tokens)")


def measure(model: Path, data: Path, cache: Path) -> str:
    """Quality and latency on every test set, as a table."""
    rows, summaries = [], {}
    for name, stem in TEST_SETS.items():
        folder = cache / Path(stem).name
        if not (folder / "report.json").is_file():
            files = [str(data / f"{stem}.{language}.gz") for language in ("de", "en")]
            evaluate_checkpoint(str(model), *files).save(folder)
        summary = json.loads((folder / "report.json").read_text())
        summaries[stem] = summary["directions"]
        for direction, report in summary["directions"].items():
            figures = report["figures"]
            row = {"test set": name, "direction": direction} | {column: figures[column] for column in COLUMNS}
            rows.append(row | {"BLEU": f"{figures['BLEU']:.1f} ± {figures['BLEU ±']:.1f}"})
    (model / "results.json").write_text(json.dumps(summaries, indent=1) + "\n")
    return f"{as_markdown(rows)}\nBLEU: `{summary['bleu_signature']}`, with a 95 % bootstrap interval."


def header(model: Path) -> str:
    """What the Hub reads of the card: languages, licence, data and figures."""
    results = [
        EvalResult(
            task_type="translation",
            dataset_type=stem.split("/")[0].removesuffix("_deen"),
            dataset_name=name,
            dataset_config=direction,
            metric_type=metric,
            metric_name=column,
            metric_value=round(report["figures"][column], 2),
        )
        for (stem, directions), name in zip(json.loads((model / "results.json").read_text()).items(), TEST_SETS)
        for direction, report in directions.items()
        for metric, column in (("bleu", "BLEU"), ("average_lagging", "AL (words)"))
    ]
    return ModelCardData(
        model_name=model.name,
        library_name="transformers",
        pipeline_tag="translation",
        language=["de", "en"],
        license="cc-by-2.0",
        datasets=["tatoeba"],
        metrics=["bleu"],
        tags=["simultaneous-translation", "hf_dualpath"],
        eval_results=results,
    ).to_yaml()


def turn_the_dial(model: Path, data: Path, cache: Path) -> str:
    """Threshold against AL and BLEU on the model's own test split, as a table and a picture."""
    file = cache / "dial.json"
    if file.is_file():
        rows = json.loads(file.read_text())
    else:
        files = [str(data / f"tatoeba_deen/test.{language}.gz") for language in ("de", "en")]
        rows = sweep([str(model)], ["Dual Paths"], *files, [{"write_threshold": value} for value in THRESHOLDS])
        file.write_text(json.dumps(rows))
    (model / "dial.csv").write_text(as_csv(rows, SWEEP_COLUMNS))
    quality_latency_curve(rows, [model / "dial.png"])
    return sweep_table(rows).rstrip()


def draw(model: Path):
    """The path over an example, and the same sentence as it is read and written."""
    direction = next(iter(SHIPPED_EXAMPLES))
    text = SHIPPED_EXAMPLES[direction][-1]
    plot_paths(path_pictures(str(model), text, direction=direction)[:1], [model / "path.png"])
    translator = SimultaneousTranslator.from_pretrained(model, direction=direction)
    write_replay(record(translator, text), model / "replay.gif", direction)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the finished training run")
    parser.add_argument("--data", type=Path, required=True, help="folder with the corpora")
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint that ships")
    arguments = parser.parse_args()
    settings = (arguments.run / "README.md").read_text(encoding="utf-8").split("## Settings")[1].strip()
    average_checkpoints([arguments.run], arguments.output, half=True)
    weights = hashlib.sha256((arguments.output / WEIGHTS).read_bytes()).hexdigest()
    cache = arguments.run / "release" / weights[:12]
    cache.mkdir(parents=True, exist_ok=True)
    card = Template(Path(__file__).with_name("release_card.md").read_text(encoding="utf-8"))
    results = measure(arguments.output, arguments.data, cache)
    dial = turn_the_dial(arguments.output, arguments.data, cache)
    draw(arguments.output)
    text = card.substitute(header=header(arguments.output), results=results, dial=dial, settings=settings)
    (arguments.output / "README.md").write_text(text, encoding="utf-8")
    print(results, dial, sep="\n\n")


if __name__ == "__main__":
    main()
