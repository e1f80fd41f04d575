// The TypeScript client of the 2.x line: `v2.mjs legacy|auto|VERSION stdio COMMAND… | http URL | sse URL`.

import { Client, SSEClientTransport, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { serve } from './hands.mjs';

const [era, kind, target, ...rest] = process.argv.slice(2);
const mode = ['legacy', 'auto'].includes(era) ? era : { pin: era };
const transport = {
  stdio: () => new StdioClientTransport({ command: target, args: rest }),
  http: () => new StreamableHTTPClientTransport(new URL(target)),
  sse: () => new SSEClientTransport(new URL(target)),
}[kind]();

const client = new Client({ name: 'sandpen-tests', version: '2' }, { versionNegotiation: { mode } });
await client.connect(transport);
await serve({
  version: () => client.getNegotiatedProtocolVersion(),
  tools: () => client.listTools(),
  read: (request) => client.readResource(request),
  call: (request, options) => client.callTool(request, options),
});
await transport.terminateSession?.();
await client.close();
