"""`dualpath convert`, `export`, `average`, `push`: checkpoints become others."""

from pathlib import Path

from ..examples import DEFAULT_MODEL


def add_convert(commands):
    parser = commands.add_parser(
        "convert",
        help="start from Marian translators or from fairseq, or become a Marian translator",
        description="Turn checkpoints of other projects into one of ours, or an offline model of ours into Marian's.",
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    marian = kinds.add_parser(
        "marian",
        help="two Marian translators, one for each direction",
        description="Start a dual-path model from two pretrained Marian translators. With --policy offline it "
        "translates exactly as they do; with the others it is a start for `dualpath train --init_from`.",
    )
    marian.add_argument("forward", help="Marian checkpoint of the forward direction: a folder or a Hub id")
    marian.add_argument("backward", help="the same of the backward direction")
    marian.add_argument("--output", type=Path, required=True, help="folder of the new checkpoint")
    marian.add_argument("--policy", default="shared_path", help="offline, wait_k, mma, shared_path (default), ...")
    marian.add_argument("--source-language", default="source", help="for instance de")
    marian.add_argument("--target-language", default="target", help="for instance en")
    to_marian = kinds.add_parser(
        "to-marian",
        help="an offline model of ours as a plain MarianMTModel",
        description="Write one direction of an offline model as a `MarianMTModel`, with the same logits, for anything "
        "that runs Marian. Its tokenizer stays ours (AutoTokenizer loads it).",
    )
    to_marian.add_argument("model", help="an offline checkpoint of ours: a folder or a Hub id")
    to_marian.add_argument("--direction", help="such as de-en; default: the checkpoint's forward direction")
    to_marian.add_argument("--output", type=Path, required=True, help="folder of the new checkpoint")
    fairseq = kinds.add_parser(
        "fairseq",
        help="a fairseq state: Dual-Path, MMA or wait-k",
        description="Turn fairseq's parameters into a checkpoint of ours. `pydoc hf_dualpath.apps.convert_fairseq` "
        "says which fields the configuration needs.",
    )
    fairseq.add_argument("weights", type=Path, help="fairseq's parameters, .safetensors or .pt")
    fairseq.add_argument(
        "--config", type=Path, required=True, help="JSON with embed, ffn, enc_layers, heads, vocab ..."
    )
    fairseq.add_argument("--output", type=Path, required=True, help="folder of the new checkpoint")

    def run(arguments):
        if arguments.kind == "marian":
            from ..convert_marian import run as convert
        elif arguments.kind == "to-marian":
            from ..convert_marian import run_back as convert
        else:
            from ..convert_fairseq import run as convert
        convert(arguments)

    parser.set_defaults(run=run)


def add_export(commands):
    parser = commands.add_parser(
        "export",
        help="write a checkpoint as ONNX graphs",
        description="Write a wait_k or shared_path checkpoint as ONNX graphs, which run without torch and "
        "transformers: with `--backend onnx` in the other commands, or `backend='onnx'` in Python.",
    )
    parser.add_argument("--model", default=str(DEFAULT_MODEL), help="checkpoint: a folder or a Hub id")
    parser.add_argument("--output", required=True, help="folder to write")
    parser.add_argument("--int8", action="store_true", help="quantise the matrices: smaller, faster, nearly as good")
    parser.add_argument("--trust-remote-code", action="store_true", help="let Python files of the checkpoint run")

    def run(arguments):
        try:
            from ...inference.export import export_checkpoint
        except ImportError as error:
            raise ImportError("Exporting needs two packages: pip install 'hf_dualpath[onnx]'.") from error
        differences = export_checkpoint(arguments.model, arguments.output, arguments.int8, arguments.trust_remote_code)
        for direction, difference in differences.items():
            print(f"{direction}: the graphs differ from the model by at most {difference:.2g}.")
        print(f'Wrote {arguments.output}. Try: dualpath translate --backend onnx --model {arguments.output} "..."')

    parser.set_defaults(run=run)


def add_average(commands):
    parser = commands.add_parser(
        "average",
        help="average the weights of checkpoints",
        description="Average checkpoints into a new one: name them, or a run and how many of its last to take.",
    )
    parser.add_argument("checkpoints", nargs="+", help="checkpoint folders, or one run folder with --last")
    parser.add_argument("--last", type=int, help="take the last so many checkpoints of the run")
    parser.add_argument("--half", action="store_true", help="store the weights in half precision: a smaller file")
    parser.add_argument("--output", required=True, help="folder of the new checkpoint")

    def run(arguments):
        from ...inference.checkpoints import average_checkpoints, last_checkpoints

        folders = arguments.checkpoints
        if arguments.last is not None:
            folders = last_checkpoints(folders[0], arguments.last)
        average_checkpoints(folders, arguments.output, arguments.half)
        print(f"Wrote the mean of {len(folders)} checkpoints to {arguments.output}.")

    parser.set_defaults(run=run)


def add_push(commands):
    parser = commands.add_parser(
        "push",
        help="publish a checkpoint on the Hugging Face Hub",
        description="Upload a complete checkpoint. Optimizer states and other checkpoints of a run stay at home.",
    )
    parser.add_argument("folder", help="the checkpoint")
    parser.add_argument("repo_id", help="such as your-name/dualpath-de-en")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    parser.add_argument("--dry-run", action="store_true", help="only list what would go")

    def run(arguments):
        from ...inference.checkpoints import push

        files = push(arguments.folder, arguments.repo_id, arguments.private, arguments.dry_run)
        print(f"{'Would upload' if arguments.dry_run else 'Uploaded'} {len(files)} files to {arguments.repo_id}:")
        for path in files:
            print(f"  {path.relative_to(arguments.folder)}  ({path.stat().st_size / 1e6:.2f} MB)")

    parser.set_defaults(run=run)
