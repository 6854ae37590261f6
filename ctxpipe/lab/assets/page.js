// Draws the charts and lets a reader walk through the turns. All text reaches the page as text, never as markup.
"use strict";

const report = JSON.parse(document.getElementById("report").textContent);
const charts = JSON.parse(document.getElementById("charts").textContent);
const views = {};
let current = 0;
let shown = 0;

const byId = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tokens = (number) => whole.format(number);
const money = (amount) => (report.unit === "dollars" ? `$${amount.toFixed(4)}` : whole.format(amount));

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Data ------------------------------------------------------------------------------------------------------

function cumulative() {
  let ours = 0, theirs = 0;
  return report.turns.flatMap((turn) => {
    ours += turn.cost;
    theirs += turn.costWithout;
    turn.costs = [ours, theirs];
    return [
      { turn: turn.turn, series: report.policy, cost: ours },
      { turn: turn.turn, series: report.baseline, cost: theirs },
    ];
  });
}

function without() {
  return report.turns.map((turn) => ({ turn: turn.turn, tokens: turn.without }));
}

function datasets() {
  return {
    turns: report.turns,
    without: without(),
    kinds: report.kinds.flatMap(([kind], order) => (report.turns.some((turn) => turn.kinds[order])
      ? report.turns.map((turn) => ({ turn: turn.turn, kind, order, tokens: turn.kinds[order] })) : [])),
    marks: report.actions.map(({ turn, stage, outcome }, action) => ({ turn, stage, outcome, action, total: report.turns[turn - 1].total })),
    costs: cumulative(),
    recall: report.recall,
  };
}

// Charts ----------------------------------------------------------------------------------------------------

async function draw(name, data) {
  const place = byId(name);
  if (!place || !charts[name]) return;
  for (const entry of charts[name].data) if (entry.name in data) entry.values = data[entry.name].map((row) => ({ ...row }));
  const options = { mode: "vega", renderer: "svg", actions: false, tooltip: false, hover: false };
  views[name] = (await vegaEmbed(place, charts[name], options)).view;
}

function turnAt(view, event) {
  const box = view.container().getBoundingClientRect();
  const x = view.scale("x").invert(event.clientX - box.left - view.origin()[0]);
  return Math.min(Math.max(Math.round(x), 1), report.turns.length) - 1;
}

function follow(name) {
  const view = views[name];
  if (!view) return;
  const place = byId(name), tip = element("div", { className: "tip", hidden: true });
  tip.setAttribute("aria-hidden", "true");
  place.append(tip);
  const point = (event) => {
    go(turnAt(view, event));
    const box = place.getBoundingClientRect(), left = event.clientX - box.left;
    tip.textContent = inShort(report.turns[current]);
    tip.hidden = false;
    tip.style.top = "0";
    tip.style.left = left < box.width / 2 ? `${left + 14}px` : "auto";
    tip.style.right = left < box.width / 2 ? "auto" : `${box.width - left + 14}px`;
  };
  place.addEventListener("pointermove", point);
  place.addEventListener("pointerdown", point);
  place.addEventListener("pointerleave", () => { tip.hidden = true; });
  view.addEventListener("click", (event, item) => {
    const action = item && item.datum && item.datum.action;
    if (action !== undefined) open(action);
  });
}

// A turn ----------------------------------------------------------------------------------------------------

function inShort(turn) {
  const done = turn.actions.map((index) => `${report.actions[index].stage} ${report.actions[index].outcome}`);
  return [`Turn ${turn.turn}: ${tokens(turn.total)} tokens`, `${report.baseline}: ${tokens(turn.without)}`, ...done].join("\n");
}

function go(index) {
  if (index === current && byId("readout").childElementCount) return;
  current = index;
  const turn = report.turns[index];
  byId("turn").value = turn.turn;
  byId("turn").setAttribute("aria-valuetext", inShort(turn).replaceAll("\n", ", "));
  byId("readout").replaceChildren(...readout(turn));
  for (const name of ["tokens", "cost"]) views[name]?.signal("turn", turn.turn).runAsync();
}

