import pytest
import torch
from conftest import dual_model, random_batch, single_model

from hf_dualpath import direction_loss, dual_path_loss, label_smoothed_cross_entropy


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_cross_entropy_equals_torch(dtype):
    """torch spreads eps over all V classes, the paper over the V - 1 others: eps' = eps V / (V - 1)."""
    vocabulary, smoothing = 11, 0.1
    logits = torch.randn(2, 5, vocabulary, dtype=dtype).requires_grad_()
    labels = torch.randint(0, vocabulary, (2, 5))
    labels[1, 3:] = -100
    ours = label_smoothed_cross_entropy(logits, labels, smoothing)
    (gradient,) = torch.autograd.grad(ours, logits)
    theirs = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).double(),
        labels.flatten(),
        reduction="sum",
        label_smoothing=smoothing * vocabulary / (vocabulary - 1),
    )
    (expected,) = torch.autograd.grad(theirs, logits)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    assert ours.item() == pytest.approx(theirs.item(), rel=tolerance)
    torch.testing.assert_close(gradient, expected, atol=tolerance, rtol=0)


def test_cross_entropy_gradcheck():
    logits = torch.randn(1, 3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: label_smoothed_cross_entropy(x, torch.tensor([[1, -100, 6]])), logits)


@pytest.fixture
def batch():
    (x, mask), (y, _) = random_batch([7, 4, 6]), random_batch([5, 6, 3])
    return x, mask, y.masked_fill(y == 0, -100)


def run(batch, **settings):
    torch.manual_seed(1)
    model = dual_model(noise_std=0.0)
    return dual_path_loss(model(*batch), *batch, latency_weight=0.3, **settings)


def test_total_is_the_sum_of_its_parts(batch):
    loss = run(batch, backward_latency_weight=0.7, dual_weight=2.0)
    entropies = loss.forward_cross_entropy + loss.backward_cross_entropy
    latencies = 0.3 * loss.forward_latency + 0.7 * loss.backward_latency
    torch.testing.assert_close(loss.total, entropies + latencies + 2 * (loss.forward_duality + loss.backward_duality))
    assert loss.target_tokens == batch[1].sum() + (batch[2] != -100).sum()


def test_ablations(batch):
    full = run(batch)
    no_omega_b, no_omega_f = run(batch, backward_duality=False), run(batch, forward_duality=False)
    neither = run(batch, forward_duality=False, backward_duality=False)
    torch.testing.assert_close(full.total - no_omega_b.total, full.backward_duality)
    torch.testing.assert_close(full.total - no_omega_f.total, full.forward_duality)
    torch.testing.assert_close(neither.total, run(batch, dual_weight=0.0).total)
    assert run(batch, segment=False).forward_duality != full.forward_duality


def test_padding_labels_count_as_ignored(batch):
    x, mask, y = batch
    padded = run((x, mask, y.masked_fill(y == -100, 0)))
    torch.testing.assert_close(padded.total, run(batch).total)


@pytest.mark.parametrize("policy", ["offline", "wait_k", "mma"])
def test_other_policies_have_no_duality(batch, policy):
    model = dual_model(policy=policy)
    with pytest.raises(ValueError, match="dual_weight=0"):
        dual_path_loss(model(*batch), *batch)
    loss = dual_path_loss(model(*batch), *batch, dual_weight=0.0)
    assert loss.total == loss.forward_cross_entropy + loss.backward_cross_entropy


def test_one_head_has_no_variance(batch):
    x, mask, y = batch
    output = single_model(encoder_attention_heads=1, decoder_attention_heads=1)(x, mask, labels=y)
    loss = direction_loss(output, mask, y, 0, latency_weight=0.1, variance_weight=0.1)
    assert loss.variance == 0 and loss.total.isfinite()


def test_variance_without_a_weight_is_not_computed(batch):
    x, mask, y = batch
    output = single_model()(x, mask, labels=y, path="expected")
    assert direction_loss(output, mask, y, 0, variance_weight=0.1).variance > 0
    assert direction_loss(output, mask, y, 0).variance == 0


def test_offline_lags_by_its_whole_source(batch):
    """Every token after all J source tokens: DAL is J by definition, and the weight moves no gradient."""
    x, mask, y = batch
    loss = direction_loss(single_model(policy="offline")(x, mask, labels=y), mask, y, 0, latency_weight=0.1)
    assert loss.latency.item() == pytest.approx(mask.sum().item()) and not loss.latency.requires_grad


@pytest.mark.parametrize("reduction", ["batch", "sentence"])
def test_loss_and_backward_run_on_meta(batch, reduction):
    model = dual_model().to("meta")
    model.tie_weights()  # moving to meta makes new parameters
    x, mask, y = (tensor.to("meta") for tensor in batch)
    loss = dual_path_loss(model(x, mask, y), x, mask, y, latency_weight=0.1, duality_reduction=reduction)
    loss.total.backward()
    gradients = [p.grad for p in model.parameters()]
    assert all(gradient is not None and gradient.device.type == "meta" for gradient in gradients)


@pytest.mark.parametrize("policy", ["wait_k", "shared_path"])
def test_padding_is_no_token(policy):
    """Labels padded with the padding token, or with -100, or not at all: the same loss, the same number of tokens."""
    torch.manual_seed(2)
    model = single_model(policy=policy, noise_std=0.0)
    x, mask = random_batch([6, 6])
    y, _ = random_batch([4, 4])
    losses = []
    for padding in ([], [0, 0], [-100, -100]):
        labels = torch.cat([y, torch.tensor([padding, padding], dtype=torch.long)], 1)
        outputs = model(x, mask, labels=labels, path="expected")
        losses.append(direction_loss(outputs, mask, labels, pad_token_id=0, latency_weight=0.3))
    for loss in losses:
        assert int(loss.target_tokens) == 8
        for name in ("cross_entropy", "latency", "total"):
            torch.testing.assert_close(getattr(loss, name), getattr(losses[0], name))


@pytest.mark.parametrize("wrong", [-5, 40])
def test_labels_that_are_no_tokens(wrong):
    model, (x, mask) = single_model(), random_batch([6])
    outputs = model(x, mask, labels=x, path="expected")
    with pytest.raises(ValueError, match=f"A label is {wrong}"):
        direction_loss(outputs, mask, torch.where(x == 1, wrong, x), pad_token_id=0)
