import json
import os
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from conftest import ROOT, dual_model, fails, run, save_model

from hf_dualpath.apps.demo import launch
from hf_dualpath.apps.examples import SHIPPED_EXAMPLES, TOY_EXAMPLES, examples_for
from hf_dualpath.apps.sessions import MAX_CHARACTERS, NO_LIMIT, Models, Session, Sessions, Settings, dial_value
from hf_dualpath.apps.space import export_space, not_for_others
from hf_dualpath.apps.view import (
    History,
    grid_svg,
    replay_html,
    second_html,
    stats_html,
    transcript_html,
    translation_html,
)
from hf_dualpath.inference.events import Read, SentenceEnd, Write
from hf_dualpath.inference.streaming import SimultaneousTranslator
from hf_dualpath.inference.tokenization import save_tokenizers, train_bpe_tokenizer, train_word_tokenizer
from hf_dualpath.toy import generate_pairs


HOSTILE = '<script>window.hacked=1</script> <img src=x onerror=window.hacked=2> & "quotes" \''
FREE, TIGHT = {"max_lag": None}, {"max_lag": 1}
SETTINGS = Settings("de-en", [FREE, TIGHT])


def history(*events) -> History:
    return History().add(events)


SAMPLE = history(
    Read("Eine"),
    Write("A", 1, 1, 0.01),
    Read("Hexe"),
    Read("tritt"),
    Write("witch", 3, 4, 0.02),
    Write("performs.", 3, 4, 0.03),
)


# Pure functions


def test_history():
    assert (SAMPLE.source, SAMPLE.target) == (["Eine", "Hexe", "tritt"], ["A", "witch", "performs."])
    assert SAMPLE.path == [1, 3, 3]
    assert "".join("R" if step.is_read else "W" for step in SAMPLE.steps) == "RWRRWW"
    assert history(Read("a"), "an event of another kind").source == ["a"]


def test_transcript_marks_what_a_word_waited_for():
    page = transcript_html(SAMPLE)
    assert "nth-child(-n+3)" in page and 'class="dp-word dp-r1"' in page
    assert 'aria-live="polite"' in page and 'tabindex="0"' in page, "screen readers and the keyboard get it too"


def test_statistics():
    assert "+1 now" in stats_html(history(Read("a"))) and "average" not in stats_html(history(Read("a")))
    assert "+0 now" in stats_html(SAMPLE) and "20 ms" in stats_html(SAMPLE)


def test_lag_is_of_the_current_sentence():
    sentence = [Read("Ja,"), Read("das"), Read("ist"), Read("so."), Write("Yes.", 4, 4, 0.01)]
    sentence.append(SentenceEnd("Ja, das ist so.", "Yes.", (0, 4), (0, 1)))
    next_sentence = [Read("Gut."), Write("Good.", 5, 5, 0.01)]
    assert "+3 now" in stats_html(history(*sentence))
    assert "+0 now" in stats_html(history(*sentence, *next_sentence)), "three words fewer are no lag of the next one"
    assert "1.0 words on average" in stats_html(history(*sentence, *next_sentence))


def test_grid_grows_with_the_stream():
    small, large = grid_svg(history(Read("a"))), grid_svg(SAMPLE)
    legend = grid_svg(history()).count("<text")
    assert legend == 2 and "READ →" in small and "WRITE ↓" in small
    assert small.count("<text") == legend + 1 and large.count("<text") == legend + 6
    assert (large.count("h22"), large.count("v22")) == (3, 3), "a stroke to the right a read, and down a write"
    long = history(*[Read(str(i)) for i in range(500)], *[Write(str(i), 500, 500, 0) for i in range(500)])
    assert grid_svg(long).count("<text") == legend + 80, "only the last words of a long stream are drawn"


@pytest.mark.parametrize("show", [second_html, translation_html, lambda h: replay_html(h, HOSTILE), grid_svg])
def test_text_is_never_markup(show):
    events = [Read(word) for word in HOSTILE.split()] + [Write(word, 3, 3, 0.0) for word in HOSTILE.split()]
    page = show(history(*events))
    assert "<script>" not in page and "<img" not in page and "&lt;script&gt;" in page


