// Tokens as coloured pieces of text. A turn's pieces are made when it comes near the window: long trajectories stay light.

const LEVELS = 8;
export const COLOURS = ["none", "log-prob", "advantage", "mask"];

const number = (value) => (value === null || value === undefined ? null : Number(value.toPrecision(4)).toString().replace("-", "−"));

// Near 1 nothing is to be seen; every halving of the probability is a level.
const unlikely = (logProb) => (logProb === null || logProb === undefined ? 0 : Math.min(LEVELS, Math.floor((-logProb / Math.LN2) * 1.5)));

const worth = (advantage, largest) => (advantage === null || advantage === undefined || !largest ? 0 : Math.ceil((Math.abs(advantage) / largest) * LEVELS));

function explain(columns, position) {
  const parts = [`token ${columns.ids[position]}`];
  const logProb = columns.log_probs[position];
  if (logProb !== null && logProb !== undefined) parts.push(`log-prob ${number(logProb)} (probability ${number(Math.exp(logProb))})`);
  const advantage = number(columns.advantages[position]);
  if (advantage !== null) parts.push(`advantage ${advantage}`);
  parts.push(columns.mask[position] ? "learned from" : "not learned from");
  return parts.join(" · ");
}

function piece(columns, position, largest) {
  const token = document.createElement("span");
  const advantage = columns.advantages[position];
  token.className = `token ${columns.mask[position] ? "on" : "off"} p${unlikely(columns.log_probs[position])} a${worth(advantage, largest)} ${advantage > 0 ? "plus" : advantage < 0 ? "minus" : ""}`;
  token.title = explain(columns, position);
  const text = columns.texts ? columns.texts[position] : String(columns.ids[position]);
  if (text.trim() === "" && text.includes("\n")) {
    const sign = document.createElement("span");
    sign.className = "break";
    sign.textContent = "↵";
    token.append(sign);
  }
  token.append(text);
  return token;
}

// Where nobody kept what tokens say, the text stands as it is, and the tokens below it as numbers.
function asNumbers(pieces) {
  const numbers = document.createElement("pre");
  numbers.className = "numbers";
  numbers.append(...pieces);
  return numbers;
}

function spell(turn, largest) {
  const data = turn.querySelector("script.columns");
  if (!data) return;
  const columns = JSON.parse(data.textContent);
  const parts = { response: [0, columns.num_response], observation: [columns.num_response, columns.ids.length] };
  for (const place of turn.querySelectorAll("pre.tokens")) {
    const [from, to] = parts[place.dataset.part];
    const pieces = [];
    for (let position = from; position < to; position += 1) pieces.push(piece(columns, position, largest));
    if (!pieces.length) continue;
    if (columns.texts) place.replaceChildren(...pieces);
    else place.after(asNumbers(pieces));
  }
  data.remove();
}

function largestAdvantage(turns) {
  let largest = 0;
  for (const turn of turns) {
    const data = turn.querySelector("script.columns");
    if (!data) continue;
    for (const value of JSON.parse(data.textContent).advantages) largest = Math.max(largest, Math.abs(value ?? 0));
  }
  return largest;
}

export function spellTurns(root) {
  const turns = [...root.querySelectorAll(".turn")];
  const largest = largestAdvantage(turns);
  root.dataset.largest = largest;
  const seen = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        seen.unobserve(entry.target);
        spell(entry.target, largest);
      }
    },
    { rootMargin: "1500px" },
  );
  turns.forEach((turn) => seen.observe(turn));
}

const KEYS = {
  none: [],
  "log-prob": ["likely", "scale p", "unlikely"],
  advantage: ["worse", "scale a", "better"],
  mask: ["", "on", "learned from", "off", "not"],
};

function explainColours(colour, largest) {
  const key = document.getElementById("key");
  const isSwatch = (part) => ["scale p", "scale a", "on", "off"].includes(part);
  const parts = KEYS[colour].filter(Boolean).map((part) => {
    const element = document.createElement(isSwatch(part) ? "i" : "span");
    if (isSwatch(part)) element.className = part;
    else element.textContent = part;
    return element;
  });
  if (colour === "advantage" && !largest) parts.splice(0, parts.length, "no advantages are kept of it");
  key.replaceChildren(...parts);
}

export function chooseColour(root, colour) {
  if (!document.getElementById("colours")) return;
  root.dataset.colour = colour;
  const radio = document.querySelector(`input[name="colour"][value="${colour}"]`);
  if (radio) radio.checked = true;
  explainColours(colour, Number(root.dataset.largest));
}

export function colourOf(address) {
  const colour = address.searchParams.get("colour");
  return COLOURS.includes(colour) ? colour : "log-prob";
}
