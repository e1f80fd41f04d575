// Written by build.mjs.

static PAGE: &[u8] = include_bytes!("index.html");

static ASSETS: &[Asset] = &[
    Asset { name: "app-cccc63e816d6.css", kind: "text/css; charset=utf-8", bytes: include_bytes!("app-cccc63e816d6.css") },
    Asset { name: "app-ee59ccbef01f.js", kind: "text/javascript; charset=utf-8", bytes: include_bytes!("app-ee59ccbef01f.js") },
    Asset { name: "icon-88e59d9ae746.svg", kind: "image/svg+xml", bytes: include_bytes!("icon-88e59d9ae746.svg") },
    Asset { name: "licenses-7179190f10b2.txt", kind: "text/plain; charset=utf-8", bytes: include_bytes!("licenses-7179190f10b2.txt") },
    Asset { name: "terminal-576a27f394aa.css", kind: "text/css; charset=utf-8", bytes: include_bytes!("terminal-576a27f394aa.css") },
    Asset { name: "terminal-6474597d5ca4.js", kind: "text/javascript; charset=utf-8", bytes: include_bytes!("terminal-6474597d5ca4.js") },
];