def test_replay_moves_without_a_script():
    page = replay_html(SAMPLE, "Eine Hexe tritt", 0.5)
    assert page.count("<animate") == 6 and "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_replayed_words_appear_in_step_with_the_grid():
    page = replay_html(SAMPLE, "Eine Hexe tritt", 0.5)
    words = dict(re.findall(r'animation-delay:([\d.]+)s">(\w+\.?)</span>', page))
    assert words == {
        "0.00": "Eine",
        "0.50": "A",
        "1.00": "Hexe",
        "1.50": "tritt",
        "2.00": "witch",
        "2.50": "performs.",
    }
    grid = re.findall(r'begin="([\d.]+)s".*?<text[^>]*>([^<]*)<', page)
    assert dict(grid) == words
    assert re.search(r"\.dp-moving span *{ *opacity: 0", page), "before its moment a word is not seen"
    assert "animation-delay" not in transcript_html(SAMPLE), "the live page shows words at once"


# Sessions


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A random model over word tokens: whatever it writes is a word."""
    folder = tmp_path_factory.mktemp("model")
    pairs = generate_pairs(200, seed=1, max_words=8, every=3)
    tokenizer = train_word_tokenizer([t for p in pairs for t in (p.source, p.target)], 1, show_progress=False)
    for seed in range(100):  # one that writes something before the text ends
        torch.manual_seed(seed)
        model = dual_model(vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=2, energy_bias=2.0)
        translator = SimultaneousTranslator(model.forward_model, tokenizer, tokenizer)
        written = [event for event in translator.push("Ein Hund suchte einen ") if isinstance(event, Write)]
        if 2 <= len(written) <= 8 and not translator._stream.done:
            break
    model.save_pretrained(folder)
    save_tokenizers(folder, tokenizer, tokenizer)
    (folder / "README.md").write_text("a card")
    return str(folder)


@pytest.fixture(scope="module")
def models(checkpoint):
    return Models(checkpoint)


def test_typing_reads_on_and_changes_start_afresh(models):
    session = Session(models)
    session.type("Ein Hund ", SETTINGS)
    before = [len(panel.history.source) for panel in session.panels]
    session.type("Ein Hund suchte ", SETTINGS)
    assert [len(panel.history.source) for panel in session.panels] == [count + 1 for count in before] == [3, 3]
    session.type("Eine Katze ", SETTINGS)
    assert session.panels[0].history.source == ["Eine", "Katze"]
    session.type("Eine Katze ", SETTINGS._replace(direction="en-de"))
    assert session.settings.direction == "en-de"


def test_both_dials_see_the_same_input(models):
    session = Session(models)
    session.finish("Ein Hund suchte einen Hund", SETTINGS)
    free, tight = (panel.history for panel in session.panels)
    assert free.source == tight.source == "Ein Hund suchte einen Hund".split()
    assert tight.path[0] == 1, "a largest lag of 1 writes after the first token"


def test_limits_have_messages(models):
    session = Session(models)
    shown = session.type("wort " * 4000, SETTINGS)
    assert f"first {MAX_CHARACTERS} characters" in shown[0]
    assert f"first {MAX_CHARACTERS} characters" in session.type("wort " * 4001, SETTINGS)[0]
    assert len(session.panels[0].history.source) == MAX_CHARACTERS // 5
    session.last_paste = time.monotonic()
    again = session.type("andere " * 300, SETTINGS)
    assert "wait a moment" in again[0]


def test_one_stream_unless_two_are_asked_for(models):
    session = Session(models)
    *_, second = session.type("Ein Hund ", Settings("de-en", [FREE]))
    assert second == "" and len(session.panels) == 1


def test_the_lag_slider_ends_in_no_limit():
    values = [dial_value("max_lag", position) for position in range(1, NO_LIMIT + 1)]
    assert values == [*range(1, NO_LIMIT), None]


def test_playing_goes_word_by_word(models):
    steps = list(Session(models).play("Ein Hund suchte", 600, SETTINGS))
    assert len(steps) == 4 and steps[0][1].count("<text") < steps[-1][1].count("<text")


@pytest.mark.parametrize("speed", [-1.0, 0.0, 1e-9])
def test_nobody_plays_forever(models, speed):
    """A made-up request cannot hold a thread."""
    session = Session(models)
    playing = session.play("Ein Hund", speed, SETTINGS)
    next(playing)
    threading.Timer(0.1, session.stop).start()
    start = time.monotonic()
    list(playing)
    assert time.monotonic() - start < 5


def test_typing_ends_the_playing(models):
    session = Session(models)
    playing = session.play("Ein Hund suchte einen Hund", 60, SETTINGS)
    next(playing), next(playing)
    typed = session.type("Eine Katze ", SETTINGS)
    start = time.monotonic()
    assert list(playing) == [typed], "what comes last is what was typed"
    assert time.monotonic() - start < 0.5, "at once, not at the next word"
    assert session.panels[0].history.source == ["Eine", "Katze"]


def test_what_the_page_puts_into_the_box_is_not_typed(models):
    """The browser reports every change of the box, also when an example was chosen and plays."""
    session, text = Session(models), "Ein Hund suchte"
    session.choose(text)
    session.edit(text, SETTINGS)
    playing = session.play(text, 600, SETTINGS)
    next(playing)
    session.edit(text, SETTINGS)
    list(playing)
    assert session.panels[0].history.source == text.split()
    session.edit("Ein Hund ", SETTINGS)
    session.edit(text + " ", SETTINGS)
    assert session.panels[0].history.source == text.split()
    assert session.clear() == session.edit("", SETTINGS)


def test_clearing_ends_the_playing(models):
    session = Session(models)
    playing = session.play("Ein Hund suchte einen Hund", 60, SETTINGS)
    next(playing), next(playing)
    cleared = session.clear()
    assert list(playing) == [cleared] == [Session(models).show()]


def test_typing_while_a_dial_moves(models):
    session, text = Session(models), "Ein Hund suchte einen Hund und eine Katze"
    both = [SETTINGS, Settings("de-en", [{"write_threshold": 0.4}, TIGHT])]
    with ThreadPoolExecutor(4) as pool:
        events = [pool.submit(session.type, text, both[number % 2]) for number in range(40)]
    assert all(len(event.result()) == 3 for event in events)
    assert [panel.history.source for panel in session.panels] == [text.split()[:-1]] * 2, "no word is read twice"


def test_ten_visitors_at_once(models):
    slowest = []

    def visit():
        session, text, worst = Session(models), "", 0.0
        for word in "Ein Hund suchte einen Hund und eine Katze".split():
            text += word + " "
            start = time.perf_counter()
            session.type(text, SETTINGS)
            worst = max(worst, time.perf_counter() - start)
        slowest.append(worst)

    threads = [threading.Thread(target=visit) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(slowest) == 10 and max(slowest) < 2.0


def test_sessions_are_limited_and_expire(models):
    sessions = Sessions(models, limit=3)
    first = sessions.of("0")
    playing = first.play("Ein Hund suchte", 60, SETTINGS)
    next(playing)
    for tab in "1203":
        sessions.of(tab)
    assert list(sessions.open) == ["2", "0", "3"], "the one that was idle longest goes"
    assert sessions.of("0") is first
    for tab in "456":
        sessions.of(tab)
    list(playing)  # ends, although the text has not
    assert len(first.panels[0].history.source) == 1
    sessions = Sessions(models, idle_seconds=0.05)
    sessions.of("old")
    time.sleep(0.1)
    sessions.of("new")
    assert list(sessions.open) == ["new"]
    sessions.drop("new")
    sessions.drop("never there")
    assert not sessions.open


@pytest.mark.parametrize("policy, dials", [("wait_k", {"wait_k": 3, "max_lag": NO_LIMIT}), ("mma", None)])
def test_only_dials_that_do_something(tmp_path, policy, dials):
    pairs = generate_pairs(30, seed=1, max_words=8, every=3)
    models = Models(save_model(tmp_path, pairs, policy=policy, wait_k=3))
    assert models.dials == (dials or {"write_threshold": 0.5, "max_lag": NO_LIMIT})
    streams = [{name: dial_value(name, value) for name, value in models.dials.items()}]
    Session(models).finish("Ein Hund", Settings("de-en", streams))


def test_loading_options_arrive(checkpoint):
    models = Models(checkpoint, dtype="bfloat16")
    assert {translator.model.dtype for translator in models.translators.values()} == {torch.bfloat16}


def test_examples_are_of_the_languages_that_the_model_knows():
    toy = [text for pair in generate_pairs(3000, seed=1, max_words=8, every=3) for text in (pair.source, pair.target)]
    other = [text for texts in SHIPPED_EXAMPLES.values() for text in texts] * 3
    for train in (
        lambda texts: train_bpe_tokenizer(texts, 600, False),
        lambda texts: train_word_tokenizer(texts, 1, False),
    ):
        for direction in ("de-en", "en-de"):
            assert examples_for(direction, train(toy)) == TOY_EXAMPLES[direction]
            assert examples_for(direction, train(other)) == SHIPPED_EXAMPLES[direction]
    assert examples_for("fi-sv", train_word_tokenizer(other, 1, False)) == []


def test_replay_command(checkpoint, tmp_path, capsys):
    outputs = [str(tmp_path / f"replay.{kind}") for kind in ("html", "svg", "gif")]
    run(capsys, "replay", "--model", checkpoint, "Ein Hund suchte $x^$", "--output", *outputs)
    assert (tmp_path / "replay.gif").read_bytes()[:3] == b"GIF" and "<animate" in (tmp_path / "replay.svg").read_text()
    assert "none of" in fails(capsys, "replay", "--model", checkpoint, "Hund", "--output", str(tmp_path / "x.mp4"))
    assert "at most 60" in fails(capsys, "replay", "--model", checkpoint, "H", "--output", "x.gif", "--seconds", "200")


def test_export_space(checkpoint, tmp_path, capsys):
    space = tmp_path / "space"
    run(capsys, "demo", "--model", checkpoint, "--export-space", str(space))
    names = {str(path.relative_to(space)) for path in space.rglob("*") if path.is_file()}
    assert {"app.py", "requirements.txt", "README.md", "model/model.safetensors", "hf_dualpath/apps/demo.py"} <= names
    assert (space / "README.md").read_text().startswith("---\ntitle:")
    app = (space / "app.py").read_text()
    compile(app, "app.py", "exec")
    assert f"name={Path(checkpoint).name!r}" in app, "the page says which model it is"
    with pytest.raises(ValueError, match="not empty"):
        export_space(checkpoint, space)
    (tmp_path / "empty").mkdir()
    assert "not a checkpoint" in fails(
        capsys, "demo", "--model", str(tmp_path / "empty"), "--export-space", str(tmp_path / "none")
    )
    assert not (tmp_path / "none").exists()


def test_a_space_needs_what_the_project_needs(checkpoint, tmp_path):
    tomllib = pytest.importorskip("tomllib")
    from packaging.requirements import Requirement

    export_space(checkpoint, tmp_path / "space")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = {str(Requirement(line)) for line in (tmp_path / "space" / "requirements.txt").read_text().splitlines()}
    assert needs == {
        str(Requirement(line)) for line in project["dependencies"] + project["optional-dependencies"]["demo"]
    }


def test_a_space_takes_no_secret_along(checkpoint, tmp_path):
    """Neither from the model's folder nor from the package's: no link, no hidden file."""
    (tmp_path / "secret").write_text("a secret")
    model, package = tmp_path / "model", tmp_path / "package"
    shutil.copytree(checkpoint, model)
    (package / "room").mkdir(parents=True)
    (package / "room" / "code.py").write_text("")
    for folder in (model, package, package / "room"):
        (folder / "link.json").symlink_to(tmp_path / "secret")
        (folder / ".env").write_text("a secret")
    (package / "elsewhere").symlink_to(tmp_path)
    export_space(model, tmp_path / "space")
    shutil.copytree(package, tmp_path / "copy", ignore=not_for_others)
    copied = [path for folder in ("space", "copy") for path in (tmp_path / folder).rglob("*")]
    assert not [path for path in copied if path.name.startswith((".", "link")) or path.is_symlink()]
    assert [str(path.relative_to(tmp_path / "copy")) for path in copied if path.is_relative_to(tmp_path / "copy")] == [
        "room",
        "room/code.py",
    ]


def test_a_space_of_a_model_on_the_hub(checkpoint, tmp_path, monkeypatch, capsys):
    from huggingface_hub import constants

    repository = tmp_path / "hub" / "models--owner--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(Path(checkpoint).iterdir())):
        shutil.copyfile(path, repository / "blobs" / str(number))
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(number))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    run(capsys, "demo", "--model", "owner/name", "--export-space", str(tmp_path / "space"))
    assert "name='name'" in (tmp_path / "space" / "app.py").read_text()
    weights = tmp_path / "space" / "model" / "model.safetensors"
    assert weights.read_bytes() == (Path(checkpoint) / "model.safetensors").read_bytes() and not weights.is_symlink()
    assert "no such checkpoint" in fails(
        capsys, "demo", "--model", "owner/other", "--export-space", str(tmp_path / "none")
    )


# Over HTTP


@pytest.fixture(scope="module")
def page_url(checkpoint):
    page = launch(checkpoint, open_browser=False, block=False)
    yield page
    page.close()


def post(page, path: str, body: bytes, kind: str = "application/json") -> tuple[int, bytes]:
    try:
        with urlopen(
            Request(f"{page.local_url}gradio_api/{path}", body, {"Content-Type": kind}), timeout=30
        ) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()


def test_uploads_are_refused(page_url):
    form = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\nhello\r\n--x--\r\n'
    status, answer = post(page_url, "upload", form, "multipart/form-data; boundary=x")
    assert status == 403 and b"a.txt" not in answer


@pytest.mark.parametrize(
    "path", ["call/on_type", "run/on_type", "api/on_type", "component_server", "process_recording"]
)
def test_only_the_page_calls(page_url, path):
    assert post(page_url, path, json.dumps({"data": []}).encode())[0] == 403
    for page in ("info", "deep_link?session_hash=a", "openapi.json", "file=pyproject.toml"):
        with pytest.raises(HTTPError, match="403"):
            urlopen(f"{page_url.local_url}gradio_api/{page}", timeout=30)


def test_a_request_has_a_size(page_url):
    """The name of a session is kept, and would be as long as somebody likes."""
    call = {"data": [], "fn_index": 0, "session_hash": "x" * 300_000}
    assert post(page_url, "queue/join", json.dumps(call).encode())[0] == 413
    connection = HTTPConnection("127.0.0.1", page_url.server_port, timeout=30)
    connection.request("POST", "/gradio_api/queue/join", iter([b"{}"]), encode_chunked=True)  # of no known size
    assert connection.getresponse().status == 413
    assert not any(len(tab) > 100 for tab in page_url.sessions.open)


def memory() -> float:
    """Of this process, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_visitors_who_never_leave_fill_nothing(page_url, monkeypatch):
    """200 tabs that type and vanish without a goodbye."""
    monkeypatch.setattr(page_url.sessions, "limit", 20)
    number = min(number for number, event in page_url.fns.items() if event.name == "on_edit")
    data = ["Ein Hund suchte ", "de-en", 0.5, NO_LIMIT, False, 0.3, NO_LIMIT]
    before = None
    for tab in range(200):
        call = {"data": data, "fn_index": number, "session_hash": f"tab{tab}"}
        assert post(page_url, "queue/join", json.dumps(call).encode())[0] == 200
        eventually(lambda tab=tab: f"tab{tab}" in page_url.sessions.open)
        if tab == 50:
            before = memory()
    assert len(page_url.sessions.open) <= 20
    assert memory() - before < 40, (
        "a coarse bound for 150 more visitors; with the model that ships each would keep 4 MB"
    )


