// HT-07: a page of another origin tries everything that a page can try, and reads nothing and changes nothing.

import { createServer } from "node:http";
import { browser, check, done, given, same } from "./browser.mjs";
import { instrument } from "./instrument.mjs";

const REBOUND = "rebound.example";
const opened = await browser([
  `--host-resolver-rules=MAP ${REBOUND} 127.0.0.1, MAP foreign.example 127.0.0.1`,
  // Browsers begin to keep pages away from this machine by themselves. Not all do, and what is looked at is ours.
  "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests,PrivateNetworkAccessSendPreflights",
]);

// The page of the attacker, on a port of its own.
const attacker = createServer((_, response) => {
  response.writeHead(200, { "content-type": "text/html" });
  response.end("<!doctype html><title>another origin</title><body></body>");
});
await new Promise((resolve) => attacker.listen(0, "127.0.0.1", resolve));
const foreign = attacker.address().port;

/** In the page: each attack, and whether anything came back that the page can read. */
async function attack({ target, asset }) {
  const code = JSON.stringify({ language: "bash", code: "sleep 300" });
  const call = JSON.stringify({
    jsonrpc: "2.0",
    id: 1,
    method: "tools/call",
    params: { name: "create_sandbox", arguments: {}, _meta: { "io.modelcontextprotocol/protocolVersion": "2026-07-28" } },
  });
  const read = async (promise) => {
    try {
      const answer = await promise;
      return answer.type !== "opaque" && answer.ok && (await answer.text()).length > 0;
    } catch {
      return false;
    }
  };
  const element = (name, attributes) =>
    new Promise((resolve) => {
      const made = document.createElement(name);
      made.onload = () => resolve(made);
      made.onerror = () => resolve(null);
      for (const [key, value] of Object.entries(attributes)) made[key] = value;
      document.body.append(made);
    });
  const form = async (path, text) => {
    const frame = await element("iframe", { name: `frame-${Math.random()}`, src: "about:blank" });
    const made = document.createElement("form");
    Object.assign(made, { method: "POST", action: `${target}${path}`, enctype: "text/plain", target: frame.name });
    const field = document.createElement("input");
    // A body that is JSON all the same: name and value are joined by one sign.
    [field.name, field.value] = [`${text.slice(0, -1)},"x":"`, '"}'];
    made.append(field);
    document.body.append(made);
    const loaded = new Promise((resolve) => (frame.onload = resolve));
    made.submit();
    await Promise.race([loaded, new Promise((resolve) => setTimeout(resolve, 3000))]);
    try {
      // A page of the same name sees the answer; that it is a refusal tells it nothing.
      const shown = frame.contentDocument;
      return shown !== null && shown.URL !== "about:blank" && !shown.body.textContent.includes('"kind":"denied"');
    } catch {
      return false;
    }
  };
  const json = { "content-type": "application/json", accept: "application/json, text/event-stream" };
  const simple = (path, body) => fetch(`${target}${path}`, { method: "POST", mode: "no-cors", body });
  return {
    "a plain POST to run code": await read(simple("api/run", code)),
    "a plain POST that says JSON": await read(
      fetch(`${target}api/run`, { method: "POST", mode: "no-cors", body: new Blob([code], { type: "text/plain" }) }),
    ),
    "a plain POST to the tools": await read(simple("mcp", call)),
    "a form to run code": await form("api/run", code),
    "a form to the tools": await form("mcp", call),
    "a read of the sandboxes": await read(fetch(`${target}api/sandboxes`)),
    "a read with a token of its own": await read(fetch(`${target}api/session`, { headers: { authorization: "Bearer x" } })),
    "a POST with JSON, after asking": await read(fetch(`${target}api/run`, { method: "POST", headers: json, body: code })),
    "a DELETE, after asking": await read(fetch(`${target}api/sandboxes/sb-7k2m9x4bqhtw3ecd`, { method: "DELETE" })),
    "a call of a tool, after asking": await read(fetch(`${target}mcp`, { method: "POST", headers: json, body: call })),
    "a picture": (await element("img", { src: `${target}${asset}` }))?.naturalWidth > 0,
    "a stream of events": await new Promise((resolve) => {
      const source = new EventSource(`${target}api/live`);
      const end = (is) => (source.close(), resolve(is));
      source.addEventListener("state", () => end(true));
      source.onerror = () => end(false);
    }),
    "a WebSocket": await new Promise((resolve) => {
      const socket = new WebSocket(`${target.replace("http", "ws")}api/live`);
      socket.onopen = () => (socket.close(), resolve(true));
      socket.onerror = () => resolve(false);
    }),
  };
}

