use super::*;

fn clients(private_hosts: &[&str]) -> (tempfile::TempDir, Clients) {
    let directory = tempfile::tempdir().unwrap();
    let records = Arc::new(RecordsFile::of_state_directory(directory.path()).unwrap());
    let site = Arc::new(Site::new(None, "http", "127.0.0.1:8228".parse().unwrap()).unwrap());
    let private_hosts = private_hosts.iter().map(|host| (*host).to_owned()).collect();
    (directory, Clients::new(records, site, Fetcher::default(), private_hosts))
}

fn description(text: &str) -> Description {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn a_client_is_who_it_registered_as() {
    let (_directory, clients) = clients(&[]);
    let asked = r#"{"client_name":" A\u0007 client ","redirect_uris":["http://127.0.0.1:1/c"],"extra":{}}"#;
    let made = clients.register(&description(asked), SystemTime::now()).unwrap().unwrap();
    let found = clients.find(&made.id).await.unwrap();
    assert_eq!(found, made);
    assert_eq!(found.name.as_deref(), Some("A client"));
    assert!(found.allows("http://127.0.0.1:2/c") && !found.allows("http://127.0.0.1:2/d"));
    assert_eq!(clients.find("nobody").await, None);
    for refused in [
        r#"{"redirect_uris":[]}"#,
        r#"{"redirect_uris":["http://evil.example/"]}"#,
        r#"{"redirect_uris":["https://a.example/","javascript:alert(1)"]}"#,
        r#"{"redirect_uris":["https://a.example/"],"response_types":["token"]}"#,
        r#"{"redirect_uris":["https://a.example/"],"grant_types":["client_credentials"]}"#,
    ] {
        assert!(clients.register(&description(refused), SystemTime::now()).unwrap().is_err(), "{refused}");
    }
}

#[tokio::test]
async fn the_dashboard_is_at_home_alone() {
    let (_directory, clients) = clients(&[]);
    let dashboard = clients.find(DASHBOARD).await.unwrap();
    assert!(dashboard.allows("http://127.0.0.1:8228/") && dashboard.allows("http://localhost:8228/"));
    assert!(!dashboard.allows("http://127.0.0.1:9/"), "whatever is at another port of this machine");
    assert!(!dashboard.allows("http://127.0.0.1:8228/x") && !dashboard.allows("https://evil.example/"));
}

#[test]
fn clients_that_nobody_uses_are_forgotten_and_all_have_a_bound() {
    let (_directory, clients) = clients(&[]);
    let start = moment(1_800_000_000);
    let asked = description(r#"{"redirect_uris":["https://a.example/"]}"#);
    let first = clients.register(&asked, start).unwrap().unwrap();
    let used = clients.register(&asked, start).unwrap().unwrap();
    clients
        .records
        .change(|records| {
            records.clients.get_mut(&used.id).unwrap().used = Some(1_800_000_000);
            Ok(())
        })
        .unwrap();
    clients.register(&asked, start + UNUSED).unwrap().unwrap();
    let mut records = (*clients.records.current()).clone();
    assert!(!records.clients.contains_key(&first.id) && records.clients.contains_key(&used.id));
    for number in 0..2 * MOST_CLIENTS {
        let record = ClientRecord { name: None, redirect_uris: Vec::new(), created: 1_800_003_600, used: None };
        records.clients.insert(number.to_string(), record);
    }
    make_room(&mut records, start + UNUSED);
    assert!(records.clients.len() == MOST_CLIENTS - 1 && records.clients.contains_key(&used.id));
}

#[test]
fn documents_are_fetched_from_public_places_alone() {
    let (_directory, clients) = clients(&["127.0.0.1:9", "intranet.example"]);
    let named = |id: &str| clients.document(id).map(|(_, named)| named);
    assert_eq!(named("https://app.example/client.json"), Some(Named::ByStranger));
    assert_eq!(named("https://intranet.example/client.json"), Some(Named::ByOperator));
    assert_eq!(named("http://127.0.0.1:9/client.json"), Some(Named::ByOperator));
    for id in [
        "http://app.example/client.json",
        "http://127.0.0.1:10/client.json",
        "https://app.example/",
        "https://app.example",
        "https://app.example/a#b",
        "https://a@app.example/c",
        "https://app.example/a/../b",
        "http://127.0.0.1:8228/client.json",
        "ftp://app.example/c",
    ] {
        assert_eq!(named(id), None, "{id}");
    }
}