# In a real browser

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
browser_test = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; .ci/run installs one"),
]
SCREENSHOTS = os.environ.get("DUALPATH_SCREENSHOTS")


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    flags = (
        "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync".split()
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*flags, "--no-first-run"])
        yield browser
        browser.close()


def is_foreign(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:"))


def open_tab(chromium, page_url, **options):
    tab = chromium.new_context(**({"viewport": {"width": 1280, "height": 800}} | options)).new_page()
    tab.foreign = []
    tab.on("request", lambda request: tab.foreign.append(request.url) if is_foreign(request.url) else None)
    tab.goto(page_url.local_url)
    tab.wait_for_selector("#source textarea")
    return tab


def words(tab) -> list[str]:
    return tab.locator("#translation .dp-word").all_inner_texts()


def read(tab) -> list[str]:
    return tab.locator("#translation .dp-source span").all_inner_texts()


def eventually(condition, seconds: float = 15.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.1)


class TestInBrowser:
    pytestmark = browser_test

    def test_the_first_word_comes_before_the_last_is_typed(self, chromium, page_url):
        tab = open_tab(chromium, page_url)
        box = tab.locator("#source textarea")
        for word in "Ein Hund suchte einen".split():
            box.press_sequentially(word + " ", delay=10)
        eventually(lambda: words(tab))
        early = words(tab)
        box.press_sequentially("Hund. ", delay=10)
        tab.click("#finish")
        eventually(lambda: read(tab) == "Ein Hund suchte einen Hund.".split())
        assert words(tab)[: len(early)] == early, "what was written does not change"
        assert tab.foreign == [], "nothing is fetched from elsewhere"
        tab.context.close()

    def test_pointing_at_a_word_marks_what_it_waited_for(self, chromium, page_url):
        tab = open_tab(chromium, page_url)
        tab.locator("#source textarea").press_sequentially("Ein Hund suchte einen Hund. ", delay=5)
        tab.click("#finish")
        eventually(lambda: words(tab))
        first = tab.locator("#translation .dp-word").first
        first.hover()
        colour = "e => getComputedStyle(e).backgroundColor"
        assert tab.locator("#translation .dp-source span").first.evaluate(colour) == "rgb(245, 182, 66)"
        tab.context.close()

    def test_playing_and_the_dial(self, chromium, page_url):
        tab = open_tab(chromium, page_url)
        tab.locator("#source textarea").fill("Ein Hund suchte einen Hund und eine Katze")
        tab.get_by_text("Latency and speed").click()
        for slider, value in (("#max_lagA", "1"), ("#speed", "600")):
            tab.locator(f"{slider} input[type=number]").fill(value)
            tab.locator(f"{slider} input[type=number]").press("Tab")
        assert tab.locator("#second .dp-word").count() == 0, "the second stream is there when it is asked for"
        tab.locator("#compare input").check()
        tab.click("#play")
        eventually(lambda: len(read(tab)) == 8)
        eventually(lambda: len(words(tab)) >= 5)
        # The text was also translated when it was filled in, before the dial was turned: wait for what comes after.
        first = tab.locator("#translation .dp-word").first
        eventually(lambda: "dp-r1" in first.get_attribute("class"))  # lag 1: written after one word
        eventually(lambda: tab.locator("#second .dp-source span").count() == 8)
        tab.context.close()

    def test_clearing_and_typing_while_it_plays(self, chromium, page_url):
        tab = open_tab(chromium, page_url)
        tab.locator("#source textarea").fill("Ein Hund suchte einen Hund und eine Katze " * 3)
        tab.click("#play")
        eventually(lambda: words(tab))
        tab.click("#clear")
        eventually(lambda: not read(tab) and not words(tab))
        time.sleep(1.5)
        assert not read(tab) and tab.locator("#source textarea").input_value() == "", "and it stays so"
        tab.locator("#source textarea").fill("Ein Hund suchte einen Hund und eine Katze " * 3)
        tab.click("#play")
        eventually(lambda: words(tab))
        tab.locator("#source textarea").fill("Eine Katze ")
        eventually(lambda: read(tab) == ["Eine", "Katze"])
        time.sleep(1.5)
        assert read(tab) == ["Eine", "Katze"], "nothing of the other text comes in between"
        tab.context.close()

    def test_an_example_plays(self, chromium, page_url):
        tab = open_tab(chromium, page_url)
        example = TOY_EXAMPLES["en-de"][0]
        tab.get_by_text(example).click()
        eventually(lambda: 0 < len(read(tab)) < 5)
        eventually(lambda: read(tab) == example.split())
        assert tab.locator("#source textarea").input_value() == example
        assert tab.locator("#direction input:checked").input_value() == "en-de"
        before = words(tab)
        tab.locator("#direction input").first.check()
        eventually(lambda: words(tab) != before)
        tab.context.close()

    @pytest.mark.parametrize(
        "width, height, shown", [(1280, 800, ["translation", "grid"]), (390, 844, ["translation"])]
    )
    def test_the_first_screen_shows_it(self, chromium, page_url, checkpoint, width, height, shown):
        tab = open_tab(chromium, page_url, viewport={"width": width, "height": height})
        tab.locator("#source textarea").fill("Ein Hund suchte einen Hund. ")
        eventually(lambda: words(tab))
        for name in shown:
            box = tab.locator(f"#{name}").bounding_box()
            assert box["y"] + box["height"] <= height and box["x"] + box["width"] <= width + 1
        source, translation = (tab.locator(f"#{name}").bounding_box() for name in ("source", "translation"))
        assert 0 <= translation["y"] - source["y"] - source["height"] < 40, "right below the source"
        page = tab.locator("body").inner_text()
        assert Path(checkpoint).name in page and "hf_dualpath" in page and "WRITE" in page
        assert tab.locator("a[href*='2022.acl-long.176']").count() == 1
        tab.context.close()

    def test_two_tabs_do_not_meet_and_closing_frees(self, chromium, page_url):
        first, second = (open_tab(chromium, page_url) for _ in range(2))
        for tab, text in ((first, "Ein Hund "), (second, "Eine Katze ")):
            tab.locator("#source textarea").press_sequentially(text, delay=5)
        for tab, text in ((first, ["Ein", "Hund"]), (second, ["Eine", "Katze"])):
            eventually(lambda tab=tab, text=text: read(tab) == text)
        before = len(page_url.sessions.open)
        assert before >= 2
        first.context.close()
        second.context.close()
        eventually(lambda: len(page_url.sessions.open) <= before - 2)

    def test_hostile_input_is_text(self, chromium, page_url):
        tab = open_tab(chromium, page_url)
        tab.locator("#source textarea").fill(HOSTILE + " ")
        eventually(lambda: "<script>" in tab.locator("#translation .dp-source").inner_text())
        assert tab.evaluate("window.hacked") is None
        tab.locator("#source textarea").fill("wort " * 4000)
        eventually(lambda: "characters are read" in tab.locator("#translation").inner_text(), 60)
        tab.context.close()

    @pytest.mark.parametrize("look", ["desktop", "phone", "dark"])
    def test_looks(self, chromium, page_url, look, tmp_path):
        options = {"phone": {"viewport": {"width": 390, "height": 844}}, "dark": {"color_scheme": "dark"}}.get(
            look, {}
        )
        tab = open_tab(chromium, page_url, **options)
        tab.locator("#source textarea").fill("Ein Hund suchte einen Hund. ")
        eventually(lambda: words(tab))
        width = tab.evaluate("document.documentElement.scrollWidth")
        assert width <= tab.viewport_size["width"] + 1, "nothing sticks out sideways"
        folder = Path(SCREENSHOTS) if SCREENSHOTS else tmp_path
        tab.screenshot(path=folder / f"{look}.png", full_page=True)
        tab.context.close()
