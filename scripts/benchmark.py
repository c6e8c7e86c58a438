"""Speed as ratios measured in one run, on one CPU thread.

    python scripts/benchmark.py [alpha] [train] [decode] [pool] [stream] [launches] [kernels]

Each line has the bar that it must clear. Without names all of them are measured. `launches` counts the kernels of a
training step on a GPU; `kernels` compiles ours for GPUs and reports registers. Neither needs one.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from decoding import measure_decoding, measure_pool
from launches import count_launches
from transformers import MarianConfig, MarianMTModel
from transformers.utils import logging

from hf_dualpath import DualPathConfig, DualPathForConditionalGeneration, dual_path_loss, expected_alignment
from hf_dualpath.training.half_products import multiply_in_half


SIZE = {
    "vocab_size": 8000,
    "d_model": 128,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "dropout": 0.3,
    "activation_function": "relu",
    "scale_embedding": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "max_position_embeddings": 512,
}


def alternate(rounds: int, *functions: Callable[[], object]) -> list[float]:
    """Median seconds of each function; they take turns, so that a slow moment of the machine hits them alike."""
    times = [[] for _ in functions]
    for _ in range(rounds):
        for function, seconds in zip(functions, times):
            start = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


def report(name: str, ratio: float, bar: float, at_least: bool):
    holds = ratio >= bar if at_least else ratio <= bar
    print(
        f"{'ok  ' if holds else 'MISS'}  {name:<62} {ratio:6.2f}  ({'at least' if at_least else 'at most'} {bar})",
        flush=True,
    )


def cumulative_product_alignment(p: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    """The row-by-row form with cumulative products that public code uses, under autograd."""
    exclusive = torch.cat([torch.ones_like(p[..., :1]), (1 - p + epsilon).cumprod(-1)[..., :-1]], -1)
    divisor = exclusive.clamp(epsilon, 1)
    previous = torch.nn.functional.one_hot(torch.zeros(p.shape[:2], dtype=torch.long), p.shape[-1]).to(p.dtype)
    rows = []
    for i in range(p.shape[2]):
        previous = (p[:, :, i] * exclusive[:, :, i] * (previous / divisor[:, :, i]).cumsum(-1)).clamp(0, 1)
        rows.append(previous)
    return torch.stack(rows, 2)


def benchmark_alpha():
    for batch, length in ((512, 16), (256, 40), (128, 100)):
        p = torch.rand(batch, 1, length, length, requires_grad=True)
        gradient = torch.randn(batch, 1, length, length)

        def run(function, p=p, gradient=gradient):
            p.grad = None
            function(p).backward(gradient)

        run(expected_alignment)
        ours, theirs = alternate(7, lambda: run(expected_alignment), lambda: run(cumulative_product_alignment))
        report(f"alpha {batch}x{length}x{length}: cumulative products / exact", theirs / ours, 1.0, True)


def benchmark_train():
    torch.manual_seed(0)
    marian = MarianMTModel(MarianConfig(**SIZE)).train()
    dual, half = (DualPathForConditionalGeneration(DualPathConfig(forward_config=SIZE)).train() for _ in range(2))
    multiply_in_half(half)
    x, y = (torch.cat([torch.randint(3, 8000, (128, 15)), torch.ones(128, 1, dtype=torch.long)], 1) for _ in range(2))
    mask = torch.ones_like(x)

    def step(model, loss):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

        def run():
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()

        return run

    def dual_loss(model):
        outputs = model(x, mask, y, return_loss=False)  # as the trainer calls it
        loss = dual_path_loss(outputs, x, mask, y, latency_weight=0.2)
        return loss.total / loss.target_tokens

    run_marian = step(marian, lambda: marian(input_ids=x, attention_mask=mask, labels=y).loss)
    runs = run_marian, step(dual, lambda: dual_loss(dual)), step(half, lambda: dual_loss(half))
    for run in runs:
        run()
    marian_seconds, dual_seconds, half_seconds = alternate(7, *runs)
    print(f"      Marian step {marian_seconds:.3f} s, dual step {dual_seconds:.3f} s")
    print(f"      with half_products, on a CPU that multiplies bfloat16, {half_seconds:.3f} s")
    report("training step: dual paths / MarianMTModel", dual_seconds / marian_seconds, 1.75, False)


def benchmark_decode():
    measure_decoding(alternate, report)


def benchmark_pool():
    measure_pool(alternate, report)


def benchmark_stream():
    """A wait-1-like stream of 210 tokens: each push reads one source token and writes one target token."""
    torch.manual_seed(0)
    ours = DualPathForConditionalGeneration(DualPathConfig(forward_config=SIZE)).eval().direction("forward")
    tokens = torch.randint(3, 8000, (210,)).tolist()
    rounds = []
    for _ in range(7):
        stream = ours.open_stream(min_lag=1, max_lag=1, min_new_tokens=300, max_new_tokens=300)
        seconds = []
        for token in tokens:
            start = time.perf_counter()
            actions = list(stream.push([token]))
            seconds.append(time.perf_counter() - start)
            assert len(actions) == 2
        rounds.append(seconds)
    flat = [statistics.median(round_[index] for round_ in rounds) for index in range(len(tokens))]
    early, late = statistics.median(flat[5:15]), statistics.median(flat[195:205])
    print(f"      a READ and a WRITE: {early * 1000:.2f} ms at token 10, {late * 1000:.2f} ms at token 200")
    report("open stream: time per token at 200 over at 10", late / early, 1.3, False)


def benchmark_launches():
    short, long = count_launches(40), count_launches(100)
    print(f"      {short.total} calls in a dual step of 6+6 layers, {long.total} at 100+100 tokens")
    print(f"      of these {short.expectations} in both expectations, {short.method} with policies and all losses")
    report("calls at 100+100 tokens over at 40+40", long.total / short.total, 1.0, False)
    report("share of the expectations", short.expectations / short.total, 0.1, False)
    report("share of the method: policies and all losses too", short.method / short.total, 0.1, False)


def benchmark_kernels():
    from gpu_kernels import KERNELS, TARGETS, compile_kernel

    for kernel, sizes in KERNELS.items():
        for capability in TARGETS:
            for columns in sizes:
                used = compile_kernel(kernel, capability, columns)
                name = f"{kernel.__name__}, sm_{capability}, {columns}"
                print(f"      {name} tokens: {used.registers} registers")
                report(f"{name}: bytes spilled", used.spilled, 0, False)


BENCHMARKS = {
    "alpha": benchmark_alpha,
    "train": benchmark_train,
    "decode": benchmark_decode,
    "pool": benchmark_pool,
    "stream": benchmark_stream,
    "launches": benchmark_launches,
    "kernels": benchmark_kernels,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    names = parser.parse_args().names
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    for name in names or BENCHMARKS:
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
