//! What a node reports of its chain, and what follows from it.
//!
//! The answers come from the node's own RPC, where a broken or hostile image can return anything:
//! a field that is missing or malformed is no fact, and no answer is an error of the operator.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::tasks::bounded;

/// Port of the RPC of the chain process.
pub const RPC_PORT: u16 = 26657;

/// How far the clocks of a chain may be ahead of ours. A later time is no block time: it would hide
/// that a chain has halted.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(10);

/// Names of upgrades are versions. The text comes from a container and ends up in a status.
const UPGRADE_NAME_MAX: usize = 64;

/// What a node reports of its chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainFacts {
    pub height: Option<i64>,
    /// Time of the latest block.
    pub block_time: Option<Timestamp>,
    pub is_catching_up: Option<bool>,
    pub peers: Option<i64>,
}

/// Why a node's RPC gives no facts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFacts {
    #[error("the RPC does not respond")]
    Unreachable,
    #[error("the RPC returns no status of a chain")]
    Unreadable,
    #[error("the RPC belongs to network {0:?}")]
    OtherNetwork(String),
}

/// The facts in the answer to `/status`, without peers.
pub fn decode_status(body: &[u8], chain_id: &str, now: Timestamp) -> Result<ChainFacts, NoFacts> {
    let answer = unwrapped(body).ok_or(NoFacts::Unreadable)?;
    let network = answer["node_info"]["network"].as_str().ok_or(NoFacts::Unreadable)?;
    if network != chain_id {
        return Err(NoFacts::OtherNetwork(bounded(network)));
    }
    let sync = &answer["sync_info"];
    let block_time = sync["latest_block_time"].as_str().and_then(|text| text.parse().ok());
    let latest = now.saturating_add(CLOCK_SKEW).unwrap_or(now);
    // A node without a block reports the year 1.
    let is_block_time = |time: &Timestamp| *time > Timestamp::UNIX_EPOCH && *time <= latest;
    Ok(ChainFacts {
        height: count(&sync["latest_block_height"]),
        block_time: block_time.filter(is_block_time),
        is_catching_up: sync["catching_up"].as_bool(),
        peers: None,
    })
}

/// The number of peers in the answer to `/net_info`.
pub fn decode_peers(body: &[u8]) -> Option<i64> {
    count(&unwrapped(body)?["n_peers"])
}

/// The object of an answer. `seid` returns it as it is, other nodes in the field `result`.
fn unwrapped(body: &[u8]) -> Option<Value> {
    let mut answer: Value = serde_json::from_slice(body).ok()?;
    let result = answer.get_mut("result").filter(|result| result.is_object()).map(Value::take);
    Some(result.unwrap_or(answer)).filter(Value::is_object)
}

/// A number that is not negative, also as a text: 64-bit numbers are texts in this format.
fn count(value: &Value) -> Option<i64> {
    let number = value.as_i64().or_else(|| value.as_str()?.parse().ok())?;
    (number >= 0).then_some(number)
}

/// The upgrade that a chain process ended for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    pub name: String,
    pub height: i64,
}

impl Upgrade {
    /// The upgrade in the last message of a chain process: `UPGRADE "v6.6.0" NEEDED at height: 656: `.
    pub fn in_text(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once("UPGRADE \"")?;
        let (name, rest) = rest.split_once("\" NEEDED at height: ")?;
        let height = rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
        let is_name = name.len() <= UPGRADE_NAME_MAX && name.chars().all(|c| c.is_ascii_graphic());
        (is_name && !name.is_empty()).then(|| Self { name: name.to_owned(), height })
    }
}

/// Whether a node sees new blocks, by its last probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocks {
    /// Not known, or not yet.
    #[default]
    Unknown,
    Advance,
    /// No block came after this one, for longer than a chain pauses.
    Stopped {
        height: i64,
        block_time: Timestamp,
    },
}

/// The progress of a node, from one probe to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The latest height, the time of its block, and when it was first seen.
    latest: Option<(i64, Option<Timestamp>, Timestamp)>,
    pub blocks: Blocks,
}

