"""A path that decides: what is trained beside the expected path, and along which path."""

import pytest
import torch
from conftest import dual_model, random_batch, single_model
from test_trainer import trainer, weights

from hf_dualpath import Dials, direction_loss, dual_path_loss
from hf_dualpath.paths.duality import duality_loss
from hf_dualpath.paths.latency import row_variance


def lively(make, **settings):
    """A model whose heads stop in many places."""
    model = make(**settings)
    for name, parameter in model.named_parameters():
        if "policy" in name and parameter.dim() > 1:
            parameter.data.mul_(4.0)
    return model


@pytest.fixture
def batch():
    (x, mask), (y, _) = random_batch([9, 4, 7]), random_batch([6, 8, 3])
    return x, mask, y.masked_fill(y == 0, -100)


@pytest.mark.parametrize("policy", ["shared_path", "mma"])
@pytest.mark.parametrize("dials", [Dials(), Dials(write_threshold=0.2), Dials(write_threshold=0.9, max_lag=2)])
def test_hard_cross_entropy_is_that_of_the_hard_path(batch, policy, dials):
    """In training, noise and all: torch's cross-entropy of what decoding would attend to."""
    x, mask, y = batch
    model = lively(single_model, policy=policy, noise_std=1.5).train()
    loss = direction_loss(
        model(x, mask, labels=y, path="both", dials=dials), mask, y, 0, label_smoothing=0.0, hard_weight=1.0
    )
    logits = model.eval()(x, mask, labels=y, path="hard", dials=dials).logits
    theirs = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
    torch.testing.assert_close(loss.hard_cross_entropy, theirs)
    torch.testing.assert_close(loss.total, loss.cross_entropy + theirs)


def test_hard_cross_entropy_teaches_all_but_the_policy(batch):
    x, mask, y = batch
    model = single_model()
    outputs = model(x, mask, labels=y, path="both")
    direction_loss(outputs, mask, y, 0, hard_weight=1.0).hard_cross_entropy.backward()
    for name, parameter in model.named_parameters():
        reached = parameter.grad is not None and bool(parameter.grad.any())
        # The gradient of a key's bias is nought whatever the path: softmax does not see it.
        assert reached != (".policy." in name) or name.endswith("k_proj.bias"), name


def test_both_paths_share_one_encoder_pass(batch):
    x, mask, y = batch
    model, passes = dual_model(noise_std=0.0), []
    for direction in model.children():
        direction.get_encoder().register_forward_hook(lambda *_: passes.append(1))
    outputs = model(*batch, path="both")
    assert len(passes) == 2, "one for each direction"
    for path in ("expected", "hard"):
        alone = model(x, mask, y, path=path)
        for name in ("forward_output", "backward_output"):
            both = outputs[name] if path == "expected" else outputs[name].hard_output
            torch.testing.assert_close(both.logits, alone[name].logits)
            torch.testing.assert_close(both.alphas, alone[name].alphas)


def test_dual_loss_adds_the_new_parts(batch):
    outputs = lively(dual_model)(*batch, path="both")
    plain = dual_path_loss(outputs, *batch, latency_weight=0.3)
    loss = dual_path_loss(outputs, *batch, latency_weight=0.3, hard_weight=0.5, row_variance_weight=0.25)
    hard = loss.forward_hard_cross_entropy + loss.backward_hard_cross_entropy
    spread = loss.forward_row_variance + loss.backward_row_variance
    torch.testing.assert_close(loss.total, plain.total + 0.5 * hard + 0.25 * spread)
    assert hard > 0 and spread > 0 and plain.forward_hard_cross_entropy == plain.forward_row_variance == 0


def test_row_variance_is_the_formula(batch):
    """`sum_j j^2 alpha - (sum_j j alpha)^2` in float64, over real rows, as a mean over heads."""
    x, mask, y = batch
    outputs = lively(single_model)(x, mask, labels=y, path="expected")
    loss = direction_loss(outputs, mask, y, 0, row_variance_weight=1.0)
    (alpha,) = outputs.alphas
    expected = 0.0
    for sentence, row in (y != -100).nonzero().tolist():
        for head in alpha[sentence, :, row].double():
            first = sum(j * a for j, a in enumerate(head.tolist(), 1))
            expected += (sum(j * j * a for j, a in enumerate(head.tolist(), 1)) - first**2) / alpha.shape[1]
    assert loss.row_variance.item() == pytest.approx(expected, rel=1e-5)


