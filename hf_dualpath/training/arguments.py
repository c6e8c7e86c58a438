"""All settings of a training run: which system, which data, and how it is trained."""

from dataclasses import dataclass, field

import torch.distributed
import yaml
from transformers import TrainingArguments

from ..model.policies_dualpath import PATHS, POLICIES


if torch.distributed.is_available():
    # Imported while a process group is open, as DDP does, it keeps the group and its threads alive (pytorch #190489).
    import torch.distributed.nn.functional  # noqa: F401

# A system is a policy and a way to train it. These two share a policy; every other system is called like its policy.
SYSTEMS = {"single_path": "shared_path", "dual_paths": "shared_path"}


def systems() -> list[str]:
    """Names of all systems, those of registered policies included."""
    return [name for name in POLICIES if name not in SYSTEMS.values()] + list(SYSTEMS)


def policy_of(system: str) -> str:
    if system not in systems():
        raise ValueError(f"`system` is one of {', '.join(systems())}, not {system!r}.")
    return SYSTEMS.get(system, system)


@dataclass
class ModelArguments:
    """Which system, and how large."""

    system: str = field(
        default="dual_paths", metadata={"help": "offline, wait_k, mma, single_path, dual_paths, or another policy."}
    )
    directions: str | None = field(
        default=None,
        metadata={"help": "`both` in one run, or `forward`. Default: both for dual_paths, else forward."},
    )
    init_from: str | None = field(
        default=None,
        metadata={"help": "Checkpoint to start from: its sizes, tokenizer and, where names and shapes fit, weights."},
    )
    d_model: int = field(default=512, metadata={"help": "Width."})
    encoder_layers: int = field(default=6, metadata={"help": "Encoder layers."})
    decoder_layers: int = field(default=6, metadata={"help": "Decoder layers."})
    ffn_dim: int = field(default=1024, metadata={"help": "Width of the feed-forward maps."})
    attention_heads: int = field(default=8, metadata={"help": "Attention heads."})
    dropout: float = field(default=0.3, metadata={"help": "Dropout."})
    attention_dropout: float = field(default=0.0, metadata={"help": "Dropout of attention weights."})
    activation_dropout: float = field(default=0.0, metadata={"help": "Dropout inside the feed-forward maps."})
    activation_function: str = field(default="relu", metadata={"help": "Activation of the feed-forward maps."})
    max_position_embeddings: int = field(default=1024, metadata={"help": "Longest sentence in tokens."})
    noise_std: float = field(default=1.5, metadata={"help": "Noise on the selection energies in training."})
    energy_bias: float | None = field(
        default=None,
        metadata={"help": "Initial value of a learned bias on the energies; with -3 a path begins by reading."},
    )
    monotonic_attention: str = field(
        default="infinite_lookback", metadata={"help": "How a head attends: infinite_lookback or hard_aligned."}
    )
    policy_settings: str | None = field(
        default=None, metadata={"help": "Settings of another policy, such as {start: 4, turn: 2} for static_rw."}
    )
    wait_k: int = field(default=3, metadata={"help": "k of the wait-k policy."})
    causal_encoder: bool | None = field(
        default=None, metadata={"help": "For offline: a causal encoder as the others."}
    )

    def __post_init__(self):
        policy_of(self.system)
        if isinstance(self.policy_settings, str):  # from the command line
            try:
                self.policy_settings = yaml.safe_load(self.policy_settings)
            except yaml.YAMLError as error:
                raise ValueError(f"`policy_settings` is no YAML: {self.policy_settings!r}.") from error
        if not isinstance(self.policy_settings, (dict, type(None))):
            raise ValueError(f"`policy_settings` looks like {{start: 4, turn: 2}}, not {self.policy_settings!r}.")
        if self.directions is None:
            self.directions = "both" if self.system == "dual_paths" else "forward"
        if self.directions not in ("both", "forward"):
            raise ValueError(f"`directions` is both or forward, not {self.directions!r}.")
        if self.system == "dual_paths" and self.directions != "both":
            raise ValueError("Dual paths are two directions trained together: leave `directions` at both.")


