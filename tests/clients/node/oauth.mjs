// A client that needs a person: `oauth.mjs mcp-remote|inspector|foreign URL DIRECTORY`. The person is a browser that signs in with the
// keyboard, and pictures of what it sees are put into the directory.

import { spawn } from 'node:child_process';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { chromium } from 'playwright-core';

const [which, url, directory] = process.argv.slice(2);
const origin = new URL(url).origin;
const { resolve } = createRequire(import.meta.url);
const NAME = 'alice';
const PASSWORD = 'correct horse battery';
const PATIENCE = 60_000;

function ensure(truth, what) {
  if (!truth) throw new Error(what);
}

async function until(what, condition) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const found = await condition();
    if (found) return found;
    ensure(Date.now() < end, `it never came to this: ${what}`);
    await pause(50);
  }
}

function browse() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync'],
  });
}

// From the address that a client shows to where it waits for its answer.
async function signIn(address, picture) {
  const asked = new URL(address);
  ensure(asked.origin === origin, `${address} is not of this server`);
  ensure(asked.searchParams.get('code_challenge_method') === 'S256', `${address} has no challenge`);
  const browser = await browse();
  try {
    const page = await browser.newPage({ colorScheme: 'dark' });
    const trouble = [];
    page.on('console', (message) => message.type() === 'error' && trouble.push(message.text()));
    await page.goto(address);
    await page.screenshot({ path: join(directory, `${picture}-sign-in.png`) });
    // What has the focus is where a person begins to type.
    await page.keyboard.type(NAME);
    await page.keyboard.press('Tab');
    await page.keyboard.type('a wrong password');
    await page.keyboard.press('Enter');
    await page.getByRole('alert').waitFor();
    ensure((await page.getByLabel('Account').inputValue()) === NAME, 'the account has to be typed again');
    // A browser says of a wrong password that a resource failed; that is all that may be wrong so far.
    ensure(trouble.splice(0).every((text) => text.includes('401')), 'the sign-in page is not sound');
    await page.getByLabel('Password').focus();
    await page.keyboard.type(PASSWORD);
    await page.keyboard.press('Enter');
    const allow = page.getByRole('button', { name: 'Allow' });
    await allow.waitFor();
    await page.screenshot({ path: join(directory, `${picture}-consent.png`) });
    const redirect = new URL(asked.searchParams.get('redirect_uri'));
    const text = await page.locator('main').innerText();
    for (const part of [NAME, redirect.hostname, 'run code']) ensure(text.includes(part), `${part} is not in: ${text}`);
    ensure((await page.context().cookies()).length === 0, 'there are cookies');
    ensure(trouble.length === 0, `the browser complains: ${trouble}`);
    await allow.focus();
    await page.keyboard.press('Enter');
    await page.waitForURL((now) => now.pathname === redirect.pathname || now.origin === redirect.origin);
    // The page behind is the client's own, and may be gone already.
    ensure(!trouble.some((text) => text.includes('Content Security Policy')), `the browser complains: ${trouble}`);
  } finally {
    await browser.close();
  }
}

// The tokens that a client has written down somewhere below a directory, whatever it calls the file.
function kept(place) {
  const found = [];
  const look = (path) => {
    for (const name of readdirSync(path)) {
      const whole = join(path, name);
      if (statSync(whole).isDirectory()) look(whole);
      else found.push(...(readFileSync(whole, 'utf8').match(/sandpen_rt_[0-9a-f]{12}_[\w-]{86}/g) ?? []));
    }
  };
  look(place);
  return found.at(-1);
}

async function revoke(token) {
  const body = new URLSearchParams({ token });
  const answer = await fetch(`${origin}/oauth/revoke`, { method: 'POST', body });
  ensure(answer.status === 200, `revoking was answered by ${answer.status}`);
}

// mcp-remote, and what it says to a person.
function remote() {
  const program = join(dirname(resolve('mcp-remote/package.json')), 'dist/proxy.js');
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: [program, url, '--allow-http', '--transport', 'http-only', '--auth-timeout', '60'],
    // No program that could open a browser by itself.
    env: { HOME: process.env.HOME, PATH: '/nowhere' },
    stderr: 'pipe',
  });
  const told = { said: '', invitations: () => [...told.said.matchAll(/by visiting:\s+(\S+)/g)].map((match) => match[1]) };
  transport.stderr.on('data', (data) => (told.said += data));
  const client = new Client({ name: 'sandpen-tests', version: '1' });
  const call = async () => {
    const ran = await client.callTool({ name: 'run_command', arguments: { command: 'echo from $((40 + 2))' } });
    ensure(ran.structuredContent?.stdout === 'from 42\n', JSON.stringify(ran));
  };
  return { client, transport, told, call };
}

