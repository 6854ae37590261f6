// Prints the report: what all conversations come to, then one of them under two policies, which a reader chooses,
// turn by turn. All text reaches the page as text, never as markup.
"use strict";

const report = JSON.parse(document.getElementById("report").textContent);
const kinds = Object.entries(report.kinds);
const views = {};
const chosen = { conversation: 0, ours: report.chosen[0], theirs: report.chosen[1] };
let turns = [];
let actions = [];
let current = -1;
let shown = 0;
let alone = null; // the kind that is shown alone

const byId = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const cents = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const digits = new Intl.NumberFormat("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact" });
const number = (amount) => whole.format(amount);
const percent = (share) => `${(100 * share).toFixed(1)}%`;
const dollars = (amount) => `$${(amount > 0 && amount < 1 ? digits : cents).format(amount)}`;
const money = (amount) => (report.unit === "dollars" ? dollars(amount) : number(amount));
const sum = (tokens) => Object.values(tokens).reduce((all, some) => all + some, 0);
const plural = (count, name) => `${number(count)} ${name}${count === 1 ? "" : "s"}`;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// A long name may be broken behind the parts of a path, not within them.
const breakable = (text) => element("span", {}, ...text.split(/(?<=[/_.])/).flatMap((part) => [part, element("wbr")]));

// What is chosen --------------------------------------------------------------------------------------------

const conversation = () => report.conversations[chosen.conversation];
const run = (side) => conversation().runs[chosen[side]];
const name = (side) => report.policies[chosen[side]];

function walk() {
  const costs = { ours: 0, theirs: 0 };
  actions = [];
  turns = run("ours").turns.map(({ tokens, cost, actions: own }, index) => {
    const other = run("theirs").turns[index], start = actions.length;
    costs.ours += cost;
    costs.theirs += other.cost;
    actions.push(...own.map((action) => ({ ...action, turn: index + 1 })));
    return { turn: index + 1, label: conversation().labels[index], tokens, total: sum(tokens), without: sum(other.tokens),
      costs: { ...costs }, start, actions: own.map((_, number) => start + number) };
  });
}

// Charts ----------------------------------------------------------------------------------------------------

const EDGE = { left: 58, right: 16, top: 12, bottom: 38 };
const SHAPES = ["M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0", "M-4.5-4.5h9v9h-9z", "M0-6l5.5 10h-11z", "M0-6.5l5 6.5-5 6.5-5-6.5z",
  "M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z", "M0 6l5.5-10h-11z", "M6 0l-10 5.5v-11z", "M-6 0l10 5.5v-11z"];
// Each stage has the same mark in every conversation.
const stages = [...new Set(report.conversations.flatMap(({ runs }) => runs.flatMap((one) => one.turns.flatMap((turn) => turn.actions.map(({ stage }) => stage)))))];
const markOf = (stage) => SHAPES[stages.indexOf(stage) % SHAPES.length];

function shape(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Round numbers from 0 to the most, about so many.
function ticks(most, count) {
  const least = most / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((times) => times * power >= least);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, index) => index * step);
}

