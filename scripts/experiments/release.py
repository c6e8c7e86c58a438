"""Make the folder of a checkpoint that ships: half precision, measured, with tables, pictures and a card.

    python scripts/experiments/release.py RUN --data DATA --output model_cards/dualpath-tatoeba-de-en \\
        --write-threshold 0.4

DATA holds the folders tatoeba_deen, europarl_deen, multi30k_deen and newstest_deen. What was measured of these very
weights is not measured again. The threshold becomes the checkpoint's default: choose it on development sets.
"""

import argparse
import hashlib
import json
from pathlib import Path
from string import Template

from everyday import check
from huggingface_hub import EvalResult, ModelCardData
from sacrebleu import BLEU

from hf_dualpath.apps.examples import SHIPPED_EXAMPLES
from hf_dualpath.apps.replay import record, write_captions, write_replay
from hf_dualpath.evaluation.comparison import COLUMNS as SWEEP_COLUMNS
from hf_dualpath.evaluation.comparison import sweep, sweep_table
from hf_dualpath.evaluation.long_form import evaluate_long_form
from hf_dualpath.evaluation.pictures import path_pictures, plot_paths, quality_latency_curve
from hf_dualpath.evaluation.report import evaluate_checkpoint
from hf_dualpath.evaluation.tables import as_csv, as_markdown
from hf_dualpath.inference.batches import translate_corpus
from hf_dualpath.inference.checkpoints import WEIGHTS, average_checkpoints, load_directions
from hf_dualpath.inference.streaming import SimultaneousTranslator
from hf_dualpath.inference.text import read_lines
from hf_dualpath.training.live_text import without_punctuation


TEST_SETS = {
    "Tatoeba, test split": "tatoeba_deen/test",
    "Europarl, test split": "europarl_deen/test",
    "newstest2015 (out of domain)": "newstest_deen/newstest2015",
    "Multi30k, test_2016_flickr (out of domain)": "multi30k_deen/test_2016_flickr",
}
TALK = Path(__file__).with_name("talk.de.txt")  # a minute, written for this
SPEECHES = "europarl_deen/speeches.test"
DIAL_SETS = {"Tatoeba": ("tatoeba_deen/test", 1000), "Europarl": ("europarl_deen/test", 300)}  # the first so many
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LANGUAGES = ("de", "en")
COLUMNS = ("BLEU", "chrF", "AL (words)", "LAAL (words)", "AL (tokens)")


def files_of(data: Path, stem: str) -> list[str]:
    return [str(data / f"{stem}.{language}.gz") for language in LANGUAGES]


def measure(model: Path, data: Path, cache: Path) -> str:
    """Quality and latency on every test set, as a table."""
    rows, summaries = [], {}
    for name, stem in TEST_SETS.items():
        folder = cache / stem.replace("/", "-")
        if not (folder / "report.json").is_file():
            evaluate_checkpoint(str(model), *files_of(data, stem)).save(folder)
        summary = json.loads((folder / "report.json").read_text())
        summaries[stem] = summary["directions"]
        for direction, report in summary["directions"].items():
            figures = report["figures"]
            row = {"test set": name, "direction": direction} | {column: figures[column] for column in COLUMNS}
            rows.append(row | {"BLEU": f"{figures['BLEU']:.1f} ± {figures['BLEU ±']:.1f}"})
    (model / "results.json").write_text(json.dumps(summaries, indent=1) + "\n")
    return f"{as_markdown(rows)}\nBLEU: `{summary['bleu_signature']}`, with a 95 % bootstrap interval."


def lower_cased_bleu(hypotheses: list[str], references: list[str]) -> float:
    return BLEU(lowercase=True).corpus_score(hypotheses, [references]).score


def measure_live_text(model: Path, data: Path) -> str:
    """What it costs to write without capitals and punctuation, as live text comes."""
    rows = []
    for name, stem in list(TEST_SETS.items())[:2]:
        sides = [read_lines(file) for file in files_of(data, stem)]
        for (direction, loaded), (sources, references) in zip(load_directions(model).items(), (sides, sides[::-1])):
            plain = [without_punctuation(text).lower() for text in sources]
            row = {"test set": name, "direction": direction}
            for kind, texts in (("as written", sources), ("lower-cased, unpunctuated", plain)):
                written = [found.text for found in translate_corpus(*loaded, texts, progress=False)[0]]
                row[kind] = f"{lower_cased_bleu(written, references):.1f}"
            rows.append(row)
    return as_markdown(rows).rstrip()


