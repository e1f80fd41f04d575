//! The pages that people see: plain HTML, without scripts, cookies or anything from elsewhere.

use axum::body::Body;
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, LOCATION, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderValue, StatusCode};
use sha2::{Digest, Sha256};

use super::redirect;
use crate::auth::scope::Scope;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c1b19;--paper:#fbfaf7;--line:#8a857a;--strong:#0b57a4;--on:#fff;--bad:#a3231b}\
@media(prefers-color-scheme:dark){:root{--ink:#ebe8e1;--paper:#1b1a18;--line:#8f897d;--strong:#8cbcf0;--on:#10233a;--bad:#f09a92}}\
body{background:var(--paper);color:var(--ink);font:1rem/1.5 system-ui,sans-serif;margin:0}\
main{max-width:26rem;margin:10vh auto;padding:0 1.25rem}h1{font-size:1.4rem;line-height:1.25}\
label{display:block;margin-top:1rem;font-weight:600}\
input{width:100%;box-sizing:border-box;font:inherit;padding:.5rem;border:1px solid var(--line);border-radius:.25rem;\
background:transparent;color:inherit}\
button,a.button{display:inline-block;font:inherit;font-weight:600;margin:1.25rem .75rem 0 0;padding:.5rem 1.25rem;\
border:1px solid var(--strong);border-radius:.25rem;background:var(--strong);color:var(--on);text-decoration:none;cursor:pointer}\
button.plain{background:transparent;color:var(--strong)}\
:focus-visible{outline:3px solid var(--strong);outline-offset:2px}\
.trouble{color:var(--bad);font-weight:600}dt{font-weight:600;margin-top:.75rem}dd{margin:0;overflow-wrap:anywhere}";

/// What the page of a client says about it.
#[derive(Clone, Debug)]
pub struct Asking<'a> {
    pub name: Option<&'a str>,
    /// Whose document says so, where there is one.
    pub host: Option<&'a str>,
    pub redirect_uri: &'a str,
}

impl Asking<'_> {
    fn title(&self) -> String {
        match (self.name, self.host) {
            (Some(name), _) => escape(name),
            (None, Some(host)) => escape(host),
            (None, None) => "A program without a name".to_owned(),
        }
    }

    fn rows(&self) -> String {
        let origin = match self.host {
            Some(host) => format!("<dt>Published by</dt><dd>{}</dd>", escape(host)),
            None => "<dt>Published by</dt><dd>unknown: it has chosen its name itself</dd>".to_owned(),
        };
        format!("{origin}<dt>Answer goes to</dt><dd>{}</dd>", escape(&redirect::shown(self.redirect_uri)))
    }
}

/// How somebody can sign in.
#[derive(Clone, Debug)]
pub struct Ways<'a> {
    pub accounts: bool,
    /// The name of an identity provider, and where to go for it.
    pub elsewhere: Option<(&'a str, String)>,
}