// Axes, what paint adds to them, and a line at the chosen turn.
function draw(place, height, most, title, format, paint) {
  const box = byId(place), width = box.clientWidth, bottom = height - EDGE.bottom, last = turns.length;
  const x = (turn) => EDGE.left + (last > 1 ? (turn - 1) / (last - 1) : 0.5) * (width - EDGE.left - EDGE.right);
  const y = (amount) => bottom - (amount / most) * (bottom - EDGE.top);
  const svg = shape("svg", { width, height });
  for (const tick of ticks(most, height / 60)) {
    svg.append(shape("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(tick), y2: y(tick) }),
      shape("text", { class: "tick", x: EDGE.left - 6, y: y(tick) + 4, "text-anchor": "end" }, format(tick)));
  }
  const whole = ticks(last, width / 90).filter((tick) => Number.isInteger(tick) && tick > 0);
  for (const tick of whole.length ? whole : [last]) {
    svg.append(shape("text", { class: "tick", x: x(tick), y: bottom + 16, "text-anchor": "middle" }, number(tick)));
  }
  svg.append(shape("text", { class: "tick", x: x((last + 1) / 2), y: height - 4, "text-anchor": "middle" }, "turn"),
    shape("text", { class: "tick", x: 12, y: (EDGE.top + bottom) / 2, transform: `rotate(-90 12 ${(EDGE.top + bottom) / 2})`, "text-anchor": "middle" }, title));
  const cursor = shape("line", { class: "cursor", y1: EDGE.top, y2: bottom, x1: x(last), x2: x(last) });
  svg.append(...paint(x, y), cursor);
  const before = box.querySelector(":scope > svg");
  if (before) before.replaceWith(svg);
  else { box.prepend(svg); follow(place); }
  views[place] = {
    point(turn) { cursor.setAttribute("x1", x(turn)); cursor.setAttribute("x2", x(turn)); },
    turnAt(left) { return Math.min(Math.max(Math.round(1 + ((left - EDGE.left) / (width - EDGE.left - EDGE.right)) * (last - 1)), 1), last) - 1; },
  };
}

// A line through the amounts; as steps, each turn is as wide as its neighbors.
const line = (x, y, amounts) => amounts.map((amount, index) => `${index ? "L" : "M"}${x(index + 1)} ${y(amount)}`).join("");
function steps(x, y, amounts) {
  const sides = (turn) => turns.length > 1 ? [x(Math.max(turn - 0.5, 1)), x(Math.min(turn + 0.5, turns.length))] : [x(turn) - 20, x(turn) + 20];
  return amounts.flatMap((amount, index) => sides(index + 1).map((at) => `${at} ${y(amount)}`));
}

function* tokenShapes(x, y) {
  const below = turns.map(() => 0);
  for (const [kind] of kinds) {
    if (!turns.some((turn) => turn.tokens[kind])) continue;
    const base = steps(x, y, below).reverse();
    turns.forEach((turn, index) => { below[index] += turn.tokens[kind] ?? 0; });
    const faint = alone !== null && alone !== kind;
    yield shape("path", { class: "area", d: `M${[...steps(x, y, below), ...base].join("L")}Z`, fill: `var(--${kind})`, opacity: faint ? 0.15 : 1 });
  }
  if (byId("compare").checked) yield shape("path", { class: "other", d: `M${steps(x, y, turns.map((turn) => turn.without)).join("L")}` });
  for (const [index, { turn, stage, outcome }] of actions.entries()) {
    const size = actions.length > 40 ? 0.7 : 1;
    const made = shape("path", { class: outcome === "changed" ? "mark" : "mark failed", d: markOf(stage), transform: `translate(${x(turn)} ${y(turns[turn - 1].total)}) scale(${size})` });
    made.addEventListener("click", () => open(index));
    yield made;
  }
}

function drawAll() {
  if (!turns.length) return;
  const most = (amounts) => Math.max(...amounts, Number.MIN_VALUE) || 1;
  const compared = byId("compare").checked;
  const tokens = most(turns.map((turn) => Math.max(turn.total, compared ? turn.without : 0)));
  draw("tokens", 340, tokens, "tokens", compact.format, tokenShapes);
  const costs = (side) => turns.map((turn) => turn.costs[side]);
  const unit = report.unit === "dollars" ? dollars : compact.format;
  draw("cost", 220, most([...costs("ours"), ...costs("theirs")]), `cost, ${report.unit}`, unit, (x, y) => [
    shape("path", { class: "other", d: line(x, y, costs("theirs")) }), shape("path", { class: "ours", d: line(x, y, costs("ours")) })]);
  byId("stages").replaceChildren(...stages.map((stage) => element("li", {},
    shape("svg", { width: 16, height: 16, viewBox: "-8 -8 16 16" }, shape("path", { class: "mark", d: markOf(stage) })), stage)));
}

function redraw() {
  drawAll();
  for (const view of Object.values(views)) view.point(turns[current].turn);
}

// The reader's pointer chooses the turn.
function follow(place) {
  const chart = byId(place), tip = element("div", { className: "tip", hidden: true });
  tip.setAttribute("aria-hidden", "true");
  chart.append(tip);
  const point = (event) => {
    const box = chart.getBoundingClientRect(), left = event.clientX - box.left;
    go(views[place].turnAt(left));
    tip.textContent = inShort(turns[current]);
    tip.hidden = false;
    tip.style.top = "0";
    tip.style.left = left < box.width / 2 ? `${left + 14}px` : "auto";
    tip.style.right = left < box.width / 2 ? "auto" : `${box.width - left + 14}px`;
  };
  chart.addEventListener("pointermove", point);
  chart.addEventListener("pointerdown", point);
  chart.addEventListener("pointerleave", () => { tip.hidden = true; });
}

// Tables ----------------------------------------------------------------------------------------------------

// Columns are names; one that begins with # holds numbers. Cells are texts or elements.
function table(caption, columns, rows) {
  const heads = columns.map((column) => element("th", { scope: "col", className: column[0] === "#" ? "number" : "", textContent: column.replace("#", "") }));
  const lines = rows.map((cells) => element("tr", {}, ...cells.map((cell, index) => {
    const made = element("td", { className: heads[index].className }, cell ?? "");
    made.dataset.label = heads[index].textContent;
    return made;
  })));
  const made = element("table", {}, element("caption", { textContent: caption }), element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...lines));
  const box = element("div", { className: "scroll", tabIndex: 0 }, made);
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", caption);
  return box;
}