function readout(turn) {
  const numbers = [
    ["tokens", `${tokens(turn.total)} (${report.baseline}: ${tokens(turn.without)})`],
    ["cost so far", `${money(turn.costs[0])} (${report.baseline}: ${money(turn.costs[1])})`],
    ...report.kinds.map(([, name], order) => [name, turn.kinds[order]]).filter(([, n]) => n).map(([k, n]) => [k, tokens(n)]),
  ];
  const list = element("dl", {}, ...numbers.map(([name, value]) =>
    element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }))));
  const heading = element("h3", { textContent: `Turn ${turn.turn}${turn.label ? `: ${turn.label}` : ""}` });
  const done = turn.actions.map((index) => element("li", {}, actionButton(index)));
  return [heading, list, done.length ? element("ul", {}, ...done) : element("div", { className: "soft", textContent: "No stage acted." })];
}

function actionButton(index) {
  const action = report.actions[index];
  const saved = action.saved === null ? "" : `, ${tokens(action.saved)} tokens saved`;
  return element("button", { type: "button", textContent: `${action.stage}: ${action.outcome}${saved}`, onclick: () => open(index) });
}

// An action -------------------------------------------------------------------------------------------------

function open(index) {
  shown = index;
  const action = report.actions[index], dialog = byId("action");
  byId("action-title").textContent = `Turn ${action.turn}: ${action.stage} ${action.outcome}`;
  byId("action-told").textContent = action.told;
  byId("action-body").replaceChildren(...(action.replaced.length ? action.replaced.flatMap(replacement)
    : [element("p", { className: "soft", textContent: "It replaced nothing." })]));
  byId("previous").disabled = index === 0;
  byId("next").disabled = index === report.actions.length - 1;
  go(action.turn - 1);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

function replacement(change) {
  const now = change.placeholder
    ? element("pre", { className: "placeholder", tabIndex: 0, textContent: change.placeholder })
    : element("p", { className: "soft", textContent: "Nothing stands in its place." });
  now.setAttribute("aria-label", "in the context now");
  const before = element("pre", { className: "original", tabIndex: 0, textContent: change.original });
  before.setAttribute("aria-label", "what it replaced");
  return [
    element("h3", { textContent: `${change.name}: ${tokens(change.after)} tokens instead of ${tokens(change.before)}` }),
    ...(change.where ? [element("p", { className: "soft", textContent: `Whole in ${change.where}` })] : []),
    element("p", { textContent: "In the context now:" }), now,
    element("p", { textContent: "What it replaced:" }), before,
  ];
}

// The page --------------------------------------------------------------------------------------------------

function choose(button) {
  const off = button.getAttribute("aria-pressed") === "true";
  for (const other of document.querySelectorAll(".kinds button")) other.setAttribute("aria-pressed", "false");
  button.setAttribute("aria-pressed", String(!off));
  views.tokens?.signal("chosen", off ? null : button.dataset.kind).runAsync();
}

function compare(on) {
  views.tokens?.data("without", on ? without() : []).runAsync();
}

async function start() {
  const data = datasets();
  for (const name of ["tokens", "cost", "recall"]) await draw(name, data);
  for (const name of ["tokens", "cost"]) follow(name);
  byId("turn").addEventListener("input", (event) => go(Number(event.target.value) - 1));
  byId("compare").addEventListener("change", (event) => compare(event.target.checked));
  for (const button of document.querySelectorAll(".kinds button")) button.addEventListener("click", () => choose(button));
  for (const button of document.querySelectorAll("button[data-action]")) button.addEventListener("click", () => open(Number(button.dataset.action)));
  byId("previous").addEventListener("click", () => open(shown - 1));
  byId("next").addEventListener("click", () => open(shown + 1));
  byId("close").addEventListener("click", () => byId("action").close());
  go(report.turns.length - 1);
  await Promise.all(Object.values(views).map((view) => view.runAsync()));
  document.documentElement.dataset.drawn = performance.now().toFixed(0);
}

if (report.turns.length) start();
