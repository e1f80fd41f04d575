// Somebody with an account: signs in on the server's own page, agrees, works on when the token is over, and leaves for good.

import { accessible, browser, check, done, given, picture, same, strictPage } from "./browser.mjs";

const opened = await browser();
const context = await opened.newContext({ viewport: { width: 1280, height: 800 }, colorScheme: "light" });
const { page, quiet } = await strictPage(context);

console.log("signing in");
await page.goto(`${given.url}#/playground`);
await picture(page, "10-account-begin");
await page.getByRole("button", { name: "Sign in" }).click();
await page.getByRole("heading", { name: "Sign in to Sandpen" }).waitFor();
await picture(page, "11-account-sign-in");
await page.getByLabel("Account").fill("alice");
await page.getByLabel("Password").fill("not this one");
await page.keyboard.press("Enter");
await page.getByRole("alert").getByText("password is another one").waitFor();
await page.getByLabel("Password").fill(given.password);
await page.keyboard.press("Enter");
await page.getByRole("button", { name: "Allow" }).waitFor();
await picture(page, "12-account-consent");
await page.getByRole("button", { name: "Allow" }).click();
await page.waitForFunction(() => document.querySelectorAll("select option[value=bash]").length > 0);
check(page.url().endsWith("/#/playground"), "whoever signs in comes back to where they were, without the code");

console.log("working on");
const token = () => page.evaluate(() => sessionStorage.getItem("sandpen.token"));
const first = await token();
const run = async (words) => {
  await page.getByLabel("Language").selectOption("bash");
  await page.getByLabel("Code", { exact: true }).fill(`echo ${words}`);
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.getByRole("log").getByText(words).waitFor();
};
await run("before");
// Longer than it is good for.
await page.waitForTimeout(6000);
await run("after");
check((await token()) !== first, "a token that is over is renewed, and nobody notices");
await accessible(page, "signed in with an account");

console.log("leaving");
const last = await token();
const status = (shown) =>
  page.evaluate(async (shown) => (await fetch("/api/session", { headers: { authorization: `Bearer ${shown}` } })).status, shown);
await page.getByRole("button", { name: "Sign out" }).click();
await page.getByRole("button", { name: "Sign in" }).waitFor();
same(await token(), null, "nothing is kept");
await page.waitForTimeout(500);
same(await status(last), 401, "and what was is good for nothing");

console.log("a decision against it");
await page.getByRole("button", { name: "Sign in" }).click();
await page.getByLabel("Account").fill("alice");
await page.getByLabel("Password").fill(given.password);
await page.keyboard.press("Enter");
await page.getByRole("button", { name: "Deny" }).click();
await page.getByRole("alert").getByText("denied").waitFor();
same(await token(), null, "whoever does not agree is not signed in");
quiet();
await done(opened);
