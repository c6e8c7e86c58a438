import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import dual_model, fails, run

from hf_dualpath.apps.demo import MAX_CHARACTERS, Models, Session, export_space, launch
from hf_dualpath.apps.view import History, grid_svg, panel_html, replay_html, stats_html, transcript_html
from hf_dualpath.inference.streaming import Read, SimultaneousTranslator, Write
from hf_dualpath.inference.tokenization import save_tokenizers, train_word_tokenizer
from hf_dualpath.toy import generate_pairs


HOSTILE = '<script>window.hacked=1</script> <img src=x onerror=window.hacked=2> & "quotes" \''
SETTINGS = ("de-en", 0.5, 0, 0.5, 1)


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
    assert SAMPLE.path == [1, 3, 3] and SAMPLE.actions == "RWRRWW"


def test_transcript_marks_what_a_word_waited_for():
    page = transcript_html(SAMPLE)
    assert "nth-child(-n+3)" in page and 'class="dp-word dp-r1"' in page
    assert 'aria-live="polite"' in page and 'tabindex="0"' in page, "screen readers and the keyboard get it too"


def test_statistics():
    assert "Nothing written" in stats_html(history(Read("a")))
    assert "<b>lag now</b> +0" in stats_html(SAMPLE) and "20 ms" in stats_html(SAMPLE)


def test_grid_grows_with_the_stream():
    small, large = grid_svg(history(Read("a"))), grid_svg(SAMPLE)
    assert small.count("<text") == 1 and large.count("<text") == 6
    assert large.count("#dc2626") == 3, "a downward stroke for each write"
    long = history(*[Read(str(i)) for i in range(500)], *[Write(str(i), 500, 500, 0) for i in range(500)])
    assert grid_svg(long).count("<text") == 80, "only the last words of a long stream are drawn"


@pytest.mark.parametrize("show", [panel_html, lambda h: replay_html(h, HOSTILE), grid_svg])
def test_text_is_never_markup(show):
    events = [Read(word) for word in HOSTILE.split()] + [Write(word, 3, 3, 0.0) for word in HOSTILE.split()]
    page = show(history(*events))
    assert "<script>" not in page and "<img" not in page and "&lt;script&gt;" in page


def test_replay_moves_without_a_script():
    page = replay_html(SAMPLE, "Eine Hexe tritt")
    assert (
        page.count("<animate") == 6 and "<script" not in page and "http" not in page.replace("http://www.w3.org", "")
    )


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
    session.type("Eine Katze ", ("en-de", *SETTINGS[1:]))
    assert session.settings[0] == "en-de"


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
    assert len(session.panels[0].history.source) == MAX_CHARACTERS // 5
    session.last_paste = time.monotonic()
    again = session.type("andere " * 300, SETTINGS)
    assert "wait a moment" in again[0]


def test_speaking_goes_word_by_word(models):
    steps = list(Session(models).speak("Ein Hund suchte", 6000, SETTINGS))
    assert len(steps) == 4 and steps[0][0].count("<text") < steps[-1][0].count("<text")


def test_typing_while_a_dial_moves(models):
    session, text = Session(models), "Ein Hund suchte einen Hund und eine Katze"
    both = [SETTINGS, ("de-en", 0.4, 0, 0.3, 1)]
    with ThreadPoolExecutor(4) as pool:
        events = [pool.submit(session.type, text, both[number % 2]) for number in range(40)]
    assert all(len(event.result()) == 2 for event in events)
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


def test_replay_command(checkpoint, tmp_path, capsys):
    outputs = [str(tmp_path / f"replay.{kind}") for kind in ("html", "svg", "gif")]
    run(capsys, "replay", "--model", checkpoint, "Ein Hund suchte $x^$", "--output", *outputs)
    assert (tmp_path / "replay.gif").read_bytes()[:3] == b"GIF" and "<animate" in (tmp_path / "replay.svg").read_text()
    assert "none of" in fails(capsys, "replay", "--model", checkpoint, "Hund", "--output", str(tmp_path / "x.mp4"))
    assert "at most 60" in fails(capsys, "replay", "--model", checkpoint, "H", "--output", "x.gif", "--seconds", "200")


