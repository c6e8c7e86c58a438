"""The card of a trained checkpoint, filled from its run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from string import Template

import yaml

from ..evaluation.tables import as_markdown
from ..model.policies_dualpath import POLICIES
from .arguments import policy_of


DUAL_PATHS = (
    "Two simultaneous translation models, one for each direction, whose READ/WRITE paths supervise each other."
)


@dataclass
class ModelCard:
    """What a reader of the card wants to know.

    Args:
        path (`str`): Where the checkpoint is, as users will name it.
        system (`str`): One of the five systems.
        languages (pair of `str`): Source and target language.
        data (`str`): What it was trained on.
        license (`str`, *optional*, defaults to `"unknown"`): Licence of the weights, as the Hub spells it.
        settings (`Mapping`): The settings of the run.
        results (`Mapping[str, float]`): Figures by name, such as `test_de-en_bleu`.
        command (`str`, *optional*): The command that gave them.
    """

    path: str
    system: str
    languages: tuple[str, str]
    data: str
    license: str = "unknown"
    settings: Mapping = field(default_factory=dict)
    results: Mapping[str, float] = field(default_factory=dict)
    command: str | None = None

    def render(self) -> str:
        template = Template(
            (files("hf_dualpath.training") / "templates" / "model_card.md").read_text(encoding="utf-8")
        )
        source, target = self.languages
        return template.substitute(
            language_list="\n".join(f"- {language}" for language in self.languages),
            license=self.license,
            title=f"{self.system.replace('_', ' ').capitalize()}, {source}-{target}",
            system_sentence=DUAL_PATHS
            if self.system == "dual_paths"
            else POLICIES[policy_of(self.system)].description,
            path=self.path,
            direction=f"{source}-{target}",
            data=self.data,
            results=self.results_table(),
            settings=yaml.safe_dump(dict(self.settings), sort_keys=False, allow_unicode=True).rstrip(),
        )

    def results_table(self) -> str:
        """BLEU (sacreBLEU) and token-level AL of each split and direction that was measured."""
        rows: dict[tuple[str, str], dict] = {}
        for name, value in self.results.items():
            split, direction, metric = name.split("_", 2)
            row = rows.setdefault((split, direction), {"split": split, "direction": direction})
            row[{"bleu": "BLEU", "al": "AL (tokens)"}[metric]] = value
        if not rows:
            return "Not measured yet."
        source = "" if self.command is None else f"\nMeasured at the end of `{self.command}`."
        return as_markdown(list(rows.values())) + source
