"""Sources that look like live text, and pairs that teach one direction only."""

import random

import pytest
import torch
from conftest import dual_model, random_batch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from test_trainer import tokenized, trainer

from hf_dualpath import dual_path_loss
from hf_dualpath.errors import DataError
from hf_dualpath.inference.collator import PairCollator
from hf_dualpath.training.live_text import joined, like_live_text, without_punctuation
from hf_dualpath.training.run import prepare_data
from hf_dualpath.training.settings import parse_recipe


@pytest.mark.parametrize(
    "text, words",
    [
        ("„Komm mit!“, rief er.", "Komm mit rief er"),
        ("It's 3.5 degrees, isn't it?", "It's 3.5 degrees isn't it"),
        ("Die E-Mail kam – endlich – um 7:30 Uhr.", "Die E-Mail kam endlich um 7:30 Uhr"),
        ("5 € (oder 10 %)...", "5 € oder 10 %"),
        ("...", "..."),
    ],
)
def test_punctuation_goes_and_words_stay(text, words):
    assert without_punctuation(text) == words


@given(st.text(max_size=40))
def test_letters_and_digits_stay_in_their_order(text):
    bare = without_punctuation(text)
    assert [c for c in bare if c.isalnum()] == [c for c in text if c.isalnum()]
    assert without_punctuation(bare) == bare


PAIRS = [(f"Das ist Satz {n}, Herr Maier!", f"That is sentence {n}, Mr Maier!") for n in range(3000)]


def dataset(pairs=PAIRS) -> Dataset:
    return Dataset.from_dict({"source": [s for s, _ in pairs], "target": [t for _, t in pairs]})


def test_plain_sources_teach_the_direction_that_reads_them():
    found = like_live_text(dataset(), plain_source_share=0.15)
    counts = {(True, True): 0, (True, False): 0, (False, True): 0}
    for row, (source, target) in zip(found, PAIRS):
        forward, backward = row["teaches"]
        counts[forward, backward] += 1
        assert (row["source"] == source) == backward, "who writes German gets it as it was"
        assert (row["target"] == target) == forward
        assert without_punctuation(source).lower() == without_punctuation(row["source"]).lower()
    assert counts[True, False] == pytest.approx(450, abs=60) and counts[False, True] == pytest.approx(450, abs=60)
    kinds = {
        (s == s.lower(), s.endswith("!")) for s, (forward, back) in zip(found["source"], found["teaches"]) if not back
    }
    assert kinds == {(True, True), (False, False), (True, False)}, "lower-cased, without punctuation, and both"


def test_draws_come_from_the_seed():
    one, same, other = (like_live_text(dataset(), 0.2, 0.1, seed=seed)[:] for seed in (1, 1, 2))
    assert one == same and one != other


def test_one_direction_needs_no_mark():
    found = like_live_text(dataset(), 0.3, both_directions=False)
    assert found.column_names == ["source", "target"] and found["target"][:] == [t for _, t in PAIRS]
    changed = sum(a != b for a, (b, _) in zip(found["source"], PAIRS))
    assert changed == pytest.approx(900, abs=90)
    untouched = dataset()
    assert like_live_text(untouched) is untouched


def test_joined_pairs_are_added():
    found = like_live_text(dataset(), joined_share=0.1)
    assert len(found) == 3300 and found["source"][:3000] == [s for s, _ in PAIRS]
    parts = [row["source"].count("Satz") for row in found.select(range(3000, 3300))]
    assert set(parts) == {2, 3}
    for row in found.select(range(3000, 3010)):
        numbers = [[word.strip(",") for word in row[side].split() if word.strip(",").isdigit()] for side in row]
        assert numbers[0] == numbers[1], "both sides in the same order"
    assert like_live_text(dataset(), joined_share=0.1, long_pair_words=3)[:] == dataset()[:], "none of them is short"
    assert len(joined(PAIRS[:9], 100, random.Random(0))) <= 4, "each pair is used once"


