"""Whole speeches, each translated as one live stream, and scored by OmniSTEval.

OmniSTEval cuts what was written into the segments of the reference and scores those: BLEU and chrF, and how far the
words lag behind their own segment. It counts in milliseconds of speech; here a source word takes a second, so that its
figures are a thousand times a number of words.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..inference.checkpoints import Direction, load_directions
from ..inference.streaming import SimultaneousTranslator
from ..inference.text import as_file_name, read_lines
from ..model.dials_dualpath import Dials


Speech = list[tuple[str, str]]  # segments: a source and its translation
WORD = 1000  # OmniSTEval's unit is a thousandth of a word
FIGURES = {"BLEU": "bleu", "chrF": "chrf", "LongYAAL": "long_yaal", "LongLAAL": "long_laal", "LongAL": "long_al"}
LOG, SEGMENTS, REFERENCES = "instances.log", "segments.json", "references.txt"


@dataclass
class LongFormReport:
    """Figures of each direction: quality of the segments, and latency in source words."""

    model: str
    figures: dict[str, dict[str, float]]

    def rows(self) -> list[dict[str, str]]:
        """One row a figure, one column a direction."""
        return [
            {"": name} | {key: f"{figures[name]:.2f}" for key, figures in self.figures.items()} for name in FIGURES
        ]


def read_speeches(source_file: str, target_file: str) -> list[Speech]:
    """Speeches with a blank line between them; line n of both files is the same segment."""
    sides = read_lines(source_file), read_lines(target_file)
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{source_file} has {len(sides[0])} lines and {target_file} {len(sides[1])}: they do not match."
        )
    speeches: list[Speech] = [[]]
    for number, (source, target) in enumerate(zip(*sides), 1):
        if bool(source.strip()) != bool(target.strip()):
            raise DataError(f"Line {number} is blank in only one of {source_file} and {target_file}.")
        if source.strip():
            speeches[-1].append((source.strip(), target.strip()))
        elif speeches[-1]:
            speeches.append([])
    speeches = [speech for speech in speeches if speech]
    if not speeches:
        raise DataError(f"{source_file} is empty.")
    return speeches


def write_log(loaded: Direction, speeches: list[Speech], folder: Path, **dials):
    """Translates each speech as one stream, and writes the three files that OmniSTEval reads."""
    translator = SimultaneousTranslator(*loaded, **dials)
    log, segments = [], []
    for number, speech in enumerate(speeches):
        name, read = f"speech-{number}", 0
        for source, _ in speech:
            segments.append({"wav": name, "offset": read, "duration": len(source.split())})
            read += len(source.split())
        for _ in translator.stream(f"{source} " for source, _ in speech):
            pass
        delays = [WORD * words for words in translator.path]
        log.append(
            {
                "index": number,
                "source": [name],
                "prediction": translator.text,
                "delays": delays,
                "elapsed": delays,
                "source_length": WORD * read,
            }
        )
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) for row in log)
    (folder / LOG).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / SEGMENTS).write_text(json.dumps(segments), encoding="utf-8")
    references = (target for speech in speeches for _, target in speech)
    (folder / REFERENCES).write_text("".join(f"{line}\n" for line in references), encoding="utf-8")


def score_log(folder: Path) -> dict[str, float]:
    """OmniSTEval's figures of what [`write_log`] wrote, latency in words."""
    try:
        from omnisteval.io import load_resegmentation_inputs
    except ImportError as error:
        raise ImportError("Long-form figures are OmniSTEval's: `pip install omnisteval`.") from error
    from omnisteval import evaluate_instances, resegment

    files = (str(folder / name) for name in (SEGMENTS, REFERENCES, LOG))
    segments, references, log = files
    instances, _ = resegment(*load_resegmentation_inputs(segments, None, references, log))
    scores, *_ = evaluate_instances(instances)
    return {name: scores[key] / (WORD if name.startswith("Long") else 1) for name, key in FIGURES.items()}


def evaluate_long_form(
    path: str,
    source_file: str,
    target_file: str,
    output: str | Path,
    direction: str | None = None,
    limit: int | None = None,
    **settings,
) -> LongFormReport:
    """A checkpoint over whole speeches, both ways where it has two directions.

    Args:
        path (`str`): Folder or Hub id.
        source_file, target_file (`str`): The speeches, see [`read_speeches`], of the forward direction or `direction`.
        output (`str`): Folder for the logs, one folder a direction.
        direction (`str`, *optional*): Only this one, and the files are its source and target.
        limit (`int`, *optional*): Only the first so many speeches.
        settings: Latency dials, and how the checkpoint is loaded, see [`load_directions`].
    """
    speeches = read_speeches(source_file, target_file)[:limit]
    flipped = [[(target, source) for source, target in speech] for speech in speeches]
    dials, figures = Dials.given_in(settings), {}
    loaded = load_directions(path, direction, **{name: settings[name] for name in settings if name not in dials})
    for (name, one), texts in zip(loaded.items(), (speeches, flipped)):
        folder = Path(output) / as_file_name(name)
        write_log(one, texts, folder, **dials)
        figures[name] = score_log(folder)
    report = LongFormReport(Path(path).name, figures)
    (Path(output) / "long-form.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return report