def measure_everyday(model: Path) -> str:
    rows = []
    for direction, found in check(model):
        counts = {"as the reference": "exact", "clearly better with the whole source": "lost"}
        row = {name: f"{sum(bool(line[key]) for line in found)} of {len(found)}" for name, key in counts.items()}
        rows.append({"direction": direction} | row)
    return as_markdown(rows).rstrip()


def measure_speeches(model: Path, data: Path, cache: Path) -> str:
    """Whole speeches, each as one stream."""
    figures = cache / "speeches.json"
    if not figures.is_file():
        report = evaluate_long_form(str(model), *files_of(data, SPEECHES), cache / "speeches")
        figures.write_text(json.dumps(report.rows()))
    return as_markdown(json.loads(figures.read_text())).rstrip()


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
        datasets=["tatoeba", "europarl"],
        metrics=["bleu"],
        tags=["simultaneous-translation", "hf_dualpath"],
        eval_results=results,
    ).to_yaml()


def turn_the_dial(model: Path, data: Path, cache: Path) -> str:
    """Threshold against AL and BLEU, as tables and a picture of each direction's curves."""
    text, everything = [], []
    for name, (stem, limit) in DIAL_SETS.items():
        file = cache / f"dial-{name}.json"
        if not file.is_file():
            dials = [{"write_threshold": value} for value in THRESHOLDS]
            file.write_text(json.dumps(sweep([str(model)], [name], *files_of(data, stem), dials, limit=limit)))
        rows = json.loads(file.read_text())
        everything += rows
        text.append(sweep_table(rows).rstrip())
    (model / "dial.csv").write_text(as_csv(everything, SWEEP_COLUMNS))
    quality_latency_curve(everything, [model / "dial.png"])
    return "\n\n".join(text)


def set_threshold(model: Path, threshold: float):
    """Makes it the checkpoint's default."""
    file = model / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"write_threshold": threshold}, indent=2) + "\n")


def draw(model: Path):
    """The path over an example, and the same sentence as it is read and written."""
    direction = next(iter(SHIPPED_EXAMPLES))
    text = SHIPPED_EXAMPLES[direction][-1]
    plot_paths(path_pictures(str(model), text, direction=direction)[:1], [model / "path.png"])
    translator = SimultaneousTranslator.from_pretrained(model, direction=direction)
    write_replay(record(translator, text), model / "replay.gif", direction)
    talk = SimultaneousTranslator.from_pretrained(model, direction="de-en")
    write_captions(record(talk, TALK.read_text(encoding="utf-8")), model / "talk.gif")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the finished training run")
    parser.add_argument("--data", type=Path, required=True, help="folder with the corpora")
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint that ships")
    parser.add_argument("--write-threshold", type=float, default=0.5, help="its default, chosen on development sets")
    arguments = parser.parse_args()
    settings = (arguments.run / "README.md").read_text(encoding="utf-8").split("## Settings")[1].strip()
    average_checkpoints([arguments.run], arguments.output, half=True)
    set_threshold(arguments.output, arguments.write_threshold)
    weights = hashlib.sha256((arguments.output / WEIGHTS).read_bytes()).hexdigest()
    cache = arguments.run / "release" / f"{weights[:12]}-{arguments.write_threshold}"
    cache.mkdir(parents=True, exist_ok=True)
    card = Template(Path(__file__).with_name("release_card.md").read_text(encoding="utf-8"))
    results = measure(arguments.output, arguments.data, cache)
    parts = {
        "results": results,
        "live_text": measure_live_text(arguments.output, arguments.data),
        "everyday": measure_everyday(arguments.output),
        "speeches": measure_speeches(arguments.output, arguments.data, cache),
        "dial": turn_the_dial(arguments.output, arguments.data, cache),
    }
    draw(arguments.output)
    given = {"header": header(arguments.output), "settings": settings, "threshold": arguments.write_threshold}
    (arguments.output / "README.md").write_text(card.substitute(parts | given), encoding="utf-8")
    print(*parts.values(), sep="\n\n")


if __name__ == "__main__":
    main()
