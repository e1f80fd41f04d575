// The TypeScript SDK of the 1.x line: `v1.mjs stdio COMMAND… | http URL | sse URL`.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { serve } from './hands.mjs';

const [kind, target, ...rest] = process.argv.slice(2);
const transport = {
  stdio: () => new StdioClientTransport({ command: target, args: rest }),
  http: () => new StreamableHTTPClientTransport(new URL(target)),
  sse: () => new SSEClientTransport(new URL(target)),
}[kind]();
let version;
// How this line tells its transports what was agreed upon; it does not tell anybody else.
const announce = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = (agreed) => {
  version = agreed;
  announce?.(agreed);
};

const client = new Client({ name: 'sandpen-tests', version: '1' });
await client.connect(transport);
await serve({
  version: () => version,
  tools: () => client.listTools(),
  read: (request) => client.readResource(request),
  call: (request, options) => client.callTool(request, undefined, options),
});
await transport.terminateSession?.();
await client.close();