@pytest.mark.parametrize("wrong", [{"plain_source_share": 0.6}, {"plain_source_share": -0.1}, {"joined_share": -1.0}])
def test_shares_that_make_no_sense(wrong):
    with pytest.raises(DataError, match=next(iter(wrong))):
        like_live_text(dataset(), **wrong)


TEACHES = torch.tensor([[True, True], [True, False], [False, True]])
SETTINGS = {"latency_weight": 0.3, "variance_weight": 0.2, "row_variance_weight": 0.1, "hard_weight": 0.5}


def test_loss_is_that_of_the_rows_that_teach():
    """Each direction alone, on its own rows of the batch."""
    (x, mask), (y, _) = random_batch([7, 7, 7]), random_batch([5, 5, 5])
    model = dual_model(noise_std=0.0)

    def loss(rows, **options):
        batch = x[rows], mask[rows], y[rows]
        return dual_path_loss(model(*batch, path="both"), *batch, **SETTINGS, **options)

    found, everything = loss([0, 1, 2], teaches=TEACHES), loss([0, 1, 2])
    forward, backward = loss([0, 1]), loss([0, 2])
    for part in ("cross_entropy", "hard_cross_entropy", "latency", "variance", "row_variance"):
        for name, rows in ((f"forward_{part}", forward), (f"backward_{part}", backward)):
            torch.testing.assert_close(getattr(found, name), getattr(rows, name))
    torch.testing.assert_close(found.forward_duality, everything.forward_duality)
    assert found.target_tokens == 2 * 5 + 2 * 7


def test_a_plain_source_teaches_nothing_to_the_other_direction():
    (x, mask), (y, _) = random_batch([6, 4]), random_batch([5, 7])
    model = dual_model(share_encoder_decoder_embeddings=False, tie_word_embeddings=False)
    teaches = torch.tensor([[True, False], [True, False]])
    dual_path_loss(
        model(x, mask, y), x, mask, y, dual_weight=0.0, latency_weight=0.3, teaches=teaches
    ).total.backward()
    assert not any(p.grad.any() for p in model.backward_model.parameters() if p.grad is not None)
    assert any(p.grad.any() for p in model.forward_model.parameters() if p.grad is not None)


def test_trainer_divides_by_the_tokens_that_teach(tmp_path):
    run = trainer(tmp_path, max_steps=2, logging_steps=1)
    marked = [[True, False] if index % 2 else [True, True] for index in range(24)]
    run.train_dataset = tokenized().add_column("teaches", marked)
    batch = next(iter(run.get_train_dataloader()))
    taught = sum(
        (labels != -100).sum() + (mask.sum() if back else 0)
        for labels, mask, (_, back) in zip(batch["labels"], batch["attention_mask"], batch["teaches"])
    )
    assert run._get_num_items_in_batch([batch], torch.device("cpu")) == taught
    assert run.loss(run.outputs_of(run.model, batch), batch).target_tokens == taught
    run.train()
    entropies = [e["backward_cross_entropy"] for e in run.state.log_history if "backward_cross_entropy" in e]
    assert all(2.5 < entropy < 5 for entropy in entropies), "a token that teaches, near log 40"


def test_settings_reach_the_tokens(tmp_path):
    overrides = ["--output_dir", str(tmp_path), "--max_train_pairs", "200", "--use_cpu", "true"]
    shares = ["--plain_source_share", "0.2", "--joined_share", "0.1"]
    tokens = [prepare_data(*parse_recipe("toy", [*overrides, *extra]), None)[2] for extra in ([], shares)]
    assert tokens[0].column_names == ["input_ids", "labels"] and len(tokens[1]) > len(tokens[0])
    batch = PairCollator(0)(list(tokens[1]))
    assert batch["teaches"].shape == (len(tokens[1]), 2) and 0.6 < batch["teaches"].float().mean() < 0.95
