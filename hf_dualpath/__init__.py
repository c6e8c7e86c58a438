"""Simultaneous machine translation with dual read/write paths."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .configuration_dualpath import DualPathConfig, SinglePathConfig
from .duality import duality_loss, transpose_path
from .latency import (
    average_lagging,
    average_proportion,
    differentiable_average_lagging,
    expected_delays,
    latency_metrics,
)
from .losses import dual_path_loss, label_smoothed_cross_entropy, single_path_loss
from .modeling_dualpath import (
    DualPathForConditionalGeneration,
    SinglePathForConditionalGeneration,
    SinglePathModel,
)
from .monotonic_attention import expected_alignment, expected_attention, hard_path
from .streaming import Read, SimultaneousTranslator, Write


AutoConfig.register("single_path", SinglePathConfig, exist_ok=True)
AutoConfig.register("dual_path", DualPathConfig, exist_ok=True)
AutoModel.register(SinglePathConfig, SinglePathModel, exist_ok=True)
AutoModel.register(DualPathConfig, DualPathForConditionalGeneration, exist_ok=True)
AutoModelForSeq2SeqLM.register(SinglePathConfig, SinglePathForConditionalGeneration, exist_ok=True)
AutoModelForSeq2SeqLM.register(DualPathConfig, DualPathForConditionalGeneration, exist_ok=True)

__version__ = "0.1.0"
__all__ = [
    "DualPathConfig",
    "DualPathForConditionalGeneration",
    "DualPathTrainer",
    "DualPathTrainingArguments",
    "Read",
    "SimultaneousTranslator",
    "SinglePathConfig",
    "SinglePathForConditionalGeneration",
    "SinglePathModel",
    "Write",
    "average_lagging",
    "average_proportion",
    "differentiable_average_lagging",
    "dual_path_loss",
    "duality_loss",
    "expected_alignment",
    "expected_attention",
    "expected_delays",
    "hard_path",
    "label_smoothed_cross_entropy",
    "latency_metrics",
    "single_path_loss",
    "transpose_path",
]


def __getattr__(name: str):
    """The trainer brings datasets and accelerate along, so it is imported only when it is asked for."""
    if name == "DualPathTrainer":
        from .trainer import DualPathTrainer

        return DualPathTrainer
    if name == "DualPathTrainingArguments":
        from .training_args import DualPathTrainingArguments

        return DualPathTrainingArguments
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
