// Written by build.mjs.

static PAGE: &[u8] = include_bytes!("index.html");

static ASSETS: &[Asset] = &[
    Asset { name: "app-47b6c28f4ebd.js", kind: "text/javascript; charset=utf-8", bytes: include_bytes!("app-47b6c28f4ebd.js") },
    Asset { name: "app-9f8070bc64ac.css", kind: "text/css; charset=utf-8", bytes: include_bytes!("app-9f8070bc64ac.css") },
    Asset { name: "icon-88e59d9ae746.svg", kind: "image/svg+xml", bytes: include_bytes!("icon-88e59d9ae746.svg") },
    Asset { name: "licenses-7179190f10b2.txt", kind: "text/plain; charset=utf-8", bytes: include_bytes!("licenses-7179190f10b2.txt") },
    Asset { name: "terminal-576a27f394aa.css", kind: "text/css; charset=utf-8", bytes: include_bytes!("terminal-576a27f394aa.css") },
    Asset { name: "terminal-d3312de6bc9c.js", kind: "text/javascript; charset=utf-8", bytes: include_bytes!("terminal-d3312de6bc9c.js") },
];