def test_row_variance_of_one_decision_is_nought():
    assert not row_variance(torch.eye(400)).any()
    assert row_variance(torch.full((4,), 0.25)).item() == pytest.approx(1.25), "a fair die with four sides"


def test_duality_with_the_hard_path(batch):
    """The other direction is guided by the stops of decoding, at the usual threshold whatever this batch's dial."""
    x, mask, y = batch
    model = lively(dual_model, noise_std=0.0)
    outputs = model(*batch, path="both", dials=Dials(write_threshold=0.05))
    loss = dual_path_loss(outputs, *batch, duality_path="hard", duality_reduction="sentence")
    hard = model(*batch, path="hard")
    alphas = [*outputs.forward_output.alphas, *outputs.backward_output.alphas]
    guides = (*hard.forward_output.alphas, *hard.backward_output.alphas)
    expected = duality_loss(*alphas, mask, y != -100, "sentence", guides=guides)
    torch.testing.assert_close((loss.forward_duality, loss.backward_duality), expected)
    assert loss.forward_duality != dual_path_loss(outputs, *batch, duality_reduction="sentence").forward_duality


SETTINGS = {
    "hard_weight": 1.0,
    "hard_threshold_low": 0.1,
    "hard_threshold_high": 0.9,
    "hard_max_lag": 4,
    "row_variance_weight": 0.1,
    "duality_path": "hard",
}


def test_trained_dial_resumes_exactly(tmp_path):
    def run(folder, resume=None, **options):
        drawn, made = [], trainer(tmp_path / folder, **SETTINGS, **options)
        draw = made.draw_dials
        made.draw_dials = lambda: drawn.append(draw()) or drawn[-1]
        made.train(resume_from_checkpoint=resume)
        return drawn, made

    whole, made = run("whole")
    first, _ = run("cut", max_steps=4)
    torch.manual_seed(99)
    rest, _ = run("cut", resume=True)
    assert first + rest == whole and len({dials.write_threshold for dials in whole}) == 6
    assert all(0.1 <= dials.write_threshold <= 0.9 for dials in whole)
    one, two = (weights(tmp_path / name / "checkpoint-6") for name in ("whole", "cut"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    entry = next(entry for entry in made.state.log_history if "loss" in entry)
    assert entry["forward_hard_cross_entropy"] == pytest.approx(entry["forward_cross_entropy"], rel=0.3)
    assert entry["backward_row_variance"] > 0


def test_draws_lie_in_their_ranges(tmp_path):
    made = trainer(tmp_path, **SETTINGS)
    drawn = [made.draw_dials() for _ in range(400)]
    lags = [dials.max_lag for dials in drawn if dials.max_lag is not None]
    assert set(lags) == {1, 2, 3, 4} and 60 < len(lags) < 140, "a quarter of the batches"
    assert min(d.write_threshold for d in drawn) < 0.15 and max(d.write_threshold for d in drawn) > 0.85


@pytest.mark.parametrize("policy", ["offline", "wait_k", "mma"])
def test_other_systems_train_with_these_settings(tmp_path, policy):
    """A fixed policy has one path, and nothing is added."""
    made = trainer(tmp_path, single_model(policy=policy), max_steps=2, **SETTINGS)
    made.train()
    entry = next(entry for entry in made.state.log_history if "loss" in entry)
    assert bool(entry["hard_cross_entropy"]) == bool(entry["row_variance"]) == (policy == "mma")


@pytest.mark.parametrize(
    "wrong",
    [
        {"hard_weight": -1.0},
        {"hard_threshold_low": 0.6, "hard_threshold_high": 0.4},
        {"hard_threshold_high": 1.5},
        {"hard_max_lag": 0},
        {"duality_path": "both"},
        {"row_variance_weight": -0.1},
    ],
)
def test_settings_that_make_no_sense(tmp_path, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        trainer(tmp_path, **wrong)
