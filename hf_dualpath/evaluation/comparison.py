"""Systems side by side: which is better at the same latency, and is it more than chance?"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import mean

import numpy as np
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from ..errors import DataError
from ..inference.checkpoints import load_directions
from ..paths.latency import latency_metrics
from .metrics import bleu_interval
from .report import evaluate_models, read_test_set
from .tables import as_markdown


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
    """Two systems of similar latency: the difference in BLEU and its significance."""

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


BROKEN = (KeyError, TypeError, AttributeError, ValueError, RecursionError)  # what a file of another shape leads to


def column(rows: list[dict], name: str) -> list[str]:
    """The texts of that name."""
    return [row[name].strip() for row in rows]


def load_report(folder: Path) -> list[System]:
    try:
        summary = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        systems = []
        for direction, report in summary["directions"].items():
            lines = (folder / f"sentences.{direction}.jsonl").read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line) for line in lines]
            dials = ", ".join(f"{name} {value}" for name, value in summary["dials"].items())
            figures = report["figures"]
            systems.append(
                System(
                    f"{folder.name}{f' ({dials})' if dials else ''}",
                    direction,
                    column(rows, "text"),
                    column(rows, "reference"),
                    *(float(figures[name]) for name in ("AL (words)", "AL (tokens)", "BLEU", "BLEU ±")),
                )
            )
    except BROKEN as error:
        raise DataError(f"{folder} holds no whole report of `dualpath evaluate`: {error!r}.") from error
    return systems


def load_simuleval(log: Path) -> System:
    try:
        rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line]
        hypotheses, references = column(rows, "prediction"), column(rows, "reference")
        lags = [
            latency_metrics(row["delays"], row["source_length"], reference_length=len(row["reference"].split()))["AL"]
            for row in rows
            if row["delays"]
        ]
        word_al = mean(lags)
    except BROKEN as error:
        raise DataError(f"{log} is not an instance log of SimulEval: {error!r}.") from error
    score = BLEU().corpus_score(hypotheses, [references]).score
    name = log.parent.name if log.name == "instances.log" else log.stem
    interval = bleu_interval(hypotheses, references)
    return System(name, "", hypotheses, references, word_al, None, score, interval)


def contests(systems: Sequence[System], tolerance: float = 0.5, samples: int = 1000) -> list[Contest]:
    """Paired bootstrap tests between all systems on one test set whose word-level AL differs by up to `tolerance`."""
    found = []
    for first, second in combinations(systems, 2):
        same_test = first.references == second.references
        if not same_test or abs(first.word_al - second.word_al) > tolerance:
            continue
        p_value = 1.0  # of equal translations, where sacreBLEU's count of samples gives 1 / (samples + 1)
        if first.hypotheses != second.hypotheses:
            named = [("first", first.hypotheses), ("second", second.hypotheses)]
            _, scores = PairedTest(named, {"BLEU": BLEU()}, [first.references], test_type="bs", n_samples=samples)()
            p_value = scores["BLEU"][1].p_value
        found.append(Contest(first, second, first.bleu - second.bleu, p_value))
    return found


LAGS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)


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
    ordered = sorted(systems, key=lambda system: (system.direction, system.word_al))
    standings = [
        {
            "system": system.name,
            "direction": system.direction,
            "BLEU": f"{system.bleu:.2f} ± {system.interval:.2f}",
            "AL (words)": f"{system.word_al:.2f}",
            "AL (tokens)": system.token_al,
        }
        for system in ordered
    ]
    if not found:
        return (
            f"{as_markdown(standings)}\nNo two systems have a similar latency on the same test set: nothing to test.\n"
        )
    tests = [
        {
            "direction": contest.first.direction,
            "AL": (contest.first.word_al + contest.second.word_al) / 2,
            "systems": f"{contest.first.name} - {contest.second.name}",
            "difference in BLEU": f"{contest.difference:+.2f}",
            "p": f"{contest.p_value:.3f}",
            "": contest.verdict,
        }
        for contest in found
    ]
    return f"{as_markdown(standings)}\nAt similar latency (paired bootstrap):\n\n{as_markdown(tests)}"


# Sweeps


SWEPT = {"CR": "CR (tokens)", "AP": "AP (tokens)", "AL": "AL (tokens)", "DAL": "DAL (tokens)", "BLEU": "BLEU"}
COLUMNS = ("system", "direction", "setting", *SWEPT)


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
    **loading,
) -> list[dict]:
    """One row per model, setting and direction: token-level latency and BLEU. Without dials a model has one row."""
    text = read_test_set(source_file, target_file, limit=limit)
    rows = []
    for path, label in zip(models, labels, strict=True):
        directions = load_directions(path, direction, **loading)
        model = next(iter(directions.values()))[0]
        for dials in settings if model.config.policy_class.dials else [{}]:
            report = evaluate_models(label, directions, text, batch_size, progress, with_duality=False, **dials)
            for name, result in report.directions.items():
                rows.append(
                    {
                        "system": label,
                        "direction": name,
                        "setting": ", ".join(f"{key} {value}" for key, value in dials.items()),
                        **{short: result.figures[metric] for short, metric in SWEPT.items()},
                        "offline": result.reads_everything,
                    }
                )
    return rows


def sweep_table(rows: Sequence[dict]) -> str:
    """The shape of the paper's appendix tables: a block a direction and system, latency then BLEU."""
    return as_markdown(sorted(rows, key=lambda row: (row["direction"], row["system"], row["AL"])), COLUMNS)
