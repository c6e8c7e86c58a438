"""Pictures: quality against latency, and the READ/WRITE path of a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM

from .checkpoints import load_config
from .configuration_dualpath import DualPathConfig
from .corpus import encode_source
from .duality import transpose_path
from .streaming import load_direction


MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":")


def _pyplot():
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: pip install 'hf_dualpath[plot]'.") from error
    matplotlib.use("Agg")
    matplotlib.rcParams["text.parse_math"] = False  # a `$` in a sentence is a `$`
    import matplotlib.pyplot as plt

    return plt


def save_figure(figure, outputs: Sequence[str | Path]):
    for output in outputs:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=150, bbox_inches="tight")
    _pyplot().close(figure)


def quality_latency_curve(rows: Sequence[dict], outputs: Sequence[str | Path], x: str = "AL", y: str = "BLEU"):
    """The paper's main figure: a panel a direction, a line a system, the offline level dashed.

    Systems differ in marker and line style, so that the picture can be read in black and white.
    """
    plt = _pyplot()
    directions = sorted({row["direction"] for row in rows})
    systems = list(dict.fromkeys(row["system"] for row in rows))
    interval = max(row.get("interval") or 0 for row in rows)
    figure, axes = plt.subplots(1, len(directions), figsize=(5.2 * len(directions), 3.9), squeeze=False)
    for axis, direction in zip(axes[0], directions):
        for index, system in enumerate(systems):
            points = [row for row in rows if row["direction"] == direction and row["system"] == system]
            if not points:
                continue
            if all(point.get("offline") for point in points):
                dashes = LINES[1 + len(axis.lines) % 3]
                axis.axhline(points[0][y], color="0.35", linestyle=dashes, linewidth=1, label=system)
                continue
            points.sort(key=lambda row: row[x])
            style = {"marker": MARKERS[index % len(MARKERS)], "linestyle": LINES[index % len(LINES)]}
            axis.plot(
                [p[x] for p in points], [p[y] for p in points], label=system, markersize=5, linewidth=1.4, **style
            )
        low, high = axis.get_ylim()
        missing = max(0, 4 * interval - (high - low)) / 2  # what chance explains should look small
        axis.set_ylim(low - missing, high + missing)
        axis.set_title(direction)
        axis.set_xlabel(f"{x} (tokens)")
        axis.set_ylabel(y)
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8)
    save_figure(figure, outputs)


@dataclass
class PathPicture:
    """One panel: attention of each head over (target, source), and the path through it."""

    title: str
    source: list[str]
    target: list[str]
    weights: torch.Tensor  # head, target, source
    path: torch.Tensor  # head, target: source tokens read


@torch.inference_mode()
def path_pictures(
    model_path: str, text: str, translation: str | None = None, direction: str | None = None
) -> list[PathPicture]:
    """The path of a sentence and, for a dual checkpoint, the transposed path and the backward path over the same pair.

    Without `translation` the model's own is taken.
    """
    model, source_tokenizer, target_tokenizer = load_direction(model_path, direction)
    ids = torch.tensor([encode_source(source_tokenizer, text)])
    if translation is None:
        sequences = model.eval().generate(ids)
    else:
        start = model.config.decoder_start_token_id
        sequences = torch.tensor([[start, *encode_source(target_tokenizer, translation)]])
    labels = sequences[:, 1:]
    source, target = (_pieces(t, i) for t, i in ((source_tokenizer, ids[0]), (target_tokenizer, labels[0])))
    output = model.eval()(ids, decoder_input_ids=sequences[:, :-1], output_attentions=True)
    alpha = _first_layer(output.alpha, output, ids)
    weights = torch.stack(output.cross_attentions)[:, 0].mean(0)
    name = direction or f"{model.config.source_language}-{model.config.target_language}"
    pictures = [PathPicture(f"{name}: path", source, target, weights, alpha[0].argmax(-1) + 1)]

    config = load_config(model_path)
    if isinstance(config, DualPathConfig) and config.forward_config.is_adaptive:
        name = direction or config.forward_direction
        other = config.backward_direction if config.direction_name(name) == "forward" else config.forward_direction
        pictures[0].title = f"{name}: path"
        back = AutoModelForSeq2SeqLM.from_pretrained(model_path).eval().direction(other)
        start = torch.tensor([[back.config.decoder_start_token_id]])
        reverse = back(labels, decoder_input_ids=torch.cat([start, ids[:, :-1]], 1), output_attentions=True)
        gamma = transpose_path(alpha)
        reverse_alpha = _first_layer(reverse.alpha, reverse, labels)
        pictures.append(PathPicture(f"{name}: transposed", target, source, gamma[0], gamma[0].argmax(-1) + 1))
        pictures.append(
            PathPicture(
                f"{other}: path",
                target,
                source,
                torch.stack(reverse.cross_attentions)[:, 0].mean(0),
                reverse_alpha[0].argmax(-1) + 1,
            )
        )
    return pictures


def _first_layer(alpha, output, ids: torch.Tensor) -> torch.Tensor:
    if alpha is None:  # offline: everything is read first
        heads, length = output.cross_attentions[0].shape[1], output.logits.shape[1]
        last = torch.full((1, heads, length), ids.shape[1] - 1)
        return torch.nn.functional.one_hot(last, ids.shape[1]).float()
    return alpha[0] if isinstance(alpha, tuple) else alpha


def _pieces(tokenizer, ids: torch.Tensor) -> list[str]:
    return [token.replace("▁", " ").strip() or "·" for token in tokenizer.convert_ids_to_tokens(ids.tolist())]


def plot_paths(pictures: Sequence[PathPicture], outputs: Sequence[str | Path]):
    """A grid a head: source across, target down, attention shaded; arrows go right for READ and down for WRITE."""
    plt = _pyplot()
    heads = pictures[0].weights.shape[0]
    widths = [0.34 * len(picture.source) + 1.2 for picture in pictures]
    height = 0.3 * max(len(picture.target) for picture in pictures) + 1.3
    figure, axes = plt.subplots(
        heads,
        len(pictures),
        figsize=(sum(widths) + 0.5, heads * height),
        squeeze=False,
        gridspec_kw={"width_ratios": widths},
        layout="constrained",
    )
    for column, picture in enumerate(pictures):
        for head in range(heads):
            axis = axes[head, column]
            axis.imshow(picture.weights[head], cmap="Greys", vmin=0, vmax=1.2, aspect="auto")
            axis.set_xticks(range(len(picture.source)), picture.source, rotation=60, ha="right", fontsize=8)
            axis.set_yticks(range(len(picture.target)), picture.target, fontsize=8)
            axis.set_title(f"{picture.title}, head {head + 1}", fontsize=9)
            x = -0.5
            for y, stop in enumerate(picture.path[head].tolist()):
                if stop - 0.5 > x:
                    _arrow(axis, (x, y - 0.5), (stop - 0.5, y - 0.5), "tab:blue")
                _arrow(axis, (stop - 0.5, y - 0.5), (stop - 0.5, y + 0.5), "tab:red")
                x = stop - 0.5
            axis.set_xlim(-0.6, len(picture.source) - 0.4)
            axis.set_ylim(len(picture.target) - 0.4, -0.6)
    figure.suptitle("READ →  (blue)      WRITE ↓  (red)", fontsize=9)
    save_figure(figure, outputs)


def _arrow(axis, start, end, color: str):
    axis.annotate(
        "", end, start, arrowprops={"arrowstyle": "->", "color": color, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    )


def text_paths(pictures: Sequence[PathPicture]) -> str:
    """The same for a terminal: a row a target token, `█` read by all heads, `░` by some, with the number read."""
    blocks = []
    for picture in pictures:
        width = max(map(len, picture.target))
        lines = [picture.title]
        for row, word in enumerate(picture.target):
            stops = picture.path[:, row]
            cells = "".join(
                "█" if j < stops.min() else "░" if j < stops.max() else "·" for j in range(len(picture.source))
            )
            lines.append(f"{word:>{width}} {cells} {int(stops.max())}")
        lines.append(" " * (width + 1) + " ".join(picture.source))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"