// A table that may be long is made when it is opened.
function fill(id, make) {
  const details = byId(id);
  details.querySelector(".scroll")?.remove();
  const show = () => { if (details.open && !details.querySelector(".scroll")) details.append(make()); };
  details.ontoggle = show;
  show();
}

function section(id, title, text, ...content) {
  byId(id).replaceChildren(...(content.length ? [element(byId(id).closest("#part") ? "h3" : "h2", { textContent: title }), ...(text ? [element("p", { textContent: text })] : []), ...content] : []));
}

function sides() {
  return chosen.ours === chosen.theirs ? ["ours"] : ["ours", "theirs"];
}

function facts() {
  const rows = report.headings.slice(1).map((heading, index) => [
    report.meanings[heading] ? `${heading}: ${report.meanings[heading]}` : heading,
    ...sides().map((side) => conversation().figures[chosen[side]][index + 1])]);
  byId("facts").replaceChildren(table("In all", ["", ...sides().map((side) => `#${name(side)}`)], rows));
}

function turnTable() {
  const present = kinds.filter(([kind]) => turns.some((turn) => turn.tokens[kind]));
  const columns = ["#turn", ...present.map(([, what]) => `#${what}`), "#in all", `#${name("theirs")}`, "what the model did"];
  return table("Tokens per turn and kind", columns, turns.map((turn) =>
    [turn.turn, ...present.map(([kind]) => number(turn.tokens[kind] ?? 0)), number(turn.total), number(turn.without), turn.label]));
}

function costTable() {
  const columns = ["#turn", ...sides().map((side) => `#${name(side)}`)];
  return table(`Cost so far, ${report.unit}`, columns, turns.map((turn) => [turn.turn, ...sides().map((side) => money(turn.costs[side]))]));
}

function actionTable() {
  if (!actions.length) return section("actions");
  const stages = new Map();
  for (const { stage, tokens_saved: saved } of actions) {
    const [times, tokens] = stages.get(stage) ?? [0, 0];
    stages.set(stage, [times + 1, tokens + (saved ?? 0)]);
  }
  const text = [...stages].map(([stage, [times, tokens]]) => `${stage} ${plural(times, "time")}, ${number(tokens)} tokens saved`).join("; ");
  const rows = actions.map((action, index) => [action.turn, actionButton(index, `${action.stage}: ${action.outcome}`), action.reason, action.tokens_saved === null ? "" : number(action.tokens_saved)]);
  const details = element("details", { open: actions.length <= 12 }, element("summary", { textContent: `Table: ${plural(actions.length, "action")}` }),
    table("What each stage did", ["#turn", "action", "what", "#tokens saved"], rows));
  section("actions", `Actions: ${name("ours")}`, `${text}.`, details);
}

const SHARES = "Each tool by its calls and results, the rest by kind. A token is sent with every prompt from where it came in until it leaves; the shares add up to the bill. Carrying is the part of the cost for sending a text again, after the first prompt with it. Reading back has a row of its own; in return the tool that gave those texts first costs less.";

