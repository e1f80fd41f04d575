import base64, hashlib, io, json, os, sys, tarfile, zipfile

site, address = sys.argv[1:3]


def save(path, data):
    path = os.path.join(site, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


def wheel(name, version, files, requires=()):
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = dict(files)
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},,\n" for path in files) + f"{info}/RECORD,,\n"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in [*files.items(), (f"{info}/RECORD", record)]:
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{name}-{version}-py3-none-any.whl", data.getvalue()


def archive(root, files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as packed:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{root}/{path}")
            member.size = len(text.encode())
            packed.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


def publish(name, files):
    links = ""
    for file, data in files:
        save(f"files/{file}", data)
        links += f'<a href="{address}/files/{file}#sha256={hashlib.sha256(data).hexdigest()}">{file}</a>\n'
    save(f"simple/{name}/index.html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode())


def npm(name, versions):
    shown = {}
    for version, files in versions.items():
        manifest = {"name": name, "version": version, **json.loads(files.pop("package.json", "{}"))}
        data = archive("package", {"package.json": json.dumps(manifest), **files})
        file = f"{name.replace('/', '-').lstrip('@')}-{version}.tgz"
        save(f"files/{file}", data)
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        shown[version] = {**manifest, "dist": {"tarball": f"{address}/files/{file}", "integrity": integrity}}
    body = {"name": name, "dist-tags": {"latest": list(shown)[-1]}, "versions": shown}
    save(f"npm/{name.replace('/', '%2f')}", json.dumps(body).encode())


publish("small", [wheel("small", version, {"small.py": f"import inner\nversion = '{version}'\n"}, ["inner"]) for version in ("1.0", "2.0")])
publish("inner", [wheel("inner", "0.5", {"inner/__init__.py": "word = 'inside'\n"})])
publish("clashing", [wheel("clashing", "1.0", {"clashing.py": ""}, ["inner>1"])])

# Only its source is there, and building it tries what code must not be able to do.
BACKEND = r'''
import glob, json, os, socket, urllib.request, zipfile

def evidence():
    tried = {"connected": [], "read": []}
    for host, port in [("192.0.2.1", 80), ("elsewhere.example", 443), ("10.0.0.1", 80), ("127.0.0.1", 22)]:
        try:
            # What is connected to is caught on its way, so only an answer shows that it got there.
            with socket.create_connection((host, port), 3) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                if connection.recv(1):
                    tried["connected"].append(host)
        except OSError:
            pass
    texts = [" ".join(f"{name}={value}" for name, value in os.environ.items())]
    places = ["/proc/*/environ", "/proc/*/cmdline", "/etc/pip.conf", "/etc/npmrc", "/*/.npmrc", "/home/*/.npmrc", "/home/*/.netrc", "/workspace/*"]
    for pattern in places:
        for path in glob.glob(pattern):
            try:
                with open(path, "rb") as file:
                    texts.append(file.read(1 << 20).decode("utf-8", "replace"))
            except OSError:
                pass
    try:
        urllib.request.urlopen("http://elsewhere.example/", timeout=5)
        tried["connected"].append("by the proxy")
    except OSError:
        pass
    # What it may reach it reaches, in the same way.
    tried["index"] = urllib.request.urlopen(os.environ["PIP_INDEX_URL"] + "/inner/", timeout=30).status
    tried["read"] = ["can" + "ary" for text in texts if "can" + "ary" in text]
    return json.dumps(tried)

def build_wheel(directory, config_settings=None, metadata_directory=None):
    info = "hostile-1.0.dist-info"
    files = {
        "hostile.py": "evidence = " + repr(evidence()) + "\n",
        "inner/__init__.py": "word = 'poisoned'\n",
        info + "/METADATA": "Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n",
        info + "/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[info + "/RECORD"] = "".join(path + ",,\n" for path in files)
    name = "hostile-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return name

build_sdist = None
'''
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
INFO = "Metadata-Version: 2.1\nName: {0}\nVersion: 1.0\n"
publish("hostile", [("hostile-1.0.tar.gz", archive("hostile-1.0", {"pyproject.toml": PROJECT, "PKG-INFO": INFO.format("hostile"), "backend.py": BACKEND}))])
FAILING = "def build_wheel(*arguments, **more):\n    raise SystemExit('the compiler is missing')\n"
publish("failing", [("failing-1.0.tar.gz", archive("failing-1.0", {"pyproject.toml": PROJECT, "PKG-INFO": INFO.format("failing"), "backend.py": FAILING}))])

npm("small", {version: {"index.js": f"module.exports = require('inner') + ' {version}';"
                        , "package.json": json.dumps({"dependencies": {"inner": "^1.0.0"}})} for version in ("1.0.0", "2.0.0")})
npm("inner", {"1.0.0": {"index.js": "module.exports = 'inside';"}})
SCRIPT = r'''
const fs = require("fs"), net = require("net");
let read = JSON.stringify(process.env);
for (const path of ["/workspace/build/.npmrc", "/home/sandbox/.npmrc", "/etc/npmrc"]) {
  try { read += fs.readFileSync(path, "utf8"); } catch {}
}
const socket = net.connect(443, "elsewhere.example");
const done = (connected) => {
  const found = read.includes("can" + "ary"), login = read.includes("SANDPEN_INDEX");
  fs.writeFileSync("index.js", "module.exports = " + JSON.stringify({ found, login, connected }));
  process.exit(0);
};
socket.on("connect", () => done(true));
socket.on("error", () => done(false));
setTimeout(() => done(false), 3000);
'''
npm("hostile", {"1.0.0": {"index.js": "", "install.js": SCRIPT, "package.json": json.dumps({"scripts": {"install": "node install.js"}})}})
