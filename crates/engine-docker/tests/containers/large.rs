//! Files that are larger than a server's memory should be.

use sandbox::{ByteRange, ByteSize, Engine, GuestPath, Limits, SandboxSpec, WriteOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Case;
use crate::world::{World, make, says, spec};

pub const CASES: &[Case] =
    &[("large::a_gibibyte_goes_in_and_out_with_flat_memory", |world| Box::pin(in_and_out(world)))];

const MEBIBYTE: usize = 1 << 20;
const PIECES: u64 = 1024;

/// Of this process, in which other cases run at the same time.
const MOST_KIB: u64 = 256 << 10;

async fn in_and_out(world: World) {
    let engine = world.engine().await;
    let limits = Limits { memory: ByteSize::mebibytes(2048), disk: ByteSize::mebibytes(1200), ..Limits::default() };
    let id = make(&engine, &SandboxSpec { limits, ..spec() }).await;
    let path: GuestPath = "/workspace/large".parse().unwrap();
    let files = engine.files(&id);
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak_kib();

    let mut file = files.write(&path, WriteOptions::default()).await.unwrap();
    for number in 0..PIECES {
        file.write_all(&piece(number)).await.unwrap();
    }
    file.shutdown().await.unwrap();
    file.commit().await.unwrap();
    let wanted = "wc -c < large; tail -c 1048576 large | head -c 8 | od -An -tu8 | tr -d ' '";
    assert_eq!(says(&engine, &id, wanted).await, format!("{}\n{}\n", PIECES << 20, PIECES - 1));

    let mut file = files.read(&path, ByteRange::default()).await.unwrap();
    let mut found = vec![0; MEBIBYTE];
    for number in 0..PIECES {
        file.stream.read_exact(&mut found).await.unwrap();
        assert!(found == piece(number), "piece {number} is another one");
    }
    assert_eq!(file.stream.read(&mut found).await.unwrap(), 0);

    let grown = peak_kib().saturating_sub(before);
    assert!(grown < MOST_KIB, "{grown} KiB were needed for a file of {} KiB", PIECES << 10);
    engine.destroy(&id).await.unwrap();
}

/// No two are alike.
fn piece(number: u64) -> Vec<u8> {
    let mut piece = vec![b'x'; MEBIBYTE];
    piece[..8].copy_from_slice(&number.to_le_bytes());
    piece
}

/// The most memory that this process has had resident.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
