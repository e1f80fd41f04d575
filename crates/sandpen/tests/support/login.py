import base64, functools, http.server, ssl, sys

# Serves a directory over TLS to whoever has the login, on a port that it prints.
site, certificate, key, login = sys.argv[1:5]


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Authorization") == "Basic " + base64.b64encode(login.encode()).decode():
            return super().do_GET()
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.send_header("WWW-Authenticate", "Basic")
        self.end_headers()

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
