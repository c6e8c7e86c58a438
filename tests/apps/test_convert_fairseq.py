"""Our numbers against the authors' (see fixtures): Dual-Path in float64 to 1e-9, fairseq's MMA and wait-k to 1e-4."""

import json
import subprocess
import sys

import pytest
import torch
from conftest import FIXTURES, golden
from safetensors.torch import load_file, save_file

from hf_dualpath import DualPathForConditionalGeneration, direction_loss, dual_path_loss, transpose_path
from hf_dualpath.apps.convert_fairseq import convert, convert_direction
from hf_dualpath.paths.latency import average_over_heads, differentiable_average_lagging, expected_delays


EXACT = ("exact_a", "exact_c", "exact_e")


def load(name: str, **settings):
    tensors, recorded = golden(name)
    weights = {key[2:]: tensor for key, tensor in tensors.items() if key.startswith("w.")}
    return convert(weights, recorded | settings), tensors, recorded


def close(ours: torch.Tensor, theirs: torch.Tensor, real: torch.Tensor, tolerance: float = 1e-9):
    torch.testing.assert_close((ours * real).double(), theirs.double() * real, atol=tolerance, rtol=0)


class Exact:
    """A recorded batch run through the converted model."""

    def __init__(self, name: str, train: bool):
        self.model, self.golden, self.settings = load(name)
        self.x, self.y = self.golden["in.src_tokens"], self.golden["in.target"]
        self.source, self.target = self.x != 1, self.y != 1
        self.model.train(train).set_attn_implementation("eager")
        self.output = self.model(self.x, self.source, self.y, output_attentions=True)
        real = self.target[:, None, :, None] & self.source[:, None, None, :]
        self.directions = (
            ("decoder", "", self.output.forward_output, real, self.target),
            ("back_decoder", "back_", self.output.backward_output, real.transpose(2, 3), self.source),
        )

    def loss(self):
        return dual_path_loss(self.output, self.x, self.source, self.y, latency_weight=0.2)


@pytest.mark.parametrize("name", EXACT)
def test_training_mode(name):
    run = Exact(name, train=True)
    for decoder, prefix, output, real, rows in run.directions:
        close(output.selection_probabilities[0], run.golden[f"act.{decoder}.layer0.p_choose"], real)
        close(output.alphas[0], run.golden[f"act.{decoder}.layer0.alpha"], real)
        for layer, beta in enumerate(output.cross_attentions):
            close(beta, run.golden[f"act.{decoder}.layer{layer}.beta"], real)
        close(output.logits, run.golden[f"out.{prefix}logits"], rows[..., None])
    loss, recorded = run.loss(), run.settings["scalars"]
    for ours, theirs in (
        (loss.forward_cross_entropy, "ls_ce_sum"),
        (loss.backward_cross_entropy, "back_ls_ce_sum"),
        (loss.forward_latency, "latency_dal_w1"),
        (loss.backward_latency, "back_latency_dal_w1"),
    ):
        assert ours.item() == pytest.approx(recorded[theirs], abs=1e-9)
    assert loss.target_tokens == run.settings["sample_size"]


@pytest.mark.parametrize("name", EXACT)
def test_hard_path(name):
    run = Exact(name, train=False)
    for decoder, prefix, output, real, rows in run.directions:
        close(output.logits, run.golden[f"evaltf.{prefix}logits"], rows[..., None])
        close(output.selection_probabilities[0], run.golden[f"evaltf.{decoder}.layer0.p_choose"], real)
        for layer, beta in enumerate(output.cross_attentions):
            close(beta, run.golden[f"evaltf.{decoder}.layer{layer}.beta"], real)
        alpha = run.golden[f"evaltf.{decoder}.layer0.alpha"] * real
        stops = alpha.sum(-1, keepdim=True) > 0  # in exact_c the authors let a head stop at padding
        close(output.alphas[0], alpha, real & stops)
        assert name == "exact_c" or stops[rows[:, None].expand(-1, 4, -1)].all()


