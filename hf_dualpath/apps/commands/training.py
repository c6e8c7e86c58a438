"""`dualpath train`."""


def add_train(commands):
    parser = commands.add_parser(
        "train",
        help="train a system from a recipe",
        usage="dualpath train [RECIPE] [--key value ...]",
        description="Train from a YAML recipe, a file or the name of one that ships (such as toy). Any setting can be "
        "overridden with --key value. Training data of your own (--train_file, --train_source and --train_target, or "
        "--dataset) take the place of all data that the recipe names.",
    )
    # The recipe is no argument here: it would be mixed up with the value of a setting that only training knows.
    parser.add_argument(
        "--help-settings",
        nargs="?",
        const="ours",
        choices=("ours", "all"),
        help="list our settings; with `all` those of transformers' TrainingArguments too",
    )

    def run(arguments):
        if arguments.help_settings:
            from ...training.settings import show_settings

            show_settings(arguments.help_settings == "all")
        else:
            from ...training.run import main as train

            train(arguments.rest)

    parser.set_defaults(run=run)