/** Whether our page, or what stands for it, can be had in a frame of another page. */
async function framed(page, target) {
  const shown = page.waitForEvent("framenavigated", { predicate: (frame) => frame !== page.mainFrame() });
  await page.evaluate((target) => {
    const frame = document.createElement("iframe");
    frame.src = target;
    document.body.append(frame);
  }, target);
  const frame = await shown;
  return frame.url() === target;
}

/** A page that was loaded while its name led elsewhere: what it asks for by that name now goes to `target`. */
async function rebound(target, asset) {
  const { port } = new URL(target);
  const context = await opened.newContext();
  const page = await context.newPage();
  const address = `http://${REBOUND}:${port}/`;
  await page.route(address, (route) => route.fulfill({ contentType: "text/html", body: "<!doctype html><body></body>" }));
  await page.goto(address);
  const found = await page.evaluate(attack, { target: address, asset });
  await context.close();
  return found;
}

async function from(origin, target, asset) {
  const context = await opened.newContext();
  const page = await context.newPage();
  await page.goto(origin);
  const found = { ...(await page.evaluate(attack, { target, asset })), "a frame": await framed(page, target) };
  await context.close();
  return found;
}

const succeeded = (found) => Object.keys(found).filter((name) => found[name]);

/** What is there, asked by a program with the right to. */
async function census(url, token) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const get = async (path) => (await fetch(`${url}${path}`, { headers })).json();
  const [{ sandboxes }, { runs }] = [await get("api/sandboxes"), await get("api/runs")];
  return { sandboxes: sandboxes.length, runs: runs.length };
}

console.log("the control: on a server that allows it, every attack succeeds");
const control = await instrument();
/** These never can be read; that they arrive is seen on the other side. */
const BLIND = ["a plain POST to run code", "a plain POST that says JSON", "a plain POST to the tools"];
const FORMS = ["a form to run code", "a form to the tools"];
for (const origin of [`http://127.0.0.1:${foreign}/`, `http://foreign.example:${foreign}/`]) {
  control.posts.length = 0;
  const found = await from(origin, control.url, "assets/icon.svg");
  const failed = Object.keys(found).filter((name) => !found[name]);
  same(failed, [...BLIND, ...FORMS], `from ${origin} all that can be read is read`);
  const arrived = { run: control.posts.filter((path) => path === "/api/run").length, mcp: control.posts.filter((path) => path === "/mcp").length };
  same(arrived, { run: 4, mcp: 3 }, "and what cannot be read arrives");
}
control.posts.length = 0;
const seen = await rebound(control.url, "assets/icon.svg");
same(Object.keys(seen).filter((name) => !seen[name]), [], "by a name that was made to lead there everything is read");
control.close();

for (const { what, url, token } of given.servers) {
  console.log(`on ours, ${what}`);
  const before = await census(url, token);
  const [asset] = /assets\/icon-[^"]*/.exec(await (await fetch(url)).text());
  for (const origin of [`http://127.0.0.1:${foreign}/`, `http://foreign.example:${foreign}/`]) {
    same(succeeded(await from(origin, url, asset)), [], `from ${origin} nothing is read`);
  }
  // Where tokens are asked for, any name will do; the page's own parts are the same for everybody.
  const open = token ? ["a picture"] : [];
  same(succeeded(await rebound(url, asset)), open, "by a name that was made to lead here nothing is read");
  same(await census(url, token), before, "and nothing has happened");
}
check(given.servers.length === 2, "with and without tokens");
attacker.closeAllConnections();
attacker.close();
await done(opened);
process.exit(0);
