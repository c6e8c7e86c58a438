"""`dualpath evaluate`, `compare`, `sweep`: figures of test sets."""

import sys
from pathlib import Path

from .options import SHIPPED, add_dials, add_loading, add_model_arguments, add_test_set, given_dials, loading_of


def add_evaluate(commands):
    parser = commands.add_parser(
        "evaluate",
        help="quality, latency and paths of a checkpoint",
        description="Measure a checkpoint on a test set. A dual one is measured in both directions at once, SOURCE "
        "and TARGET being the sides of its forward direction; with --direction they are that direction's.",
    )
    add_model_arguments(parser, directions="both of a dual checkpoint")
    add_dials(parser)
    add_test_set(parser)
    parser.add_argument("--alignments", help="gold alignments, source-target, Pharaoh i-j (or i?j) a line a sentence")
    parser.add_argument(
        "--stream",
        action="store_true",
        help="one live stream after another instead of batches: slower, with computation-aware latency",
    )
    parser.add_argument(
        "--output", default="evaluation", help="folder for report.json, report.md and sentences.*.jsonl"
    )
    parser.add_argument(
        "--long-form",
        action="store_true",
        help="the files are whole speeches with a blank line between them: each is one stream, scored by OmniSTEval",
    )

    def run(arguments):
        from rich.console import Console
        from rich.table import Table

        files = arguments.model, arguments.source, arguments.target
        settings = loading_of(arguments) | given_dials(arguments)
        if arguments.long_form:
            from ...evaluation.long_form import evaluate_long_form

            if arguments.alignments is not None:
                raise ValueError("--alignments belong to sentences: leave them out with --long-form.")
            report = evaluate_long_form(*files, arguments.output, arguments.direction, arguments.limit, **settings)
            written = "the logs that OmniSTEval reads"
        else:
            from ...evaluation.report import evaluate_checkpoint

            report = evaluate_checkpoint(
                *files,
                arguments.direction,
                arguments.alignments,
                arguments.batch_size,
                sys.stderr.isatty(),
                arguments.limit,
                stream=arguments.stream,
                **settings,
            )
            report.save(arguments.output)
            written = "report.json, report.md and the sentences"
        table, rows = Table(title=report.model), report.rows()
        for heading in rows[0]:
            table.add_column(heading)
        for row in rows:
            table.add_row(*row.values())
        console = Console()
        console.print(table)
        console.print(f"Wrote {written} to {arguments.output}.", highlight=False)

    parser.set_defaults(run=run)


def add_compare(commands):
    parser = commands.add_parser(
        "compare",
        help="systems side by side, with significance",
        description="Compare reports of `dualpath evaluate` (or instances.log files of SimulEval): all systems by "
        "latency, and paired bootstrap tests between those of similar latency.",
    )
    parser.add_argument("reports", nargs="+", help="report folders, or SimulEval's instances.log")
    parser.add_argument(
        "--tolerance", type=float, default=0.5, help="word-level AL may differ by so much (default 0.5)"
    )
    parser.add_argument("--samples", type=int, default=1000, help="bootstrap samples")
    parser.add_argument("--output", help="also write the tables to this Markdown file")

    def run(arguments):
        from ...evaluation.comparison import compare_table, contests, load_systems

        systems = [system for report in arguments.reports for system in load_systems(report)]
        table = compare_table(systems, contests(systems, arguments.tolerance, arguments.samples))
        print(table, end="")
        if arguments.output:
            Path(arguments.output).write_text(table, encoding="utf-8")

    parser.set_defaults(run=run)


def add_sweep(commands):
    parser = commands.add_parser(
        "sweep",
        help="quality against latency: tables and the curve",
        description="Measure one or many checkpoints at every value of one dial, into OUTPUT.csv, .md, .png and .svg.",
    )
    shipped = [SHIPPED] if SHIPPED else None
    parser.add_argument(
        "--model",
        nargs="+",
        default=shipped,
        required=shipped is None,
        help="checkpoints (default: the one that ships)",
    )
    parser.add_argument(
        "--label",
        nargs="+",
        help="their names in tables and curves (default: their folders'); the same "
        "name for several makes one line of them",
    )
    parser.add_argument("--direction", help="such as de-en; default: both directions of a dual checkpoint")
    add_loading(parser)
    add_test_set(parser)
    dials = parser.add_mutually_exclusive_group()
    dials.add_argument("--write-threshold", type=float, nargs="+", help="thresholds to try")
    dials.add_argument("--wait-k", type=int, nargs="+", help="values of k to try on wait-k models")
    dials.add_argument("--max-lag", type=int, nargs="+", help="largest lags to try")
    dials.add_argument("--agreement", type=int, nargs="+", help="numbers of agreeing hypotheses to try")
    dials.add_argument("--frontier", type=int, nargs="+", help="frontiers of align_att to try")
    parser.add_argument("--output", default="sweep", help="where to write, without an ending")

    def run(arguments):
        from ...evaluation.comparison import COLUMNS, sweep, sweep_table
        from ...evaluation.pictures import quality_latency_curve
        from ...evaluation.tables import as_csv

        labels = arguments.label or [Path(model).name for model in arguments.model]
        if len(labels) != len(arguments.model):
            raise ValueError(f"There are {len(arguments.model)} models and {len(labels)} labels.")
        settings = [
            {name: value}
            for name in ("write_threshold", "wait_k", "max_lag", "agreement", "frontier")
            for value in getattr(arguments, name) or ()
        ]
        rows = sweep(
            arguments.model,
            labels,
            arguments.source,
            arguments.target,
            settings or [{}],
            arguments.direction,
            arguments.batch_size,
            sys.stderr.isatty(),
            arguments.limit,
            **loading_of(arguments),
        )
        output = Path(arguments.output)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.with_suffix(".csv").write_text(as_csv(rows, COLUMNS), encoding="utf-8")
        output.with_suffix(".md").write_text(sweep_table(rows), encoding="utf-8")
        quality_latency_curve(rows, [output.with_suffix(".png"), output.with_suffix(".svg")])
        print(sweep_table(rows), end="")
        print(f"Wrote {output}.csv, .md, .png and .svg.")

    parser.set_defaults(run=run)
