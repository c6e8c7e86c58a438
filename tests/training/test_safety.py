"""Runs that are killed, stopped, started twice or started again lose nothing and break nothing."""

import json
import logging
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, dual_model, fails, run
from huggingface_hub import ModelCard, metadata_load
from test_run import TINY
from test_trainer import launch, trainer, weights
from transformers import Trainer, TrainerCallback

from hf_dualpath.inference.checkpoints import (
    average_checkpoints,
    card_of_the_mean,
    digest,
    last_checkpoints,
    last_complete_checkpoint,
    mark_complete,
)
from hf_dualpath.toy import generate_pairs
from hf_dualpath.training.card import results_of
from hf_dualpath.training.run import has_finished
from hf_dualpath.training.safety import LOCK, one_run_in
from hf_dualpath.training.settings import parse_recipe
from hf_dualpath.training.trainer import DualPathTrainer


def contents(folder) -> dict[str, str]:
    """A digest of every file but the lock."""
    return {str(p.relative_to(folder)): digest(p) for p in folder.rglob("*") if p.is_file() and p.name != LOCK}


# --- complete checkpoints --------------------------------------------------------------------------------------------


def test_a_checkpoint_is_marked_with_all_its_files(tmp_path):
    trainer(tmp_path, max_steps=2).train()
    marks = json.loads((tmp_path / "checkpoint-2" / "complete").read_text())
    files = {p.name: p for p in (tmp_path / "checkpoint-2").iterdir() if p.name != "complete"}
    assert marks == {name: [path.stat().st_size, digest(path)] for name, path in files.items()}
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", "rng_state.pth"} <= marks.keys()


def test_all_files_reach_the_disk_before_their_mark(tmp_path, monkeypatch):
    synced, fsync = set(), os.fsync

    def noted(descriptor: int):
        assert not (tmp_path / "complete").exists()
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text(name)
    mark_complete(tmp_path)
    assert synced == {path.stat().st_ino for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["optimizer.pt", "model.safetensors", "trainer_state.json"])
@pytest.mark.parametrize("damage", ["cut", "missing", "changed"])
def test_a_damaged_checkpoint_is_passed_over(name, damage, two_checkpoints, caplog):
    file = two_checkpoints / "checkpoint-4" / name
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(content[:-7] if damage == "cut" else b"?" + content[1:])
    try:
        with caplog.at_level(logging.WARNING):
            assert last_complete_checkpoint(two_checkpoints).endswith("checkpoint-2")
        assert len(caplog.messages) == 1 and "checkpoint-4" in caplog.messages[0] and name in caplog.messages[0]
        assert [folder.name for folder in last_checkpoints(two_checkpoints, 1)] == ["checkpoint-2"]
        with pytest.raises(ValueError, match="fewer than 2 complete checkpoints: 1"):
            last_checkpoints(two_checkpoints, 2)
    finally:
        file.write_bytes(content)


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    trainer(folder, max_steps=4).train()
    return folder


def test_the_mark_is_gone_while_a_folder_is_written_again(tmp_path, monkeypatch):
    first = trainer(tmp_path, max_steps=2)
    first.train()
    assert last_complete_checkpoint(tmp_path) is not None

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_save_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, max_steps=2).train()
    assert last_complete_checkpoint(tmp_path) is None


def test_an_average_can_be_published(two_checkpoints, tmp_path, capsys):
    average_checkpoints(last_checkpoints(two_checkpoints, 2), tmp_path / "bare")
    assert "model.safetensors" in run(capsys, "push", str(tmp_path / "bare"), "me/model", "--dry-run")
    assert metadata_load(tmp_path / "bare" / "README.md")["library_name"] == "transformers"
    (two_checkpoints / "README.md").write_text(CARD)
    average_checkpoints(last_checkpoints(two_checkpoints, 2), tmp_path / "mean")
    card = (tmp_path / "mean" / "README.md").read_text()
    assert "# My run" in card and "checkpoint-2, checkpoint-4" in card
    assert "model-index" not in card, "these weights have not been measured"


CARD = """---
language: de
model-index:
- name: mine
  results:
  - task: {type: translation}
    dataset: {type: toy, name: toy, split: test, config: de-en}
    metrics:
    - {type: bleu, value: 30.0}
---

# My run
"""


