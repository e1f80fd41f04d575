//! What a file is, by its first bytes where those tell, by its name otherwise.

/// Kinds that clients can show in place.
pub fn image(name: &[u8], bytes: &[u8]) -> Option<&'static str> {
    let starts = |magic: &[u8]| bytes.starts_with(magic);
    if starts(b"\x89PNG\r\n\x1a\n") {
        Some("image/png")
    } else if starts(b"\xff\xd8\xff") {
        Some("image/jpeg")
    } else if starts(b"GIF87a") || starts(b"GIF89a") {
        Some("image/gif")
    } else if starts(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        Some("image/webp")
    } else if extension(name) == "svg" && looks_like_svg(bytes) {
        Some("image/svg+xml")
    } else {
        None
    }
}

/// Worth reading the beginning of: a name of an image, or one that says nothing.
pub fn may_be_image(name: &[u8]) -> bool {
    matches!(extension(name).as_str(), "png" | "jpg" | "jpeg" | "gif" | "webp" | "svg")
}

pub fn by_name(name: &[u8]) -> &'static str {
    match extension(name).as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "txt" | "log" | "md" | "rst" | "toml" | "ini" | "cfg" | "conf" | "py" | "rb" | "pl" | "php" | "lua" | "r"
        | "go" | "rs" | "c" | "h" | "cc" | "cpp" | "hpp" | "java" | "sh" | "ts" | "tsx" | "jsx" | "sql" | "tex"
        | "diff" | "patch" => "text/plain",
        "js" | "mjs" | "cjs" => "text/javascript",
        "csv" => "text/csv",
        "tsv" => "text/tab-separated-values",
        "html" | "htm" => "text/html",
        "css" => "text/css",
        "xml" => "application/xml",
        "json" | "ipynb" => "application/json",
        "jsonl" | "ndjson" => "application/x-ndjson",
        "yaml" | "yml" => "application/yaml",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "tar" => "application/x-tar",
        "wav" => "audio/wav",
        "mp3" => "audio/mpeg",
        "mp4" => "video/mp4",
        "parquet" => "application/vnd.apache.parquet",
        "sqlite" | "db" => "application/vnd.sqlite3",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        _ => "application/octet-stream",
    }
}

/// The name's own kind; plain text rather than "some bytes" when the contents are text.
pub fn of_text(name: &[u8]) -> &'static str {
    match by_name(name) {
        "application/octet-stream" => "text/plain",
        known => known,
    }
}

fn extension(name: &[u8]) -> String {
    match name.iter().rposition(|byte| *byte == b'.') {
        Some(dot) if dot > 0 => String::from_utf8_lossy(&name[dot + 1..]).to_ascii_lowercase(),
        Some(_) | None => String::new(),
    }
}

fn looks_like_svg(bytes: &[u8]) -> bool {
    let beginning = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]);
    beginning.contains("<svg")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_win_over_names() {
        assert_eq!(image(b"plot.txt", b"\x89PNG\r\n\x1a\nrest"), Some("image/png"));
        assert_eq!(image(b"plot.png", b"not an image"), None);
        assert_eq!(image(b"a.svg", b"<?xml version='1.0'?><svg/>"), Some("image/svg+xml"));
        assert_eq!(image(b"a.html", b"<svg/>"), None);
        assert_eq!(image(b"a.webp", b"RIFF1234WEBPVP8 "), Some("image/webp"));
    }

    #[test]
    fn names_tell_the_rest() {
        assert_eq!(by_name(b"data.CSV"), "text/csv");
        assert_eq!(by_name(b".csv"), "application/octet-stream");
        assert_eq!(of_text(b"Makefile"), "text/plain");
    }
}
