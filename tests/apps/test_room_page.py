"""The caption page in a real Chromium: two readers at once, a late one, hostile text, the looks."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from serving import ECHO, Serving, eventually, receive

from hf_dualpath.apps.service.workers import Worker


CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; .ci/run installs one"),
]
SCREENSHOTS = os.environ.get("DUALPATH_SCREENSHOTS")
HOSTILE = "<script>window.hacked=1</script> <img src=x onerror=window.hacked=2> Ende. "
TALK = (
    "Guten Morgen und willkommen zu unserem Vortrag über das Übersetzen. Wir sprechen heute nicht lange. "
    "Wer zuhört, liest die Übersetzung, während wir noch reden. Das nächste Wort kommt"
)


@pytest.fixture(scope="module")
def server():
    patch = pytest.MonkeyPatch()
    patch.setattr(Worker, "command", (sys.executable, ECHO))
    with Serving(["model"]) as running:
        yield running
    patch.undo()


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    flags = "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --no-first-run"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags.split())
        yield browser
        browser.close()


def open_room(chromium, server, name, **options):
    tab = chromium.new_context(**({"viewport": {"width": 1280, "height": 800}} | options)).new_page()
    tab.set_default_timeout(120_000)
    tab.foreign, tab.errors = [], []
    tab.on("request", lambda request: tab.foreign.append(request.url) if server.address not in request.url else None)
    tab.on("console", lambda message: tab.errors.append(message.text) if message.type == "error" else None)
    tab.goto(f"{server.url}/rooms/{name}")
    tab.wait_for_selector("#captions", state="attached")
    eventually(lambda: "Connecting" not in tab.locator("#status").inner_text())
    return tab


def shown(tab, side="target") -> list[str]:
    return tab.locator(f".dp-{side}").all_inner_texts()


def test_two_readers_and_a_late_one(chromium, server):
    first, second = (open_room(chromium, server, "talk") for _ in range(2))
    assert first.locator("#status").inner_text() == "Nobody has spoken yet"
    with server.socket("/v1/rooms/talk") as speaker:
        speaker.send("Guten Tag ")
        for tab in (first, second):
            eventually(lambda tab=tab: shown(tab) == ["GUTEN"])
            assert shown(tab, "source") == ["Guten Tag"] and "Live" in tab.locator("#status").inner_text()
        speaker.send("allen. " + HOSTILE + "Weiter ")
        for tab in (first, second):
            eventually(lambda tab=tab: len(shown(tab, "source")) == 3 and shown(tab, "source")[2] == "Weiter")
            assert shown(tab)[:2] == ["GUTEN TAG ALLEN.", HOSTILE.strip().upper()], "text, and nothing but text"
            assert tab.evaluate("window.hacked") is None and not tab.foreign and not tab.errors
        late = open_room(chromium, server, "talk")
        eventually(lambda: shown(late) == shown(first) and shown(late, "source") == shown(first, "source"))
        speaker.send('{"end": true}')
        receive(speaker)
        eventually(lambda: late.locator("#status").inner_text() == "The speaker has finished")
    first.locator("#source").click()
    assert not first.locator(".dp-source").first.is_visible()
    for tab in (first, second, late):
        tab.context.close()


def test_a_reader_comes_back(chromium, server):
    tab = open_room(chromium, server, "back")
    with server.socket("/v1/rooms/back") as speaker:
        speaker.send("Eins zwei. ")
        eventually(lambda: shown(tab) == ["EINS ZWEI."])
        tab.context.set_offline(True)
        room = server.service.rooms.open["back"]
        server.loop.call_soon_threadsafe(lambda: [lose(reader) for reader in list(room.readers)])
        eventually(lambda: "again" in tab.locator("#status").inner_text())
        speaker.send("Drei vier. ")
        receive(speaker, "sentence_end"), receive(speaker, "sentence_end")
        tab.context.set_offline(False)
        eventually(lambda: shown(tab) == ["EINS ZWEI.", "DREI VIER."])
    tab.context.close()


SPEAK = """async () => {
  const { connect } = await import("/assets/client.js");
  const [Socket, read] = [window.WebSocket, []];
  let [stream, number, lost] = [null, 0, 0];
  window.WebSocket = class extends Socket {
    constructor(url) {
      super(url);
      this.addEventListener("open", () => stream.send(`Satz ${number++}. `));  // sooner than the service says hello
      this.addEventListener("message", ({ data }) => {
        if (!data.includes("sentence_end")) return;
        if (lost++ < 3) super.close(4999); else stream.send({ end: true });
      });
      Object.defineProperty(this, "onclose", { set(hear) {
        this.addEventListener("close", (event) => hear({ code: event.code === 4999 ? 1006 : event.code, reason: "" }));
      } });
    }
  };
  await new Promise((over) => {
    stream = connect("/v1/stream", (event) => { if (event.event === "read") read.push(event.word); }, (state) => {
      if (state === "closed") over();
    });
  });
  window.WebSocket = Socket;
  return read.join(" ");
}"""


def test_the_client_of_a_page_speaks(chromium, server):
    """It sends before it is told that it may, and loses its connection: nothing is lost or sent twice."""
    tab = open_room(chromium, server, "speaker")
    assert tab.evaluate(SPEAK) == "Satz 0. Satz 1. Satz 2. Satz 3."
    tab.context.close()


def lose(reader):
    from hf_dualpath.apps.service.protocol import Close, Refusal

    reader.stop(Refusal(Close.SHUTDOWN))


@pytest.mark.parametrize("look", ["light", "dark", "phone", "phone-dark"])
def test_looks(chromium, server, look, tmp_path):
    options = {"color_scheme": "dark" if "dark" in look else "light"}
    if "phone" in look:
        options["viewport"] = {"width": 390, "height": 844}
    tab = open_room(chromium, server, f"look-{look}", **options)
    with server.socket(f"/v1/rooms/look-{look}") as speaker:
        json.loads(speaker.recv())
        speaker.send(TALK + " ")
        eventually(lambda: shown(tab, "source")[-1:] == ["Das nächste Wort kommt"])
        boxes = [tab.locator(".dp-source").first.bounding_box(), tab.locator(".dp-target").first.bounding_box()]
        assert (boxes[1]["x"] > boxes[0]["x"]) == ("phone" not in look), "beside each other where there is room"
        size = tab.evaluate("parseFloat(getComputedStyle(document.querySelector('.dp-target')).fontSize)")
        assert size >= 24, "large type"
        assert tab.evaluate("document.documentElement.scrollWidth") <= tab.viewport_size["width"] + 1
        back = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") == ("dark" not in look)
        tab.screenshot(path=(Path(SCREENSHOTS) if SCREENSHOTS else tmp_path) / f"room-{look}.png")
    tab.context.close()
