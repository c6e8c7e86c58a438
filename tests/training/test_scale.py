"""What a large run relies on: one compiled graph, all combinations of its options, and several machines."""

import itertools
import os
import socket
import subprocess
import sys
import tempfile
from functools import cache

import pytest
import torch
from conftest import ROOT, dual_model, random_batch
from test_trainer import gradient, trainer

from hf_dualpath import Dials, dual_path_loss


def training_step(model, dials: Dials | None, **weights):
    """Both directions and all losses, as the trainer runs them; with dials along the hard path too."""

    def step(source, source_mask, target):
        path = "expected" if dials is None else "both"
        outputs = model(source, source_mask, target, path=path, dials=dials, return_loss=False)
        loss = dual_path_loss(outputs, source, source_mask, target, latency_weight=0.2, variance_weight=0.1, **weights)
        return loss.total / loss.target_tokens

    return step


DECIDING = {"hard_weight": 1.0, "row_variance_weight": 0.1, "duality_path": "hard"}


@pytest.mark.slow  # compiling takes its time on a CPU
@pytest.mark.parametrize(
    "dials, weights",
    [
        (None, {"duality_reduction": "batch"}),
        (None, {"duality_reduction": "sentence"}),
        (Dials(write_threshold=0.3), DECIDING),
        (Dials(write_threshold=0.7, max_lag=3), DECIDING),
    ],
    ids=["batch", "sentence", "dial", "dial-and-lag"],
)
def test_the_whole_step_is_one_graph(dials, weights):
    """`fullgraph` refuses a graph break. The backend runs forward and backward as traced, without generating code.
    The second batch makes a graph for all lengths: the third, of other lengths, compiles nothing."""
    torch.compiler.reset()
    model = dual_model(noise_std=0.0, encoder_layers=1, decoder_layers=2).train()
    eager = training_step(model, dials, **weights)
    steps = eager, torch.compile(eager, backend="aot_eager", fullgraph=True)
    for number, lengths in enumerate((([7, 5, 4], [6, 6, 3]), ([9, 5], [4, 8]), ([3, 12, 2, 5], [20, 1, 7, 7]))):
        batch, gradients = (*random_batch(lengths[0]), random_batch(lengths[1])[0]), []
        for step in steps:
            model.zero_grad()
            with torch.compiler.set_stance("default" if number < 2 else "fail_on_recompile"):
                loss = step(*batch)
                loss.backward()
            gradients.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        for ours, compiled in zip(*gradients):
            torch.testing.assert_close(ours, compiled, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
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
        dict(zip(OPTIONS, on)),
        {"gradient_accumulation_steps": steps, "duality_reduction": reduction},
        marks=[pytest.mark.slow] if on[2] else [],
    )
    for on in itertools.product([False, True], repeat=3)
    if any(on)
    for steps in (1, 2)
    for reduction in ("batch", "sentence")
]
TRAINED_DIAL = {"hard_weight": 1.0, "hard_threshold_low": 0.1, "hard_threshold_high": 0.9, "hard_max_lag": 4}
COMBINATIONS += [(dict(zip(OPTIONS, on)), TRAINED_DIAL) for on in ((True, False), (False, True), (True, True))]


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


@cache
def float32_eager(**plain) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        return losses(folder, **plain)


@pytest.mark.parametrize("options, plain", COMBINATIONS)
def test_every_combination_trains_as_float32_eager(options, plain, tmp_path):
    found = losses(tmp_path, **options, **plain)
    assert len(found) == 2
    assert found == pytest.approx(float32_eager(**plain), rel=2e-2 if options["bf16"] else 1e-4)


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


@pytest.mark.slow
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
