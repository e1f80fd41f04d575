// Does what the test program asks, one JSON line in, one out, with whatever client it is given.
// A client here is an object with `version`, `tools`, `read` and `call`.

import { createInterface } from 'node:readline';

// A call, cancelled at its first progress notification when the order says so.
async function call(client, { name, arguments: given, progress, cancel }) {
  const seen = [];
  const abort = new AbortController();
  const onprogress = ({ progress, message }) => {
    seen.push({ progress, message });
    if (cancel) abort.abort('no longer wanted');
  };
  const options = { signal: abort.signal, timeout: 120_000, ...(progress && { onprogress }) };
  try {
    return { result: await client.call({ name, arguments: given }, options), progress: seen };
  } catch (error) {
    if (!abort.signal.aborted) throw error;
    return { cancelled: true, progress: seen };
  }
}

async function obey(client, order) {
  switch (order.do) {
    case 'about':
      return { result: { version: client.version() } };
    case 'tools':
      return { result: await client.tools() };
    case 'read':
      return { result: await client.read({ uri: order.uri }) };
    case 'call':
      return call(client, order);
  }
}

export async function serve(client) {
  for await (const line of createInterface({ input: process.stdin })) {
    const answer = await obey(client, JSON.parse(line)).catch((error) => ({ error: String(error) }));
    process.stdout.write(JSON.stringify(answer) + '\n');
  }
}
