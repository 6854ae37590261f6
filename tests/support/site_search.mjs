// Run the search of a built site as its own pages do: node site_search.mjs SITE QUESTION...
//
// The theme searches in a web worker. This file gives that very script what a worker gets from a
// browser, and prints one line of JSON for each question: the pages found, best first, each as
// the addresses of its matching sections, best first.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const [site, ...questions] = process.argv.slice(2);
const workers = join(site, "assets", "javascripts", "workers");
const script = readdirSync(workers).find((name) => /^search\..*\.js$/.test(name));

let handleMessage;
let handleAnswer;
const worker = {
  console,
  addEventListener: (_type, listener) => (handleMessage = listener),
  postMessage: (answer) => handleAnswer(answer),
};
worker.self = worker;
vm.runInNewContext(readFileSync(join(workers, script), "utf-8"), worker);

const ask = (type, data) =>
  new Promise((resolve) => {
    handleAnswer = resolve;
    handleMessage({ data: { type, data } });
  });

const SETUP = 0;
const QUERY = 2;
const index = JSON.parse(readFileSync(join(site, "search", "search_index.json"), "utf-8"));
await ask(SETUP, { ...index, options: { suggest: false } });
for (const question of questions) {
  const { data } = await ask(QUERY, question);
  const pages = data.items.map((sections) =>
    sections.filter((section) => section.score > 0).map((section) => section.location),
  );
  console.log(JSON.stringify(pages));
}