impl Progress {
    /// Takes a probe in. A node that catches up is behind its chain: its height does not show whether that advances.
    pub fn observe(&mut self, facts: &ChainFacts, now: Timestamp, patience: Duration) {
        let Some(height) = facts.height else { return };
        let (latest, block_time, since) = match self.latest {
            Some((latest, block_time, since)) if latest == height => (latest, block_time, since),
            before => {
                self.latest = Some((height, facts.block_time, now));
                if before.is_some() {
                    self.blocks = Blocks::Advance;
                }
                return;
            }
        };
        let Some(block_time) = block_time.filter(|_| facts.is_catching_up == Some(false)) else {
            return;
        };
        let is_over = |since: Timestamp| now.duration_since(since).unsigned_abs() > patience;
        if since < now && is_over(since) && block_time < now && is_over(block_time) {
            self.blocks = Blocks::Stopped { height: latest, block_time };
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn status() -> Value {
        json!({
            "node_info": { "network": "demo-1", "moniker": "n" },
            "sync_info": {
                "latest_block_height": "656",
                "latest_block_time": "2027-01-15T07:59:50.123456789Z",
                "catching_up": false,
            },
        })
    }

    fn decode(answer: &Value) -> Result<ChainFacts, NoFacts> {
        decode_status(answer.to_string().as_bytes(), "demo-1", at(0))
    }

    #[test]
    fn a_status_is_read_with_and_without_its_envelope() {
        let facts = decode(&status()).unwrap();
        assert_eq!(facts.height, Some(656));
        assert_eq!(facts.is_catching_up, Some(false));
        assert_eq!(facts.block_time.map(Timestamp::as_second), Some(at(-10).as_second()));
        let wrapped = json!({ "jsonrpc": "2.0", "id": -1, "result": status() });
        assert_eq!(decode(&wrapped), Ok(facts));
        let peers = |answer: Value| decode_peers(answer.to_string().as_bytes());
        assert_eq!(peers(json!({ "n_peers": "3", "peers": [] })), Some(3));
        assert_eq!(peers(json!({ "result": { "n_peers": 4 } })), Some(4));
        assert_eq!(peers(json!({ "n_peers": "-1" })), None);
        assert_eq!(peers(json!([])), None);
    }

    #[test]
    fn another_network_is_named_and_gives_no_facts() {
        let mut answer = status();
        answer["node_info"]["network"] = json!("other-1");
        assert_eq!(decode(&answer), Err(NoFacts::OtherNetwork("other-1".into())));
        answer["node_info"]["network"] = json!("x".repeat(100_000));
        let Err(NoFacts::OtherNetwork(name)) = decode(&answer) else { panic!("{answer}") };
        assert!(name.len() < 5000, "{}", name.len());
    }

    #[test]
    fn a_field_that_is_no_fact_is_left_out() {
        let fields: [(&str, &[Value]); 3] = [
            (
                "latest_block_height",
                &[
                    json!(null),
                    json!(-1),
                    json!("-1"),
                    json!(1.5),
                    json!([]),
                    json!("9".repeat(99)),
                ],
            ),
            (
                "latest_block_time",
                &[
                    json!(null),
                    json!(5),
                    json!("soon"),
                    json!("0001-01-01T00:00:00Z"),
                    json!("9999-12-30T00:00:00Z"),
                    json!("99999999-01-01T00:00:00Z"),
                ],
            ),
            ("catching_up", &[json!(null), json!("false"), json!(0)]),
        ];
        let whole = decode(&status()).unwrap();
        for (field, values) in fields {
            for value in values {
                let mut answer = status();
                answer["sync_info"][field] = value.clone();
                let expected = match field {
                    "latest_block_height" => ChainFacts { height: None, ..whole },
                    "latest_block_time" => ChainFacts { block_time: None, ..whole },
                    _ => ChainFacts { is_catching_up: None, ..whole },
                };
                assert_eq!(decode(&answer), Ok(expected), "{field}: {value}");
            }
        }
        let mut answer = status();
        answer["sync_info"] = json!("none");
        assert_eq!(decode(&answer), Ok(ChainFacts::default()));
    }

    #[test]
    fn no_answer_makes_decoding_panic() {
        let deep = "[".repeat(100_000);
        let wrapped_deep = format!("{{\"result\":{deep}");
        let texts = [
            "",
            "null",
            "[]",
            "\"x\"",
            "{}",
            "{\"result\":null}",
            "{\"result\":[]}",
            "\u{0}",
            "1e999",
        ];
        for text in texts.into_iter().chain([deep.as_str(), wrapped_deep.as_str()]) {
            let decoded = decode_status(text.as_bytes(), "demo-1", at(0));
            assert_eq!(decoded, Err(NoFacts::Unreadable), "{text:.20}");
            assert_eq!(decode_peers(text.as_bytes()), None);
        }
        assert_eq!(decode_status(&[0xff; 64], "demo-1", Timestamp::MAX), Err(NoFacts::Unreadable));
    }

    #[test]
    fn an_upgrade_is_found_in_the_last_message_of_a_process() {
        let found = |text: &str| Upgrade::in_text(text).map(|found| (found.name, found.height));
        let message = "panic: UPGRADE \"v9.9.9\" NEEDED at height: 656: \n\ngoroutine 1 [running]:";
        assert_eq!(found(message), Some(("v9.9.9".to_owned(), 656)));
        let long = format!("UPGRADE \"{}\" NEEDED at height: 5", "v".repeat(65));
        for text in [
            "",
            "UPGRADE \"v1\" NEEDED at time: 5",
            "UPGRADE \"\" NEEDED at height: 5",
            "UPGRADE \"v1\" NEEDED at height: ",
            "UPGRADE \"v1\" NEEDED at height: 99999999999999999999999",
            "UPGRADE \"a\u{1b}[2J\" NEEDED at height: 5",
            &long,
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    fn facts(height: i64, block: i64, is_catching_up: bool) -> ChainFacts {
        ChainFacts {
            height: Some(height),
            block_time: Some(at(block)),
            is_catching_up: Some(is_catching_up),
            peers: None,
        }
    }

    #[test]
    fn blocks_have_stopped_when_the_same_old_block_is_seen_for_a_minute() {
        let mut progress = Progress::default();
        progress.observe(&facts(5, -500, false), at(0), MINUTE);
        assert_eq!(progress.blocks, Blocks::Unknown, "one probe shows no progress");
        progress.observe(&facts(5, -500, false), at(30), MINUTE);
        assert_eq!(progress.blocks, Blocks::Unknown);
        progress.observe(&facts(5, -500, false), at(61), MINUTE);
        let stopped = Blocks::Stopped { height: 5, block_time: at(-500) };
        assert_eq!(progress.blocks, stopped);
        progress.observe(&facts(5, 60, false), at(91), MINUTE);
        assert_eq!(progress.blocks, stopped, "the time of a block does not change");
        progress.observe(&ChainFacts::default(), at(95), MINUTE);
        assert_eq!(progress.blocks, stopped);
        progress.observe(&facts(6, 120, false), at(121), MINUTE);
        assert_eq!(progress.blocks, Blocks::Advance);
    }

    #[test]
    fn a_node_that_catches_up_or_moves_on_has_not_stopped() {
        let mut progress = Progress::default();
        for second in 0..10 {
            progress.observe(&facts(5, -500, true), at(second * 30), MINUTE);
            assert_eq!(progress.blocks, Blocks::Unknown, "it catches up");
        }
        let mut progress = Progress::default();
        for second in 1..10 {
            progress.observe(&facts(second, -500, false), at(second * 90), MINUTE);
            assert_ne!(progress.blocks, Blocks::Stopped { height: second, block_time: at(-500) });
        }
        assert_eq!(progress.blocks, Blocks::Advance, "old blocks, but new ones");
        let mut progress = Progress::default();
        for second in 0..4 {
            progress.observe(&facts(5, 60 + second, false), at(second * 30), MINUTE);
        }
        assert_eq!(progress.blocks, Blocks::Unknown, "the block is not old enough yet");
    }
}
