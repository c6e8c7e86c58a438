"""Options that several commands share."""

import argparse

from ..examples import DEFAULT_MODEL


SHIPPED = str(DEFAULT_MODEL) if DEFAULT_MODEL.is_dir() else None


def add_model_arguments(
    parser: argparse.ArgumentParser, required: bool = True, directions: str = "the checkpoint's forward direction"
):
    parser.add_argument(
        "--model",
        default=SHIPPED if required else None,
        required=required and SHIPPED is None,
        help="checkpoint: a folder or a Hub id (default: the one that ships, where it does)",
    )
    parser.add_argument("--direction", help=f"such as de-en; default: {directions}")
    add_loading(parser)


def add_loading(parser: argparse.ArgumentParser):
    loading = parser.add_argument_group("loading")
    loading.add_argument("--device", help="such as cpu or cuda:1 (default: the accelerator that is there)")
    loading.add_argument(
        "--backend", choices=("torch", "onnx"), default="torch", help="onnx runs a folder that `dualpath export` wrote"
    )
    loading.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: what the model says")
    loading.add_argument(
        "--trust-remote-code", action="store_true", help="let Python files of the checkpoint run; never done unasked"
    )
    hub = parser.add_argument_group(
        "translators of the Hub (Marian, NLLB, M2M-100, mBART, T5), and our offline models"
    )
    hub.add_argument(
        "--policy",
        help="when to write: wait_k, local_agreement (default for the Hub's) or align_att",
    )
    hub.add_argument("--source-language", help="in the translator's codes, such as deu_Latn for NLLB")
    hub.add_argument("--target-language", help="the same")


HUB_OPTIONS = ("policy", "source_language", "target_language")


LOADING = ("device", "dtype", "trust_remote_code", "backend", *HUB_OPTIONS)


def loading_of(arguments: argparse.Namespace, names: tuple[str, ...] = LOADING) -> dict:
    return {name: getattr(arguments, name) for name in names}


def add_dials(parser: argparse.ArgumentParser):
    dials = parser.add_argument_group("latency dials, none needs retraining")
    dials.add_argument("--write-threshold", type=float, help="in (0, 1], default 0.5; lower writes earlier")
    dials.add_argument("--min-lag", type=int, help="token i is not written before i - 1 + MIN_LAG tokens are read")
    dials.add_argument("--max-lag", type=int, help="token i is written at the latest with i - 1 + MAX_LAG tokens read")
    dials.add_argument("--wait-k", type=int, help="another k for a wait-k model")
    dials.add_argument("--agreement", type=int, help="of local_agreement: hypotheses that must agree (default 2)")
    dials.add_argument("--frontier", type=int, help="of align_att: last source tokens not to look at (default 2)")


def given_dials(arguments: argparse.Namespace) -> dict:
    from ...model.dials_dualpath import Dials

    return Dials.given_in(arguments)


def add_test_set(parser: argparse.ArgumentParser):
    parser.add_argument("--source", required=True, help="test set, source side, a sentence a line (.gz too)")
    parser.add_argument("--target", required=True, help="test set, target side")
    parser.add_argument("--limit", type=int, help="only the first so many sentences")
    parser.add_argument("--batch-size", type=int, default=64, help="sentences decoded at once")
