// The page that users of `code-runner` know: the token of their server, a language, code, its output.

import { browser, check, done, given, strictPage } from "./browser.mjs";

const opened = await browser();
const { page, quiet } = await strictPage(await opened.newContext());
await page.goto(given.url);
await page.getByLabel("Token").fill(given.token);
await page.getByRole("button", { name: "Use this token" }).click();
await page.getByText("speaks for code-runner").waitFor();
await page.getByRole("link", { name: "Playground" }).click();
await page.waitForFunction(() => document.querySelectorAll("select option[value=python]").length > 0);
await page.getByLabel("Language").selectOption("python");
await page.getByLabel("Code", { exact: true }).fill("print(6 * 7)");
await page.getByRole("button", { name: "Run", exact: true }).click();
await page.getByRole("log").getByText("42").waitFor();
check(true, "code runs with the token of the older server");
quiet();
await done(opened);