async function mcpRemote() {
  const { client, transport, told, call } = remote();
  const { invitations } = told;
  try {
    const connected = client.connect(transport, { timeout: 120_000 });
    await signIn(await until('mcp-remote asks for a browser', () => invitations()[0]), 'mcp-remote');
    await connected;
    await call();
    const first = await until('mcp-remote keeps a token', () => kept(process.env.HOME));
    const renewed = await until('mcp-remote renews its token', async () => {
      await call();
      const now = kept(process.env.HOME);
      return now !== first && now;
    });
    ensure(invitations().length === 1, 'it asked for a browser again');
    await revoke(renewed);
    call().catch(() => {});
    await until('mcp-remote asks for a browser again', () => invitations().length > 1);
  } catch (error) {
    throw new Error(`${error.stack}\nmcp-remote said:\n${told.said}`);
  } finally {
    await client.close();
  }
}

// At an authorization server that is somebody else's, which the server under test only believes.
async function foreign() {
  const { client, transport, told, call } = remote();
  const browser = await browse();
  try {
    const connected = client.connect(transport, { timeout: 120_000 });
    const address = await until('mcp-remote asks for a browser', () => told.invitations()[0]);
    ensure(new URL(address).origin !== origin, `${address} is of this server`);
    const page = await browser.newPage();
    await page.goto(address);
    await page.getByRole('link', { name: 'Continue' }).click();
    await connected;
    await call();
  } catch (error) {
    throw new Error(`${error.stack}\nmcp-remote said:\n${told.said}`);
  } finally {
    await browser.close();
    await client.close();
  }
}

// One run of the Inspector's command line; `person` is called with the address that it shows, if it shows one.
async function inspect(words, person) {
  const program = resolve('@modelcontextprotocol/inspector/clients/launcher/build/index.js');
  const child = spawn(process.execPath, [program, '--cli', '--format', 'json', '--transport', 'http', '--server-url', url, ...words], {
    // Without a terminal it asks nobody unless it is told to, and it keeps nothing where there is no keychain.
    env: { HOME: process.env.HOME, PATH: '/nowhere', MCP_AUTO_OPEN_ENABLED: 'true', MCP_INSPECTOR_SECRET_STORE: 'file' },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let [stdout, stderr, browsing] = ['', '', undefined];
  const look = () => {
    const address = `${stdout}${stderr}`.match(new RegExp(`${origin}/oauth/authorize\\?\\S+(?=\\s)`))?.[0];
    if (address && !browsing) browsing = person(address);
  };
  child.stdout.on('data', (data) => ((stdout += data), look()));
  child.stderr.on('data', (data) => ((stderr += data), look()));
  const code = await new Promise((done) => child.on('close', done));
  try {
    await browsing;
  } catch (error) {
    throw new Error(`${error.stack}\nthe Inspector said:\n${stderr}`);
  }
  return { code, stdout, stderr, asked: browsing !== undefined };
}

async function inspector() {
  const call = ['--method', 'tools/call', '--tool-name', 'run_command', '--tool-args-json', '{"command":"echo from $((40 + 2))"}'];
  const ok = (run) => run.code === 0 && run.stdout.includes('from 42');
  const callback = ['--callback-url', 'http://127.0.0.1:0/oauth/callback'];
  const first = await inspect([...callback, ...call], (address) => signIn(address, 'inspector'));
  ensure(first.asked && ok(first), `the first call: ${JSON.stringify(first)}`);
  const token = kept(process.env.HOME);
  ensure(token, 'the Inspector keeps no token');
  const renewed = await until('the Inspector renews its token', async () => {
    const again = await inspect(['--stored-auth-only', ...call]);
    ensure(ok(again) && !again.asked, `a later call: ${JSON.stringify(again)}`);
    const now = kept(process.env.HOME);
    return now !== token && now;
  });
  await revoke(renewed);
  const refused = await inspect(['--stored-auth-only', ...call]);
  ensure(!ok(refused) && refused.code !== 0, `it got in after all: ${JSON.stringify(refused)}`);
}

await { 'mcp-remote': mcpRemote, inspector, foreign }[which]();
process.exit(0);
