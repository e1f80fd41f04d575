//! The one rule that catches connections: TCP to any address but a loopback one goes to the listener.
//!
//! Written by hand, because the tool that understands rules is on few hosts and takes longer than a whole sandbox. A test
//! has the tool read back what this makes.

use std::io;

use rustix::net::netlink;

use super::netlink::{ACKNOWLEDGE, APPEND, Attributes, CREATE, EXCLUSIVE, Messages};

const TABLE: &str = "sandpen";
const CHAIN: &str = "capture";

/// `NF_IP_PRI_MANGLE`: where `tproxy` belongs.
const PRIORITY: i32 = -150;

/// Attributes of the packet filter, as `linux/netfilter/nf_tables.h` numbers them. `libc` has a part of them, under types
/// that fit no field.
mod attribute {
    pub const TABLE_NAME: u16 = 1;
    pub const TABLE_FLAGS: u16 = 2;
    pub const CHAIN_TABLE: u16 = 1;
    pub const CHAIN_NAME: u16 = 3;
    pub const CHAIN_HOOK: u16 = 4;
    pub const CHAIN_POLICY: u16 = 5;
    pub const CHAIN_TYPE: u16 = 7;
    pub const HOOK_NUMBER: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
    pub const RULE_TABLE: u16 = 1;
    pub const RULE_CHAIN: u16 = 2;
    pub const RULE_EXPRESSIONS: u16 = 4;
    pub const LIST_ELEMENT: u16 = 1;
    pub const EXPRESSION_NAME: u16 = 1;
    pub const EXPRESSION_DATA: u16 = 2;
    pub const META_REGISTER: u16 = 1;
    pub const META_KEY: u16 = 2;
    pub const COMPARE_REGISTER: u16 = 1;
    pub const COMPARE_OPERATION: u16 = 2;
    pub const COMPARE_DATA: u16 = 3;
    pub const PAYLOAD_REGISTER: u16 = 1;
    pub const PAYLOAD_BASE: u16 = 2;
    pub const PAYLOAD_OFFSET: u16 = 3;
    pub const PAYLOAD_LENGTH: u16 = 4;
    pub const IMMEDIATE_REGISTER: u16 = 1;
    pub const IMMEDIATE_DATA: u16 = 2;
    pub const DATA_VALUE: u16 = 1;
    pub const DATA_VERDICT: u16 = 2;
    pub const VERDICT_CODE: u16 = 1;
    pub const TPROXY_FAMILY: u16 = 1;
    pub const TPROXY_PORT: u16 = 3;
}

const VERDICT_REGISTER: u32 = libc::NFT_REG_VERDICT as u32;
const REGISTER: u32 = libc::NFT_REG_1 as u32;
const ACCEPT: u32 = libc::NF_ACCEPT as u32;

/// Make the table in the network of the calling process. One that is there is the one that would be made.
pub fn install(port: u16) -> io::Result<()> {
    for answer in batch(port).exchange(Some(netlink::NETFILTER))? {
        match answer {
            // Nothing of a batch is done when a part of it is refused, so the table there is whole.
            Some(error) if error.raw_os_error() == Some(libc::EEXIST) => return Ok(()),
            Some(error) => return Err(error),
            None => {}
        }
    }
    Ok(())
}

