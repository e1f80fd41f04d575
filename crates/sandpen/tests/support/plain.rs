//! Servers without a wall, for probes to tell from the real one.

use std::net::TcpListener;

use axum::Router;

use super::server::Server;

/// What a probe found: nothing, or what is wrong.
pub type Verdict = Result<(), String>;

#[track_caller]
pub fn judge(row: &str, real: Verdict, without_the_wall: Verdict) {
    assert_eq!(real, Ok(()), "{row}");
    assert!(without_the_wall.is_err(), "{row}: the probe does not see that the wall is missing");
}

pub fn expect(is_right: bool, what: impl FnOnce() -> String) -> Verdict {
    if is_right { Ok(()) } else { Err(what()) }
}

/// A server of the test's own, on a thread that ends with it.
pub fn plain(routes: Router) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), routes).await.unwrap();
        });
    });
    Server::known_at(address)
}
