// The caption page: what is said, and its translation beside it. Text goes in as text, never as markup.
import { connect } from "./client.js";

const SHOWN = 60; // sentences
const [captions, newest] = [document.getElementById("captions"), document.getElementById("newest")];
const name = decodeURIComponent(location.pathname.split("/").pop());
let row = null; // of the sentence that is being said

document.title = `${name} · live captions`;
document.getElementById("room").textContent = name;

function sentence() {
  row = document.createElement("div");
  row.className = "dp sentence";
  for (const side of ["dp-source", "dp-target"]) row.append(Object.assign(document.createElement("p"), { className: side, dir: "auto" }));
  captions.append(row);
  while (captions.childElementCount > SHOWN) captions.firstChild.remove();
}

function say(side, word) {
  if (row === null) sentence();
  const words = row.querySelector(side);
  words.append((words.textContent && " ") + word);
}

function status(text, live = false) {
  const line = document.getElementById("status");
  line.textContent = text;
  line.classList.toggle("live", live);
}

const atTheEnd = () => window.innerHeight + window.scrollY >= document.body.scrollHeight - 80;

function show(event) {
  const follows = atTheEnd();
  if (event.event === "open" && event.fresh) { captions.replaceChildren(); row = null; }
  if (event.event === "open") status("Nobody has spoken yet");
  if (event.event === "speaker") {
    captions.dataset.direction = event.direction;
    row = null;
  }
  if (event.event === "read") say(".dp-source", event.word);
  if (event.event === "write") say(".dp-target", event.word);
  if (event.event === "sentence_end") row = null;
  if (event.event === "end") { row = null; status("The speaker has finished"); }
  if (["speaker", "read", "write"].includes(event.event)) status("Live", true);
  if (follows) window.scrollTo(0, document.body.scrollHeight);
  newest.hidden = atTheEnd();
}

connect(`/v1/rooms/${encodeURIComponent(name)}/captions`, show, (state, reason) => {
  if (state === "lost") status("The connection is lost. Connecting again …");
  if (state === "closed") status(reason || "Closed");
});

let size = 100;
function resize(step) {
  size = Math.min(250, Math.max(60, size + step));
  captions.style.fontSize = `${size}%`;
}
document.getElementById("larger").onclick = () => resize(15);
document.getElementById("smaller").onclick = () => resize(-15);
document.getElementById("source").onclick = ({ target }) => {
  const hidden = captions.classList.toggle("no-source");
  target.setAttribute("aria-pressed", String(!hidden));
};
newest.onclick = () => window.scrollTo(0, document.body.scrollHeight);
window.onscroll = () => { newest.hidden = atTheEnd(); };
