//! What the operator may do in a cluster: exactly what it does.
//!
//! The table is the source of the manifests in `config/rbac`. Tests on real servers compare it with
//! the requests in the audit log, both ways.

/// One permission.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub group: &'static str,
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
    /// Why it is needed.
    pub reason: &'static str,
    /// Asked for by something else than a request to this resource: the server's own admission, or
    /// the proxy in front of a sidecar.
    pub indirect: bool,
}

const fn rule(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Rule {
    Rule { group, resource, verbs, reason, indirect: false }
}

const fn indirect(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Rule {
    Rule { group, resource, verbs, reason, indirect: true }
}

/// What the operator needs in the namespaces of its nodes.
pub const RULES: &[Rule] = &[
    rule("sei.io", "seinodes", &["get", "list", "patch", "watch"], "nodes, and their finalizer"),
    rule("sei.io", "seinodes/status", &["patch"], "what it reports"),
    indirect("sei.io", "seinodes/finalizers", &["update"], "owner references that block deletion"),
    indirect(
        "sei.io",
        "seinodetasks",
        &["create", "delete", "get"],
        "what the sidecars' proxies ask for",
    ),
    rule(
        "apps",
        "statefulsets",
        &["create", "get", "list", "patch", "watch"],
        "one for each node; none is ever deleted",
    ),
    rule("apps", "controllerrevisions", &["get"], "what a running pod was made from"),
    rule("", "pods", &["delete", "get", "list", "watch"], "replacing a pod by its successor"),
    rule(
        "",
        "services",
        &["create", "delete", "get", "list", "patch", "watch"],
        "the headless Service; the bootstrap one is deleted",
    ),
    rule("", "configmaps", &["list", "patch", "watch"], "what a pod's proxy mounts"),
    indirect("", "configmaps", &["create"], "asked for when an apply makes the object"),
    rule(
        "",
        "persistentvolumeclaims",
        &["create", "delete", "get", "list", "watch"],
        "the data volume; deleted with its node unless it was imported",
    ),
    rule("", "persistentvolumes", &["get"], "whether an imported volume can be used"),
    rule("", "secrets", &["get"], "whether a key has the right shape; never listed"),
    rule("batch", "jobs", &["create", "delete", "get", "list", "watch"], "the bootstrap Job"),
    rule("events.k8s.io", "events", &["create", "patch"], "what happened, for kubectl describe"),
];

/// What `rollout.podCheck: DryRun` needs on top: whether a pod would be admitted is asked by a
/// dry-run create, which no role can tell from a real one.
pub const POD_CHECK_RULES: &[Rule] =
    &[rule("", "pods", &["create"], "whether the server would admit a node's pod; dry-run only")];

/// What it needs in its own namespace, to elect a leader.
pub const LEADER_RULES: &[Rule] =
    &[rule("coordination.k8s.io", "leases", &["create", "get", "update"], "the leader's lease")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_permission_is_wider_than_what_it_is_for() {
        for rule in RULES.iter().chain(POD_CHECK_RULES).chain(LEADER_RULES) {
            assert!(!rule.verbs.contains(&"*") && rule.resource != "*", "{rule:?}");
            for forbidden in ["escalate", "bind", "impersonate", "deletecollection"] {
                assert!(!rule.verbs.contains(&forbidden), "{rule:?}");
            }
            assert!(rule.verbs.is_sorted() && !rule.reason.is_empty(), "{rule:?}");
            if rule.resource == "secrets" {
                assert_eq!(rule.verbs, ["get"], "Secrets are read by name only");
            }
            if rule.resource.ends_with("/status") {
                assert_eq!(rule.group, "sei.io", "the status of others is not ours to write");
            }
        }
    }
}
