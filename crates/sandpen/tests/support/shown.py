"""A server for previews: says what it was asked, streams, and goes on in another protocol."""

import hashlib
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Shown(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def body(self):
        if self.headers.get("transfer-encoding") == "chunked":
            whole = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return whole
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def answer(self, whole, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(whole)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(whole)

    def piece(self, text):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.wfile.flush()

    def serve(self):
        path = self.path.split("?")[0]
        if path == "/events":
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for number in range(100000):
                self.piece(b"data: %d\n\n" % number)
                time.sleep(0.02)
        elif path == "/switch":
            self.send_response(101)
            self.send_header("connection", "upgrade")
            self.send_header("upgrade", self.headers["upgrade"])
            self.end_headers()
            self.wfile.flush()
            while line := self.rfile.readline():
                self.wfile.write(b"again: " + line)
                self.wfile.flush()
            self.close_connection = True
        elif path == "/large":
            self.answer(b"0123456789abcdef" * (1 << 20))
        elif path == "/away":
            self.answer(b"", 302, location="http://localhost:%d/next" % self.server.server_port)
        elif path == "/hang":
            time.sleep(3600)
        else:
            whole = self.body()
            said = {
                "method": self.command,
                "path": self.path,
                "headers": {name.lower(): value for name, value in self.headers.items()},
                "bytes": len(whole),
                "digest": hashlib.sha256(whole).hexdigest(),
            }
            self.answer(json.dumps(said).encode(), set_cookie="a=1; Domain=localhost")

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_OPTIONS = serve


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Shown)
server.daemon_threads = True
print("listening", flush=True)
server.serve_forever()