def test_duality_total_and_every_gradient():
    """Only where no row is padded and no argmax runs backwards do the authors transpose correctly."""
    run = Exact("exact_e", train=True)
    close(transpose_path(run.output.forward_output.alphas[0]), run.golden["out.backward_gamma"], torch.tensor(1))
    close(transpose_path(run.output.backward_output.alphas[0]), run.golden["out.forward_gamma"], torch.tensor(1))
    loss, recorded = run.loss(), run.settings["scalars"]
    assert (loss.forward_duality + loss.backward_duality).item() == pytest.approx(recorded["dual_loss"], abs=1e-9)
    assert loss.total.item() == pytest.approx(recorded["total_loss"], abs=1e-9)

    loss.total.backward()
    theirs = {key[5:]: tensor for key, tensor in load_file(FIXTURES / "exact_e_gradients.safetensors").items()}
    table = theirs.pop("encoder.embed_tokens.weight")
    close(run.model.forward_model.model.shared.weight.grad, table, torch.tensor(1), 1e-8)
    checked = 0
    for model, prefix in ((run.model.forward_model, ""), (run.model.backward_model, "back_")):
        ours = {name: parameter.grad for name, parameter in model.named_parameters()}
        names = convert_direction(
            {k: k for k in theirs} | {f"{prefix}encoder.embed_tokens.weight": ""}, model.config, prefix
        )
        for name, key in names.items():
            if name == "model.shared.weight" or ".policy." in name:
                continue
            gradient = ours[name]
            selection = name.replace(".encoder_attn.", ".policy.")
            if selection != name and selection in ours:
                gradient = gradient + ours[selection]  # one matrix of theirs is two of ours
            close(gradient, theirs[key], torch.tensor(1))
            checked += 1
    assert checked == len(theirs)


@pytest.mark.parametrize("name", ["mma_train_a_il", "mma_train_a_hard", "waitk_a"])
def test_fairseq_mma_and_wait_k(name):
    model, recorded, settings = load(name, dropout=0.0, noise_var=0.0)
    x, y = recorded["in.src_tokens"], recorded["in.target"]
    source, target = x != 1, y != 1
    output = model.train()(x, source, labels=y, output_attentions=True)
    real = target[:, None, :, None] & source[:, None, None, :]
    close(output.logits, recorded["out.logits"], target[..., None], 1e-4)
    for layer in range(3):
        alpha = output.alphas[min(layer, len(output.alphas) - 1)]
        if name != "waitk_a":
            close(alpha, recorded[f"act.decoder.layer{layer}.alpha"], real, 1e-4)
        close(output.cross_attentions[layer], recorded[f"act.decoder.layer{layer}.beta"], real, 1e-4)
    loss = direction_loss(output, source, y, 1, latency_weight=0.2, variance_weight=0.1)
    scalars = settings["scalars"]
    assert loss.cross_entropy.item() == pytest.approx(scalars["ls_ce_sum"], abs=1e-3)
    assert loss.variance.item() == pytest.approx(scalars["expected_delays_var_sum"], abs=1e-3)
    # fairseq averages the heads' DALs, where this project averages the heads' delays (METHOD); we can compute both
    alphas = output.alphas
    delays = torch.cat([expected_delays(alpha) for alpha in alphas], 1)
    dal = differentiable_average_lagging(delays, source.sum(-1)[:, None], target.sum(-1)[:, None], target[:, None])
    assert average_over_heads(dal[..., None]).sum().item() == pytest.approx(
        scalars["expected_latency_sum_w1"], abs=1e-3
    )


def test_command(tmp_path):
    weights, _ = golden("exact_a")
    save_file({k: v for k, v in weights.items() if k.startswith("w.")}, tmp_path / "w.safetensors")
    torch.save({k[2:]: v for k, v in weights.items() if k.startswith("w.")}, tmp_path / "w.pt")
    for file in ("w.safetensors", "w.pt"):
        command = [sys.executable, "-m", "hf_dualpath", "convert", "fairseq", str(tmp_path / file)]
        command += ["--config", str(FIXTURES / "exact_a.json"), "--output", str(tmp_path / "out")]
        subprocess.run(command, check=True, capture_output=True)
        model = DualPathForConditionalGeneration.from_pretrained(tmp_path / "out")
        assert model.dtype == torch.float64
        shared = model.forward_model.model.shared.weight
        assert torch.equal(shared, weights["w.encoder.embed_tokens.weight"])


def test_command_explains_a_bad_configuration(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps({"embed": 32}))
    save_file({"encoder.embed_tokens.weight": torch.zeros(2, 2)}, tmp_path / "w.safetensors")
    command = [sys.executable, "-m", "hf_dualpath", "convert", "fairseq", str(tmp_path / "w.safetensors")]
    command += ["--config", str(tmp_path / "c.json"), "--output", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode and "lacks ffn" in result.stderr and "Traceback" not in result.stderr
