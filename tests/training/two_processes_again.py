"""The scripts of the two-process tests, again and again: `python tests/training/two_processes_again.py 100`.

What is looked for is a race at the end of a process, so imports need not be paid for each time: both processes are
forked from this one, which has imported everything and computed nothing. They end as any interpreter does.
"""

import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path


TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "training")]

import test_safety  # noqa: E402
import test_trainer  # noqa: E402

import hf_dualpath.training.run  # noqa: E402, F401
from hf_dualpath.toy import generate_pairs  # noqa: E402


SCRIPTS = {
    "gradient": test_trainer.TWO_PROCESSES,
    "resume": test_trainer.RESUME_ON_TWO,
    "stop": test_safety.STOP_ONE_OF_TWO,
    "run": test_safety.WHOLE_RUN_ON_TWO,
    "stopped run": test_safety.STOPPED_RUN_ON_TWO,
}
SECONDS = 300


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def become(rank: int, port: int, folder: Path, script: str):
    """Makes this process, just forked, what `accelerate launch` would have started."""
    output = os.open(folder / f"output-{rank}", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
    }
    sys.argv = ["two.py", str(folder / "out")]
    exec(compile(script.format(tests=str(TESTS)), "two.py", "exec"), {"__name__": "__main__"})


def wait(children: list[int]) -> list[int | None]:
    """Exit codes; None of what has not ended in time."""
    codes, deadline = dict.fromkeys(children), time.monotonic() + SECONDS
    while None in codes.values() and time.monotonic() < deadline:
        for child in [child for child, code in codes.items() if code is None]:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                codes[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    for child in [child for child, code in codes.items() if code is None]:
        os.kill(child, 9)
        os.waitpid(child, 0)
    return list(codes.values())


def main(count: int):
    rows = ["de\ten", *(f"{pair.source}\t{pair.target}" for pair in generate_pairs(60, seed=1, max_words=6))]
    for number in range(1, count + 1):
        for name, script in SCRIPTS.items():
            folder, port, children = Path(tempfile.mkdtemp()), free_port(), []
            (folder / "pairs.tsv").write_text("\n".join(rows))
            (folder / "out").mkdir()
            for rank in range(2):
                child = os.fork()
                if child == 0:
                    return become(rank, port, folder, script)
                children.append(child)
            codes = wait(children)
            printed = [(folder / f"output-{rank}").read_text() for rank in range(2)]
            if codes != [0, 0] or any("terminate called" in text for text in printed):
                sys.exit(f"round {number}, {name}: {codes}\n" + "\n".join(text[-3000:] for text in printed))
            shutil.rmtree(folder)
        print(f"{number} of {count} rounds of {len(SCRIPTS)} scripts: no failure", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
