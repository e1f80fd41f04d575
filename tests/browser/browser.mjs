// A browser of its own for one script, and words for what a script expects.

import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

/** What the Rust side tells: addresses, tokens, and where things are. */
export const given = JSON.parse(readFileSync(process.env.SANDPEN_TEST_GIVEN, "utf8"));

const require = createRequire(join(given.packages, "none.js"));
const { chromium } = require("playwright-core");

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export async function browser(flags = []) {
  return chromium.launch({ executablePath: given.chromium, headless: true, args: [...FLAGS, ...flags] });
}

export function check(is, what) {
  if (!is) throw new Error(`not so: ${what}`);
  console.log(`  ${what}`);
}

export function same(found, expected, what) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
  if (one !== other) throw new Error(`${what}: ${one} and not ${other}`);
  console.log(`  ${what}`);
}

/** For what no element of the page tells. */
export async function until(what, is) {
  const end = Date.now() + 30_000;
  while (!(await is())) {
    if (Date.now() > end) throw new Error(`not in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

mkdirSync(given.pictures, { recursive: true });

export async function picture(page, name) {
  await page.screenshot({ path: join(given.pictures, `${name}.png`) });
}

/** A page whose every complaint is a failure: what the policy refuses and what nobody caught. */
export async function strictPage(context) {
  const page = await context.newPage();
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("console", (message) => {
    const text = message.text();
    // An answer that says no is told by the browser too, and expected where a script asks for it.
    if (message.type() === "error" && !text.startsWith("Failed to load resource")) complaints.push(text);
  });
  return { page, quiet: () => same(complaints, [], "the page has nothing to complain of") };
}

/** What axe finds on the page as it is. */
export async function accessible(page, what) {
  await page.evaluate(given.axe);
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, {
      runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    });
    return violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).slice(0, 3).join(" | ")}`);
  });
  same(found, [], `${what}: nothing is in the way of those who read by ear or by keyboard`);
}

export async function done(opened) {
  await opened.close();
  console.log("done");
}
