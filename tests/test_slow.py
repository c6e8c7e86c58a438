"""What takes minutes: the toy recipe of three systems, and a stream of 100,000 words. `make test-slow`."""

import json
import resource
import subprocess
import sys
import time
from statistics import mean

import pytest
import torch
from conftest import ROOT, dual_model

from hf_dualpath.evaluation.report import evaluate_checkpoint
from hf_dualpath.inference.streaming import SimultaneousTranslator
from hf_dualpath.inference.tokenization import train_bpe_tokenizer
from hf_dualpath.toy import toy_splits


pytestmark = pytest.mark.slow


def train_toy(folder, system: str, *more: str) -> float:
    """Trains on one core; returns the seconds it took."""
    command = [sys.executable, str(ROOT / "scripts/train.py"), "toy"]
    command += [
        "--output_dir",
        str(folder),
        "--system",
        system,
        "--directions",
        "both",
        "--disable_tqdm",
        "true",
        *more,
    ]
    start = time.perf_counter()
    subprocess.run(command, check=True, env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"})
    return time.perf_counter() - start


@pytest.fixture(scope="module")
def test_files(tmp_path_factory):
    folder, test = tmp_path_factory.mktemp("toy"), toy_splits()["test"]
    for name, column in (("de", "source"), ("en", "target"), ("align", "alignment")):
        (folder / name).write_text("\n".join(test[column]) + "\n", encoding="utf-8")
    return folder


def measure(model, files):
    return evaluate_checkpoint(str(model), files / "de", files / "en", None, files / "align", progress=False)


def test_toy_offline(tmp_path, test_files):
    seconds = train_toy(tmp_path, "offline")
    report = measure(tmp_path, test_files)
    bleu = {name: result.figures["BLEU"] for name, result in report.directions.items()}
    print(f"offline: {seconds:.0f} s, {bleu}")
    assert min(bleu.values()) > 90


def test_toy_dual_paths_against_single_path(tmp_path, test_files):
    reports = {}
    for system in ("dual_paths", "single_path"):
        seconds = train_toy(tmp_path / system, system)
        reports[system] = measure(tmp_path / system, test_files)
        print(system, f"{seconds:.0f} s", json.dumps(reports[system].summary()["directions"], indent=1))
    dual, single = (reports[system].directions for system in ("dual_paths", "single_path"))
    for name, result in dual.items():
        ours, theirs = result.figures, single[name].figures
        length = mean(len(sentence.translation.source_tokens) for sentence in result.sentences)
        assert ours["BLEU"] > 80 and ours["AL (tokens)"] < length / 2
        assert ours["IoU"] > theirs["IoU"], "each path supervises the other"
        assert ours["A_nec"] > theirs["A_nec"], "and waits less in vain"
        # Equal in BLEU over the settings that were tried; one training cannot tell more apart than its interval.
        assert ours["BLEU"] > theirs["BLEU"] - max(1, theirs["BLEU ±"])


def test_a_stream_of_100_000_words():
    sentence = "Der kleine Hund läuft über die Wiese und bellt laut. "
    tokenizer = train_bpe_tokenizer([sentence] * 5, vocab_size=330, show_progress=False)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    model = dual_model(vocab_size=len(tokenizer), **settings).eval().forward_model
    translator = SimultaneousTranslator(model, tokenizer, tokenizer, max_lag=2, max_new_tokens=12)
    seconds, memory = [], []
    for _ in range(10):
        start = time.process_time()
        for _ in range(1000):
            translator.push(sentence)
        seconds.append(time.process_time() - start)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    print([f"{value:.1f} s" for value in seconds], [f"{value // 1024} MB" for value in memory])
    assert translator.words_read == 100_000
    assert max(seconds[5:]) < 1.5 * min(seconds[:5])
    assert memory[-1] - memory[0] < 40 * 1024, "the text itself, and nothing else"
