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


AutoConfig.register("single_path", SinglePathConfig, exist_ok=True)
AutoConfig.register("dual_path", DualPathConfig, exist_ok=True)
AutoModel.register(SinglePathConfig, SinglePathModel, exist_ok=True)
AutoModel.register(DualPathConfig, DualPathForConditionalGeneration, exist_ok=True)
AutoModelForSeq2SeqLM.register(SinglePathConfig, SinglePathForConditionalGeneration, exist_ok=True)
AutoModelForSeq2SeqLM.register(DualPathConfig, DualPathForConditionalGeneration, exist_ok=True)

__version__ = "0.1.0"