MARKS = ("", "{}", "[1]", "{", "3", '{"config.json": 5}', '{"config.json": ["x", 5]}', "\xff")


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_that_says_nothing(mark, tmp_path, caplog):
    for number in (2, 4):
        (tmp_path / f"checkpoint-{number}").mkdir()
        (tmp_path / f"checkpoint-{number}" / "config.json").write_text("{}")
        mark_complete(tmp_path / f"checkpoint-{number}")
    (tmp_path / "checkpoint-4" / "complete").write_bytes(mark.encode("latin-1"))
    with caplog.at_level(logging.WARNING):
        assert last_complete_checkpoint(tmp_path).endswith("checkpoint-2")
    assert "checkpoint-4" in caplog.messages[0]


def test_copies_of_a_checkpoint_are_left_alone(tmp_path):
    for name in ("checkpoint-2", "checkpoint-best", "checkpoint-9-copy", "checkpoint-"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        mark_complete(tmp_path / name)
    assert last_complete_checkpoint(tmp_path).endswith("checkpoint-2")


class Pickled:
    """Runs when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.write_text, (self.mark, "ran")


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"])
def test_resuming_runs_no_pickle(name, two_checkpoints, tmp_path):
    """A checkpoint of somebody else, whose mark is right."""
    shutil.copytree(two_checkpoints, tmp_path / "run")
    (tmp_path / "run" / "checkpoint-4" / name).write_bytes(pickle.dumps(Pickled(tmp_path / "it-ran")))
    mark_complete(tmp_path / "run" / "checkpoint-4")
    try:
        trainer(tmp_path / "run", max_steps=5).train(resume_from_checkpoint=True)
    except pickle.UnpicklingError:
        pass
    assert not (tmp_path / "it-ran").exists()


# --- killed ----------------------------------------------------------------------------------------------------------

KILLED = """
import os, random, signal, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/training"]
import torch
from test_trainer import trainer
torch.set_num_threads(1)
random.seed(0)

def train(folder, death=None):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    events = 0

    def hook(event, arguments):
        nonlocal events
        if event in ("open", "os.rename", "os.remove", "os.mkdir") and str(arguments[0]).startswith(folder):
            events += 1
            if events == death:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        trainer(folder, max_steps=8, save_steps=1, save_total_limit=2).train(resume_from_checkpoint=True)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)

