// The files of a sandbox: bring one, look at it, take it back, make a directory, delete.

import { readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { accessible, browser, check, done, given, picture, same, strictPage } from "./browser.mjs";

const opened = await browser();
const context = await opened.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "light", acceptDownloads: true });
const { page, quiet } = await strictPage(context);

await page.goto(given.url);
await page.getByLabel("Token").fill(given.token);
await page.getByRole("button", { name: "Use this token" }).click();
await page.getByLabel("Name of the new sandbox").fill("shelf");
await page.getByRole("button", { name: "New sandbox" }).click();
await page.getByRole("link", { name: "Files" }).click();
await page.getByText("Nothing is here").waitFor();

console.log("upload");
const text = "<script>document.title = 'owned'</script>\n<b>bold</b>\n";
const notes = join(tmpdir(), `sandpen-${process.pid}-ä b%.html`);
writeFileSync(notes, text);
const name = notes.slice(notes.lastIndexOf("/") + 1);
await page.getByLabel("Files to upload").setInputFiles(notes);
await page.getByText(`${name} is there.`).waitFor();
const svg = '<svg xmlns="http://www.w3.org/2000/svg" width="120" height="60"><script>document.title="owned"</script><rect width="120" height="60" fill="teal"/></svg>';
await page.getByLabel("Files to upload").setInputFiles([
  { name: "drawing.svg", mimeType: "image/svg+xml", buffer: Buffer.from(svg) },
  { name: "zeros.bin", mimeType: "application/octet-stream", buffer: Buffer.alloc(300_000) },
]);
await page.getByText("2 files are there.").waitFor();
check(true, "several files at once");

console.log("preview");
await page.getByRole("button", { name, exact: true }).click();
await page.getByLabel("Contents").getByText("<b>bold</b>").waitFor();
check(!(await page.title()).includes("owned"), "HTML is shown as its source");
await picture(page, "11-files-light");
await accessible(page, "files");
await page.getByRole("button", { name: "drawing.svg", exact: true }).click();
const drawing = page.getByAltText("drawing.svg");
await drawing.waitFor();
same(await drawing.evaluate(async (image) => (await image.decode(), image.naturalWidth)), 120, "SVG is shown as a picture");
check(!(await page.title()).includes("owned"), "and is not run");
await page.getByRole("button", { name: "zeros.bin", exact: true }).click();
await page.getByText("This is not text.").waitFor();
await page.getByRole("button", { name: "Close the preview" }).click();

console.log("download");
const [kept] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: `Download ${name}` }).click()]);
same(readFileSync(await kept.path(), "utf8"), text, "what was brought is taken back byte for byte");
same(kept.suggestedFilename(), name, "under its name");
const [archive] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download all" }).click()]);
check(readFileSync(await archive.path()).subarray(0, 2).toString() === "PK", "everything comes as an archive");

console.log("directories, and deleting");
await page.getByRole("button", { name: "New directory" }).click();
await page.getByLabel("Name of the new directory").fill("inner");
await page.keyboard.press("Enter");
await page.getByRole("link", { name: "inner/" }).click();
await page.getByText("Nothing is here").waitFor();
await page.getByLabel("Directory").getByRole("link", { name: "workspace" }).click();
await page.getByRole("button", { name: "Delete zeros.bin" }).click();
await page.getByRole("button", { name: /^Delete\?/ }).click();
await page.getByRole("button", { name: "zeros.bin", exact: true }).waitFor({ state: "detached" });
check(true, "what is deleted is gone");
await page.goto(`${given.url}#/sandboxes`);
await page.getByRole("link", { name: "Files of shelf" }).click();
await page.getByRole("link", { name: "The top directory" }).click();
await page.getByRole("link", { name: "etc/" }).waitFor();
await page.setViewportSize({ width: 360, height: 740 });
const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
check(overflow <= 0, "files fit into 360 pixels");
await picture(page, "12-files-narrow");
quiet();
await done(opened);
