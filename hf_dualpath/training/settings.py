"""The settings of a run: a recipe, which is a YAML file, and what the command line puts in its place."""

import argparse
import difflib
from dataclasses import fields
from pathlib import Path

import yaml
from transformers import HfArgumentParser

from .arguments import DataArguments, DualPathTrainingArguments, ModelArguments


RECIPES = Path(__file__).parent / "recipes"
ARGUMENTS = (ModelArguments, DataArguments, DualPathTrainingArguments)
KNOWN = {item.name: item for cls in ARGUMENTS for item in fields(cls)}
# Whoever gives one of these has data of their own, and nothing that a recipe says of its data is true of them.
OWN_DATA = ("train_source", "train_target", "train_file", "dataset")
DATA_OF_A_RECIPE = (
    *(f"{split}_{kind}" for split in ("train", "validation", "test") for kind in ("source", "target", "file")),
    "dataset",
    "dataset_config",
    "data_dir",
    "source_column",
    "target_column",
    "license",
    "data_description",
)


class SettingsParser(HfArgumentParser):
    """All settings as `--key value`."""

    def __init__(self):
        super().__init__(
            ARGUMENTS, prog="dualpath train", usage="dualpath train RECIPE [--key value ...]", allow_abbrev=False
        )

    def error(self, message: str):
        raise ValueError(f"{message[0].upper()}{message[1:]}. `dualpath train --help-settings` lists all settings.")


def parse_recipe(
    recipe: str | Path | None, overrides: list[str]
) -> tuple[ModelArguments, DataArguments, DualPathTrainingArguments]:
    """Arguments from a YAML recipe, with `--key value` overrides."""
    parser = SettingsParser()
    if recipe is not None:
        settings = read_recipe(recipe)
        given = {name_of(word) for word in overrides if word.startswith("--")}
        if given.intersection(OWN_DATA):
            settings = {name: value for name, value in settings.items() if name not in DATA_OF_A_RECIPE}
        parser.set_defaults(**settings)
    *arguments, unknown = parser.parse_args_into_dataclasses(
        overrides, return_remaining_strings=True, look_for_args_file=False
    )
    if unknown:
        if not unknown[0].startswith("--"):
            raise ValueError(f"{unknown[0]!r} belongs to no setting: the recipe comes first, then `--key value`.")
        raise ValueError(f"There is no setting `{unknown[0].split('=')[0]}`{did_you_mean(name_of(unknown[0]))}")
    return tuple(arguments)


def name_of(word: str) -> str:
    """`max_steps` of `--max-steps=3`."""
    return word.split("=")[0].removeprefix("--").replace("-", "_")


def did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name, KNOWN, 1)
    return f"; did you mean `{close[0]}`?" if close else "."


def read_recipe(recipe: str | Path) -> dict:
    """The settings of a recipe: a YAML file, or the name of one that ships."""
    path = find_recipe(recipe)
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is no recipe: it has lines such as `max_steps: 1000`.")
    for name, value in settings.items():
        if name not in KNOWN:
            raise ValueError(f"{path} sets `{name}`, which does not exist{did_you_mean(str(name))}")
        if isinstance(value, str) and "float" in str(KNOWN[name].type):
            settings[name] = float(value)  # YAML reads 1e-3 as a string
    return settings


def shipped_recipes() -> str:
    return ", ".join(sorted(path.stem for path in RECIPES.glob("*.yaml")))


def find_recipe(recipe: str | Path) -> Path:
    for path in (Path(recipe), RECIPES / f"{recipe}.yaml"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"There is no recipe {recipe}: give a YAML file, or one of {shipped_recipes()}.")


def show_settings(of_the_library: bool = False):
    """Prints our settings, and on request those of transformers' `TrainingArguments` too."""
    ours = {item.name for cls in (ModelArguments, DataArguments) for item in fields(cls)}
    ours |= {"help", "output_dir", "max_steps", *DualPathTrainingArguments.__annotations__}
    parser = SettingsParser()
    parser.epilog = f"Recipes that ship: {shipped_recipes()}."
    if not of_the_library:
        parser.epilog += " `--help-settings all` also lists the settings of transformers' TrainingArguments."
        for action in parser._actions:
            if action.dest not in ours:
                action.help = argparse.SUPPRESS
    parser.print_help()
