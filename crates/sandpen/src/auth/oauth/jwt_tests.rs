use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};

use super::*;

const ISSUER: &str = "https://issuer.example";
const AUDIENCE: &str = "https://sandpen.example";

struct Signer(EcdsaKeyPair);

impl Signer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Self(EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap())
    }

    fn jwk(&self, id: &str) -> Value {
        let point = self.0.public_key().as_ref();
        let part = |range: std::ops::Range<usize>| BASE64_URL_SAFE_NO_PAD.encode(&point[range]);
        json!({ "kty": "EC", "crv": "P-256", "x": part(1..33), "y": part(33..65), "kid": id, "use": "sig" })
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let signature = self.0.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
    }
}

fn issuers(keys: &[Value]) -> Issuers {
    let issuer = Issuer::with_keys(ISSUER.parse().unwrap(), keys);
    Issuers::new(vec![Arc::new(issuer)], [AUDIENCE.to_owned()])
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn claims() -> Value {
    json!({ "iss": ISSUER, "sub": "alice", "aud": AUDIENCE, "exp": now() + 300, "scope": "openid sandpen:run" })
}

fn with(mut value: Value, name: &str, other: Value) -> Value {
    match other {
        Value::Null => drop(value.as_object_mut().unwrap().remove(name)),
        other => value[name] = other,
    }
    value
}

#[tokio::test]
async fn a_good_token_is_somebody_with_rights() {
    let signer = Signer::new();
    let issuers = issuers(&[signer.jwk("one")]);
    let header = json!({ "alg": "ES256", "kid": "one" });
    let vouched = issuers.admit(&signer.sign(&header, &claims())).await.unwrap();
    assert_eq!(vouched.principal.owner, subject::owner(&ISSUER.parse().unwrap(), "alice"));
    assert_eq!(vouched.principal.scopes.highest(), Some(Scope::Run));
    assert!(vouched.until > SystemTime::now());
    for (claims, highest) in [
        (with(claims(), "scope", Value::Null), None),
        (with(claims(), "scope", json!("sandpen:read other:run")), Some(Scope::Read)),
        (with(with(claims(), "scope", Value::Null), "scp", json!(["sandpen:admin"])), Some(Scope::Admin)),
        (with(claims(), "aud", json!(["https://other.example", AUDIENCE])), Some(Scope::Run)),
        (with(claims(), "exp", json!(now() - 10)), Some(Scope::Run)),
        (with(claims(), "nbf", json!(now() + 10)), Some(Scope::Run)),
    ] {
        let vouched = issuers.admit(&signer.sign(&header, &claims)).await;
        assert_eq!(vouched.map(|vouched| vouched.principal.scopes.highest()), Ok(highest), "{claims}");
    }
}

#[tokio::test]
async fn what_is_not_for_us_now_and_by_whom_it_says_is_refused() {
    let (signer, other) = (Signer::new(), Signer::new());
    let issuers = issuers(&[signer.jwk("one"), other.jwk("two")]);
    let header = || json!({ "alg": "ES256", "kid": "one" });
    let refused = [
        ("over", signer.sign(&header(), &with(claims(), "exp", json!(now() - 60)))),
        ("no end", signer.sign(&header(), &with(claims(), "exp", Value::Null))),
        ("not yet", signer.sign(&header(), &with(claims(), "nbf", json!(now() + 60)))),
        ("for another", signer.sign(&header(), &with(claims(), "aud", json!("https://other.example")))),
        ("for nobody", signer.sign(&header(), &with(claims(), "aud", Value::Null))),
        (
            "for an address that begins alike",
            signer.sign(&header(), &with(claims(), "aud", json!("https://sandpen.example.com"))),
        ),
        ("of another issuer", signer.sign(&header(), &with(claims(), "iss", json!("https://other.example")))),
        ("of two issuers", signer.sign(&header(), &with(claims(), "iss", json!([ISSUER])))),
        ("of no issuer", signer.sign(&header(), &with(claims(), "iss", Value::Null))),
        ("of nobody", signer.sign(&header(), &with(claims(), "sub", Value::Null))),
        ("of an empty name", signer.sign(&header(), &with(claims(), "sub", json!("")))),
        ("signed by another key", other.sign(&header(), &claims())),
        ("signed by a key that is not known", signer.sign(&with(header(), "kid", json!("three")), &claims())),
        ("by no key by name, where there are two", signer.sign(&with(header(), "kid", Value::Null), &claims())),
        ("with its own key", signer.sign(&with(header(), "jwk", signer.jwk("one")), &claims())),
        (
            "with an address of keys",
            signer.sign(&with(header(), "jku", json!("https://issuer.example/keys")), &claims()),
        ),
        (
            "with an address of certificates",
            signer.sign(&with(header(), "x5u", json!("https://a.example/c")), &claims()),
        ),
        ("with something critical", signer.sign(&with(header(), "crit", json!(["b64"])), &claims())),
        ("of another type", signer.sign(&with(header(), "typ", json!("logout+jwt")), &claims())),
        ("by another algorithm", signer.sign(&with(header(), "alg", json!("ES384")), &claims())),
        ("by a shared secret", signer.sign(&with(header(), "alg", json!("HS256")), &claims())),
        ("by nothing", signer.sign(&with(header(), "alg", json!("none")), &claims())),
    ];
    for (why, token) in refused {
        assert_eq!(issuers.admit(&token).await, Err(Refused::Wrong), "{why}");
    }
    let good = signer.sign(&header(), &claims());
    let unsigned = &good[..=good.rfind('.').unwrap()];
    for token in [unsigned, &good[..good.len() - 4], "a.b.c", "..", "", &"a".repeat(MOST_CHARACTERS + 1)] {
        assert_eq!(issuers.admit(token).await, Err(Refused::Wrong), "{token:.60}");
    }
    assert!(issuers.admit(&good).await.is_ok());
}

/// Signed elsewhere, by OpenSSL: most issuers use RSA, with which nothing here can sign.
#[tokio::test]
async fn signatures_of_rsa_are_understood() {
    let key = json!({ "kty": "RSA", "kid": "rsa", "n": RSA_MODULUS, "e": "AQAB" });
    for token in [RS256, PS256] {
        assert!(issuers(std::slice::from_ref(&key)).admit(token).await.is_ok(), "{token:.30}");
        let mut changed = token.to_owned().into_bytes();
        let at = changed.len() - 20;
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        assert_eq!(issuers(std::slice::from_ref(&key)).admit(&changed).await, Err(Refused::Wrong));
    }
    let bound = with(key, "alg", json!("RS256"));
    assert!(issuers(std::slice::from_ref(&bound)).admit(RS256).await.is_ok());
    assert_eq!(issuers(&[bound]).admit(PS256).await, Err(Refused::Wrong), "the key is for another algorithm");
}

const RSA_MODULUS: &str = "tgyx-F5nwtAsYZCz9vPJuB7RhOSxzPBGv2geBPZ17Lj8bs5NbKQ9QllLTz8rWCI0EMqvQrdfUd4dpEpNJDkcEiAfiiS4icXzi3VP\
    noPvQuADj_zA0FFV76PyW4_-Te-SYrUc3gun_xiZDq99-TxCG3kowAzeh-BWhPJsGEKlcj25hwSIHW2wjY3UW3KeSs-lSUBsfAoK\
    7YqENvOUKmA_t4mkhSfvwAQRUZeOFvY6f_jyclJi2I6I0IGI_3opx67agSyywPgh9rXcAFCoxghBKnoSAS7f3oz7AgfDfIBAxJHb\
    db2TNHkYR8YYoepvDxXbeT_mzvSky6XPGf8ICGyqYQ";

const RS256: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSJ9.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwic3ViIjoiYWxpY2UiLCJ\
    hdWQiOiJodHRwczovL3NhbmRwZW4uZXhhbXBsZSIsImV4cCI6NDEwMjQ0NDgwMCwic2NvcGUiOiJzYW5kcGVuOnJ1biJ9.d7DwPk\
    o7wHO76lHorq8_ZhxgUAE0NDALhmRrE00M_XLCzKKYQO3Xi6GeiEH4n1RBetJzXrAbpzj1cbqxGX_G8DIk32pLfb1R9BTZrkR9pr\
    ifdQHY4ZPbfqJUEWFPJnaCh8VXbReEM_Kqo71Ccl4DwQWdK2AHRxeG22U952T6m7eRWiomG0powSpeQORbvp5iFhlKptVfP9QTRX\
    jHPqVIfaVnGY4V0UzN8H4D9hVMDL1qVPk-of1hci41E0pGr8y4179MW64ysG-uIuhy9-_MySKxQbkzdg_UyT8M1Pg7s_hUSeF3Rx\
    jWyPCkx8ZN7TlPlOkEMxR-3cpc0-solZHuoQ";

const PS256: &str = "eyJhbGciOiJQUzI1NiIsImtpZCI6InJzYSJ9.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwic3ViIjoiYWxpY2UiLCJ\
    hdWQiOiJodHRwczovL3NhbmRwZW4uZXhhbXBsZSIsImV4cCI6NDEwMjQ0NDgwMCwic2NvcGUiOiJzYW5kcGVuOnJ1biJ9.X2UtKP\
    3O3vRBVzEeA7cmo7CKOHD8pTMu0qoBlf9XPWv6yl0q9hOf7GPImTt2s4q8DcnmIr0roVSjksj5kRJBtHGCcCMFvYz3w6ci21cB3u\
    oNsrPVBve5FJWsHOqL-OjnzHpCl55_FmPKqo_gRfQrRpL8wb4WirxRMloJyWNZYoKqOqng4ig0fPcGu9FdaJlH5DdR2TSuxKoowX\
    7WTH9oDaZcmXXUc7LMB-eHtAEIjEcc4yfqwOi4iwXJudbjk32C5ZHY_OiyIsz4du5_6os6JhVFI1YD0guNUg6qyXD77p1woRT-5X\
    KUYHSsJASuW-p7ucNn3a5ieqGX8v05iWks0A";
