"""Pictures: quality against latency, and the READ/WRITE path of a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..inference.batches import encode_source
from ..inference.checkpoints import load_config, load_directions
from ..model.configuration_dualpath import DualPathConfig
from ..model.policies_dualpath import Dials
from ..paths.duality import transpose_path


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
    model_path: str, text: str, translation: str | None = None, direction: str | None = None, **options
) -> list[PathPicture]:
    """The path of a sentence and, for a dual checkpoint, the transposed path and the backward path over the same pair.

    Without `translation` the model's own is taken. `options` are the dials, and those of [`load_directions`].
    """
    if not text.strip():
        raise ValueError("There is no sentence to draw: the text is empty.")
    given = Dials.given_in(options)
    dials, loading = Dials(**given), {name: value for name, value in options.items() if name not in given}
    config = load_config(model_path, loading.get("trust_remote_code", False))
    name = direction or (config.directions[0] if isinstance(config, DualPathConfig) else config.direction)
    has_other = isinstance(config, DualPathConfig) and config.forward_config.policy_class.is_learned
    directions = load_directions(model_path, None if has_other else direction, **loading)
    if has_other:
        name, other = config.directions if config.is_forward(name) else config.directions[::-1]
    else:
        name = next(iter(directions))
    model, source_tokenizer, target_tokenizer = directions[name]
    ids = torch.tensor([encode_source(source_tokenizer, text)], device=model.device)
    if translation is None:
        labels = model.eval().generate(ids, **given)[:, 1:]
    else:
        labels = torch.tensor([encode_source(target_tokenizer, translation)], device=model.device)
    source, target = (_pieces(t, i) for t, i in ((source_tokenizer, ids[0]), (target_tokenizer, labels[0])))
    alpha, picture = _taken(f"{name}: path", model, ids, labels, source, target, dials)
    if not has_other:
        return [picture]
    gamma = transpose_path(alpha)[0].cpu()
    transposed = PathPicture(f"{name}: transposed", target, source, gamma, gamma.argmax(-1) + 1)
    _, backward = _taken(f"{other}: path", directions[other][0], labels, ids, target, source, dials)
    return [picture, transposed, backward]


def _taken(title: str, model, ids, labels, source, target, dials: Dials) -> tuple[torch.Tensor, PathPicture]:
    """The first deciding layer's hard path over a sentence pair."""
    output = model.eval()(ids, labels=labels, output_attentions=True, path="hard", dials=dials)
    weights = torch.stack(output.cross_attentions)[:, 0].mean(0).cpu()
    alpha = output.alphas[0]
    return alpha, PathPicture(title, source, target, weights, alpha[0].argmax(-1).cpu() + 1)


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
