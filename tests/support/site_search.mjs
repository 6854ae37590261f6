// Search a built site as its own search box does: node site_search.mjs SITE QUESTION...
//
// The theme searches in a web worker. This script runs that worker with the index of the site, and
// prints one line of JSON for each question: the hits, best first. A hit is one page. It is the list
// of the addresses that the box shows for the page at once: the sections with the best score, or the
// page itself if nothing on it scores better. The box folds the other matches of the page away.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

// Types of the messages of the worker.
const SETUP = 0;
const QUERY = 2;

const [site, ...questions] = process.argv.slice(2);
const workers = join(site, "assets", "javascripts", "workers");
const name = readdirSync(workers).find((file) => /^search\..*\.js$/.test(file));

let receive;
let resolveAnswer;
const worker = {
  console,
  addEventListener: (_type, listener) => {
    receive = listener;
  },
  postMessage: (answer) => resolveAnswer(answer),
};
worker.self = worker;
vm.runInNewContext(readFileSync(join(workers, name), "utf-8"), worker);

function ask(type, data) {
  return new Promise((resolve) => {
    resolveAnswer = resolve;
    receive({ data: { type, data } });
  });
}

function shownSections(matches) {
  const best = matches[0].score;
  const sections = matches.filter((match) => match.score > 0 && match.score >= best);
  return sections.map((section) => section.location);
}

const index = JSON.parse(readFileSync(join(site, "search", "search_index.json"), "utf-8"));
await ask(SETUP, { ...index, options: { suggest: true } });
for (const question of questions) {
  const answer = await ask(QUERY, question);
  console.log(JSON.stringify(answer.data.items.map(shownSections)));
}
