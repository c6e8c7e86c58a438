"""The card of a trained checkpoint, filled from its run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from string import Template

import yaml


SYSTEMS = {
    "offline": "A full-sentence translation model (it reads all before it writes).",
    "wait_k": "A simultaneous translation model with the wait-k policy.",
    "mma": "A simultaneous translation model with monotonic multi-head attention (MMA).",
    "single_path": "A simultaneous translation model whose decoder layers share one learned READ/WRITE path.",
    "dual_paths": "Two simultaneous translation models, one for each direction, "
    "whose READ/WRITE paths supervise each other.",
}


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
        template = Template((files("hf_dualpath") / "templates" / "model_card.md").read_text(encoding="utf-8"))
        source, target = self.languages
        return template.substitute(
            language_list="\n".join(f"- {language}" for language in self.languages),
            license=self.license,
            title=f"{self.system.replace('_', ' ').capitalize()}, {source}-{target}",
            system_sentence=SYSTEMS[self.system],
            path=self.path,
            direction=f"{source}-{target}",
            data=self.data,
            results=self.results_table(),
            settings=yaml.safe_dump(dict(self.settings), sort_keys=False, allow_unicode=True).rstrip(),
        )

    def results_table(self) -> str:
        """BLEU (sacreBLEU) and token-level AL of each split and direction that was measured."""
        rows: dict[tuple[str, str], dict[str, float]] = {}
        for name, value in self.results.items():
            split, direction, metric = name.split("_", 2)
            rows.setdefault((split, direction), {})[metric] = value
        if not rows:
            return "Not measured yet."
        lines = ["| split | direction | BLEU | AL (tokens) |", "|---|---|---|---|"]
        for (split, direction), row in rows.items():
            lines.append(f"| {split} | {direction} | {row['bleu']:.2f} | {row['al']:.2f} |")
        if self.command is not None:
            lines.append(f"\nMeasured at the end of `{self.command}`.")
        return "\n".join(lines)
