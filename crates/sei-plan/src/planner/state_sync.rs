//! The state-sync check: no first start from a snapshot without two witnesses.

use std::collections::BTreeSet;

use sei_api::SeiNodeSpec;
use sei_api::condition::{ConditionStatus, ConditionType, Reason, Verdict};

use crate::snapshot::RegisteredWitnesses;

/// Minimum number of witnesses for state sync: a single witness could serve a false state.
const WITNESSES_MIN: usize = 2;

/// The result of the check for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSyncCheck {
    pub verdict: Verdict,
    pub witnesses: Option<Vec<String>>,
    /// The first plan must wait.
    pub blocked: bool,
}

/// Checks the witnesses of a node: its own list if it is long enough, else the platform's.
pub fn check_state_sync(spec: &SeiNodeSpec, registry: &RegisteredWitnesses) -> StateSyncCheck {
    let Some(source) = spec.snapshot() else {
        return result(
            ConditionStatus::False,
            Reason::NotApplicable,
            "the node uses no snapshot",
            None,
            false,
        );
    };
    let own = sorted(source.rpc_servers.iter().flatten());
    if own.len() >= WITNESSES_MIN {
        return result(
            ConditionStatus::True,
            Reason::Ready,
            "witnesses are declared on the spec",
            Some(own),
            false,
        );
    }
    match registry {
        RegisteredWitnesses::Unreadable(text) => {
            result(ConditionStatus::Unknown, Reason::SyncerSourceError, text, None, true)
        }
        RegisteredWitnesses::Known(known) => {
            let known = sorted(known.iter());
            if known.len() < WITNESSES_MIN {
                let message = format!(
                    "{} state-sync witnesses known for chain {chain}, {WITNESSES_MIN} needed: set \
                     snapshot.rpcServers, or stateSync.syncers.{chain} of the platform configuration",
                    known.len(),
                    chain = spec.chain_id
                );
                return result(
                    ConditionStatus::False,
                    Reason::NoSyncersConfigured,
                    &message,
                    None,
                    true,
                );
            }
            result(
                ConditionStatus::True,
                Reason::Ready,
                "witnesses of the platform",
                Some(known),
                false,
            )
        }
    }
}

fn sorted<'a>(entries: impl Iterator<Item = &'a String>) -> Vec<String> {
    entries.cloned().collect::<BTreeSet<_>>().into_iter().collect()
}

fn result(
    status: ConditionStatus,
    reason: Reason,
    message: &str,
    witnesses: Option<Vec<String>>,
    blocked: bool,
) -> StateSyncCheck {
    let verdict = Verdict::new(ConditionType::StateSyncReady, status, reason, message);
    StateSyncCheck { verdict, witnesses, blocked }
}

#[cfg(test)]
mod tests {
    use sei_api::node::{FullNodeSpec, S3Snapshot, SnapshotSource, Switch};

    use super::*;

    fn node(source: Option<SnapshotSource>) -> SeiNodeSpec {
        SeiNodeSpec {
            chain_id: "demo-1".into(),
            full_node: Some(FullNodeSpec { snapshot: source, ..FullNodeSpec::default() }),
            ..SeiNodeSpec::default()
        }
    }

    fn state_sync(servers: &[&str]) -> SeiNodeSpec {
        let rpc_servers = servers.iter().map(|server| (*server).to_owned()).collect();
        node(Some(SnapshotSource {
            state_sync: Some(Switch {}),
            rpc_servers: Some(rpc_servers),
            ..SnapshotSource::default()
        }))
    }

    fn known(entries: &[&str]) -> RegisteredWitnesses {
        RegisteredWitnesses::Known(entries.iter().map(|entry| (*entry).to_owned()).collect())
    }

    fn check(spec: &SeiNodeSpec, registry: &RegisteredWitnesses) -> String {
        let check = check_state_sync(spec, registry);
        let list = check.witnesses.map_or_else(|| "none".to_owned(), |all| all.join(" "));
        let blocked = if check.blocked { " blocked" } else { "" };
        format!("{}/{} {list}{blocked}", check.verdict.status.as_str(), check.verdict.reason)
    }

    // SS2
    #[test]
    fn two_witnesses_of_the_platform_suffice() {
        assert_eq!(check(&state_sync(&[]), &known(&["b:1", "a:1"])), "True/Ready a:1 b:1");
    }

    // SS3
    #[test]
    fn witnesses_on_the_spec_need_no_platform() {
        let broken = RegisteredWitnesses::Unreadable("bad file".into());
        let spec = state_sync(&["b:1", "a:1"]);
        assert_eq!(check(&spec, &broken), "True/Ready a:1 b:1");
        assert!(check_state_sync(&spec, &broken).verdict.message.contains("declared on the spec"));
    }

    // SS4
    #[test]
    fn an_entry_of_the_spec_is_never_split() {
        let check = check_state_sync(&state_sync(&["a:1,b:1", "c:1"]), &known(&[]));
        assert_eq!(check.witnesses.unwrap(), ["a:1,b:1", "c:1"]);
    }

    // SS5
    #[test]
    fn a_spec_list_that_collapses_falls_through_to_the_platform() {
        let spec = state_sync(&["a:1", "a:1"]);
        assert_eq!(check(&spec, &known(&["x:1", "y:1"])), "True/Ready x:1 y:1");
        assert_eq!(check(&spec, &known(&[])), "False/NoSyncersConfigured none blocked");
    }

    // SS6
    #[test]
    fn fewer_than_two_witnesses_block() {
        for entries in [vec![], vec!["a:1"], vec!["a:1", "a:1"]] {
            let text = check(&state_sync(&[]), &known(&entries));
            assert_eq!(text, "False/NoSyncersConfigured none blocked", "{entries:?}");
        }
    }

    // SS7
    #[test]
    fn an_unreadable_platform_blocks_and_is_reported() {
        let text = check(&state_sync(&[]), &RegisteredWitnesses::Unreadable("line 3: tab".into()));
        assert_eq!(text, "Unknown/SyncerSourceError none blocked");
    }

    // SS8
    #[test]
    fn a_snapshot_from_s3_needs_witnesses_too() {
        let spec = node(Some(SnapshotSource {
            s3: Some(S3Snapshot { target_height: 5 }),
            ..SnapshotSource::default()
        }));
        assert_eq!(check(&spec, &known(&["a:1", "b:1"])), "True/Ready a:1 b:1");
        assert_eq!(check(&spec, &known(&["a:1"])), "False/NoSyncersConfigured none blocked");
    }

    // SS9
    #[test]
    fn a_node_without_a_snapshot_needs_no_witnesses() {
        let text = check(&node(None), &RegisteredWitnesses::Unreadable(String::new()));
        assert_eq!(text, "False/NotApplicable none");
    }
}
