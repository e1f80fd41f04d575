// Everything with the keyboard alone, on a server that asks nobody who they are, in the dark that the system asks for.

import { browser, check, done, given, picture, same, strictPage } from "./browser.mjs";

const opened = await browser();
const context = await opened.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "dark" });
const { page, quiet } = await strictPage(context);

const name = () =>
  page.evaluate(() => {
    const { activeElement: at } = document;
    return at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent.trim() ?? at.textContent.trim().slice(0, 40);
  });

/** Tab until there, as somebody without a mouse does, and see that the place is marked. */
async function reach(wanted) {
  for (let steps = 0; steps < 60; steps += 1) {
    await page.keyboard.press("Tab");
    const at = await name();
    if (typeof wanted === "string" ? at === wanted : wanted.test(at)) {
      const marked = await page.evaluate(() => {
        const style = getComputedStyle(document.activeElement);
        return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
      });
      check(marked, `the focus is seen on ${at}`);
      return;
    }
  }
  throw new Error(`Tab does not lead to ${wanted}`);
}

await page.goto(given.url);
await page.getByRole("heading", { name: "Sandboxes" }).waitFor();
check(true, "nobody is asked who they are");
await page.keyboard.press("Tab");
same(await name(), "Skip to content", "the first stop skips what all pages have");
await page.keyboard.press("Enter");
same(await page.evaluate(() => document.activeElement.id), "main", "and leads to the content");

await reach("Name of the new sandbox");
await page.keyboard.type("keys");
await page.keyboard.press("Enter");
await page.getByRole("heading", { name: "keys" }).waitFor();

await page.goto(`${given.url}#/playground`);
await page.waitForFunction(() => document.querySelectorAll("select option[value=bash]").length > 0);
await reach(/^Language/);
await page.keyboard.type("Ba");
await reach(/^Code/);
await page.keyboard.press("Control+a");
await page.keyboard.type("echo by keys alone");
await reach("Run");
await page.keyboard.press("Enter");
await page.getByRole("log").getByText("by keys alone").waitFor();
await page.getByText("exit 0").first().waitFor();
await reach("What the program writes");
await picture(page, "9-keyboard-dark");

await page.goto(`${given.url}#/sandboxes`);
await reach("Terminal in keys");
await page.keyboard.press("Enter");
await page.getByText("Open. Ctrl+Shift+Escape").waitFor();
await page.keyboard.type("echo $((40 + 2))-done\n");
await page.locator(".xterm").getByText("42-done").first().waitFor();
await page.keyboard.press("Control+Shift+Escape");
same(await name(), "Start over", "the keyboard gets out of the terminal");
await picture(page, "10-terminal-dark");

await page.goto(`${given.url}#/sandboxes`);
await reach("Stop keys");
await page.keyboard.press("Enter");
await page.keyboard.press("Escape");
await page.getByRole("button", { name: "Stop keys" }).waitFor();
check(true, "Escape takes the question back");
await page.keyboard.press("Enter");
await page.keyboard.press("Enter");
await page.getByText("There are no sandboxes now").waitFor();
quiet();
await done(opened);
