"""Systems side by side: which is better at the same latency, and is it more than chance?"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean

import numpy as np
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from .data import DataError
from .evaluation import evaluate_checkpoint, quality
from .latency import latency_metrics


@dataclass
class System:
    """One system's translations of one direction."""

    name: str
    direction: str
    hypotheses: list[str]
    references: list[str]
    word_al: float
    token_al: float | None
    bleu: float
    interval: float


@dataclass
class Contest:
    """Two systems of like latency: the difference in BLEU and its significance."""

    first: System
    second: System
    difference: float
    p_value: float

    @property
    def verdict(self) -> str:
        if self.p_value >= 0.05 or self.difference == 0:
            return "no significant difference"
        ahead = self.first if self.difference > 0 else self.second
        return f"{ahead.name} is ahead"


def load_systems(path: str | Path) -> list[System]:
    """The systems of a report folder (or its report.json), or of a SimulEval `instances.log`."""
    path = Path(path)
    if path.is_file() and path.name == "report.json":
        path = path.parent
    if (path / "report.json").is_file():
        return load_report(path)
    log = path / "instances.log" if path.is_dir() else path
    if log.is_file() and log.suffix == ".log":
        return [load_simuleval(log)]
    raise DataError(f"{path} is neither a report of `dualpath evaluate` nor an instances.log of SimulEval.")


def load_report(folder: Path) -> list[System]:
    summary = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    systems = []
    for direction, report in summary["directions"].items():
        lines = (folder / f"sentences.{direction}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        dials = ", ".join(f"{name} {value}" for name, value in summary["dials"].items())
        systems.append(
            System(
                f"{folder.name}{f' ({dials})' if dials else ''}",
                direction,
                [row["hypothesis"] for row in rows],
                [row["reference"] for row in rows],
                report["latency"]["word"]["AL"],
                report["latency"]["token"]["AL"],
                report["quality"]["bleu"],
                report["quality"]["bleu_interval"],
            )
        )
    return systems


def load_simuleval(log: Path) -> System:
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line]
    if not rows or "delays" not in rows[0]:
        raise DataError(f"{log} is not an instance log of SimulEval.")
    hypotheses, references = ([row[name].strip() for row in rows] for name in ("prediction", "reference"))
    lags = [
        latency_metrics(row["delays"], row["source_length"], reference_length=len(row["reference"].split()))["AL"]
        for row in rows
        if row["delays"]
    ]
    scores = quality(hypotheses, references)
    name = log.parent.name if log.name == "instances.log" else log.stem
    return System(name, "", hypotheses, references, mean(lags), None, scores["bleu"], scores["bleu_interval"])


def contests(systems: Sequence[System], tolerance: float = 0.5, samples: int = 1000) -> list[Contest]:
    """Paired bootstrap tests between all systems on one test set whose word-level AL differs by up to `tolerance`."""
    found = []
    for first, second in combinations(systems, 2):
        same_test = first.references == second.references
        if not same_test or abs(first.word_al - second.word_al) > tolerance:
            continue
        named = [("first", first.hypotheses), ("second", second.hypotheses)]
        _, scores = PairedTest(named, {"BLEU": BLEU()}, [first.references], test_type="bs", n_samples=samples)()
        result = scores["BLEU"][1]
        found.append(Contest(first, second, first.bleu - second.bleu, result.p_value))
    return found


LAGS = (1.5, 2, 2.5, 3, 4, 5, 6)


def at_latency(rows: Sequence[dict], lags: Sequence[float] = LAGS, value: str = "BLEU") -> list[dict]:
    """BLEU, or another value, of each system read off its curve at given ALs: linear between its points, nothing
    beyond its ends."""
    table = []
    for system, direction in dict.fromkeys((row["system"], row["direction"]) for row in rows if not row["offline"]):
        curve = sorted((r["AL"], r[value]) for r in rows if (r["system"], r["direction"]) == (system, direction))
        scores = np.interp(lags, *zip(*curve), left=np.nan, right=np.nan)
        cells = {f"AL {lag}": None if np.isnan(score) else float(score) for lag, score in zip(lags, scores)}
        table.append({"system": system, "direction": direction} | cells)
    return table


def compare_table(systems: Sequence[System], found: Sequence[Contest]) -> str:
    """Markdown: all systems from low to high latency, then who is ahead where."""
    lines = ["| system | direction | BLEU | AL (words) | AL (tokens) |", "|---|---|---|---|---|"]
    for system in sorted(systems, key=lambda system: (system.direction, system.word_al)):
        tokens = "" if system.token_al is None else f"{system.token_al:.2f}"
        bleu = f"{system.bleu:.2f} ± {system.interval:.2f}"
        lines.append(f"| {system.name} | {system.direction} | {bleu} | {system.word_al:.2f} | {tokens} |")
    if found:
        lines += ["", "At matched latency (paired bootstrap):", ""]
        lines += ["| direction | AL | systems | difference in BLEU | p | |", "|---|---|---|---|---|---|"]
        for contest in found:
            lag = (contest.first.word_al + contest.second.word_al) / 2
            pair = f"{contest.first.name} - {contest.second.name}"
            lines.append(
                f"| {contest.first.direction} | {lag:.2f} | {pair} "
                f"| {contest.difference:+.2f} | {contest.p_value:.3f} | {contest.verdict} |"
            )
    else:
        lines += ["", "No two systems have a like latency on the same test set: nothing to test."]
    return "\n".join(lines) + "\n"


# Sweeps


COLUMNS = ("system", "direction", "setting", "CR", "AP", "AL", "DAL", "BLEU")


def sweep(
    models: Sequence[str],
    labels: Sequence[str],
    source_file: str,
    target_file: str,
    settings: Sequence[dict],
    direction: str | None = None,
    batch_size: int = 64,
    progress: bool = True,
    limit: int | None = None,
) -> list[dict]:
    """One row per model, setting and direction: token-level latency and BLEU. An offline model is measured once."""
    rows = []
    for model, label in zip(models, labels, strict=True):
        for number, dials in enumerate(settings):
            try:
                report = evaluate_checkpoint(
                    model, source_file, target_file, direction, None, batch_size, progress, limit, **dials
                )
            except ValueError as error:
                if "offline" not in str(error):
                    raise
                if number:
                    continue
                report = evaluate_checkpoint(
                    model, source_file, target_file, direction, None, batch_size, progress, limit
                )
            for name, result in report.directions.items():
                lag = result.latency["token"]
                rows.append(
                    {
                        "system": label,
                        "direction": name,
                        "setting": ", ".join(f"{key} {value}" for key, value in report.dials.items()),
                        **{metric: lag[metric] for metric in ("CR", "AP", "AL", "DAL")},
                        "BLEU": result.quality["bleu"],
                        "offline": lag["AP"] == 1.0,
                    }
                )
    return rows


def as_csv(rows: Sequence[dict], columns: Sequence[str] = COLUMNS) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    return buffer.getvalue()


def as_markdown(rows: Sequence[dict]) -> str:
    """The shape of the paper's appendix tables: a block a direction and system, latency then BLEU."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for row in sorted(rows, key=lambda row: (row["direction"], row["system"], row["AL"])):
        cells = [f"{row[name]:.2f}" if isinstance(row[name], float) else str(row[name]) for name in COLUMNS]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
