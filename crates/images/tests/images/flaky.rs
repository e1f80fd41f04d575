//! A way to a registry that breaks: every connection is cut after so many bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub struct Flaky {
    pub port: u16,
    carried: Arc<AtomicU64>,
    cuts: Arc<AtomicU64>,
}

impl Flaky {
    /// `length` says after how many bytes the connection of that number ends.
    pub fn start(upstream: u16, length: impl Fn(u64) -> u64 + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (carried, cuts) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (carried_here, cuts_here) = (carried.clone(), cuts.clone());
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let (carried, cuts, most) = (carried_here.clone(), cuts_here.clone(), length(number as u64));
                std::thread::spawn(move || carry(stream, upstream, most, &carried, &cuts));
            }
        });
        Self { port, carried, cuts }
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Bytes that came from the registry.
    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }

    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }
}

fn carry(mut client: TcpStream, upstream: u16, most: u64, carried: &AtomicU64, cuts: &AtomicU64) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", upstream)) else { return };
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (mut buffer, mut left) = (vec![0; 16 * 1024], most);
    while left > 0 {
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match server.read(&mut buffer[..length]) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                if client.write_all(&buffer[..count]).is_err() {
                    break;
                }
                carried.fetch_add(count as u64, Ordering::Relaxed);
                left -= count as u64;
            }
        }
    }
    if left == 0 {
        cuts.fetch_add(1, Ordering::Relaxed);
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}