def test_export_space(checkpoint, tmp_path, capsys):
    run(capsys, "demo", "--model", checkpoint, "--export-space", str(tmp_path / "space"))
    names = {str(path.relative_to(tmp_path / "space")) for path in (tmp_path / "space").rglob("*") if path.is_file()}
    assert {"app.py", "requirements.txt", "README.md", "model/model.safetensors", "hf_dualpath/demo.py"} <= names
    assert (tmp_path / "space" / "README.md").read_text().startswith("---\ntitle:")
    compile((tmp_path / "space" / "app.py").read_text(), "app.py", "exec")
    with pytest.raises(ValueError, match="not empty"):
        export_space(checkpoint, tmp_path / "space")


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
def page_url(checkpoint):
    page = launch(checkpoint, open_browser=False, block=False)
    yield page
    page.close()


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
    tab = chromium.new_context(**({"viewport": {"width": 1280, "height": 900}} | options)).new_page()
    tab.foreign = []
    tab.on("request", lambda request: tab.foreign.append(request.url) if is_foreign(request.url) else None)
    tab.goto(page_url.local_url)
    tab.wait_for_selector("#source textarea")
    return tab


def words(tab, panel: str = "A") -> list[str]:
    return tab.locator(f"#panel{panel} .dp-word").all_inner_texts()


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
        source = tab.locator("#panelA .dp-source span")
        eventually(lambda: source.all_inner_texts() == "Ein Hund suchte einen Hund.".split())
        assert words(tab)[: len(early)] == early, "what was written does not change"
        assert tab.foreign == [], "nothing is fetched from elsewhere"
        tab.context.close()

    def test_pointing_at_a_word_marks_what_it_waited_for(self, chromium, page_url):
        tab = open_tab(chromium, page_url)
        tab.locator("#source textarea").press_sequentially("Ein Hund suchte einen Hund. ", delay=5)
        tab.click("#finish")
        eventually(lambda: words(tab))
        first = tab.locator("#panelA .dp-word").first
        first.hover()
        colour = "e => getComputedStyle(e).backgroundColor"
        assert tab.locator("#panelA .dp-source span").first.evaluate(colour) == "rgb(245, 182, 66)"
        tab.context.close()

    def test_speaking_and_the_dial(self, chromium, page_url):
        tab = open_tab(chromium, page_url)
        tab.locator("#source textarea").fill("Ein Hund suchte einen Hund und eine Katze")
        tab.locator("#lagA input[type=number]").fill("1")
        tab.locator("#lagA input[type=number]").press("Tab")
        tab.locator("#speed input[type=number]").fill("600")
        tab.click("#speak")
        eventually(lambda: len(tab.locator("#panelA .dp-source span").all_inner_texts()) == 8)
        eventually(lambda: len(words(tab)) >= 5)
        assert "dp-r1" in tab.locator("#panelA .dp-word").first.get_attribute("class"), "lag 1: written after one word"
        tab.context.close()

    def test_two_tabs_do_not_meet_and_closing_frees(self, chromium, page_url):
        first, second = (open_tab(chromium, page_url) for _ in range(2))
        for tab, text in ((first, "Ein Hund "), (second, "Eine Katze ")):
            tab.locator("#source textarea").press_sequentially(text, delay=5)
        for tab, text in ((first, ["Ein", "Hund"]), (second, ["Eine", "Katze"])):
            eventually(lambda tab=tab, text=text: tab.locator("#panelA .dp-source span").all_inner_texts() == text)
        before = len(page_url.sessions.open)
        assert before >= 2
        first.context.close()
        second.context.close()
        eventually(lambda: len(page_url.sessions.open) <= before - 2)

    def test_hostile_input_is_text(self, chromium, page_url):
        tab = open_tab(chromium, page_url)
        tab.locator("#source textarea").fill(HOSTILE + " ")
        eventually(lambda: "<script>" in tab.locator("#panelA .dp-source").inner_text())
        assert tab.evaluate("window.hacked") is None
        tab.locator("#source textarea").fill("wort " * 4000)
        eventually(lambda: "characters are translated" in tab.locator("#panelA").inner_text(), 60)
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