assert train(sys.argv[1] + "/whole") == 0
deaths = [train(sys.argv[1] + "/cut", random.randrange(1, 40)) for _ in range(int(sys.argv[2]))]
assert set(deaths) <= {{0, signal.SIGKILL}}, deaths
print("killed", deaths.count(signal.SIGKILL), flush=True)
assert train(sys.argv[1] + "/cut") == 0
"""


@pytest.mark.parametrize("times", [6, pytest.param(25, marks=pytest.mark.slow)])
def test_a_training_that_is_killed_again_and_again(times, tmp_path):
    """With `kill -9`, each time in the middle of some file: it ends with the weights of one that was left alone."""
    (tmp_path / "killed.py").write_text(KILLED.format(tests=str(ROOT / "tests")))
    output = launch(sys.executable, str(tmp_path / "killed.py"), str(tmp_path), str(times))
    assert int(re.search(r"killed (\d+)", output.stdout)[1]) >= times - 2, "most of them died"
    whole, cut = (weights(tmp_path / name / "checkpoint-8") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


# --- starting again --------------------------------------------------------------------------------------------------


def test_a_finished_training_is_not_trained_further(tmp_path):
    """Six updates end in the middle of an epoch, where the library would make one more."""
    trainer(tmp_path).train()
    before = contents(tmp_path)
    again = trainer(tmp_path)
    assert again.train(resume_from_checkpoint=True).global_step == 6
    assert contents(tmp_path) == before
    trained = weights(tmp_path / "checkpoint-6")
    assert all(torch.equal(again.model.state_dict()[name], tensor) for name, tensor in trained.items())


def train(capsys, folder, *more: str) -> str:
    return run(capsys, "train", "toy", "--output_dir", str(folder), *TINY.split(), *more)


def test_a_finished_run_stays_as_it_is(tmp_path, capsys, caplog, monkeypatch):
    """Also one that was killed in its last evaluation: what is missing is measured, and nothing else is done."""
    evaluate, evaluated = DualPathTrainer.evaluate, []

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(DualPathTrainer, "evaluate", killed)
    with pytest.raises(SystemExit):
        train(capsys, tmp_path)
    assert not (tmp_path / "README.md").is_file()
    before = contents(tmp_path)

    def counted(self, *arguments, **options):
        evaluated.append(options["metric_key_prefix"])
        return evaluate(self, *arguments, **options)

    monkeypatch.setattr(DualPathTrainer, "evaluate", counted)
    said = train(capsys, tmp_path)
    assert f"The checkpoint is in {tmp_path}" in said and f"dualpath push {tmp_path}" in said
    after = contents(tmp_path)
    assert evaluated == ["validation", "test"] and after.pop("README.md") and after == before
    results = results_of(tmp_path / "README.md")
    assert results.keys() == {
        f"{s}_{d}_{m}" for s in ("validation", "test") for d in ("de-en", "en-de") for m in ("bleu", "al")
    }
    before = contents(tmp_path)
    with caplog.at_level(logging.WARNING):
        train(capsys, tmp_path)
    assert contents(tmp_path) == before and len(evaluated) == 2
    assert any("has finished" in message for message in caplog.messages)

    header = ModelCard.load(tmp_path / "README.md").data.to_dict()
    assert header["datasets"] == ["toy"] and header["metrics"] == ["bleu", "al"]
    assert header["model-index"][0]["results"][0]["dataset"]["split"] == "validation"
    assert "remove_unused_columns" not in (tmp_path / "README.md").read_text()

    message = fails(capsys, "train", "toy", "--output_dir", str(tmp_path), *TINY.split(), "--d_model", "64")
    assert "other sizes" in message and len(message.splitlines()) == 1
    assert contents(tmp_path) == before


@pytest.mark.parametrize("sizes", [{"d_model": 64}, {"encoder_layers": 3}, {"encoder_layers": 1}])
def test_other_sizes_are_one_sentence(sizes, two_checkpoints, capsys):
    with pytest.raises(ValueError, match="other sizes .* or another `output_dir`") as error:
        trainer(two_checkpoints, dual_model(**sizes)).train(resume_from_checkpoint=True)
    assert "\n" not in str(error.value) and "mismatch" not in capsys.readouterr().err


@pytest.mark.parametrize("state", ["", '{"epoch": 0.4, "glo', "[1]", '{"colour": 1}'])
def test_a_run_that_was_killed_in_its_last_line_can_be_started_again(state, tmp_path):
    _, _, settings = parse_recipe("toy", ["--output_dir", str(tmp_path)])
    (tmp_path / "trainer_state.json").write_text(state)
    assert not has_finished(tmp_path, settings)


@pytest.mark.parametrize("card", ["", "---\nlanguage: de\nmodel-index:\n- name: [", "---\n3\n---\n", CARD[:80]])
def test_half_a_card_has_no_results(card, tmp_path):
    (tmp_path / "README.md").write_text(card)
    assert results_of(tmp_path / "README.md") == {}


def test_a_card_that_nobody_can_read_is_left_out(tmp_path):
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "README.md").write_text("---\na: [\n---\n# Mine\n")
    assert "Averaged weights" in card_of_the_mean([tmp_path / "checkpoint-1"]).text


def test_a_lock_that_is_a_link(tmp_path):
    """In a folder of somebody else: what it leads to would have been emptied."""
    (tmp_path / "diary").write_text("dear diary")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "diary")
    with pytest.raises(OSError, match="cannot be written"), one_run_in(tmp_path / "run"):
        pass
    assert (tmp_path / "diary").read_text() == "dear diary"


# --- two runs in one folder ------------------------------------------------------------------------------------------

HOLDER = """
import sys, time
from hf_dualpath.training.safety import one_run_in
with one_run_in(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_second_run_in_a_folder_is_refused(tmp_path, capsys):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(BlockingIOError, match=f"Process {holder.pid} is training in"):
            trainer(tmp_path).train()
        message = fails(capsys, "train", "toy", "--output_dir", str(tmp_path), *TINY.split())
        assert "another `output_dir`" in message and len(message.splitlines()) == 1
        assert {path.name for path in tmp_path.iterdir()} == {LOCK}
        with one_run_in(tmp_path, is_main_process=False):  # the other processes of one run do not ask
            pass
    finally:
        holder.kill()
        holder.wait()
    with one_run_in(tmp_path), one_run_in(tmp_path):  # a dead process holds nothing, and one may ask twice
        pass


# --- signals and disks -----------------------------------------------------------------------------------------------


class Signal(TrainerCallback):
    def __init__(self, number: int, step: int):
        self.number, self.step = number, step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_first(number, tmp_path, caplog):
    options = {"save_steps": 100, "max_steps": 6}
    trainer(tmp_path / "whole", **options).train()
    before = signal.getsignal(number)
    stopped = trainer(tmp_path / "cut", **options)
    stopped.add_callback(Signal(number, 2))
    with pytest.raises((SystemExit, KeyboardInterrupt)) as stop, caplog.at_level(logging.WARNING):
        stopped.train()
    assert isinstance(stop.value, KeyboardInterrupt) if number == signal.SIGINT else stop.value.code == 143
    assert signal.getsignal(number) is before
    assert last_complete_checkpoint(tmp_path / "cut").endswith("checkpoint-3")
    assert any("start the same training again" in message for message in caplog.messages)
    trainer(tmp_path / "cut", **options).train(resume_from_checkpoint=True)
    whole, cut = (weights(tmp_path / name / "checkpoint-6") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_the_command_line_ends_as_signals_do(tmp_path, capsys, monkeypatch):
    """130 and 143 are what a shell shows of SIGINT and SIGTERM."""
    codes = []
    for number in (signal.SIGINT, signal.SIGTERM):
        monkeypatch.setattr(
            "hf_dualpath.training.trainer.StopCallback.on_train_begin",
            lambda *_, number=number, **__: os.kill(os.getpid(), number),
        )
        with pytest.raises(SystemExit) as stop:
            train(capsys, tmp_path / str(int(number)))
        codes.append(stop.value.code)
    assert codes == [130, 143]


STOP_ONE_OF_TWO = """
import sys, torch
sys.path[:0] = [{tests!r}, {tests!r} + "/training"]
from test_safety import Signal
from test_trainer import left_behind, trainer
import torch.distributed as dist
torch.set_num_threads(1)
run = trainer(sys.argv[1], save_steps=100, max_steps=20)
assert dist.get_world_size() == 2
if dist.get_rank() == 1:
    run.add_callback(Signal(15, 2))
try:
    run.train()
except SystemExit as stop:
    assert stop.code == 143
else:
    raise AssertionError("both processes stop")
assert run.state.global_step == 3
run.end()
assert not left_behind()
"""

WHOLE_RUN_ON_TWO = """
import os, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/training"]
from test_run import TINY
from test_trainer import left_behind
from hf_dualpath.training.run import main
pairs = os.path.dirname(sys.argv[1]) + "/pairs.tsv"
data = ["--train_file", pairs, "--validation_file", pairs]
main(["toy", "--output_dir", sys.argv[1], *TINY.split(), "--max_steps", "2", *data])
assert not left_behind()
"""


STOPPED_RUN_ON_TWO = """
import os, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/training"]
from test_run import TINY
from test_trainer import left_behind
from hf_dualpath.training.run import main
from hf_dualpath.training.trainer import StopCallback
if os.environ["RANK"] == "1":
    StopCallback.on_train_begin = lambda *_, **__: os.kill(os.getpid(), 15)
pairs = os.path.dirname(sys.argv[1]) + "/pairs.tsv"
try:
    main(["toy", "--output_dir", sys.argv[1], *TINY.split(), "--max_steps", "9", "--train_file", pairs])
except SystemExit as stop:
    assert stop.code == 143
else:
    raise AssertionError("both processes stop")
assert not left_behind()
"""


@pytest.mark.parametrize(
    "script", [STOP_ONE_OF_TWO, WHOLE_RUN_ON_TWO, STOPPED_RUN_ON_TWO], ids=["stop", "run", "stopped run"]
)
def test_two_processes_end_together(script, tmp_path):
    (tmp_path / "two.py").write_text(script.format(tests=str(ROOT / "tests")))
    rows = ["de\ten", *(f"{pair.source}\t{pair.target}" for pair in generate_pairs(60, seed=1, max_words=6))]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows))
    config = str(ROOT / "scripts/accelerate_configs/two_cpu_processes.yaml")
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config]
    output = launch(*accelerate, "--main_process_port", "0", str(tmp_path / "two.py"), str(tmp_path / "out"))
    assert "terminate called" not in output.stderr
    assert last_complete_checkpoint(tmp_path / "out") is not None


@pytest.mark.parametrize("room", [100_000, 600_000], ids=["for no weights", "for no optimizer state"])
def test_a_full_disk_is_one_sentence(room, tmp_path):
    """A limit on the size of files stands in for the end of the disk."""
    run = trainer(tmp_path, max_steps=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(OSError, match="cannot be written .* make room") as error:
            run.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(error.value) and "None" not in str(error.value)
    assert last_complete_checkpoint(tmp_path) is None


def test_a_folder_that_cannot_be_written_is_one_sentence(capsys):
    message = fails(capsys, "train", "toy", "--output_dir", "/proc/run", *TINY.split())
    assert "/proc/run cannot be written" in message and len(message.splitlines()) == 1
