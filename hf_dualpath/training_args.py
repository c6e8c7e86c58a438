"""Arguments of training: what `TrainingArguments` has, with the paper's defaults, and the weights of the losses."""

from dataclasses import dataclass, field

from transformers import TrainingArguments


@dataclass
class DualPathTrainingArguments(TrainingArguments):
    r"""
    `TrainingArguments` with the settings of the joint loss. Defaults are the paper's (its table of hyperparameters).

    Args:
        latency_weight (`float`, *optional*, defaults to 0.2): lambda, the weight of the latency loss (lambda_F).
        backward_latency_weight (`float`, *optional*): lambda_B, by default the same.
        dual_weight (`float`, *optional*, defaults to 1.0): lambda_dual. 0 trains two single paths in one run.
        duality_reduction (`str`, *optional*, defaults to `"batch"`): `"batch"` or `"sentence"`, see `duality_loss`.
        max_tokens (`int`, *optional*, defaults to 16000): Tokens of a batch on its longer side, on each device.
    """

    latency_weight: float = field(default=0.2, metadata={"help": "lambda: weight of the latency loss (lambda_F)."})
    backward_latency_weight: float | None = field(
        default=None, metadata={"help": "lambda_B: the backward direction's, by default the same."}
    )
    dual_weight: float = field(default=1.0, metadata={"help": "lambda_dual: weight of the duality loss."})
    variance_weight: float = field(default=0.0, metadata={"help": "Weight of MMA's variance over heads."})
    duality_reduction: str = field(
        default="batch", metadata={"help": "`batch` (one norm) or `sentence` (a sum of norms)."}
    )
    segment: bool = field(default=True, metadata={"help": "False: the ablation without the segment step."})
    forward_duality: bool = field(default=True, metadata={"help": "False: the ablation without Omega_F."})
    backward_duality: bool = field(default=True, metadata={"help": "False: the ablation without Omega_B."})
    multipath_k: int | None = field(
        default=None, metadata={"help": "Wait-k: draw k from 1 to this for every batch (multi-path training)."}
    )
    max_tokens: int = field(default=16000, metadata={"help": "Tokens of a batch on its longer side, on each device."})
    warmup_init_lr: float = field(default=1e-7, metadata={"help": "Learning rate at the first update."})
    average_checkpoints: int = field(default=0, metadata={"help": "Average the last so many checkpoints at the end."})
    decode_batch_size: int = field(default=64, metadata={"help": "Sentences that evaluation decodes at once."})

    label_smoothing_factor: float = field(default=0.1, metadata={"help": "Label smoothing."})
    learning_rate: float = field(default=5e-4, metadata={"help": "Peak learning rate."})
    lr_scheduler_type: str = field(default="inverse_sqrt", metadata={"help": "Schedule of the learning rate."})
    warmup_steps: float = field(default=4000, metadata={"help": "Updates until the peak learning rate."})
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's second beta."})
    weight_decay: float = field(default=1e-4, metadata={"help": "Weight decay."})
    max_grad_norm: float = field(default=0.0, metadata={"help": "Clip gradients at this norm; 0 for no clipping."})
    report_to: None | str | list[str] = field(
        default="none", metadata={"help": "Where to log: tensorboard, wandb, none."}
    )

    def __post_init__(self):
        super().__post_init__()
        if self.duality_reduction not in ("batch", "sentence"):
            raise ValueError(f"`duality_reduction` is batch or sentence, not {self.duality_reduction!r}.")
        for name in ("latency_weight", "dual_weight", "variance_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` is a weight and cannot be negative.")
