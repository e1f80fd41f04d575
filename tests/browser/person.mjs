// What a person does: signs in, makes a sandbox, runs code, sees the plot, uses a terminal, looks at the trail, stops it.

import { accessible, browser, check, done, given, picture, same, strictPage, until } from "./browser.mjs";

const PLOT = `
import struct, time, zlib
print("first", flush=True)
try:
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plot
    plot.figure(figsize=(6, 3.4))
    plot.plot([x / 10 for x in range(100)], [(x / 10) ** 2 for x in range(100)])
    plot.title("squares")
    plot.savefig("squares.png")
except ImportError:
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\\0" + bytes([15, 118, 110] * 300) for _ in range(120))
    header = struct.pack(">IIBBBBB", 300, 120, 8, 2, 0, 0, 0)
    open("squares.png", "wb").write(
        b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
open("evil.svg", "w").write('<svg xmlns="http://www.w3.org/2000/svg" width="80" height="40"><script>document.title="owned"</script><rect width="80" height="40" fill="teal"/></svg>')
open("page.html", "w").write("<script>document.title='owned'</script>")
print("<img src=x onerror=\\"document.title='owned'\\">")
`;

const opened = await browser();
const context = await opened.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "light" });
const { page, quiet } = await strictPage(context);

console.log("signing in");
await page.goto(given.url);
await page.getByLabel("Token").fill("sandpen_wrong");
await picture(page, "1-sign-in-light");
await accessible(page, "signing in");
await page.getByRole("button", { name: "Use this token" }).click();
await page.getByRole("alert").getByText("not known here").waitFor();
check(true, "a wrong token is told");
await page.getByLabel("Token").fill(given.token);
await page.keyboard.press("Enter");
await page.getByRole("heading", { name: "Sandboxes" }).waitFor();
await page.getByText("There are no sandboxes now").waitFor();
await accessible(page, "no sandboxes");

console.log("a sandbox");
await page.getByLabel("Name of the new sandbox").fill("workshop");
await page.getByRole("button", { name: "New sandbox" }).click();
await page.getByRole("heading", { name: "workshop" }).waitFor();
await page.getByText("Nothing was run in it").waitFor();

console.log("the playground");
await page.getByRole("link", { name: "Playground" }).click();
const language = page.getByLabel("Language");
await page.waitForFunction(() => document.querySelectorAll("select option[value=python]").length > 0);
const offered = await language.locator("option").evaluateAll((all) => all.map((one) => one.value));
check(offered.includes("python") && offered.includes("bash"), `languages are offered: ${offered.join(", ")}`);
await language.selectOption("python");
await page.getByLabel("Where").selectOption({ label: "workshop" });
await page.getByLabel("Code", { exact: true }).fill(PLOT);
await page.getByLabel("Code", { exact: true }).press("Control+Enter");
const log = page.getByRole("log");
await log.getByText("first").waitFor();
const plot = page.getByAltText("squares.png");
await plot.waitFor();
const decoded = (image) => image.evaluate(async (element) => (await element.decode(), element.naturalWidth));
check((await decoded(plot)) >= 300, "the plot is shown");
check((await plot.getAttribute("src")).startsWith("blob:"), "the plot is a picture in memory");
check((await decoded(page.getByAltText("evil.svg"))) === 80, "an SVG is shown as a picture");
await log.getByText("onerror").waitFor();
check(!(await page.title()).includes("owned"), "what code wrote was not run");
same(await page.locator(".output img[src=x], main iframe, main object, main embed").count(), 0, "and not laid out");
await page.getByText("exit 0").first().waitFor();
await picture(page, "2-playground-light");
await accessible(page, "the playground");
const [file] = await Promise.all([
  page.waitForEvent("download"),
  page.getByRole("button", { name: "Download squares.png" }).click(),
]);
same(file.suggestedFilename(), "squares.png", "an artifact can be kept");

console.log("streaming, and stopping a run");
await language.selectOption("bash");
await page.getByLabel("Where").selectOption("");
await page.getByLabel("Code", { exact: true }).fill("for number in 1 2 3; do echo tick $number; sleep 0.2; done; sleep 600");
await page.getByRole("button", { name: "Run", exact: true }).click();
await log.getByText("tick 2").waitFor();
check(await page.getByText("Running…").isVisible(), "output is there while it runs");
await page.getByRole("button", { name: "Stop the run" }).click();
await page.getByText("cancelled").first().waitFor();

console.log("runs");
await page.getByRole("link", { name: "Runs", exact: true }).click();
await page.getByRole("table").waitFor();
same(await page.getByRole("row").count(), 3, "both runs are listed");
await picture(page, "3-runs-light");
await accessible(page, "runs");
await page.getByRole("row").last().getByRole("link").first().click();
await page.getByAltText("squares.png").waitFor();
check(true, "an ended run shows its output and its plot again");

