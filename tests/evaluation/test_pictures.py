import numpy as np
import pytest
import torch
from conftest import POLICIES, fails, run, save_model, single_model

from hf_dualpath.evaluation.captions_picture import animate_captions, wrapped
from hf_dualpath.evaluation.pictures import path_pictures, plot_paths, text_paths
from hf_dualpath.inference.batches import encode_source
from hf_dualpath.inference.checkpoints import load_direction
from hf_dualpath.inference.tokenization import save_tokenizers
from hf_dualpath.toy import generate_pairs


@pytest.fixture(scope="module")
def pairs():
    return generate_pairs(30, seed=5, max_words=8, every=3)


@pytest.fixture(scope="module")
def checkpoints(pairs, tmp_path_factory):
    return {policy: save_model(tmp_path_factory.mktemp(policy), pairs, policy=policy) for policy in POLICIES}


@pytest.fixture(scope="module")
def checkpoint(checkpoints):
    return checkpoints["shared_path"]


def taken(checkpoint: str, text: str, **dials) -> list[int]:
    """The path that decoding takes."""
    model, tokenizer, _ = load_direction(checkpoint)
    output = model.generate(torch.tensor([encode_source(tokenizer, text)]), return_dict_in_generate=True, **dials)
    return output.path[0].tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_picture_shows_the_path_that_is_taken(checkpoints, pairs, policy):
    [[picture]] = path_pictures(checkpoints[policy], pairs[0].source)
    everything = [len(picture.source)] * len(picture.target)
    assert picture.path == (everything if policy == "offline" else taken(checkpoints[policy], pairs[0].source))
    assert picture.weights.shape == (len(picture.target), len(picture.source))


@pytest.mark.parametrize("dials", [{"write_threshold": 0.05}, {"write_threshold": 1.0}, {"max_lag": 1}])
def test_dials_change_the_picture(checkpoint, pairs, dials):
    [[picture]] = path_pictures(checkpoint, pairs[0].source, **dials)
    assert picture.path == taken(checkpoint, pairs[0].source, **dials)


def test_the_threshold_of_the_command_changes_the_picture(checkpoint, pairs, capsys):
    given = ["plot-path", "--model", checkpoint, pairs[0].source, "--translation", pairs[0].target]
    early, late = (run(capsys, *given, "--write-threshold", value) for value in ("0.05", "1"))
    assert early.count("█") < late.count("█")


@pytest.mark.parametrize("policy", ["shared_path", "mma"])
def test_a_token_waits_for_the_slowest_head(checkpoints, pairs, policy):
    [[picture]] = path_pictures(checkpoints[policy], pairs[0].source)
    heads = path_pictures(checkpoints[policy], pairs[0].source, heads=True)
    model, *_ = load_direction(checkpoints[policy])
    layers = model.config.decoder_layers if model.config.policy_class.decides_in_each_layer else 1
    assert len(heads) == layers * model.config.decoder_attention_heads and all(len(row) == 1 for row in heads)
    assert [max(stops) for stops in zip(*(row[0].path for row in heads))] == picture.path


def test_dual_panels(checkpoint, pairs):
    [[forward, transposed, backward]] = path_pictures(checkpoint, pairs[0].source, pairs[0].target, dual=True)
    assert backward.title == "en-de" and (transposed.source, transposed.target) == (forward.target, forward.source)
    assert (backward.source, backward.target) == (forward.target, forward.source)
    # In the transposed path a source token writes no earlier than the target tokens that needed it.
    needs = [
        [row for row, stop in enumerate(forward.path) if stop <= token + 1] for token in range(len(forward.source))
    ]
    assert all(stop > max(rows, default=-1) for stop, rows in zip(transposed.path, needs))
    rows = path_pictures(checkpoint, pairs[0].source, heads=True, dual=True)
    assert {len(row) for row in rows} == {3} and text_paths(rows).count("transposed") == len(rows)


def panels(svg) -> int:
    return svg.read_text().count('<g id="axes_')


def test_plot_path_draws_one_panel_by_default(checkpoint, tmp_path, capsys):
    given = ["plot-path", "--model", checkpoint, "--translation", "Đây là $một^$ câu.", "Größe übt süß", "--output"]
    for number, (flags, expected) in enumerate(
        {(): 1, ("--heads",): 4, ("--dual",): 3, ("--heads", "--dual"): 12}.items()
    ):
        output = tmp_path / f"{number}.svg"
        run(capsys, *given, str(output), *flags)
        assert panels(output) == expected
    run(capsys, *given, str(tmp_path / "path.png"), str(tmp_path / "path.txt"))
    assert (tmp_path / "path.png").stat().st_size > 10_000 and "█" in (tmp_path / "path.txt").read_text()


def test_mistakes_get_a_sentence(checkpoint, checkpoints, pairs, tmp_path, capsys):
    given = ["plot-path", "--model", checkpoint]
    assert "none of" in fails(capsys, *given, "Hund", "--output", "x.gif")
    assert "empty" in fails(capsys, *given, " ")
    assert "de-en and en-de, not de-fr" in fails(capsys, *given, "Hund", "--direction", "de-fr", "--dual")
    fixed = ["plot-path", "--model", checkpoints["wait_k"], "Hund", "--translation", "dog", "--write-threshold", "0.3"]
    assert "does nothing for the wait_k policy" in fails(capsys, *fixed)
    _, tokenizer, _ = load_direction(checkpoint)
    single_model(vocab_size=len(tokenizer), source_language="de", target_language="en").save_pretrained(tmp_path)
    save_tokenizers(tmp_path, tokenizer, tokenizer)
    assert "no other direction" in fails(capsys, "plot-path", "--model", str(tmp_path), "Hund", "--dual")


def test_every_picture_draws_the_same_steps(tmp_path, pairs, checkpoint):
    """A blue stroke for each source token read and a red one for each target token written."""
    rows = path_pictures(checkpoint, pairs[0].source)
    plot_paths(rows, [tmp_path / "path.svg"])
    drawn = (tmp_path / "path.svg").read_text()
    [[picture]] = rows
    assert drawn.count("stroke: #2563eb") == picture.path[-1] and drawn.count("stroke: #dc2626") == len(picture.path)


def test_captions_are_a_film_of_what_was_there_when(tmp_path):
    """One frame a source word, in the time that it takes to say it; words appear on their own side when they come."""
    from PIL import Image

    source, target = "Guten Tag, meine Damen und Herren.".split(), "Ladies and gentlemen, good day.".split()
    animate_captions(source, target, [4, 5, 6, 6, 6], tmp_path / "talk.gif", words_per_minute=150)
    film = Image.open(tmp_path / "talk.gif")
    ink, seconds = [], []
    for frame in range(film.n_frames):
        film.seek(frame)
        seconds.append(film.info["duration"] / 1000)
        pixels = np.asarray(film.convert("L")) < 200
        ink.append([int(pixels[:, : pixels.shape[1] // 2].sum()), int(pixels[:, pixels.shape[1] // 2 :].sum())])
    assert len(ink) == len(source) and seconds[:-1] == [0.4] * 5 and seconds[-1] > 1
    left, right = zip(*ink)
    assert all(b > a for a, b in zip(left, left[1:])) and right[:3] == (0, 0, 0) and 0 < right[3] < right[4] < right[5]


def test_lines_of_captions_fit():
    words = "ein zwei drei vierundzwanzig".split()
    assert wrapped(words, 8, len) == [[0, 1], [2], [3]]
    assert wrapped([], 8, len) == [[]]
