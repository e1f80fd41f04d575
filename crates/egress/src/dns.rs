//! What a sandbox asks for by name, and what it is told. Pure: packets in, decisions and packets out.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use sandbox::{Host, HostName};

use crate::names::Synthetic;

/// How long a program may keep an answer. Short, because the addresses are ours and asking is cheap.
const TIME_TO_LIVE: u32 = 60;

/// What fits into a packet on every path; ours never leave the machine.
const MOST_BYTES: u16 = 1232;

/// What to do about a packet.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Not a question: no answer.
    Drop,
    Reply(Vec<u8>),
    /// The sandbox may not know this name; tell whoever watches, and reply.
    Refuse(HostName, Vec<u8>),
    /// The name may be known, if the host can find it.
    Find(HostName, Question),
}

/// A question for the address of a name, that waits for its answer.
#[derive(Debug)]
pub(crate) struct Question {
    request: Message,
    kind: AddressKind,
}

#[derive(Clone, Copy, Debug)]
enum AddressKind {
    V4,
    V6,
}

pub(crate) fn decide(packet: &[u8], may_know: impl Fn(&Host) -> bool) -> Verdict {
    let Ok(request) = Message::from_vec(packet) else { return Verdict::Drop };
    if request.metadata.message_type != MessageType::Query {
        return Verdict::Drop;
    }
    if request.metadata.op_code != OpCode::Query {
        return reply(&request, ResponseCode::NotImp);
    }
    let [query] = request.queries.as_slice() else { return reply(&request, ResponseCode::FormErr) };
    if query.query_class != DNSClass::IN {
        return reply(&request, ResponseCode::Refused);
    }
    // What is no name of a host cannot be allowed, and there is nothing that anybody could ask for instead.
    let Ok(name) = query.name.to_ascii().parse::<HostName>() else { return reply(&request, ResponseCode::NXDomain) };
    let kind = query.query_type;
    let host = Host::Name(name.clone());
    match may_know(&host) {
        // Names of addresses are asked for by programs that only want to print them.
        false if is_reverse(&name) => reply(&request, ResponseCode::NXDomain),
        false => match encode(&request, ResponseCode::NXDomain, None) {
            Some(packet) => Verdict::Refuse(name, packet),
            None => Verdict::Drop,
        },
        true => match kind {
            RecordType::A => Verdict::Find(name, Question { request, kind: AddressKind::V4 }),
            RecordType::AAAA => Verdict::Find(name, Question { request, kind: AddressKind::V6 }),
            // All there is to know of a name is its address.
            _ => reply(&request, ResponseCode::NoError),
        },
    }
}

impl Question {
    pub fn found(&self, synthetic: Synthetic) -> Option<Vec<u8>> {
        let address = match self.kind {
            AddressKind::V4 => IpAddr::V4(synthetic.v4),
            AddressKind::V6 => IpAddr::V6(synthetic.v6),
        };
        encode(&self.request, ResponseCode::NoError, Some(address))
    }

    pub fn no_such_name(&self) -> Option<Vec<u8>> {
        encode(&self.request, ResponseCode::NXDomain, None)
    }

    /// Asking again may help.
    pub fn no_answer(&self) -> Option<Vec<u8>> {
        encode(&self.request, ResponseCode::ServFail, None)
    }
}

fn is_reverse(name: &HostName) -> bool {
    name.as_str().ends_with(".in-addr.arpa") || name.as_str().ends_with(".ip6.arpa")
}

fn reply(request: &Message, code: ResponseCode) -> Verdict {
    encode(request, code, None).map_or(Verdict::Drop, Verdict::Reply)
}

