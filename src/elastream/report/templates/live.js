"use strict";
const span = document.getElementById("span"), link = document.getElementById("link"), dialog = document.querySelector("dialog");
const waiting = new Map();
let source, confirmed;

function connect() {
  if (source) source.close();
  source = new EventSource("/events?span=" + encodeURIComponent(span.value));
  source.onopen = () => { link.textContent = ""; };
  source.onerror = () => { link.textContent = "No connection to the page's server. What is shown may be old."; };
  source.onmessage = (event) => {
    const { run, pieces } = JSON.parse(event.data);
    const article = document.querySelector(`article[data-run="${run}"]`);
    for (const [name, text] of Object.entries(pieces)) {
      if (name === "live" || name === "state") article.dataset[name] = JSON.parse(text);
      else show(article.querySelector(`[data-piece="${name}"]`), text);
    }
  };
}

// A piece under the pointer stays as it is, or a click would miss and a figure could not be read.
function show(piece, text) {
  if (!["held", "timeline", "hosts", "decisions"].includes(piece.dataset.piece) || !piece.matches(":hover")) put(piece, text);
  else {
    if (!waiting.has(piece)) piece.addEventListener("mouseleave", () => { put(piece, waiting.get(piece)); waiting.delete(piece); }, { once: true });
    waiting.set(piece, text);
  }
}

function put(piece, text) {
  const focus = piece.contains(document.activeElement) ? document.activeElement : null;
  const lanes = piece.querySelector(".lanes"), wide = [...piece.querySelectorAll(".wide")].map((each) => each.scrollLeft);
  const top = lanes ? lanes.scrollTop : 0;
  piece.innerHTML = text;
  if (lanes && piece.querySelector(".lanes")) piece.querySelector(".lanes").scrollTop = top;
  piece.querySelectorAll(".wide").forEach((each, number) => { each.scrollLeft = wide[number] || 0; });
  if (!focus) return;
  const { host, act } = focus.dataset;
  const same = host ? `[data-host="${CSS.escape(host)}"]` : act ? `[data-act="${act}"]` : focus.className ? `.${focus.className}` : null;
  const again = same && piece.querySelector(same);
  if (again) again.focus({ preventScroll: true });
}

async function post(article, fields, path = "actions", said = article.querySelector(".said")) {
  said.className = "said";
  try {
    const answer = await fetch(`/runs/${article.dataset.run}/${path}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields) });
    const result = await answer.json();
    if (result.error) throw new Error(result.error);
    said.textContent = result.done || "";
    return result;
  } catch (error) {
    said.className = "said bad";
    said.textContent = error.message;
    return {};
  }
}

document.addEventListener("submit", (event) => {
  event.preventDefault();
  const form = event.target;
  if (!form.querySelector("[data-what-if]")) return;
  post(form.closest("article"), Object.fromEntries(new FormData(form)), "what-if", form.querySelector(".said"));
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-act]");
  if (!button) return;
  event.preventDefault();
  const article = button.closest("article"), fields = { action: button.dataset.act };
  if (button.dataset.host) fields.host = button.dataset.host;
  if (button.form) for (const input of button.form.querySelectorAll("input, select")) fields[input.name] = input.value.trim();
  const { sentence, confirm } = await post(article, fields);
  if (!sentence) return;
  document.getElementById("question").textContent = sentence;
  confirmed = () => post(article, { confirm });
  dialog.showModal();
});

dialog.addEventListener("click", (event) => {
  if (!event.target.value) return;
  dialog.close();
  if (event.target.value === "yes") confirmed();
});
span.addEventListener("change", connect);
connect();
