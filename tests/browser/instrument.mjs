// A server that allows what ours must not: pages of others may do everything there. What its page can do to it, it could do to
// ours if ours let it, so that an attack that fails on ours is known to be an attack.

import { createHash } from "node:crypto";
import { createServer } from "node:http";

const PIXEL = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64");

export async function instrument() {
  const posts = [];
  const server = createServer((request, response) => {
    const headers = {
      "access-control-allow-origin": "*",
      "access-control-allow-headers": "authorization, content-type",
      "access-control-allow-methods": "GET, POST, DELETE",
      "access-control-allow-private-network": "true",
    };
    if (request.method === "POST") posts.push(request.url);
    const kind = request.url.endsWith(".svg") ? "image/png" : request.url === "/" ? "text/html" : "application/json";
    if (request.url.startsWith("/api/live")) {
      response.writeHead(200, { ...headers, "content-type": "text/event-stream" });
      response.write('event: state\ndata: {"sandboxes":[]}\n\n');
      return;
    }
    response.writeHead(request.method === "OPTIONS" ? 204 : 200, { ...headers, "content-type": kind });
    request.resume();
    request.on("end", () => response.end(request.method === "OPTIONS" ? "" : kind === "image/png" ? PIXEL : "{}"));
  });
  server.on("upgrade", (request, socket) => {
    const accept = createHash("sha1").update(`${request.headers["sec-websocket-key"]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`);
    socket.write(
      "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n" +
        `sec-websocket-accept: ${accept.digest("base64")}\r\n\r\n`,
    );
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, posts, close: () => server.closeAllConnections() };
}
