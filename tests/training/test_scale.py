"""What a large run relies on: one compiled graph, all combinations of its options, and several machines."""

import itertools
import os
import socket
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, dual_model, random_batch
from test_trainer import gradient, trainer

from hf_dualpath import dual_path_loss


pytestmark = pytest.mark.slow  # compiling takes minutes on a CPU


def training_step(model, reduction: str = "batch"):
    """Both directions and all losses, as the trainer runs them."""

    def step(source, source_mask, target):
        outputs = model(source, source_mask, target, path="expected", return_loss=False)
        loss = dual_path_loss(
            outputs, source, source_mask, target, latency_weight=0.2, variance_weight=0.1, duality_reduction=reduction
        )
        return loss.total / loss.target_tokens

    return step


@pytest.mark.parametrize("reduction", ["batch", pytest.param("sentence", marks=pytest.mark.slow)])
def test_the_whole_step_is_one_graph(reduction):
    """`fullgraph` refuses a graph break. The backend runs forward and backward as traced, without generating code."""
    torch.compiler.reset()
    model = dual_model(noise_std=0.0, encoder_layers=1, decoder_layers=2).train()
    batch = *random_batch([7, 5, 4]), random_batch([6, 6, 3])[0]
    gradients = []
    for step in (
        training_step(model, reduction),
        torch.compile(training_step(model, reduction), backend="aot_eager", fullgraph=True),
    ):
        model.zero_grad()
        loss = step(*batch)
        loss.backward()
        gradients.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for eager, compiled in zip(*gradients):
        torch.testing.assert_close(eager, compiled, atol=1e-5, rtol=1e-4)


def test_the_hard_path_is_one_graph():
    torch.compiler.reset()
    model = dual_model(encoder_layers=1, decoder_layers=2).eval()
    batch = *random_batch([7, 5, 4]), random_batch([6, 6, 3])[0]

    def logits(source, source_mask, target):
        return model(source, source_mask, target, path="hard", return_loss=False).forward_output.logits

    with torch.no_grad():
        compiled = torch.compile(logits, backend="aot_eager", fullgraph=True)(*batch)
        torch.testing.assert_close(compiled, logits(*batch), atol=1e-5, rtol=1e-4)


OPTIONS = ("gradient_checkpointing", "bf16", "torch_compile")
COMBINATIONS = [
    pytest.param(
        dict(zip(OPTIONS, on)) | {"gradient_accumulation_steps": steps, "duality_reduction": reduction},
        marks=[pytest.mark.slow] if any(on[1:]) else [],  # bf16 and compiling take their time on a CPU
    )
    for on in itertools.product([False, True], repeat=3)
    for steps in (1, 2)
    for reduction in ("batch", "sentence")
]


def losses(folder, **options) -> list[float]:
    """Of two updates over the same data, from the same weights."""
    torch.manual_seed(0)
    model = dual_model(noise_std=0.0, encoder_layers=1, decoder_layers=2)
    if options.get("torch_compile"):
        torch.compiler.reset()
        options["torch_compile_backend"] = "aot_eager"
    options = {"max_steps": 2, "logging_steps": 1, "save_strategy": "no", "max_tokens": 160} | options
    run = trainer(folder, model, **options)
    run.train()
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


@pytest.mark.parametrize("options", COMBINATIONS)
def test_every_combination_trains_as_float32_eager(options, tmp_path):
    plain = {name: options[name] for name in ("gradient_accumulation_steps", "duality_reduction")}
    expected = losses(tmp_path / "plain", **plain)
    found = losses(tmp_path / "other", **options)
    assert len(found) == 2
    assert found == pytest.approx(expected, rel=2e-2 if options["bf16"] else 1e-4)


TWO_NODES = """
import os, sys, torch
sys.path[:0] = [{tests!r}, {tests!r} + "/training"]
from test_trainer import gradient, trainer
import torch.distributed as dist
torch.set_num_threads(1)
seen = gradient(sys.argv[1], 120, 1)
assert dist.get_world_size() == 2 and os.environ["LOCAL_RANK"] == "0" and os.environ["LOCAL_WORLD_SIZE"] == "1"
assert dist.get_rank() == int(os.environ["GROUP_RANK"])
if dist.get_rank() == 0:
    torch.save(seen, sys.argv[1] + "/gradient.pt")
trainer(sys.argv[1]).end()
"""


def test_two_nodes_give_the_gradient_of_one_process(tmp_path):
    """Two launchers on loopback, each of which believes to be a machine of its own with one process."""
    script, output = tmp_path / "node.py", tmp_path / "out"
    script.write_text(TWO_NODES.format(tests=str(ROOT / "tests")))
    output.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    config = str(ROOT / "scripts/accelerate_configs/two_cpu_nodes.yaml")
    nodes = []
    for rank in ("0", "1"):
        command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config]
        command += ["--machine_rank", rank, "--main_process_port", port, str(script), str(output)]
        log = open(tmp_path / f"node-{rank}.log", "w")
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        nodes.append((subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment), log))
    try:
        codes = [node.wait(timeout=300) for node, _ in nodes]
    finally:
        for node, log in nodes:
            node.kill()
            log.close()
    assert codes == [0, 0], (tmp_path / "node-0.log").read_text()[-3000:]
    two = torch.load(output / "gradient.pt", weights_only=True)
    one = gradient(tmp_path / "one", 10_000, 1)
    assert two.keys() == one.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-5, rtol=1e-5)
