//! The resolver of the host in this world. It remembers every question: a name that nobody may ask for must not be here.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use hickory_proto::op::{Message, Metadata, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::places;
use super::visits::{VisitKind, Visits};

/// How often each name was asked for, by kind of record.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<BTreeMap<(String, RecordType), usize>>>);

pub fn serve(datagrams: UdpSocket, streams: TcpListener, visits: Visits) {
    let asked = Asked::default();
    let (asked_by_stream, visits_of_stream) = (asked.clone(), visits.clone());
    tokio::spawn(async move {
        let mut packet = [0; 4096];
        while let Ok((length, peer)) = datagrams.recv_from(&mut packet).await {
            if let Some(reply) = reply(&packet[..length], &asked, &visits) {
                let _ = datagrams.send_to(&reply, peer).await;
            }
        }
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = streams.accept().await {
            tokio::spawn(converse(stream, asked_by_stream.clone(), visits_of_stream.clone()));
        }
    });
}

async fn converse(mut stream: TcpStream, asked: Asked, visits: Visits) {
    while let Ok(length) = stream.read_u16().await {
        let mut packet = vec![0; usize::from(length)];
        if stream.read_exact(&mut packet).await.is_err() {
            return;
        }
        let Some(reply) = reply(&packet, &asked, &visits) else { return };
        let length = u16::try_from(reply.len()).unwrap_or_default();
        if stream.write_u16(length).await.is_err() || stream.write_all(&reply).await.is_err() {
            return;
        }
    }
}

fn reply(packet: &[u8], asked: &Asked, visits: &Visits) -> Option<Vec<u8>> {
    let question = Message::from_vec(packet).ok()?;
    let query = question.queries.first()?.clone();
    let (name, kind) = (query.name().clone(), query.query_type());
    let text = name.to_ascii().to_ascii_lowercase();
    visits.add(SocketAddr::new(places::RESOLVER, 53), VisitKind::Question, format!("{kind} {text}"));
    let before = {
        let mut counts = asked.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry((text.clone(), kind)).or_default();
        *count += 1;
        *count - 1
    };
    let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
    reply.metadata = Metadata::response_from_request(&question.metadata);
    reply.metadata.recursion_available = true;
    reply.add_query(query);
    match places::answer(&text, before) {
        None => reply.metadata.response_code = ResponseCode::NXDomain,
        Some(answer) => {
            let mut owner = name;
            if let Some(alias) = answer.alias {
                let alias = Name::from_ascii(&alias).ok()?.to_lowercase();
                reply.add_answer(Record::from_rdata(owner, 0, RData::CNAME(CNAME(alias.clone()))));
                owner = alias;
            }
            for address in answer.addresses {
                let data = match (address, kind) {
                    (IpAddr::V4(address), RecordType::A) => RData::A(A(address)),
                    (IpAddr::V6(address), RecordType::AAAA) => RData::AAAA(AAAA(address)),
                    (IpAddr::V4(_) | IpAddr::V6(_), _) => continue,
                };
                // Nobody may keep it: the next question may have another answer.
                reply.add_answer(Record::from_rdata(owner.clone(), 0, data));
            }
        }
    }
    reply.to_vec().ok()
}
