//! What a model is told of the network before it asks, in words that follow the operator's policy.

use sandbox::Network;

use crate::policy::Policy;

/// Longer lists are cut where they stand in every conversation.
const RULES: usize = 12;

/// For descriptions of tools: what there is, and whether there can be more.
pub fn network(policy: &Policy) -> String {
    let (default, most) = (&policy.network, &policy.ceiling.network);
    match (default, most) {
        (Network::None, Network::None) => "There is no network.".to_owned(),
        (Network::None, Network::Internet) => {
            "There is no network unless network asks for it: name the hosts that the work needs.".to_owned()
        }
        (Network::None, Network::Hosts(_)) => {
            format!("There is no network unless network asks for it, for some or all of {}.", shortened(most))
        }
        (Network::Internet, _) => "Every public host can be reached, over TCP only.".to_owned(),
        (Network::Hosts(_), _) if default == most => {
            format!("Of the network, {} can be reached, and nothing else.", shortened(default))
        }
        (Network::Hosts(_), Network::Internet) => {
            format!("Of the network, {} can be reached; ask for other hosts with network.", shortened(default))
        }
        (Network::Hosts(_), Network::Hosts(_) | Network::None) => format!(
            "Of the network, {} can be reached; ask with network for others of {}.",
            shortened(default),
            shortened(most)
        ),
    }
}

/// For the argument itself: how it is written, what it is by default, and the most that it can be.
pub fn argument(policy: &Policy) -> String {
    let most = &policy.ceiling.network;
    if most.is_none() {
        return "What may be reached over the network: none, on this server.".to_owned();
    }
    format!(
        "What may be reached over the network: none, internet (every public host), or hosts with commas between them, for \
         example \"pypi.org,files.pythonhosted.org\". A host means its ports 80 and 443, HOST:PORT another, and \
         *.example.com every name below. What was refused is told in the result. Default {}; at most {}.",
        shortened(&policy.network),
        shortened(most)
    )
}

pub fn shortened(network: &Network) -> String {
    match network {
        Network::None | Network::Internet => network.to_string(),
        Network::Hosts(rules) if rules.len() <= RULES => network.to_string(),
        Network::Hosts(rules) => {
            let first: Vec<String> = rules.iter().take(RULES).map(ToString::to_string).collect();
            format!("{} and {} more (describe_environment names them)", first.join(","), rules.len() - RULES)
        }
    }
}
