// FU-04 in a browser: what code in a sandbox has made is opened in every way that a person or a page can open it, and runs nowhere.

import { createServer } from "node:http";
import { browser, check, done, given, same } from "./browser.mjs";

const SCRIPT = "<script>document.title = 'owned'; fetch('/owned')</script>";
const XML_SCRIPT = "<script xmlns='http://www.w3.org/1999/xhtml'>document.title = 'owned'; fetch('/owned')</script>";
const SVG = `<svg xmlns="http://www.w3.org/2000/svg"><script>fetch('/owned')</script></svg>`;

/** What code makes, and as what a careless server gives it out; it leaves the last to the browser's guess. */
const SAMPLES = [
  ["page.html", SCRIPT, "text/html"],
  ["page.HTM", SCRIPT, "text/html"],
  ["page.xhtml", `<html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body>${XML_SCRIPT}</body></html>`, "application/xhtml+xml"],
  ["picture.svg", SVG, "image/svg+xml"],
  ["feed.xml", `<?xml version="1.0"?><feed>${XML_SCRIPT}</feed>`, "text/xml"],
  ["code.js", "document.title = 'owned'; fetch('/owned')", "text/javascript"],
  ["style.css", "@import '/owned';", "text/css"],
  ["nothing", `<!doctype html>${SCRIPT}`, null],
];

const opened = await browser(["--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests"]);

const listening = async (answer) => {
  const server = createServer(answer);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, url: `http://127.0.0.1:${server.address().port}/` };
};

// A page of somebody else, and a server that gives out what it has as what it looks like.
const foreign = await listening((_, response) => {
  response.writeHead(200, { "content-type": "text/html" });
  response.end("<!doctype html><title>another origin</title><body></body>");
});
const careless = await listening((request, response) => {
  const [, contents, kind] = SAMPLES.find(([name]) => request.url === `/${name}`) ?? ["", "", "text/plain"];
  response.writeHead(200, kind ? { "content-type": kind } : {});
  response.end(contents);
});

const ELEMENTS = [["iframe", "src"], ["object", "data"], ["embed", "src"], ["script", "src"], ["link", "href"]];

/** By these ways of opening an address, which made what it leads to run. A way is `null`, which is as a page, or elements of
 *  somebody else's page. */
async function opens(address, ways) {
  const { origin } = new URL(address);
  const ran = [];
  for (const elements of ways) {
    const context = await opened.newContext();
    const page = await context.newPage();
    let asked = false;
    context.on("request", (request) => {
      asked ||= request.url() === `${origin}/owned` || request.url() === `${foreign.url}owned`;
    });
    if (elements === null) {
      // Where it is a download there is no page.
      await page.goto(address).catch(() => {});
    } else {
      await page.goto(foreign.url);
      await page.evaluate(embed, { elements, address });
    }
    // A script that runs does so before the page has nothing left to do.
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 50)))).catch(() => {});
    if (asked || (await page.title().catch(() => "")) === "owned") ran.push(elements?.map(([name]) => name).join() ?? "page");
    await context.close();
  }
  return ran;
}

/** In the page: put it there, and wait for it as long as it may take. What is a download says nothing. */
function embed({ elements, address }) {
  const loaded = elements.map(
    ([name, attribute]) =>
      new Promise((resolve) => {
        const made = document.createElement(name);
        if (name === "link") made.rel = "stylesheet";
        [made.onload, made.onerror] = [resolve, resolve];
        made[attribute] = address;
        document.body.append(made);
        setTimeout(resolve, 700);
      }),
  );
  return Promise.all(loaded);
}

console.log("the control: a careless server's files run");
for (const [name] of SAMPLES) {
  const ran = await opens(`${careless.url}${name}`, [null, ...ELEMENTS.map((element) => [element])]);
  const expected = { "code.js": ["script"], "style.css": ["link"] }[name] ?? ["page", "iframe", "object", "embed"];
  same(ran, expected, `${name}: as ${expected.join(", ")}`);
}

console.log("on ours nothing runs");
const json = { "content-type": "application/json" };
const made = await (await fetch(`${given.url}api/sandboxes`, { method: "POST", headers: json, body: "{}" })).json();
const base = `${given.url}api/sandboxes/${made.id}`;
for (const [name, contents] of SAMPLES) {
  const address = `${base}/files/workspace/${name}`;
  same((await fetch(address, { method: "PUT", body: contents })).status, 201, `${name} is there`);
  const linked = await (await fetch(`${base}/links`, { method: "POST", headers: json, body: JSON.stringify({ path: name }) })).json();
  const link = new URL(linked.url, given.url).href;
  for (const [what, place] of [["its address", address], ["its link", link]]) {
    same(await (await fetch(place)).text(), contents, `${what} leads to it`);
    same(await opens(place, [null]), [], `${what} runs nothing`);
    const shown = `${place}${place.includes("?") ? "&" : "?"}inline`;
    same(await opens(shown, [null, ELEMENTS]), [], `${what}, to be shown, runs nothing`);
  }
}
for (const { server } of [foreign, careless]) {
  server.closeAllConnections();
  server.close();
}
await done(opened);
process.exit(0);
