//! Connections to what programs listen on. The listener is a few lines for an interpreter that the usual systems have, or a
//! program of the fake's.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::Able;
use super::subject::{Subject, kind, seconds, shell};
use crate::engine::Process;
use crate::error::ErrorKind;
use crate::port::{GuestPort, GuestStream};

super::suite_of_powers! {
    "ports", Connections:
    what_a_program_listens_on_is_reached_without_a_network,
    the_other_loopback_address_is_reached_too,
    where_nobody_listens_is_told,
    a_sandbox_that_is_gone_is_told,
    much_flows_both_ways_at_once,
    whoever_does_not_read_holds_up_nobody_else,
    many_at_once,
    a_connection_ends_with_its_program,
    a_connection_ends_with_its_sandbox,
    what_is_dropped_is_over_inside,
}

const PORT: u16 = 8000;

/// Says everything again to whoever connects, each in a process of its own.
const ECHO: &str = r#"perl -MSocket -e 'my($f,$p)=@ARGV; socket(my $s,$f==6?AF_INET6:AF_INET,SOCK_STREAM,0)||die;
bind($s,$f==6?pack_sockaddr_in6($p,IN6ADDR_LOOPBACK):pack_sockaddr_in($p,INADDR_LOOPBACK))||do{print "no such address\n";exit};
listen($s,64)||die; $|=1; print "listening\n"; $SIG{CHLD}="IGNORE";
while(accept(my $c,$s)){ next if fork; close $s; while(sysread($c,my $b,65536)){ my $o=0;
while($o<length $b){ $o+=syswrite($c,$b,length($b)-$o,$o)||exit } } exit }'"#;

async fn listener(sandbox: &Subject, family: u8) -> Process {
    try_listener(sandbox, family).await.expect("a loopback address of this family")
}

/// `None` where the kernel gives sandboxes no such address.
async fn try_listener(sandbox: &Subject, family: u8) -> Option<Process> {
    let mut request = shell(&format!("listen {family} {PORT} || {ECHO} {family} {PORT}"));
    request.timeout = seconds(60);
    let mut process = sandbox.start(&request).await;
    let mut line = String::new();
    let stdout = std::mem::replace(&mut process.stdout, Box::new(tokio::io::empty()));
    let mut stdout = BufReader::new(stdout);
    stdout.read_line(&mut line).await.unwrap();
    process.stdout = Box::new(stdout);
    assert!(["listening\n", "no such address\n"].contains(&line.as_str()), "{line}");
    (line == "listening\n").then_some(process)
}

async fn connect(able: &Able, sandbox: &Subject) -> GuestStream {
    able.connections().connect(&sandbox.id, GuestPort::new(PORT).unwrap()).await.unwrap()
}

async fn says_again(stream: &mut GuestStream, what: &[u8]) {
    stream.write_all(what).await.unwrap();
    stream.flush().await.unwrap();
    let mut heard = vec![0; what.len()];
    stream.read_exact(&mut heard).await.unwrap();
    assert_eq!(heard, what);
}

/// Whatever comes until the end, which must come.
async fn rest(stream: &mut GuestStream) -> Vec<u8> {
    let mut heard = Vec::new();
    // One that was cut is at its end too.
    let _ = timeout(seconds(20), stream.read_to_end(&mut heard)).await.expect("the connection ends");
    heard
}

async fn what_a_program_listens_on_is_reached_without_a_network(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let _listener = listener(&sandbox, 4).await;
    let mut stream = connect(&able, &sandbox).await;
    says_again(&mut stream, b"ping").await;
    says_again(&mut stream, b"and again").await;
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut stream).await, b"");
    sandbox.destroy().await;
}

async fn the_other_loopback_address_is_reached_too(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    if let Some(_listener) = try_listener(&sandbox, 6).await {
        says_again(&mut connect(&able, &sandbox).await, b"ping").await;
    }
    sandbox.destroy().await;
}

async fn where_nobody_listens_is_told(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let port = GuestPort::new(PORT).unwrap();
    assert_eq!(kind(able.connections().connect(&sandbox.id, port).await), ErrorKind::WrongState);
    let _listener = listener(&sandbox, 4).await;
    let other = GuestPort::new(PORT + 1).unwrap();
    assert_eq!(kind(able.connections().connect(&sandbox.id, other).await), ErrorKind::WrongState);
    says_again(&mut connect(&able, &sandbox).await, b"ping").await;
    sandbox.destroy().await;
}

async fn a_sandbox_that_is_gone_is_told(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let id = sandbox.id.clone();
    sandbox.destroy().await;
    assert_eq!(kind(able.connections().connect(&id, GuestPort::new(PORT).unwrap()).await), ErrorKind::NotFound);
}

async fn much_flows_both_ways_at_once(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let _listener = listener(&sandbox, 4).await;
    let sent: Vec<u8> = (0..8_u32 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut reader, mut writer) = tokio::io::split(connect(&able, &sandbox).await);
    let mut heard = Vec::new();
    let write = async {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let (read, ()) = tokio::join!(reader.read_to_end(&mut heard), write);
    read.unwrap();
    assert!(heard == sent, "{} of {} bytes came back", heard.len(), sent.len());
    sandbox.destroy().await;
}

async fn whoever_does_not_read_holds_up_nobody_else(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let _listener = listener(&sandbox, 4).await;
    let mut deaf = connect(&able, &sandbox).await;
    let piece = vec![7; 1 << 20];
    let mut taken = 0_u32;
    while timeout(seconds(1), deaf.write_all(&piece)).await.is_ok() {
        taken += 1;
        assert!(taken < 256, "what nobody reads is kept without a bound");
    }
    says_again(&mut connect(&able, &sandbox).await, b"ping").await;
    assert_eq!(sandbox.says("echo still here").await, "still here\n");
    sandbox.destroy().await;
}

async fn many_at_once(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let _listener = listener(&sandbox, 4).await;
    let mut streams = Vec::new();
    for number in 0..32_u8 {
        let mut stream = connect(&able, &sandbox).await;
        stream.write_all(&[number; 100]).await.unwrap();
        streams.push(stream);
    }
    for (number, stream) in (0..32_u8).zip(&mut streams) {
        let mut heard = [0; 100];
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, [number; 100]);
    }
    sandbox.destroy().await;
}

async fn a_connection_ends_with_its_program(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let listener = listener(&sandbox, 4).await;
    let mut stream = connect(&able, &sandbox).await;
    says_again(&mut stream, b"ping").await;
    listener.control.kill().await.unwrap();
    assert_eq!(rest(&mut stream).await, b"");
    sandbox.destroy().await;
}

async fn a_connection_ends_with_its_sandbox(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let _listener = listener(&sandbox, 4).await;
    let mut stream = connect(&able, &sandbox).await;
    let mut idle = connect(&able, &sandbox).await;
    says_again(&mut stream, b"ping").await;
    let waiting = tokio::spawn(async move { rest(&mut idle).await });
    sandbox.destroy().await;
    assert_eq!(rest(&mut stream).await, b"");
    assert_eq!(waiting.await.unwrap(), b"");
}

async fn what_is_dropped_is_over_inside(able: Able) {
    let sandbox = Subject::new(able.engine.clone()).await;
    let _listener = listener(&sandbox, 4).await;
    // More than the processes that a sandbox may have: each of them is one inside until its connection is over.
    for _ in 0..200 {
        says_again(&mut connect(&able, &sandbox).await, b"ping").await;
    }
    sandbox.destroy().await;
}
