//! Programs that connect to somewhere, and a server that is everywhere.

use std::time::Duration;

use sandbox::{ErrorKind, ExecRequest, ExecStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::hosted::{Hosted, Settings};
use crate::says;

fn with_network() -> Settings {
    let mut settings = Settings::default();
    settings.process_1.network = agent::HostedNetwork::Caught { proxy_port: 3128 };
    settings
}

fn bash(script: &str) -> ExecRequest {
    let mut request = ExecRequest::new(["/bin/bash", "-c", script], Duration::from_secs(100)).unwrap();
    request.environment.insert("PATH", "/usr/bin:/bin").unwrap();
    request
}

pub async fn connections_are_caught_wherever_they_go() {
    let sandbox = Hosted::start(&with_network()).await;
    let link = sandbox.connect().await.unwrap();
    for (address, port) in [("203.0.113.7", 80), ("10.0.0.1", 22), ("2001:db8::5", 443), ("127.0.0.1", 3128)] {
        let script = format!("exec 3<>/dev/tcp/{address}/{port}; echo question >&3; cat <&3");
        let request = bash(&script);
        let said = says(&link, &request);
        let served = async {
            let mut arrival = link.connection.accept().await.unwrap();
            assert_eq!(arrival.destination, std::net::SocketAddr::new(address.parse().unwrap(), port));
            let mut question = [0; 9];
            arrival.read_exact(&mut question).await.unwrap();
            assert_eq!(&question, b"question\n");
            arrival.write_all(b"answer").await.unwrap();
            arrival.shutdown().await.unwrap();
            let mut rest = Vec::new();
            arrival.read_to_end(&mut rest).await.unwrap();
            assert!(rest.is_empty());
        };
        let ((status, text), ()) = tokio::join!(said, served);
        assert_eq!((status, text.as_str()), (ExecStatus::Exited(0), "answer"), "{address}");
    }
}

pub async fn a_connection_that_is_dropped_is_cut() {
    let sandbox = Hosted::start(&with_network()).await;
    let link = sandbox.connect().await.unwrap();
    // What was sent before the cut may be lost with it, but never looks like an end.
    let request = bash("exec 3<>/dev/tcp/203.0.113.7/80; echo ready; cat <&3");
    let (said, ()) = tokio::join!(says(&link, &request), async {
        let arrival = link.connection.accept().await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(arrival);
    });
    assert_eq!(said, (ExecStatus::Exited(1), "ready\n".into()));
}

pub async fn much_goes_through_many_connections() {
    let sandbox = Hosted::start(&with_network()).await;
    let link = std::sync::Arc::new(sandbox.connect().await.unwrap());
    const BYTES: usize = 2 << 20;
    let server = tokio::spawn({
        let link = link.clone();
        async move {
            let mut echoes = Vec::new();
            for _ in 0..20 {
                let mut arrival = link.connection.accept().await.unwrap();
                echoes.push(tokio::spawn(async move {
                    let (mut read, mut write) = tokio::io::split(&mut arrival);
                    tokio::io::copy(&mut read, &mut write).await.unwrap();
                    write.shutdown().await.unwrap();
                    // Closed at once: what is still on its way must arrive.
                }));
            }
            for echo in echoes {
                echo.await.unwrap();
            }
        }
    });
    let script = format!(
        "import socket, threading\n\
         def run(number):\n\
         \x20 connection = socket.create_connection(('203.0.113.9', 7))\n\
         \x20 data = bytes([number]) * {BYTES}\n\
         \x20 def send():\n\
         \x20   connection.sendall(data); connection.shutdown(socket.SHUT_WR)\n\
         \x20 sender = threading.Thread(target=send); sender.start()\n\
         \x20 back = b''\n\
         \x20 while part := connection.recv(1 << 20): back += part\n\
         \x20 sender.join()\n\
         \x20 print('same' if back == data else f'{{len(back)}} bytes')\n\
         threads = [threading.Thread(target=run, args=(number,)) for number in range(20)]\n\
         [thread.start() for thread in threads]\n\
         [thread.join() for thread in threads]\n"
    );
    let request = ExecRequest::new(["/usr/bin/python3", "-c", &script], Duration::from_secs(100)).unwrap();
    let (status, text) = says(&link, &request).await;
    assert_eq!((status, text.as_str()), (ExecStatus::Exited(0), "same\n".repeat(20).as_str()));
    server.await.unwrap();
}

pub async fn questions_for_names_are_answered() {
    let sandbox = Hosted::start(&with_network()).await;
    let link = sandbox.connect().await.unwrap();
    let request = bash("exec 3<>/dev/udp/127.0.0.1/53; printf question >&3; head -c 6 <&3");
    let (said, ()) = tokio::join!(says(&link, &request), async {
        let question = link.connection.question().await.unwrap();
        assert_eq!(question.packet, b"question");
        question.reply(b"answer".to_vec());
    });
    assert_eq!(said, (ExecStatus::Exited(0), "answer".into()));
}

pub async fn the_network_is_not_the_programs_to_change() {
    let mut settings = with_network();
    (settings.process_1.user, settings.process_1.group) = (0, 0);
    let sandbox = Hosted::start(&settings).await;
    let link = sandbox.connect().await.unwrap();
    let script = "grep -h Cap /proc/self/status | grep -v 0000000000000000; \
                  ip link add probe type dummy 2> /dev/null && echo link; \
                  ip route del local default table local 2> /dev/null && echo route; \
                  nft flush ruleset 2> /dev/null && echo rules; true";
    assert_eq!(says(&link, &bash(script)).await, (ExecStatus::Exited(0), String::new()));
}

pub async fn without_a_network_nobody_comes() {
    let sandbox = Hosted::start(&Settings::default()).await;
    let link = sandbox.connect().await.unwrap();
    assert_eq!(link.connection.accept().await.unwrap_err().kind(), ErrorKind::WrongState);
    assert_eq!(link.connection.question().await.unwrap_err().kind(), ErrorKind::WrongState);
    let (status, _) = says(&link, &bash("exec 3<>/dev/tcp/203.0.113.7/80")).await;
    assert_eq!(status, ExecStatus::Exited(1));
}

/// Whatever kind of network it has: a namespace does not hold the families that are not of the internet.
pub async fn only_usual_sockets_can_be_made() {
    let script = "import ctypes, errno, socket\n\
                  for family in range(1, 46):\n\
                  \x20 try: socket.socket(family, socket.SOCK_DGRAM).close(); print(family, end=' ')\n\
                  \x20 except OSError as error:\n\
                  \x20   if family in (40, 38) and error.errno != errno.EAFNOSUPPORT: print(error)\n\
                  c = ctypes.CDLL(None, use_errno=True)\n\
                  print(c.syscall(425, 1, 0), ctypes.get_errno() == errno.EPERM)\n";
    for settings in [Settings::default(), with_network()] {
        let sandbox = Hosted::start(&settings).await;
        let link = sandbox.connect().await.unwrap();
        let request = ExecRequest::new(["/usr/bin/python3", "-c", script], Duration::from_secs(100)).unwrap();
        assert_eq!(says(&link, &request).await, (ExecStatus::Exited(0), "1 2 10 16 -1 True\n".into()));
    }
}
