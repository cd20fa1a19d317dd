//! What a node reports of its chain, and what follows from it.
//!
//! The answers come from the node's own RPC, where a broken or hostile image can return anything:
//! a field that is missing or malformed is no fact, and no answer is an error of the operator.

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use serde_json::Value;

use crate::tasks::bounded;

/// Port of the RPC of the chain process.
pub const RPC_PORT: u16 = 26657;

/// How far the clocks of a chain may be ahead of ours. A later time is no block time: it would hide
/// that a chain has halted.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(10);

/// How long an app hash can be. It comes from a container and ends up in a status.
const APP_HASH_BYTES: RangeInclusive<usize> = 20..=64;

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
    let sync = &status_of(body, chain_id)?["sync_info"];
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

/// The app hash of an application after a height, as it computed it itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppHash {
    pub height: i64,
    pub hash: String,
}

/// Why a node has no header of a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoHeader {
    #[error("it has not got the block yet")]
    NotYet,
    #[error("it has pruned the block")]
    Pruned,
    #[error(transparent)]
    NoFacts(#[from] NoFacts),
}

/// Whether a node of this chain has the block, by its answer to `/status`.
pub fn check_block(status: &[u8], chain_id: &str, height: i64) -> Result<(), NoHeader> {
    let sync = &status_of(status, chain_id)?["sync_info"];
    let latest = count(&sync["latest_block_height"]).ok_or(NoFacts::Unreadable)?;
    let earliest = count(&sync["earliest_block_height"]).unwrap_or(0);
    match height {
        _ if height > latest => Err(NoHeader::NotYet),
        _ if height < earliest => Err(NoHeader::Pruned),
        _ => Ok(()),
    }
}

/// The app hash in the answer to `/abci_info`. A `/status` has only the one in the header of the latest
/// block: that is what the chain agreed on, so the header of a node that diverges never differs.
pub fn decode_app_hash(body: &[u8]) -> Result<AppHash, NoFacts> {
    let answer = unwrapped(body).ok_or(NoFacts::Unreadable)?;
    let info = &answer["response"];
    let bytes = serde_json::from_value::<ByteString>(info["last_block_app_hash"].clone());
    let bytes = bytes.ok().filter(|bytes| APP_HASH_BYTES.contains(&bytes.0.len()));
    let hash = bytes.map(|bytes| {
        bytes.0.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02X}");
            text
        })
    });
    let height = count(&info["last_block_height"]).filter(|height| *height < i64::MAX);
    match (height, hash) {
        (Some(height), Some(hash)) => Ok(AppHash { height, hash }),
        _ => Err(NoFacts::Unreadable),
    }
}

/// The app hash in the header of the block of this height, in the answer to `/commit`. It is the hash
/// after the height before.
pub fn decode_header(body: &[u8], chain_id: &str, height: i64) -> Result<AppHash, NoHeader> {
    let answer = unwrapped(body).ok_or(NoFacts::Unreadable)?;
    let header = &answer["signed_header"]["header"];
    let network = header["chain_id"].as_str().ok_or(NoFacts::Unreadable)?;
    if network != chain_id {
        return Err(NoFacts::OtherNetwork(bounded(network)).into());
    }
    let hash = header["app_hash"].as_str().map(str::to_ascii_uppercase).filter(|hash| {
        APP_HASH_BYTES.contains(&(hash.len() / 2)) && hash.bytes().all(|it| it.is_ascii_hexdigit())
    });
    match hash {
        Some(hash) if count(&header["height"]) == Some(height) => {
            Ok(AppHash { height: height - 1, hash })
        }
        _ => Err(NoFacts::Unreadable.into()),
    }
}

/// The answer to `/status` of a node of this chain.
fn status_of(body: &[u8], chain_id: &str) -> Result<Value, NoFacts> {
    let answer = unwrapped(body).ok_or(NoFacts::Unreadable)?;
    let network = answer["node_info"]["network"].as_str().ok_or(NoFacts::Unreadable)?;
    if network != chain_id {
        return Err(NoFacts::OtherNetwork(bounded(network)));
    }
    Ok(answer)
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
            assert_eq!(decode_app_hash(text.as_bytes()), Err(NoFacts::Unreadable));
            let header = decode_header(text.as_bytes(), "demo-1", 1);
            assert_eq!(header, Err(NoFacts::Unreadable.into()));
        }
        assert_eq!(decode_status(&[0xff; 64], "demo-1", Timestamp::MAX), Err(NoFacts::Unreadable));
    }

    #[test]
    fn an_app_hash_is_the_same_in_an_answer_of_the_application_and_in_the_next_header() {
        // 32 bytes of 0xAB, with and without the envelope.
        let encoded = "q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s=";
        let info = json!({ "response": { "data": "sei", "last_block_height": "655",
            "last_block_app_hash": encoded } });
        let header = json!({ "signed_header": { "header": { "chain_id": "demo-1", "height": "656",
            "app_hash": "AB".repeat(32) } }, "canonical": true });
        let expected = AppHash { height: 655, hash: "AB".repeat(32) };
        for wrap in [|value: &Value| value.clone(), |value: &Value| json!({ "result": value })] {
            let (info, header) = (wrap(&info).to_string(), wrap(&header).to_string());
            assert_eq!(decode_app_hash(info.as_bytes()), Ok(expected.clone()));
            assert_eq!(decode_header(header.as_bytes(), "demo-1", 656), Ok(expected.clone()));
            let refused = decode_header(header.as_bytes(), "demo-2", 656);
            assert_eq!(refused, Err(NoFacts::OtherNetwork("demo-1".into()).into()));
            let refused = decode_header(header.as_bytes(), "demo-1", 657);
            assert_eq!(refused, Err(NoFacts::Unreadable.into()), "the header of another block");
        }
        let bad =
            [json!(null), json!(""), json!("!"), json!("q6s="), json!("A".repeat(4000)), json!(5)];
        for hash in bad {
            let mut answer = info.clone();
            answer["response"]["last_block_app_hash"] = hash.clone();
            let decoded = decode_app_hash(answer.to_string().as_bytes());
            assert_eq!(decoded, Err(NoFacts::Unreadable), "{hash}");
            let mut answer = header.clone();
            answer["signed_header"]["header"]["app_hash"] = hash.clone();
            let decoded = decode_header(answer.to_string().as_bytes(), "demo-1", 656);
            assert_eq!(decoded, Err(NoFacts::Unreadable.into()), "{hash}");
        }
        let mut answer = info;
        answer["response"]["last_block_height"] = json!(i64::MAX);
        let decoded = decode_app_hash(answer.to_string().as_bytes());
        assert_eq!(decoded, Err(NoFacts::Unreadable), "there is no next height");
    }

    #[test]
    fn a_block_is_missing_because_it_is_not_made_or_pruned() {
        let mut answer = status();
        answer["sync_info"]["earliest_block_height"] = json!("600");
        let check = |height| check_block(answer.to_string().as_bytes(), "demo-1", height);
        assert_eq!(check(599), Err(NoHeader::Pruned));
        assert_eq!((check(600), check(656)), (Ok(()), Ok(())));
        assert_eq!(check(657), Err(NoHeader::NotYet));
        let refused = check_block(answer.to_string().as_bytes(), "demo-2", 656);
        assert_eq!(refused, Err(NoFacts::OtherNetwork("demo-1".into()).into()));
        let empty = check_block(b"{}", "demo-1", 656);
        assert_eq!(empty, Err(NoFacts::Unreadable.into()));
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