fn encode(request: &Message, code: ResponseCode, address: Option<IpAddr>) -> Option<Vec<u8>> {
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.metadata.recursion_desired = request.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    response.metadata.response_code = code;
    if let [query] = request.queries.as_slice() {
        response.add_query(query.clone());
        if let Some(address) = address {
            response.add_answer(Record::from_rdata(query.name.clone(), TIME_TO_LIVE, RData::from(address)));
        }
    }
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(MOST_BYTES);
        response.set_edns(edns);
    }
    response.to_vec().ok()
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::Query;
    use hickory_proto::rr::Name;

    use super::*;

    fn ask(name: &str, kind: RecordType) -> Message {
        let mut message = Message::query();
        message.metadata.id = 77;
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message
    }

    fn verdict(message: &Message) -> Verdict {
        let network: sandbox::Network = "a.example,*.b.example:22".parse().unwrap();
        decide(&message.to_vec().unwrap(), |host| network.names(host))
    }

    fn code(packet: &[u8]) -> ResponseCode {
        let message = Message::from_vec(packet).unwrap();
        assert_eq!((message.metadata.id, message.metadata.message_type), (77, MessageType::Response));
        message.metadata.response_code
    }

    #[test]
    fn an_allowed_name_is_answered_with_the_address_of_its_kind() {
        let synthetic = Synthetic { v4: "198.18.1.5".parse().unwrap(), v6: "fd73::5".parse().unwrap() };
        for (kind, address) in [(RecordType::A, IpAddr::V4(synthetic.v4)), (RecordType::AAAA, synthetic.v6.into())] {
            // Some resolvers mix the case of letters and want it back.
            let request = ask("A.ExAmPle.", kind);
            let Verdict::Find(name, question) = verdict(&request) else { panic!("{kind} was not looked for") };
            assert_eq!(name.as_str(), "a.example");
            let answer = Message::from_vec(&question.found(synthetic).unwrap()).unwrap();
            assert_eq!(answer.queries, request.queries);
            assert_eq!(answer.queries[0].name.to_ascii(), "A.ExAmPle.");
            assert_eq!(answer.answers.len(), 1);
            assert_eq!(answer.answers[0].data.ip_addr(), Some(address));
            assert_eq!(code(&question.no_such_name().unwrap()), ResponseCode::NXDomain);
            assert_eq!(code(&question.no_answer().unwrap()), ResponseCode::ServFail);
        }
    }

    #[test]
    fn a_name_that_is_not_allowed_does_not_exist() {
        for name in ["other.example.", "b.example.", "x.a.example.", "a.example.evil.", "localhost."] {
            for kind in [RecordType::A, RecordType::AAAA, RecordType::TXT, RecordType::ANY] {
                let Verdict::Refuse(_, packet) = verdict(&ask(name, kind)) else { panic!("{name} was not refused") };
                assert_eq!(code(&packet), ResponseCode::NXDomain);
            }
        }
    }

    #[test]
    fn other_records_of_an_allowed_name_are_empty() {
        for kind in [RecordType::TXT, RecordType::MX, RecordType::HTTPS, RecordType::ANY, RecordType::PTR] {
            let Verdict::Reply(packet) = verdict(&ask("x.b.example.", kind)) else { panic!("{kind}") };
            assert_eq!(code(&packet), ResponseCode::NoError);
            assert!(Message::from_vec(&packet).unwrap().answers.is_empty());
        }
    }

    #[test]
    fn names_of_addresses_are_no_news() {
        let Verdict::Reply(packet) = verdict(&ask("1.1.18.198.in-addr.arpa.", RecordType::PTR)) else { panic!() };
        assert_eq!(code(&packet), ResponseCode::NXDomain);
    }

    #[test]
    fn what_is_no_question_is_answered_as_such_or_dropped() {
        assert!(matches!(verdict(&ask("a.example.", RecordType::A).into_response()), Verdict::Drop));
        for packet in [&b""[..], b"\0", &[0xff; 12], &[0; 11]] {
            assert!(matches!(decide(packet, |_| true), Verdict::Drop), "{packet:?}");
        }
        let mut two = ask("a.example.", RecordType::A);
        two.add_query(two.queries[0].clone());
        let Verdict::Reply(packet) = verdict(&two) else { panic!() };
        assert_eq!(code(&packet), ResponseCode::FormErr);
        let mut update = ask("a.example.", RecordType::A);
        update.metadata.op_code = OpCode::Update;
        let Verdict::Reply(packet) = verdict(&update) else { panic!() };
        assert_eq!(code(&packet), ResponseCode::NotImp);
        let mut chaos = ask("a.example.", RecordType::A);
        chaos.queries[0].query_class = DNSClass::CH;
        let Verdict::Reply(packet) = verdict(&chaos) else { panic!() };
        assert_eq!(code(&packet), ResponseCode::Refused);
    }
}
