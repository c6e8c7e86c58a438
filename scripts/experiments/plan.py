"""Train every system of a comparison from one warm start, measure them, and write the tables and curves.

    python plan.py train plans/multi30k.yaml --data_dir DATA --runs runs/multi30k
    python plan.py evaluate plans/multi30k.yaml --data_dir DATA --runs runs/multi30k
    python plan.py tables plans/multi30k.yaml --runs runs/multi30k --output DIR

Each step takes up where it was cut short: what is there is not made again. `train --jobs 2` keeps two cores busy.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from itertools import zip_longest
from pathlib import Path

import torch
import yaml

from hf_dualpath.evaluation.comparison import at_latency, contests, load_systems
from hf_dualpath.evaluation.pictures import quality_latency_curve
from hf_dualpath.evaluation.report import evaluate_checkpoint
from hf_dualpath.evaluation.tables import as_csv, as_markdown
from hf_dualpath.model.dials_dualpath import Dials


def train(plan: dict, runs: Path, data_dir: Path, names: list[str], jobs: int, seed: int):
    """The runs after the warm starts that they need, `jobs` at a time on one core each."""
    stages = zip_longest(*(chain(plan, name) for name in names))  # what starts from nothing comes first
    order = dict.fromkeys(name for stage in stages for name in stage if name is not None)
    done = {}

    def train_in_turn(name: str):
        *_, start, name = [None, *chain(plan, name)]
        if start is not None:
            done[start].result()
        if not is_streamed(plan, name):
            train_one(plan, name, runs, data_dir, seed)

    with ThreadPoolExecutor(jobs) as pool:
        for name in order:
            done[name] = pool.submit(train_in_turn, name)
        for future in done.values():
            future.result()


def chain(plan: dict, name: str) -> list[str]:
    """What a run starts from, that one's start and so on: the first to train comes first."""
    settings = settings_of(plan, name)
    start = settings.get("streams") or settings.get("start")
    return [*(chain(plan, start) if start else []), name]


def is_streamed(plan: dict, name: str) -> bool:
    """A run that is not trained: it `streams` the model of another, with a policy over it or at other dials."""
    return "streams" in settings_of(plan, name)


def settings_of(plan: dict, name: str) -> dict:
    return plan["warm_starts"][name] if name in plan["warm_starts"] else plan["common"] | plan["runs"][name]


def train_one(plan: dict, name: str, runs: Path, data_dir: Path, seed: int):
    folder = runs / name
    if (folder / "README.md").is_file():  # the card is written last
        return
    folder.mkdir(parents=True, exist_ok=True)
    settings = {key: value for key, value in settings_of(plan, name).items() if key not in ("label", "variant_of")}
    if start := settings.pop("start", None):
        settings["init_from"] = runs / start
    script = settings.pop("script", None)
    script = Path(__file__).with_name(script) if script else Path(__file__).parents[1] / "train.py"
    unmeasured = {"eval_strategy": "no", "test_source": "", "test_target": ""}  # only `evaluate` reads a test set
    settings = {"disable_tqdm": True, "seed": seed} | unmeasured | settings
    command = [sys.executable, str(script), plan["recipe"], "--data_dir", str(data_dir), "--output_dir", str(folder)]
    for key, value in settings.items():
        command += [f"--{key}", str(value).lower() if isinstance(value, bool) else str(value)]
    print(f"{name}: training, progress in {folder / 'train.log'}", flush=True)
    with open(folder / "train.log", "a") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log, env={"OMP_NUM_THREADS": "1"} | os.environ)
    print(f"{name}: done", flush=True)


def evaluate(plan: dict, runs: Path, data_dir: Path, names: list[str], sets: list[str], timed: int | None = None):
    """Measures what was not yet. With `timed`, the first so many sentences as live streams, for the time they take."""
    measuring = {} if timed is None else {"stream": True, "limit": timed}
    for name in names:
        for test_set in sets:
            report = runs / name / ("reports" if timed is None else "timed") / test_set
            if (report / "report.json").is_file():
                continue
            files = plan["test_sets"][test_set]
            source, target, *alignments = (str(data_dir / file) for file in files)
            model, options = runs / name, {}
            if is_streamed(plan, name):
                settings = plan["runs"][name]
                model = runs / settings["streams"]
                options = {key: value for key, value in settings.items() if key in ("policy", *Dials.names())}
            if "policy" in options or timed is not None:  # the first has no path over a given translation
                alignments = []
            options |= measuring
            found = evaluate_checkpoint(str(model), source, target, None, *alignments, progress=False, **options)
            found.save(report)
            print(f"{name}, {test_set}:\n{as_markdown(found.rows())}", flush=True)


