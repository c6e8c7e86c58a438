"""Pictures: quality against latency, and the READ/WRITE path of a sentence, still or moving."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import one_hot

from ..inference.batches import encode_source
from ..inference.checkpoints import load_config, load_directions
from ..inference.splitting import replace_surrogates
from ..model.configuration_dualpath import DualPathConfig, SiMTConfig
from ..model.policies_dualpath import Dials
from ..paths.duality import transpose_path
from ..paths.staircase import Step, staircase


MARKERS = "osD^vPX*<>"
LINES = ("-", "--", "-.", ":")
READ_COLOR, WRITE_COLOR = "#2563eb", "#dc2626"


def pyplot():
    """matplotlib without a display."""
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
    pyplot().close(figure)


def quality_latency_curve(rows: Sequence[dict], outputs: Sequence[str | Path], x: str = "AL", y: str = "BLEU"):
    """The paper's main figure: a panel a direction, a line a system, the offline level dashed.

    Systems differ in marker and line style, so that the picture can be read in black and white.
    """
    plt = pyplot()
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
    """One panel: the attention over (target, source), and the path through it."""

    title: str
    source: list[str]
    target: list[str]
    weights: torch.Tensor  # target, source
    path: list[int]  # source tokens read before each target token

    def transposed(self, title: str) -> "PathPicture":
        """What this path asks of the other direction."""
        alpha = one_hot(torch.tensor(self.path) - 1, len(self.source))[None, None]
        gamma = transpose_path(alpha)[0, 0]
        return PathPicture(title, self.target, self.source, gamma, (gamma.argmax(-1) + 1).tolist())


@torch.inference_mode()
def path_pictures(
    model_path: str,
    text: str,
    translation: str | None = None,
    direction: str | None = None,
    heads: bool = False,
    dual: bool = False,
    **options,
) -> list[list[PathPicture]]:
    r"""
    The path of a sentence, as rows of panels.

    Args:
        translation (`str`, *optional*): The target sentence; by default the model's own.
        heads (`bool`, *optional*, defaults to `False`):
            One row per head. By default one row with the path that is taken: a token is written when the slowest head
            has stopped.
        dual (`bool`, *optional*, defaults to `False`):
            Three panels in a row: the path, its transpose, and the other direction's path over the same pair.
        options: The dials, and the options of [`load_directions`].
    """
    if not text.strip():
        raise ValueError("There is no sentence to draw: the text is empty.")
    given = Dials.given_in(options)
    loading = {name: value for name, value in options.items() if name not in given}
    config = load_config(model_path, loading.get("trust_remote_code", False))
    if not isinstance(config, (DualPathConfig, SiMTConfig)) or loading.get("policy") is not None:
        raise ValueError(
            "Only our own models have paths to draw here: see the stream of this one with `dualpath replay`."
        )
    if dual and not isinstance(config, DualPathConfig):
        raise ValueError(f"{model_path} translates {config.direction} only: there is no other direction to draw.")
    directions = load_directions(model_path, None if dual else direction or "forward", **loading)
    name = direction or next(iter(directions))
    if name not in directions:
        raise ValueError(f"{model_path} translates {' and '.join(directions)}, not {name}.")
    model, source_tokenizer, target_tokenizer = directions[name]
    ids = torch.tensor([encode_source(source_tokenizer, text)], device=model.device)
    if translation is None:
        labels = model.eval().generate(ids, **given)[:, 1:]
    else:
        translation = replace_surrogates(translation)
        labels = torch.tensor([encode_source(target_tokenizer, translation)], device=model.device)
    source, target = (_pieces(t, i) for t, i in ((source_tokenizer, ids[0]), (target_tokenizer, labels[0])))
    rows = [[picture] for picture in _paths(name, model, ids, labels, source, target, heads, given)]
    if dual:
        other = next(other for other in directions if other != name)
        back = _paths(other, directions[other][0], labels, ids, target, source, heads, given)
        for row, picture in zip(rows, back):
            row += [row[0].transposed(f"{row[0].title}, transposed"), picture]
    return rows


def _paths(name: str, model, ids, labels, source, target, heads: bool, given: dict) -> list[PathPicture]:
    """The hard path over a sentence pair: of each head of each deciding layer, or of the slowest."""
    dials = Dials.from_config(model.prepare_simultaneous(None, None, **given)[0])
    output = model.eval()(ids, labels=labels, output_attentions=True, path="hard", dials=dials)
    weights = torch.stack(output.cross_attentions)[:, 0].float().cpu()  # layer, head, target, source
    paths = torch.stack(output.alphas)[:, 0].argmax(-1).cpu() + 1  # deciding layer, head, target
    if not heads:
        return [PathPicture(name, source, target, weights.mean((0, 1)), paths.amax((0, 1)).tolist())]
    shared = len(paths) == 1  # one path for all layers
    weights = weights.mean(0, keepdim=True) if shared else weights
    return [
        PathPicture(
            f"{name}{'' if shared else f', layer {layer + 1}'}, head {head + 1}",
            source,
            target,
            weights[layer, head],
            paths[layer, head].tolist(),
        )
        for layer in range(paths.shape[0])
        for head in range(paths.shape[1])
    ]


def _pieces(tokenizer, ids: torch.Tensor) -> list[str]:
    return [token.replace("▁", " ").strip() or "·" for token in tokenizer.convert_ids_to_tokens(ids.tolist())]


def draw_staircase(axis, source: Sequence[str], target: Sequence[str], steps: Sequence[Step]):
    """Steps on a matplotlib axis: source across, target down. Behind each written word lies what was read for it."""
    axis.set_xlim(0, max(len(source), 1))
    axis.set_ylim(max(len(target), 1), 0)
    axis.set_xticks([column + 0.5 for column in range(len(source))], source, rotation=50, ha="left", fontsize=9)
    axis.set_yticks([row + 0.5 for row in range(len(target))], target, fontsize=9)
    axis.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    axis.spines[:].set_color("0.8")
    for step in steps:
        (x, y), color = step.end, READ_COLOR if step.is_read else WRITE_COLOR
        axis.plot([step.read, x], [step.written, y], color=color, linewidth=2, clip_on=False, zorder=3)
        if not step.is_read:
            axis.fill_between([0, x], step.written, y, color=READ_COLOR, alpha=0.14, linewidth=0)


def _size(source: Sequence[str], target: Sequence[str]) -> tuple[float, float]:
    """Width and height in inches."""
    return 0.4 * len(source) + 1.4, 0.32 * len(target) + 1.3


def plot_paths(rows: Sequence[Sequence[PathPicture]], outputs: Sequence[str | Path]):
    """Rows of panels, the attention shaded in grey under each path."""
    plt = pyplot()
    sizes = [_size(picture.source, picture.target) for picture in rows[0]]
    figure, axes = plt.subplots(
        len(rows),
        len(rows[0]),
        figsize=(sum(width for width, _ in sizes), len(rows) * max(height for _, height in sizes)),
        squeeze=False,
        gridspec_kw={"width_ratios": [width for width, _ in sizes]},
        layout="constrained",
    )
    for axis, picture in zip(axes.flat, (picture for row in rows for picture in row)):
        box = (0, len(picture.source), len(picture.target), 0)
        axis.imshow(picture.weights.numpy(), cmap="Greys", vmin=0, vmax=1.2, aspect="auto", extent=box)
        draw_staircase(axis, picture.source, picture.target, staircase(picture.path))
        axis.set_title(picture.title, fontsize=9)
    figure.suptitle("READ → (blue)      WRITE ↓ (red)", fontsize=9)
    save_figure(figure, outputs)


def animate_path(source: Sequence[str], target: Sequence[str], path: Sequence[int], output: Path, seconds: float):
    """A GIF with one frame per READ or WRITE."""
    plt = pyplot()
    from matplotlib.animation import FuncAnimation, PillowWriter

    steps = staircase(path, len(source))
    figure, axis = plt.subplots(figsize=_size(source, target), layout="constrained")

    def draw(frame: int):
        axis.clear()
        draw_staircase(axis, source, target, steps[:frame])
        read, written = steps[frame - 1].end if frame else (0, 0)
        for tick in [*axis.get_xticklabels()[read:], *axis.get_yticklabels()[written:]]:
            tick.set_alpha(0)  # there, so that the frame keeps its size, and unseen

    last = len(steps)
    animation = FuncAnimation(figure, draw, frames=[*range(min(1, last), last), *[last] * 5])
    animation.save(output, writer=PillowWriter(fps=1 / seconds))
    plt.close(figure)


def text_paths(rows: Sequence[Sequence[PathPicture]]) -> str:
    """The same for a terminal: one row per target token, `█` for each source token read, and their number."""
    blocks = []
    for picture in (picture for row in rows for picture in row):
        width = max(map(len, picture.target))
        lines = [picture.title]
        for word, stop in zip(picture.target, picture.path):
            lines.append(f"{word:>{width}} {'█' * stop}{'·' * (len(picture.source) - stop)} {stop}")
        lines.append(" " * (width + 1) + " ".join(picture.source))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"