// What the main agent and each subagent have cost, over all conversations.
function agentTable() {
  if (!report.conversations.some(({ agent }) => agent)) return section("agents");
  const found = new Map();
  for (const { agent, labels, runs } of report.conversations) {
    const known = found.get(agent) ?? { conversations: 0, turns: 0, ours: 0, theirs: 0 };
    known.conversations += 1;
    known.turns += labels.length;
    for (const side of ["ours", "theirs"]) known[side] += runs[chosen[side]].figures.cost;
    found.set(agent, known);
  }
  const all = sum([...found.values()].map(({ ours }) => ours));
  const rows = [...found].sort(([, one], [, other]) => other.ours - one.ours).map(([agent, { conversations, turns, ours, theirs }]) =>
    [agent || "main agent", number(conversations), number(turns), percent(all ? ours / all : 0), money(ours), ...(sides().length > 1 ? [money(theirs)] : [])]);
  const columns = ["agent", "#conversations", "#turns", "#share of cost", ...sides().map((side) => `#${name(side)}`)];
  section("agents", "What the agents cost", "Each conversation counts for the agent that had it.", table(`Cost by agent, ${report.unit}`, columns, rows));
}

// What each tool and kind has cost under the policies chosen, over the conversations given.
function shareTable(id, conversations) {
  const [ours, theirs] = sides().map((side) => {
    const found = new Map();
    for (const { runs } of conversations) {
      for (const { name: what, ...amounts } of runs[chosen[side]].shares) {
        const known = found.get(what) ?? { calls: 0, tokens: 0, sent: 0, cost: 0, carrying: 0 };
        for (const key of Object.keys(known)) known[key] += amounts[key];
        found.set(what, known);
      }
    }
    return found;
  });
  const all = sum([...ours.values()].map(({ cost }) => cost));
  const names = [...new Set([...ours.keys(), ...(theirs?.keys() ?? [])])].sort((one, other) => (ours.get(other)?.cost ?? 0) - (ours.get(one)?.cost ?? 0));
  if (!names.length) return section(id);
  const rows = names.map((what) => {
    const { calls, tokens, sent, cost, carrying } = ours.get(what) ?? { calls: 0, tokens: 0, sent: 0, cost: 0, carrying: 0 };
    const bar = element("span", { className: "share", textContent: percent(all ? cost / all : 0) });
    bar.style.setProperty("--share", bar.textContent);
    return [what, calls ? number(calls) : "", number(tokens), number(sent), bar, money(carrying), money(cost), ...(theirs ? [money(theirs.get(what)?.cost ?? 0)] : [])];
  });
  const columns = ["what", "#calls", "#tokens", "#tokens sent", "#share of cost", "#carrying", ...sides().map((side) => `#${name(side)}`)];
  section(id, "What causes the cost", SHARES, table(`Cost by tool and kind, ${report.unit}`, columns, rows));
}

function cacheTable() {
  const rows = conversation().cache;
  if (!rows) return section("cache");
  const [columns, ...causes] = rows;
  if (!causes.length) return section("cache", "Why the prompt cache missed", "", element("p", { textContent: "By what was billed, it never did." }));
  const text = "Tokens that had been sent before and were not read from the cache, by what was really billed; the cost is what they cost more than reading them.";
  const heads = columns.map((column, index) => (index >= 1 && index <= 3 ? `#${column}` : column));
  section("cache", "Why the prompt cache missed", text, table("Cache misses by cause", heads, causes));
}

function blockTable() {
  const { blocks } = run("ours");
  if (!blocks.length) return section("blocks");
  const rows = blocks.map((block) => [breakable(block.name), report.kinds[block.kind], number(block.tokens), block.turn, block.until ?? "",
    block.until === null ? block.fate : actionButton(turns[block.until - 1].start + block.action, block.fate)]);
  section("blocks", `The biggest blocks, and where they went: ${name("ours")}`, "", table("The biggest blocks", ["block", "kind", "#tokens", "#since turn", "#until turn", "now"], rows));
}

// A turn ----------------------------------------------------------------------------------------------------

function inShort(turn) {
  const done = turn.actions.map((index) => `${actions[index].stage} ${actions[index].outcome}`);
  return [`Turn ${turn.turn}: ${number(turn.total)} tokens`, `${name("theirs")}: ${number(turn.without)}`, ...done].join("\n");
}

function go(index) {
  if (index === current) return;
  current = index;
  const turn = turns[index];
  byId("turn").value = turn.turn;
  byId("turn").setAttribute("aria-valuetext", inShort(turn).replaceAll("\n", ", "));
  byId("readout").replaceChildren(...readout(turn));
  for (const view of Object.values(views)) view.point(turn.turn);
}

