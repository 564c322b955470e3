import { COLOURS, chooseColour, colourOf, spellTurns } from "./tokens.js";

const POLL_MILLISECONDS = 2000;
const live = document.getElementById("live");
let current = null;

// ---- what is shown ----

function turns() {
  return [...live.querySelectorAll(".turn")].filter((turn) => !turn.id.startsWith("b-"));
}

function rows() {
  return [...live.querySelectorAll("#list tbody tr")];
}

function select(element, { scroll = true } = {}) {
  live.querySelectorAll(".current").forEach((other) => other.classList.remove("current"));
  current = element?.id || null;
  if (!element) return;
  element.classList.add("current");
  const link = element.matches("tr") ? element.querySelector("a") : element;
  link.focus({ preventScroll: true });
  if (scroll) element.scrollIntoView({ block: element.matches("tr") ? "nearest" : "start" });
  live.querySelector(`.strip a[href="#${CSS.escape(element.id)}"]`)?.classList.add("current");
}

function move(by) {
  const all = rows().length ? rows() : turns();
  if (!all.length) return;
  const at = all.findIndex((element) => element.classList.contains("current"));
  const to = all[Math.max(0, Math.min(all.length - 1, at + by))];
  select(at < 0 ? all[0] : to);
  if (to.id) history.replaceState(null, "", `#${to.id}`);
}

function setColour(colour) {
  chooseColour(live, colour);
  const address = new URL(location.href);
  if (colour === "log-prob") address.searchParams.delete("colour");
  else address.searchParams.set("colour", colour);
  history.replaceState(null, "", address);
}

function prepare() {
  spellTurns(live);
  chooseColour(live, colourOf(new URL(location.href)));
}

// ---- following a run ----

async function renew() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.redirected) {
    location.replace(answer.url);
    return;
  }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.body.dataset.revision = fresh.body.dataset.revision;
  const { version } = fresh.getElementById("live").dataset;
  if (version === live.dataset.version && !live.querySelector("[role=status]")) return;
  live.dataset.version = version;
  const opened = new Set([...live.querySelectorAll("details[open]")].map((each) => each.closest(".turn")?.id ?? each.id));
  const closed = new Set([...live.querySelectorAll("details:not([open])")].map((each) => each.closest(".turn")?.id ?? each.id));
  const currentHref = live.querySelector("tr.current a")?.getAttribute("href");
  live.replaceChildren(...fresh.getElementById("live").childNodes);
  for (const each of live.querySelectorAll("details")) {
    const id = each.closest(".turn")?.id ?? each.id;
    if (opened.has(id)) each.open = true;
    else if (closed.has(id)) each.open = false;
  }
  prepare();
  const element = current ? document.getElementById(current) : rows().find((row) => row.querySelector("a").getAttribute("href") === currentHref);
  if (element) select(element, { scroll: false });
}

// Nothing moves under somebody who is writing or marking text.
function busy() {
  const selection = getSelection();
  return document.hidden || document.activeElement?.matches("input:not([type=radio]), select") || !(selection?.isCollapsed ?? true);
}

async function follow() {
  if (document.hidden) return;
  const state = document.getElementById("state");
  try {
    const answer = await fetch(`${document.body.dataset.base}/revision`, { signal: AbortSignal.timeout(5000) });
    const news = await answer.json();
    state.dataset.state = news.state;
    state.textContent = news.text;
    const stale = String(news.revision) !== document.body.dataset.revision || (!news.reading && live.querySelector("[role=status]"));
    if (stale && !busy()) await renew();
  } catch {
    state.dataset.state = "failed";
    state.textContent = "`turnmill view` does not answer: start it again";
  }
}

async function followForEver() {
  for (;;) {
    await new Promise((resume) => setTimeout(resume, POLL_MILLISECONDS));
    await follow();
  }
}

// ---- the visitor's hands ----

function nextTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

function nextColour() {
  if (document.getElementById("colours")) setColour(COLOURS[(COLOURS.indexOf(live.dataset.colour) + 1) % COLOURS.length]);
}

function togglePrompts() {
  const prompts = [...live.querySelectorAll("details.prompt")];
  const open = prompts.some((prompt) => !prompt.open);
  for (const prompt of prompts) prompt.open = open;
}

const help = document.getElementById("help");
const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  c: nextColour,
  o: togglePrompts,
  t: nextTheme,
  u: () => live.querySelector("[data-up]")?.click(),
  n: () => live.querySelector("[rel=next]")?.click(),
  p: () => live.querySelector("[rel=prev]")?.click(),
  "/": () => live.querySelector("input[type=search]")?.focus(),
  "?": () => help.showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.target.matches("input:not([type=radio]), select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

document.addEventListener("change", (event) => {
  if (event.target.name === "colour") setColour(event.target.value);
  else if (event.target.closest("[data-submit-on-change]")) event.target.form.submit();
});

document.addEventListener("click", (event) => {
  const row = event.target.closest("#list tbody tr");
  if (row && !event.target.closest("a") && getSelection().isCollapsed) row.querySelector("a").click();
});

// An address says what differs from what everybody gets.
document.addEventListener("submit", (event) => {
  for (const field of event.target.querySelectorAll("input, select")) field.disabled = field.value === "";
});
addEventListener("pageshow", () => document.querySelectorAll("form :disabled").forEach((field) => (field.disabled = false)));

document.getElementById("theme").addEventListener("click", nextTheme);
document.getElementById("help-button").addEventListener("click", () => help.showModal());

prepare();
if (location.hash.length > 1) {
  const element = document.getElementById(location.hash.slice(1));
  if (element?.matches(".turn")) select(element);
}
followForEver();