console.log("a terminal");
await page.getByRole("link", { name: "Sandboxes", exact: true }).first().click();
await page.getByRole("link", { name: "Terminal in workshop" }).click();
await page.getByText("Open. Ctrl+Shift+Escape").waitFor();
const screen = page.locator(".xterm-accessibility-tree, .xterm-rows").first();
await page.keyboard.type("echo $((6 * 7)) in $PWD; printf '\\033[38;2;200;60;60mcoloured\\033[0m\\n'\n");
await page.locator(".xterm").getByText("42 in /workspace").first().waitFor();
check(await screen.isVisible(), "what is typed is run");
// In one go: the emulator replaces what it has drawn whenever it draws, and what is gone has no colour.
const coloured = await page.waitForFunction(() => {
  const drawn = [...document.querySelectorAll(".xterm-rows span")].find((span) => span.textContent === "coloured");
  return drawn && getComputedStyle(drawn).color;
});
const colour = await coloured.jsonValue();
const [red, green] = colour.match(/\d+/g).map(Number);
check(red > green + 80, `colours are shown: ${colour}`);
await picture(page, "4-terminal-light");
await accessible(page, "the terminal");

console.log("dark, and narrow");
await page.keyboard.press("Control+Shift+Escape");
await page.getByLabel("Colours").selectOption("dark");
await page.getByRole("link", { name: "Overview" }).click();
await page.getByText("Work directory").waitFor();
await page.waitForFunction(() => document.querySelectorAll(".chart.large polyline").length === 2);
// The server looks by itself every five seconds, and all before this may take less.
const bearer = { authorization: `Bearer ${given.token}` };
const asked = async (path) => (await fetch(`${given.url}api/sandboxes${path}`, { headers: bearer })).json();
const [workshop] = (await asked("")).sandboxes;
await until("the server has looked", async () => (await asked(`/${workshop.id}/usage`)).samples.length > 0);
const reloaded = Date.now();
const remembered = page.waitForResponse((answer) => answer.url().endsWith("/usage"));
await page.reload();
const { samples } = await (await remembered).json();
check(samples.length > 0 && samples[0].at_ms < reloaded, `the server remembers ${samples.length} looks from before`);
await page.waitForFunction(
  (count) => document.querySelector(".chart.memory.large polyline")?.getAttribute("points").split(" ").length > count,
  samples.length,
);
check(true, "and charts begin with them after a reload");
await picture(page, "5-sandbox-dark");
await accessible(page, "a sandbox in the dark");
await page.getByRole("link", { name: "Sandboxes", exact: true }).first().click();
await page.getByRole("button", { name: "Stop workshop" }).waitFor();
await picture(page, "6-sandboxes-dark");
await accessible(page, "sandboxes in the dark");
await page.setViewportSize({ width: 360, height: 740 });
for (const [name, place] of [["sandboxes", "#/sandboxes"], ["playground", "#/playground"], ["runs", "#/runs"], ["audit", "#/audit"]]) {
  await page.goto(`${given.url}${place}`);
  await page.locator("main h1").waitFor();
  await page.waitForFunction(() => !document.querySelector("main .loading"));
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  check(overflow <= 0, `${name} fits into 360 pixels`);
  await picture(page, `7-${name}-narrow-dark`);
}

console.log("the audit trail");
await page.setViewportSize({ width: 1440, height: 900 });
await page.getByLabel("Colours").selectOption("light");
await page.goto(`${given.url}#/audit`);
await page.getByText("each has the digest of the one before it").waitFor();
await page.getByLabel("Show only lines with these words").fill("stop_job");
same(await page.getByRole("row").count(), 2, "who stopped the run is written down");
await page.getByLabel("Show only lines with these words").fill("");
await picture(page, "8-audit-light");
await accessible(page, "the audit trail");

console.log("stopping a sandbox");
await page.goto(`${given.url}#/sandboxes`);
const stop = page.locator(".card button.danger");
await stop.click();
same(await page.getByText("There are no sandboxes now").count(), 0, "one press only asks");
await stop.click();
await page.getByText("There are no sandboxes now").waitFor();

console.log("what belongs to others");
const headers = { authorization: `Bearer ${given.other}`, "content-type": "application/json" };
const made = await (await fetch(`${given.url}api/sandboxes`, { method: "POST", headers, body: '{"name":"of-bob"}' })).json();
await page.getByLabel("of all owners").check();
await page.getByRole("link", { name: "of-bob" }).waitFor();
same(await page.getByRole("link", { name: /^(Terminal in|Files of) of-bob/ }).count(), 0, "an admin does not get into it");
await picture(page, "8-all-owners-light");
await stop.click();
await stop.click();
await page.getByText("There are no sandboxes now").waitFor();
same((await fetch(`${given.url}api/sandboxes/${made.id}`, { headers })).status, 404, "an admin can stop it");

console.log("signing out");
await page.getByRole("button", { name: "Sign out" }).click();
await page.getByLabel("Token").waitFor();
same(await page.evaluate(() => Object.keys(sessionStorage).filter((key) => key.includes("token"))), [], "the token is forgotten");
same(await context.cookies(), [], "there are no cookies");
quiet();
await done(opened);
