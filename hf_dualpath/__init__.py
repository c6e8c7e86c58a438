"""Simultaneous machine translation with dual read/write paths.

Everything below is imported when it is first used, so that `dualpath --help` answers at once.
"""

import sys
from importlib import import_module

from ._registration import register_when_imported


__version__ = "0.2.0"

# Where each public name lives.
_HOMES = {
    "model.configuration_dualpath": ("DualPathConfig", "SiMTConfig"),
    "model.modeling_dualpath": (
        "DualPathForConditionalGeneration",
        "SiMTForConditionalGeneration",
        "SiMTModel",
    ),
    "model.monotonic_attention": ("expected_alignment", "expected_attention", "hard_path"),
    "model.policies_dualpath": ("Dials", "FixedPolicy", "LearnedPolicy", "Policy", "ReadWritePath", "register_policy"),
    "paths.duality": ("duality_loss", "transpose_path"),
    "paths.latency": (
        "average_lagging",
        "average_proportion",
        "differentiable_average_lagging",
        "expected_delays",
        "latency_metrics",
    ),
    "inference.events": ("Read", "SentenceEnd", "Write"),
    "inference.hub_translators": ("HubPolicy", "HubTranslator", "register_hub_policy"),
    "inference.splitting": ("SentenceSplitter",),
    "inference.streaming": ("SimultaneousTranslator",),
    "evaluation.report": ("evaluate_checkpoint",),
    "training.arguments": ("DualPathTrainingArguments",),
    "training.cross_entropy": ("label_smoothed_cross_entropy",),
    "training.losses": ("direction_loss", "dual_path_loss"),
    "training.trainer": ("DualPathTrainer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)  # noqa: PLE0605


def __getattr__(name: str):
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


register_when_imported("transformers.models.auto.configuration_auto", "hf_dualpath.model.configuration_dualpath")
