// Makes what is in `dist` from what is in `src`: the same bytes on every machine. `node build.mjs DIRECTORY` writes elsewhere.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const dist = process.argv[2] ?? join(here, "dist");
const kinds = {
  js: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
  svg: "image/svg+xml",
  txt: "text/plain; charset=utf-8",
};

const assets = [];
rmSync(dist, { recursive: true, force: true });
mkdirSync(dist, { recursive: true });

/** Kept under a name that has a digest of it; its address. */
function keep(name, bytes) {
  const digest = createHash("sha256").update(bytes).digest("hex").slice(0, 12);
  const [, stem, extension] = /^(.*)\.(\w+)$/.exec(name);
  const hashed = `${stem}-${digest}.${extension}`;
  writeFileSync(join(dist, hashed), bytes);
  assets.push({ hashed, kind: kinds[extension] });
  return `/assets/${hashed}`;
}

async function bundle(entry, define = {}) {
  const result = await build({
    absWorkingDir: here,
    entryPoints: [join("src", entry)],
    bundle: true,
    minify: true,
    write: false,
    outdir: "out",
    format: "esm",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    jsx: "automatic",
    jsxImportSource: "preact",
    define: { "process.env.NODE_ENV": '"production"', ...define },
    logLevel: "warning",
  });
  const of = (extension) => result.outputFiles.find((file) => file.path.endsWith(extension))?.contents;
  return { js: of(".js"), css: of(".css") };
}

const source = (name) => readFileSync(join(here, "src", name));

// The terminal is large and comes only when one is opened.
const terminal = await bundle("terminal.ts");
const terminalScript = keep("terminal.js", terminal.js);
const terminalStyle = keep("terminal.css", terminal.css);
const licenses = ["preact", "@xterm/xterm", "@xterm/addon-fit"].map((name) => {
  const text = readFileSync(join(here, "node_modules", name, "LICENSE"), "utf8").trim();
  return `${name}\n\n${text}\n`;
});
const app = await bundle("main.tsx", {
  TERMINAL_SCRIPT: JSON.stringify(terminalScript),
  TERMINAL_STYLE: JSON.stringify(terminalStyle),
  LICENSES: JSON.stringify(keep("licenses.txt", Buffer.from(licenses.join("\n---\n\n")))),
});
const page = source("index.html")
  .toString()
  .replace("{{icon}}", keep("icon.svg", source("icon.svg")))
  .replace("{{style}}", keep("app.css", app.css))
  .replace("{{script}}", keep("app.js", app.js));
writeFileSync(join(dist, "index.html"), page);

assets.sort((one, other) => (one.hashed < other.hashed ? -1 : 1));
const rows = assets.map(
  ({ hashed, kind }) =>
    `    Asset { name: "${hashed}", kind: "${kind}", bytes: include_bytes!("${hashed}") },\n`,
);
writeFileSync(
  join(dist, "assets.rs"),
  "// Written by build.mjs.\n\n" +
    'static PAGE: &[u8] = include_bytes!("index.html");\n\n' +
    `static ASSETS: &[Asset] = &[\n${rows.join("")}];\n`,
);