fn batch(port: u16) -> Messages {
    let mut messages = Messages::default();
    let boundary = header(libc::AF_UNSPEC, libc::NFNL_SUBSYS_NFTABLES as u16);
    messages.add(libc::NFNL_MSG_BATCH_BEGIN as u16, 0, &boundary, |_| {});
    add(&mut messages, libc::NFT_MSG_NEWTABLE, CREATE | EXCLUSIVE, |table| {
        table.text(attribute::TABLE_NAME, TABLE);
        table.number(attribute::TABLE_FLAGS, 0);
    });
    add(&mut messages, libc::NFT_MSG_NEWCHAIN, CREATE, |chain| {
        chain.text(attribute::CHAIN_TABLE, TABLE);
        chain.text(attribute::CHAIN_NAME, CHAIN);
        chain.text(attribute::CHAIN_TYPE, "filter");
        chain.number(attribute::CHAIN_POLICY, ACCEPT);
        chain.nested(attribute::CHAIN_HOOK, |hook| {
            hook.number(attribute::HOOK_NUMBER, libc::NF_INET_PRE_ROUTING as u32);
            hook.bytes(attribute::HOOK_PRIORITY, &PRIORITY.to_be_bytes());
        });
    });
    add_rule(&mut messages, |rule| {
        compare_meta(rule, libc::NFT_META_NFPROTO, libc::NFPROTO_IPV4 as u8);
        compare_network_header(rule, 16, &[127]);
        accept(rule);
    });
    add_rule(&mut messages, |rule| {
        compare_meta(rule, libc::NFT_META_NFPROTO, libc::NFPROTO_IPV6 as u8);
        compare_network_header(rule, 24, &std::net::Ipv6Addr::LOCALHOST.octets());
        accept(rule);
    });
    add_rule(&mut messages, |rule| {
        compare_meta(rule, libc::NFT_META_L4PROTO, libc::IPPROTO_TCP as u8);
        expression(rule, "immediate", |immediate| {
            immediate.number(attribute::IMMEDIATE_REGISTER, REGISTER);
            immediate.nested(attribute::IMMEDIATE_DATA, |data| data.bytes(attribute::DATA_VALUE, &port.to_be_bytes()));
        });
        expression(rule, "tproxy", |tproxy| {
            tproxy.number(attribute::TPROXY_FAMILY, libc::NFPROTO_UNSPEC as u32);
            tproxy.number(attribute::TPROXY_PORT, REGISTER);
        });
    });
    messages.add(libc::NFNL_MSG_BATCH_END as u16, 0, &boundary, |_| {});
    messages
}

/// `struct nfgenmsg`.
fn header(family: i32, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family as u8, libc::NFNETLINK_V0 as u8, high, low]
}

fn add(messages: &mut Messages, what: i32, flags: u16, attributes: impl FnOnce(&mut Attributes<'_>)) {
    let kind = (libc::NFNL_SUBSYS_NFTABLES << 8 | what) as u16;
    messages.add(kind, flags | ACKNOWLEDGE, &header(libc::NFPROTO_INET, 0), attributes);
}

fn add_rule(messages: &mut Messages, expressions: impl FnOnce(&mut Attributes<'_>)) {
    add(messages, libc::NFT_MSG_NEWRULE, CREATE | APPEND, |rule| {
        rule.text(attribute::RULE_TABLE, TABLE);
        rule.text(attribute::RULE_CHAIN, CHAIN);
        rule.nested(attribute::RULE_EXPRESSIONS, expressions);
    });
}

fn expression(rule: &mut Attributes<'_>, name: &str, data: impl FnOnce(&mut Attributes<'_>)) {
    rule.nested(attribute::LIST_ELEMENT, |element| {
        element.text(attribute::EXPRESSION_NAME, name);
        element.nested(attribute::EXPRESSION_DATA, data);
    });
}

fn compare_meta(rule: &mut Attributes<'_>, key: i32, value: u8) {
    expression(rule, "meta", |meta| {
        meta.number(attribute::META_KEY, key as u32);
        meta.number(attribute::META_REGISTER, REGISTER);
    });
    compare(rule, &[value]);
}

fn compare_network_header(rule: &mut Attributes<'_>, offset: u32, value: &[u8]) {
    expression(rule, "payload", |payload| {
        payload.number(attribute::PAYLOAD_REGISTER, REGISTER);
        payload.number(attribute::PAYLOAD_BASE, libc::NFT_PAYLOAD_NETWORK_HEADER as u32);
        payload.number(attribute::PAYLOAD_OFFSET, offset);
        payload.number(attribute::PAYLOAD_LENGTH, value.len() as u32);
    });
    compare(rule, value);
}

fn compare(rule: &mut Attributes<'_>, value: &[u8]) {
    expression(rule, "cmp", |compare| {
        compare.number(attribute::COMPARE_REGISTER, REGISTER);
        compare.number(attribute::COMPARE_OPERATION, libc::NFT_CMP_EQ as u32);
        compare.nested(attribute::COMPARE_DATA, |data| data.bytes(attribute::DATA_VALUE, value));
    });
}

fn accept(rule: &mut Attributes<'_>) {
    expression(rule, "immediate", |immediate| {
        immediate.number(attribute::IMMEDIATE_REGISTER, VERDICT_REGISTER);
        immediate.nested(attribute::IMMEDIATE_DATA, |data| {
            data.nested(attribute::DATA_VERDICT, |verdict| verdict.number(attribute::VERDICT_CODE, ACCEPT));
        });
    });
}