function readout(turn) {
  const numbers = [
    ["tokens", `${number(turn.total)} (${name("theirs")}: ${number(turn.without)})`],
    ["cost so far", `${money(turn.costs.ours)} (${name("theirs")}: ${money(turn.costs.theirs)})`],
    ...kinds.filter(([kind]) => turn.tokens[kind]).map(([kind, what]) => [what, number(turn.tokens[kind])]),
  ];
  const list = element("dl", {}, ...numbers.map(([what, value]) =>
    element("div", {}, element("dt", { textContent: what }), element("dd", { textContent: value }))));
  const heading = element("h4", { textContent: `Turn ${turn.turn}${turn.label ? `: ${turn.label}` : ""}` });
  const done = turn.actions.map((index) => element("li", {}, actionButton(index, inOneLine(actions[index]))));
  return [heading, list, done.length ? element("ul", {}, ...done) : element("div", { className: "soft", textContent: "No stage acted." })];
}

function inOneLine(action) {
  const saved = action.tokens_saved === null ? "" : `, ${number(action.tokens_saved)} tokens saved`;
  return `${action.stage}: ${action.outcome}${saved}`;
}

function actionButton(index, text) {
  const button = element("button", { type: "button", textContent: text, onclick: () => open(index) });
  button.dataset.action = index;
  return button;
}

// An action -------------------------------------------------------------------------------------------------

