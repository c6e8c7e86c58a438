"""SimulEval 1.1.4, run for real: it must print what we print."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from conftest import ROOT, run, save_model
from published import published

from hf_dualpath.evaluation.comparison import load_systems
from hf_dualpath.evaluation.report import evaluate_checkpoint
from hf_dualpath.inference.streaming import SimultaneousTranslator
from hf_dualpath.toy import generate_pairs


pytestmark = pytest.mark.simuleval
pytest.importorskip("simuleval", reason="SimulEval is not installed; `make test` installs it")
SIMULEVAL = [sys.executable, "-m", "simuleval.cli"]
METRICS = ["--quality-metrics", "BLEU", "--latency-metrics", "AL", "LAAL", "AP", "DAL"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simuleval")
    pairs = generate_pairs(200, seed=6, max_words=7, every=3)
    (folder / "test.de").write_text("\n".join(pair.source for pair in pairs), encoding="utf-8")
    (folder / "test.en").write_text("\n".join(pair.target for pair in pairs), encoding="utf-8")
    return folder, save_model(folder / "model", pairs, encoder_layers=1, decoder_layers=1)


def simuleval(folder: Path, model: str, *more: str) -> dict[str, float]:
    command = [*SIMULEVAL, "--source", str(folder / "test.de"), "--target", str(folder / "test.en"), *METRICS]
    command += ["--model", model, *more]
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, cwd=folder)
    assert result.returncode == 0, result.stderr[-2000:]


def scores(output: Path) -> dict[str, float]:
    """Full precision, from the instances that SimulEval logged and its own scorers."""
    from simuleval.evaluator.instance import LogInstance
    from simuleval.evaluator.scorers import get_scorer_class
    from simuleval.evaluator.scorers.quality_scorer import SacreBLEUScorer

    instances = {i: LogInstance(line) for i, line in enumerate((output / "instances.log").read_text().splitlines())}
    values = {name: get_scorer_class("latency", name)()(instances) for name in ("AL", "LAAL", "AP", "DAL")}
    return values | {"BLEU": SacreBLEUScorer()(instances)}


@pytest.mark.parametrize("dials", [{}, {"min_lag": 2, "max_lag": 5}])
def test_the_same_figures(setting, dials, tmp_path):
    folder, model = setting
    flags = [word for name, value in dials.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    agent = ["--agent", str(ROOT / "hf_dualpath" / "apps" / "simuleval_agent.py")]
    if dials:
        agent = ["--agent-class", "hf_dualpath.apps.simuleval_agent.DualPathAgent"]
    simuleval(folder, model, "--direction", "de-en", *agent, "--output", str(tmp_path / "out"), *flags)
    theirs = scores(tmp_path / "out")
    report = evaluate_checkpoint(model, folder / "test.de", folder / "test.en", "de-en", progress=False, **dials)
    ours = report.directions["de-en"]
    for name in ("AL", "LAAL", "AP", "DAL"):
        assert ours.figures[f"{name} (words)"] == pytest.approx(theirs[name], abs=1e-6)
    assert ours.figures["BLEU"] == pytest.approx(theirs["BLEU"], abs=1e-6)

    system = load_systems(tmp_path / "out" / "instances.log")[0]
    assert system.word_al == pytest.approx(theirs["AL"], abs=1e-6) and system.bleu == pytest.approx(
        theirs["BLEU"], abs=1e-6
    )


def test_the_same_figures_of_a_translator_of_the_hub(setting, tmp_path):
    folder, _ = setting
    model, languages = published("nllb", tmp_path)
    options = {"policy": "local_agreement", "agreement": 3, **languages}
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    agent = ["--agent-class", "hf_dualpath.apps.simuleval_agent.DualPathAgent", "--end-index", "12"]
    simuleval(folder, str(model), *agent, *flags, "--output", str(tmp_path / "out"))
    theirs = scores(tmp_path / "out")
    report = evaluate_checkpoint(
        str(model), folder / "test.de", folder / "test.en", progress=False, limit=12, stream=True, **options
    )
    ours = report.directions["deu_Latn-eng_Latn"]
    for name in ("AL", "LAAL", "AP", "DAL"):
        assert ours.figures[f"{name} (words)"] == pytest.approx(theirs[name], abs=1e-6)
    assert ours.figures["BLEU"] == pytest.approx(theirs["BLEU"], abs=1e-6)

    from simuleval.evaluator.instance import LogInstance
    from simuleval.evaluator.scorers import get_scorer_class

    instances = {}
    for index, sentence in enumerate(ours.sentences):
        translation = sentence.translation
        spent = [sum(translation.seconds[: count + 1]) for count in range(len(translation.seconds))]
        row = {
            "index": index,
            "prediction": translation.text,
            "delays": translation.word_path,
            "elapsed": [read + 2.5 * seconds for read, seconds in zip(translation.word_path, spent)],
            "reference": sentence.reference,
            "source_length": translation.source_words,
            "prediction_length": len(translation.words),
        }
        instances[index] = LogInstance(json.dumps(row))
    for name in ("AL", "LAAL", "DAL"):
        score = get_scorer_class("latency", name)(computation_aware=True)(instances)
        assert ours.figures[f"{name} CA (words)"] == pytest.approx(score, abs=1e-6)
        assert score > ours.figures[f"{name} (words)"]


def test_log_and_report_side_by_side(setting, tmp_path, capsys):
    folder, model = setting
    simuleval(
        folder,
        model,
        "--direction",
        "de-en",
        "--agent-class",
        "hf_dualpath.apps.simuleval_agent.DualPathAgent",
        "--output",
        str(tmp_path / "se"),
        "--end-index",
        "20",
    )
    arguments = ["--source", str(folder / "test.de"), "--target", str(folder / "test.en"), "--limit", "20"]
    run(capsys, "evaluate", "--model", model, "--direction", "de-en", *arguments, "--output", str(tmp_path / "ours"))
    log = tmp_path / "se" / "instances.log"
    assert len(log.read_text().splitlines()) == 20
    table = run(capsys, "compare", str(log), str(tmp_path / "ours"), "--samples", "50")
    assert "+0.00" in table and "no significant difference" in table


def test_standalone_server(setting, tmp_path):
    folder, model = setting
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    from simuleval.data.segments import TextSegment

    agent = [
        "--agent-class",
        "hf_dualpath.apps.simuleval_agent.DualPathAgent",
        "--model",
        model,
        "--direction",
        "de-en",
    ]
    server = subprocess.Popen(
        [*SIMULEVAL, "--standalone", "--remote-port", port, *agent],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(120):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                    break
            time.sleep(0.5)
        assert listening(server.pid, int(port)) == {"127.0.0.1"}, "nobody else's machine can reach it"
        # SimulEval 1.1.4's own --remote-eval client looks for an attribute that its evaluator has not got, so we
        # speak its protocol ourselves.
        request(port, "POST", "/reset")
        source, written = (folder / "test.de").read_text(encoding="utf-8").splitlines()[0].split(), []
        for index, word in enumerate(source):
            segment = TextSegment(content=word, finished=index + 1 == len(source), tgt_lang=None)
            request(port, "PUT", "/input", segment.json())
            written.append(json.loads(request(port, "GET", "/output")).get("content") or "")
    finally:
        server.terminate()
        server.wait(timeout=20)
    expected = SimultaneousTranslator.from_pretrained(model, "de-en", splitter=None).translate(" ".join(source))
    assert " ".join(part for part in written if part) == expected


def listening(process: int, port: int) -> set[str]:
    """Addresses on which a process accepts connections to a port, as Linux lists them."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]
    ]
    sockets = [fields[1].split(":")[0] for fields in lines if fields[3] == "0A" and fields[1].endswith(f":{port:04X}")]
    return {".".join(str(byte) for byte in reversed(bytes.fromhex(address))) for address in sockets}


def request(port: str, method: str, path: str, body: str | None = None) -> str:
    data = None if body is None else body.encode()
    with urlopen(
        Request(
            f"http://127.0.0.1:{port}{path}", data=data if data else (b"" if method == "POST" else None), method=method
        )
    ) as answer:
        return answer.read().decode()