# Tables


TIMES = ("AL (words)", "AL CA (words)", "ms per word")  # of live streams; CA: with the time that computing takes


def measured(plan: dict, runs: Path, names: list[str], test_set: str) -> Iterator[dict]:
    """A row a run and direction, from its report."""
    for name in names:
        file = runs / name / "reports" / test_set / "report.json"
        if not file.is_file():
            print(f"{name} was not measured on {test_set}: left out.", file=sys.stderr)
            continue
        summary = json.loads(file.read_text())
        live = runs / name / "timed" / test_set / "report.json"
        live = json.loads(live.read_text())["directions"] if live.is_file() else {}
        for direction, report in summary["directions"].items():
            figures = report["figures"]
            yield {
                "run": name,
                "system": plan["runs"][name]["label"],
                "direction": direction,
                "BLEU": figures["BLEU"],
                "interval": figures["BLEU ±"],
                **{metric: figures[f"{metric} (tokens)"] for metric in ("CR", "AP", "AL", "DAL")},
                "word_AL": figures["AL (words)"],
                **{metric: figures.get(metric) for metric in ("A_suf", "A_nec", "IoU")},
                **{f"live {metric}": live.get(direction, {}).get("figures", {}).get(metric) for metric in TIMES},
                "offline": report["reads_everything"],
            }


def tables(plan: dict, runs: Path, names: list[str], output: Path):
    """For each test set a CSV and a JSON of all runs, paired tests at similar latency and, without the variants, a
    curve and BLEU at equal latency; and all tables in Markdown."""
    output.mkdir(parents=True, exist_ok=True)
    text = []
    for test_set, files in plan["test_sets"].items():
        rows = list(measured(plan, runs, names, test_set))
        if not rows:
            continue
        write_csv(output / f"{test_set}.csv", rows)
        text += [f"## {test_set}", by_run(rows)]
        if streams := [row for row in rows if row[f"live {TIMES[0]}"] is not None]:
            text += ["What live streams cost, one at a time:", by_run_live(streams)]
        if len(files) > 2:  # with gold alignments: of paths, not of translation quality
            continue
        tests = list(paired(plan, runs, list(dict.fromkeys(row["run"] for row in rows)), test_set))
        write_csv(output / f"{test_set}-paired.csv", tests)
        curves = [row for row in rows if "variant_of" not in plan["runs"][row["run"]]]
        if len({row["run"] for row in curves}) > 1:
            quality_latency_curve(curves, [output / f"{test_set}.png"])
            matched = at_latency(curves)
            write_csv(output / f"{test_set}-at-latency.csv", matched)
            text += [
                "BLEU at equal latency, read off the curves:",
                as_markdown(
                    [{k: f"{v:.1f}" if isinstance(v, float) else v for k, v in row.items()} for row in matched]
                ),
            ]
    (output / "tables.md").write_text("\n\n".join(text) + "\n")
    print("\n\n".join(text))


def rivals(runs: dict, names: list[str]) -> Iterator[tuple[str, str]]:
    """Who is tested against whom: a variant against what it varies, Dual Paths against the other systems."""
    systems = [name for name in names if "variant_of" not in runs[name]]
    for name in names:
        if "variant_of" in runs[name]:
            yield name, runs[name]["variant_of"]
        elif runs[name]["label"] == "Dual Paths":
            yield from ((name, other) for other in systems if runs[other]["label"] != "Dual Paths")