function open(index) {
  shown = index;
  const action = actions[index], dialog = byId("action");
  byId("action-title").textContent = `Turn ${action.turn}: ${action.stage} ${action.outcome}`;
  byId("action-reason").textContent = action.reason;
  byId("action-body").replaceChildren(...(action.replaced.length ? action.replaced.flatMap(replacement)
    : [element("p", { className: "soft", textContent: "It replaced nothing." })]));
  byId("previous").disabled = index === 0;
  byId("next").disabled = index === actions.length - 1;
  go(action.turn - 1);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

function replacement(change) {
  const placeholder = report.texts[change.placeholder];
  const now = placeholder
    ? element("pre", { className: "placeholder", tabIndex: 0, textContent: placeholder })
    : element("p", { className: "soft", textContent: "Nothing stands in its place." });
  now.setAttribute("aria-label", "in the context now");
  const before = element("pre", { className: "original", tabIndex: 0, textContent: report.texts[change.original] });
  before.setAttribute("aria-label", "what it replaced");
  return [
    element("h3", { textContent: `${change.name}: ${number(change.tokens_after)} tokens instead of ${number(change.tokens_before)}` }),
    ...(change.where ? [element("p", { className: "soft", textContent: `Whole in ${change.where}` })] : []),
    element("p", { textContent: "In the context now:" }), now,
    element("p", { textContent: "What it replaced:" }), before,
  ];
}

// The page --------------------------------------------------------------------------------------------------

// What all conversations come to.
function overview() {
  const many = report.conversations.length > 1;
  const [first, ...others] = report.policies;
  byId("title").textContent = document.title = many ? plural(report.conversations.length, "conversation") : conversation().title;
  byId("subtitle").textContent = `replayed: ${others.join(", ") || first}, compared with ${first}`;
  // An option's hyphens are no place to break the line.
  byId("made").append(...report.made.split(/(--[a-z-]+)/).map((part) => part.startsWith("--") ? element("span", { className: "whole" }, part) : part));
  byId("lead").textContent = report.lead;
  if (report.advice) {
    const [verb, policy, reason] = report.advice;
    byId("advice").replaceChildren(element("strong", { textContent: `${verb} ${policy}.` }), ` ${reason} `,
      ...(report.code ? [element("code", { textContent: report.code })] : []));
    byId("advice").hidden = false;
  }
  if (many || report.policies.length > 2) {
    const meanings = Object.entries(report.meanings).flatMap(([name, text]) => [element("dt", { textContent: name }), element("dd", { textContent: text })]);
    section("policies", "The policies", "", table(`Policies, cost in ${report.unit}`, report.headings.map((heading, index) => (index ? `#${heading}` : heading)), report.totals),
      element("details", {}, element("summary", { textContent: "What the figures mean" }), element("dl", {}, ...meanings)));
  }
  if (many) {
    const figure = (cells, heading) => cells[report.headings.indexOf(heading)];
    const rows = report.conversations.map(({ title, labels, figures }, index) => {
      const [ours, theirs] = [figures[chosen.ours], figures[chosen.theirs]];
      return [element("a", { href: `#conversation-${index}`, textContent: title }), number(labels.length), figure(ours, "cost"), figure(theirs, "cost"),
        ...["ratio", "seen", "peak"].map((heading) => figure(ours, heading))];
    });
    shareTable("total-shares", report.conversations);
    agentTable();
    section("conversations", "The conversations", "", table("Conversations; choose one to see its turns",
      ["conversation", "#turns", `#${name("ours")}`, `#${name("theirs")}`, "#ratio", "#seen", "#peak"], rows));
  }
  const picker = (id, label, options) => {
    const made = element("select", { id }, ...options.map((text, value) => element("option", { value, textContent: text })));
    made.value = chosen[id];
    return element("label", {}, `${label} `, made);
  };
  byId("pickers").replaceChildren(...(many ? [picker("conversation", "Conversation", report.conversations.map(({ title }) => title))] : []),
    ...(report.policies.length > 2 ? [picker("ours", "Policy", report.policies), picker("theirs", "beside", report.policies)] : []));
  const present = kinds.filter(([kind]) => report.conversations.some(({ runs }) => runs.some((one) => one.turns.some((turn) => turn.tokens[kind]))));
  byId("kinds").replaceChildren(...present.reverse().map(([kind, what]) => {
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = `var(--${kind})`;
    const button = element("button", { type: "button", onclick: () => choose(button) }, swatch, what);
    button.dataset.kind = kind;
    button.setAttribute("aria-pressed", "false");
    return element("li", {}, button);
  }));
}

function choose(button) {
  const off = button.getAttribute("aria-pressed") === "true";
  for (const other of document.querySelectorAll(".kinds button")) other.setAttribute("aria-pressed", "false");
  button.setAttribute("aria-pressed", String(!off));
  alone = off ? null : button.dataset.kind;
  redraw();
}

// Everything that depends on what is chosen, but the charts.
function write() {
  walk();
  current = -1;
  if (report.conversations.length > 1) byId("name").textContent = conversation().title;
  for (const side of ["ours", "theirs"]) for (const place of document.querySelectorAll(`span.${side}`)) place.textContent = name(side);
  for (const place of document.querySelectorAll("span.unit")) place.textContent = report.unit === "dollars" ? "dollars" : `the price of so many ${report.unit}`;
  byId("turn").max = turns.length;
  const most = (key) => number(turns.reduce((largest, turn) => Math.max(largest, turn[key]), 0));
  byId("tokens").setAttribute("aria-label", `Tokens of ${plural(turns.length, "turn")}, stacked by kind: at most ${most("total")}; ${name("theirs")}: at most ${most("without")}. The table below has them all.`);
  byId("cost").setAttribute("aria-label", `Cost so far, ${name("ours")} and ${name("theirs")}, turn by turn; the table below has all.`);
  facts();
  fill("turns", turnTable);
  fill("costs", costTable);
  shareTable("shares", [conversation()]);
  for (const make of [actionTable, cacheTable, blockTable]) make();
}

function show() {
  write();
  drawAll();
  go(turns.length - 1);
}

// The address names the conversation: #conversation-3.
function goToAddress() {
  const found = /^#conversation-(\d+)$/.exec(location.hash);
  if (!found || !report.conversations[found[1]]) return false;
  chosen.conversation = Number(found[1]);
  if (byId("conversation")) byId("conversation").value = found[1];
  return true;
}

function start() {
  overview();
  goToAddress();
  for (const key of Object.keys(chosen)) {
    byId(key)?.addEventListener("change", (event) => { chosen[key] = Number(event.target.value); show(); });
  }
  addEventListener("hashchange", () => {
    if (!goToAddress()) return;
    show();
    byId("part").scrollIntoView();
  });
  byId("turn").addEventListener("input", (event) => go(Number(event.target.value) - 1));
  byId("compare").addEventListener("change", redraw);
  addEventListener("resize", redraw);
  byId("previous").addEventListener("click", () => open(shown - 1));
  byId("next").addEventListener("click", () => open(shown + 1));
  byId("close").addEventListener("click", () => byId("action").close());
  byId("part").hidden = false;
  show();
  document.documentElement.dataset.drawn = performance.now().toFixed(0);
}

if (report.conversations.some(({ labels }) => labels.length)) start();
else byId("lead").textContent = "There was no turn.";