pub fn sign_in(asking: &Asking<'_>, ways: &Ways<'_>, transaction: &str, name: &str, trouble: Option<&str>) -> Response {
    let trouble = trouble.map_or_else(String::new, |text| {
        format!("<p class=\"trouble\" role=\"alert\" id=\"trouble\">{}</p>", escape(text))
    });
    let described = if trouble.is_empty() { "" } else { " aria-describedby=\"trouble\" aria-invalid=\"true\"" };
    let mut body = format!(
        "<h1>Sign in to Sandpen</h1><p><strong>{}</strong> would like to use it for you.</p>{trouble}",
        asking.title()
    );
    if ways.accounts {
        body += &format!(
            "<form method=\"post\" action=\"/oauth/sign-in\">{}\
             <label for=\"name\">Account</label>\
             <input id=\"name\" name=\"name\" value=\"{}\" autocomplete=\"username\" autocapitalize=\"none\" spellcheck=\"false\" \
             required autofocus{described}>\
             <label for=\"password\">Password</label>\
             <input id=\"password\" name=\"password\" type=\"password\" autocomplete=\"current-password\" required{described}>\
             <button>Sign in</button></form>",
            hidden(transaction),
            escape(name)
        );
    }
    if let Some((provider, address)) = &ways.elsewhere {
        body +=
            &format!("<p><a class=\"button\" href=\"{}\">Sign in with {}</a></p>", escape(address), escape(provider));
    }
    let status = if trouble.is_empty() { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
    page(status, "Sign in to Sandpen", &body, None)
}

pub fn consent(asking: &Asking<'_>, who: &str, scopes: &[Scope], transaction: &str) -> Response {
    let rights: String = scopes.iter().map(|scope| format!("<li>{}</li>", meaning(*scope))).collect();
    let title = asking.title();
    let body = format!(
        "<h1>Let {title} use Sandpen?</h1><p>You are signed in as <strong>{}</strong>.</p>\
         <dl>{}</dl><p>It will be able to:</p><ul>{rights}</ul>\
         <form method=\"post\" action=\"/oauth/consent\">{}\
         <button name=\"decision\" value=\"allow\">Allow</button>\
         <button class=\"plain\" name=\"decision\" value=\"deny\">Deny</button></form>",
        escape(who),
        asking.rows(),
        hidden(transaction)
    );
    page(StatusCode::OK, &format!("Let {title} use Sandpen?"), &body, redirect::source(asking.redirect_uri))
}

/// For what cannot be told to the client, because nobody knows where it is.
pub fn trouble(status: StatusCode, text: &str) -> Response {
    let body = format!("<h1>This did not work</h1><p role=\"alert\">{}</p>", escape(text));
    page(status, "This did not work", &body, None)
}

/// On to another address; by GET, whatever brought us here.
pub fn go_to(address: &str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    match HeaderValue::try_from(address) {
        Ok(address) => response.headers_mut().insert(LOCATION, address),
        Err(_) => return trouble(StatusCode::BAD_REQUEST, "there is no way back to the program that asked"),
    };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

fn meaning(scope: Scope) -> &'static str {
    match scope {
        Scope::Read => "see your sandboxes and their files",
        Scope::Run => "run code, and make, change and end your sandboxes",
        Scope::Admin => "see and end what everybody has on this server",
    }
}

fn hidden(transaction: &str) -> String {
    format!("<input type=\"hidden\" name=\"transaction\" value=\"{}\">", escape(transaction))
}

/// `leads_to`: where a form of it ends in the end; browsers look at that too.
fn page(status: StatusCode, title: &str, body: &str, leads_to: Option<String>) -> Response {
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    );
    let style = BASE64_STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
    let leads_to = leads_to.map_or_else(String::new, |source| format!(" {source}"));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; form-action 'self'{leads_to}; frame-ancestors 'none'; \
         base-uri 'none'"
    );
    let mut response = Response::new(Body::from(html));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let fixed: [(HeaderName, &'static str); 5] = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        // Not less: a form would be sent without its origin, which is looked at.
        (REFERRER_POLICY, "same-origin"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let policy = HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"));
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    response
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn text(response: Response) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_client_cannot_write_the_page_that_is_about_it() {
        let evil = "<script>alert(1)</script>\"'";
        let asking = Asking { name: Some(evil), host: None, redirect_uri: "https://a.example/" };
        let page = consent(&asking, evil, &[Scope::Run], "t.t");
        let policy = page.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        assert!(policy.contains("form-action 'self' https://a.example;"), "{policy}");
        let shown = text(page).await;
        assert!(!shown.contains("<script") && shown.contains("&lt;script&gt;"), "{shown}");
        assert!(shown.contains("a.example") && shown.contains("run code"), "{shown}");
        let ways = Ways { accounts: true, elsewhere: None };
        let shown = text(sign_in(&asking, &ways, "t.t", evil, Some(evil))).await;
        assert!(!shown.contains("<script") && shown.contains("role=\"alert\""), "{shown}");
    }
}