def paired(plan: dict, runs: Path, names: list[str], test_set: str) -> Iterator[dict]:
    """Rivals of similar latency (AL within half a word): who is ahead?"""
    systems = {}
    for name in names:
        for system in load_systems(runs / name / "reports" / test_set):
            system.name = name
            systems[name, system.direction] = system
    for name, other in rivals(plan["runs"], names):
        for direction in (direction for run, direction in systems if run == name and (other, direction) in systems):
            for contest in contests([systems[name, direction], systems[other, direction]]):
                yield {
                    "direction": direction,
                    "run": name,
                    "other": other,
                    "AL": contest.first.word_al,
                    "other_AL": contest.second.word_al,
                    "difference": contest.difference,
                    "p": contest.p_value,
                    "verdict": contest.verdict,
                }


def write_csv(path: Path, rows: list[dict]):
    if not rows:
        return
    path.write_text(as_csv(rows, list(rows[0])))
    path.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")


def by_run_live(rows: list[dict]) -> str:
    columns = ("system", "run", "direction")
    figures = [{metric: f"{row[f'live {metric}']:.2f}" for metric in TIMES} for row in rows]
    return as_markdown([{name: row[name] for name in columns} | each for row, each in zip(rows, figures)]).rstrip()


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def by_run(rows: list[dict]) -> str:
    """One line a run, both directions side by side."""
    with_paths = any(row["A_nec"] is not None for row in rows)
    lines = {}
    for row in rows:
        line = lines.setdefault(row["run"], {"system": row["system"], "run": row["run"]})
        line[f"BLEU {row['direction']}"] = f"{row['BLEU']:.1f} ± {row['interval']:.1f}"
        line[f"AL {row['direction']}"] = f"{row['AL']:.2f}"
        if with_paths:
            line |= {f"{name} {row['direction']}": share(row[name]) for name in ("A_suf", "A_nec")}
    for row in rows:
        lines[row["run"]]["IoU"] = share(row["IoU"])
    return as_markdown(list(lines.values())).rstrip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["train", "evaluate", "tables"])
    parser.add_argument("plan", type=Path, help="YAML file: recipe, warm starts, common settings, runs, test sets.")
    parser.add_argument("--runs", type=Path, required=True, help="Folder of the runs, one subfolder each.")
    parser.add_argument("--data_dir", type=Path, help="Folder with the data that the recipe and the plan name.")
    parser.add_argument("--only", nargs="+", default=["*"], help="Only these runs; patterns such as 'dual*'.")
    parser.add_argument("--sets", nargs="+", help="Evaluate on these test sets; default: all of the plan.")
    parser.add_argument("--timed", type=int, metavar="N", help="Evaluate N sentences as live streams, for their time.")
    parser.add_argument("--jobs", type=int, default=1, help="Runs to train at once.")
    parser.add_argument(
        "--seed",
        type=int,
        default=42,
        help="Seed of the runs, but those that the plan gives one; a --runs folder holds runs of one.",
    )
    parser.add_argument("--output", type=Path, help="Folder for the tables and pictures.")
    arguments = parser.parse_args()
    plan = yaml.safe_load(arguments.plan.read_text())
    names = [name for name in plan["runs"] if any(fnmatch(name, pattern) for pattern in arguments.only)]
    if not names:
        parser.error(f"no run of the plan matches {' '.join(arguments.only)}; it has {', '.join(plan['runs'])}")
    needed = "output" if arguments.step == "tables" else "data_dir"
    if getattr(arguments, needed) is None:
        parser.error(f"{arguments.step} needs --{needed}")
    if arguments.step == "train":
        train(plan, arguments.runs, arguments.data_dir, names, arguments.jobs, arguments.seed)
    elif arguments.step == "evaluate":
        sets = arguments.sets or list(plan["test_sets"])
        files = [arguments.data_dir / file for test_set in sets for file in plan["test_sets"][test_set]]
        if missing := [str(file) for file in files if not file.is_file()]:
            parser.error(f"there is no {', '.join(missing)}; --sets leaves a test set out")
        if arguments.timed is not None:
            torch.set_num_threads(1)
        evaluate(plan, arguments.runs, arguments.data_dir, names, sets, arguments.timed)
    else:
        tables(plan, arguments.runs, names, arguments.output)


if __name__ == "__main__":
    main()