def check_counts(arguments, *names: str):
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"`{name}` is a number of at least 1, not {value}.")


@dataclass
class DataArguments:
    """Where sentence pairs come from and how they are tokenized.

    Each split is either two text files (`train_source`, `train_target`), or one file with both sides (`train_file`:
    .tsv, .csv, .jsonl or .parquet), or all splits come from one `dataset`. Text files may end in .gz.
    """

    source_language: str = field(default="source", metadata={"help": "Language of the source side, for instance de."})
    target_language: str = field(default="target", metadata={"help": "Language of the target side, for instance en."})
    data_dir: str | None = field(default=None, metadata={"help": "Folder that the file names below are relative to."})
    train_source: str | None = field(default=None, metadata={"help": "Training text, source side, a sentence a line."})
    train_target: str | None = field(default=None, metadata={"help": "Training text, target side."})
    train_file: str | None = field(
        default=None, metadata={"help": "Training pairs in one .tsv, .csv, .jsonl or .parquet file."}
    )
    validation_source: str | None = field(default=None, metadata={"help": "Validation text, source side."})
    validation_target: str | None = field(default=None, metadata={"help": "Validation text, target side."})
    validation_file: str | None = field(default=None, metadata={"help": "Validation pairs in one file."})
    test_source: str | None = field(default=None, metadata={"help": "Test text, source side."})
    test_target: str | None = field(default=None, metadata={"help": "Test text, target side."})
    test_file: str | None = field(default=None, metadata={"help": "Test pairs in one file."})
    dataset: str | None = field(
        default=None, metadata={"help": "Name of a dataset on the Hub, or a folder saved by `datasets`, or `toy`."}
    )
    streaming: bool = field(
        default=False,
        metadata={"help": "Read the training pairs of `dataset` as they are needed: for more than fits the disk."},
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of that dataset."})
    source_column: str | None = field(
        default=None,
        metadata={
            "help": "Column of the source, by default called like its language. Where a .tsv or .csv file has no line "
            "of names it is a number: `--source_column 0 --target_column 1`."
        },
    )
    target_column: str | None = field(default=None, metadata={"help": "Column of the target, in the same way."})
    skip_empty: bool = field(
        default=False, metadata={"help": "Drop pairs with an empty side instead of refusing them."}
    )
    max_train_pairs: int | None = field(default=None, metadata={"help": "Use only the first so many training pairs."})
    max_validation_pairs: int | None = field(
        default=None, metadata={"help": "Use only the first so many validation pairs."}
    )
    long_pair_words: int = field(
        default=9, metadata={"help": "A training pair is long when both sides have at least so many words."}
    )
    long_pair_repeats: int = field(
        default=1, metadata={"help": "An epoch shows each long training pair so often: streams are made of long ones."}
    )
    plain_source_share: float = field(
        default=0.0,
        metadata={
            "help": "Make so many of the training sources plain, as live text is: lower-cased, without punctuation "
            "or both. Targets stay, so with two directions such a pair teaches one."
        },
    )
    joined_share: float = field(
        default=0.0, metadata={"help": "Add two or three short training pairs in a row: so many for each pair."}
    )
    max_length: int = field(default=256, metadata={"help": "Leave out training pairs with more tokens on a side."})
    max_length_ratio: float = field(
        default=4.0, metadata={"help": "Leave out training pairs whose longer side has so many times the tokens."}
    )
    tokenizer: str = field(
        default="bpe", metadata={"help": "`bpe` (joint), `word` (one vocabulary a language), or a folder or Hub id."}
    )
    vocab_size: int = field(default=8000, metadata={"help": "Size of the joint BPE vocabulary."})
    min_frequency: int = field(default=5, metadata={"help": "A word vocabulary holds the words seen so often."})
    preprocessing_workers: int = field(default=1, metadata={"help": "Processes that tokenize."})
    license: str = field(default="unknown", metadata={"help": "Licence of the weights, for the model card."})
    data_description: str | None = field(default=None, metadata={"help": "What the data is, for the model card."})

    def __post_init__(self):
        check_counts(self, "vocab_size", "min_frequency", "max_train_pairs", "max_validation_pairs", "max_length")


@dataclass
class DualPathTrainingArguments(TrainingArguments):
    r"""
    `TrainingArguments` with the settings of the joint loss. Defaults are the paper's (its table of hyperparameters).

    Args:
        latency_weight (`float`, *optional*, defaults to 0.2): lambda, the weight of the latency loss (lambda_F).
        backward_latency_weight (`float`, *optional*): lambda_B, by default the same.
        dual_weight (`float`, *optional*, defaults to 1.0): lambda_dual. 0 trains two single paths in one run.
        duality_reduction (`str`, *optional*, defaults to `"batch"`): `"batch"` or `"sentence"`, see `duality_loss`.
        hard_weight (`float`, *optional*, defaults to 0.0):
            Beyond the paper: weight of the cross-entropy along the hard path, the one that decoding takes.
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
    hard_weight: float = field(
        default=0.0, metadata={"help": "Weight of the cross-entropy along the hard path, the one that decoding takes."}
    )
    hard_threshold_low: float = field(
        default=0.5, metadata={"help": "That path's `write_threshold` is drawn for every batch, from here ..."}
    )
    hard_threshold_high: float = field(default=0.5, metadata={"help": "... to here, so that the dial is trained."})
    hard_max_lag: int | None = field(
        default=None,
        metadata={"help": "In a quarter of the batches that path also has a `max_lag`, drawn from 1 to this."},
    )
    row_variance_weight: float = field(
        default=0.0, metadata={"help": "Weight of the variance of each row of alpha: sharp rows decide."}
    )
    duality_path: str = field(
        default="expected", metadata={"help": "Which path guides the other direction: `expected` or `hard`."}
    )
    max_tokens: int = field(default=16000, metadata={"help": "Tokens of a batch on its longer side, on each device."})
    half_products: bool = field(
        default=False,
        metadata={
            "help": "Multiply matrices in bfloat16 and do all else in float32: 1.5 times as fast on "
            "CPUs that have it. On GPUs use `bf16`."
        },
    )
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
        try:
            super().__post_init__()
        except OverflowError as error:  # the library's word for an infinite number of steps
            raise ValueError(f"A number of steps is finite: {error}.") from error
        check_counts(self, "gradient_accumulation_steps", "multipath_k", "decode_batch_size", "max_tokens")
        if not 0 <= self.label_smoothing_factor < 1:
            raise ValueError(f"`label_smoothing_factor` lies in [0, 1), not at {self.label_smoothing_factor}.")
        if self.duality_reduction not in ("batch", "sentence"):
            raise ValueError(f"`duality_reduction` is batch or sentence, not {self.duality_reduction!r}.")
        if self.duality_path not in PATHS:
            raise ValueError(f"`duality_path` is {' or '.join(PATHS)}, not {self.duality_path!r}.")
        if not self.learning_rate > 0:
            raise ValueError(f"`learning_rate` is a number above 0, not {self.learning_rate}.")
        for name in ("latency_weight", "dual_weight", "variance_weight", "hard_weight", "row_variance_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` is a weight and cannot be negative.")
        if not 0 < self.hard_threshold_low <= self.hard_threshold_high <= 1:
            raise ValueError("`hard_threshold_low` and `hard_threshold_high` are a range within (0, 1].")
        if self.hard_max_lag is not None and self.hard_max_lag < 1:
            raise ValueError(f"`hard_max_lag` is a number of source tokens, at least 1, not {self.hard_max_lag}.")
