"""The card of a trained checkpoint, filled from its run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template

import yaml
from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub import ModelCard as HubCard

from ..evaluation.tables import as_markdown
from ..model.policies_dualpath import POLICIES
from .arguments import policy_of


DUAL_PATHS = (
    "Two simultaneous translation models, one for each direction, whose READ/WRITE paths supervise each other."
)
# What a run measures: the figure's name in logs and on the Hub, and in the table of metrics.
FIGURES = {"bleu": "BLEU", "al": "AL (tokens)"}


@dataclass
class ModelCard:
    """What a reader of the card wants to know.

    Args:
        path (`str`): Where the checkpoint is, as users will name it.
        system (`str`): One of the five systems.
        languages (pair of `str`): Source and target language.
        data (`str`): What it was trained on, in words.
        dataset (`str`): The same as a name: of the Hub's dataset, or of the file.
        license (`str`, *optional*, defaults to `"unknown"`): Licence of the weights, as the Hub spells it.
        settings (`Mapping`): The settings of the run.
        results (`Mapping[str, float]`): Figures by name, such as `test_de-en_bleu`.
        command (`str`, *optional*): The command that gave them.
    """

    path: str
    system: str
    languages: tuple[str, str]
    data: str
    dataset: str
    license: str = "unknown"
    settings: Mapping = field(default_factory=dict)
    results: Mapping[str, float] = field(default_factory=dict)
    command: str | None = None

    def render(self) -> str:
        template = Template(
            (files("hf_dualpath.training") / "templates" / "model_card.md").read_text(encoding="utf-8")
        )
        return template.substitute(
            header=self.header().to_yaml(),
            title=self.title,
            system_sentence=DUAL_PATHS
            if self.system == "dual_paths"
            else POLICIES[policy_of(self.system)].description,
            path=self.path,
            direction="-".join(self.languages),
            data=self.data,
            results=self.results_table(),
            settings=yaml.safe_dump(dict(self.settings), sort_keys=False, allow_unicode=True).rstrip(),
        )

    @property
    def title(self) -> str:
        return f"{self.system.replace('_', ' ').capitalize()}, {'-'.join(self.languages)}"

    def header(self) -> ModelCardData:
        """What the Hub reads: languages, data, metrics, and each result by split and direction."""
        results = [
            EvalResult(
                task_type="translation",
                task_name="Simultaneous translation",
                dataset_type=self.dataset,
                dataset_name=self.dataset,
                dataset_config=direction,
                dataset_split=split,
                metric_type=metric,
                metric_name=FIGURES[metric],
                metric_value=round(value, 4),
            )
            for (split, direction, metric), value in self.measured()
        ]
        return ModelCardData(
            library_name="transformers",
            pipeline_tag="translation",
            language=list(self.languages),
            license=self.license,
            tags=["simultaneous-translation", "hf_dualpath"],
            datasets=[self.dataset],
            metrics=list(FIGURES),
            model_name=self.title if results else None,
            eval_results=results or None,
        )

    def measured(self) -> list[tuple[list[str], float]]:
        """Split, direction and metric of each result, and its value."""
        return [(name.split("_", 2), value) for name, value in self.results.items()]

    def results_table(self) -> str:
        """BLEU (sacreBLEU) and token-level AL of each split and direction that was measured."""
        rows: dict[tuple[str, str], dict] = {}
        for (split, direction, metric), value in self.measured():
            row = rows.setdefault((split, direction), {"split": split, "direction": direction})
            row[FIGURES[metric]] = value
        if not rows:
            return "Not measured yet."
        source = "" if self.command is None else f"\nMeasured at the end of `{self.command}`."
        return as_markdown(list(rows.values())) + source


def results_of(card: str | Path) -> dict[str, float]:
    """The results that a card on the disk holds, by name; none where there is no card yet, or half a one."""
    if not Path(card).is_file():
        return {}
    try:
        results = HubCard.load(card).data.eval_results or ()
    except (ValueError, yaml.YAMLError):  # killed while it was written
        return {}
    return {f"{r.dataset_split}_{r.dataset_config}_{r.metric_type}": r.metric_value for r in results}
