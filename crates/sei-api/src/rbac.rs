//! The permissions of the operator: exactly those that it uses.
//!
//! The table is the source of the manifests in `config/rbac`. Tests on real servers compare it with
//! the requests in the audit log, in both directions.

use crate::names::SIDECAR_CALLER;

/// One permission.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub group: &'static str,
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
    /// Only objects of these names; all if empty.
    pub names: &'static [&'static str],
    /// Why it is needed.
    pub reason: &'static str,
    /// Checked by something other than a request to this resource: the server's own admission, or
    /// the proxy in front of a sidecar.
    pub indirect: bool,
}

const fn rule(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Rule {
    Rule { group, resource, verbs, names: &[], reason, indirect: false }
}

const fn indirect(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Rule {
    Rule { group, resource, verbs, names: &[], reason, indirect: true }
}

/// Permissions in the namespaces of the nodes.
pub const RULES: &[Rule] = &[
    rule(
        "sei.io",
        "seinodes",
        &["create", "delete", "get", "list", "patch", "watch"],
        "nodes, and their finalizer; fleets create and delete theirs",
    ),
    rule("sei.io", "seinodes/status", &["patch"], "the reported status"),
    indirect("sei.io", "seinodes/finalizers", &["update"], "owner references that block deletion"),
    rule(
        "sei.io",
        "seinodedeployments",
        &["get", "list", "patch", "watch"],
        "fleets, and their finalizer; read again before one of their nodes is deleted",
    ),
    rule("sei.io", "seinodedeployments/status", &["patch"], "the reported status of fleets"),
    indirect(
        "sei.io",
        "seinodedeployments/finalizers",
        &["update"],
        "owner references that block deletion",
    ),
    rule(
        "apps",
        "statefulsets",
        &["create", "get", "list", "patch", "watch"],
        "one for each node; the operator deletes none",
    ),
    rule("apps", "controllerrevisions", &["get"], "the template of a running pod"),
    rule(
        "",
        "pods",
        &["create", "delete", "get", "list", "watch"],
        "replacing a stale pod; one that pulls the images of an update before that",
    ),
    rule(
        "",
        "services",
        &["create", "delete", "get", "list", "patch", "watch"],
        "the headless Service; the bootstrap one is deleted",
    ),
    rule(
        "",
        "configmaps",
        &["create", "get", "list", "patch", "watch"],
        "the configuration of a pod's proxy, and the record of a deleted signer",
    ),
    rule(
        "",
        "persistentvolumeclaims",
        &["create", "delete", "get", "list", "patch", "watch"],
        "the data volume; deleted with its node, or retained without its owner reference",
    ),
    rule("", "persistentvolumes", &["get"], "whether an imported volume can be used"),
    rule("", "secrets", &["get"], "whether a key has the expected format; never listed"),
    rule("batch", "jobs", &["create", "delete", "get", "list", "watch"], "the bootstrap Job"),
    rule("events.k8s.io", "events", &["create", "patch"], "events for kubectl describe"),
];

/// The resources in [`RULES`] that are in no namespace. An operator that watches some namespaces has a
/// Role in each with the other rules, and a `ClusterRole` with these.
pub const CLUSTER_SCOPED: &[&str] = &["persistentvolumes"];

/// Permissions in the operator's own namespace, for tokens of the account that calls sidecars.
pub const SIDECAR_TOKEN_RULES: &[Rule] = &[Rule {
    names: &[SIDECAR_CALLER],
    ..rule("", "serviceaccounts/token", &["create"], "the tokens that sidecars are shown")
}];

/// Permissions of that account.
pub const SIDECAR_CALLER_RULES: &[Rule] = &[indirect(
    "sei.io",
    "seinodetasks",
    &["create", "delete", "get"],
    "the permissions that the sidecars' proxies check",
)];

/// Permissions in the operator's own namespace, for leader election.
pub const LEADER_RULES: &[Rule] =
    &[rule("coordination.k8s.io", "leases", &["create", "get", "update"], "the leader's lease")];

/// Permissions in the cluster for `--metrics-secure`: who reads metrics, and whether they may.
pub const METRICS_RULES: &[Rule] = &[
    rule("authentication.k8s.io", "tokenreviews", &["create"], "who reads the metrics"),
    rule("authorization.k8s.io", "subjectaccessreviews", &["create"], "whether they may"),
];

/// What the role `view` of Kubernetes gets with the optional aggregated roles: nodes and fleets, and
/// nothing that it does not have already.
pub const VIEW_RULES: &[Rule] = &[
    rule("sei.io", "seinodes", &["get", "list", "watch"], "nodes"),
    rule("sei.io", "seinodes/status", &["get"], "their status"),
    rule("sei.io", "seinodedeployments", &["get", "list", "watch"], "fleets"),
    rule("sei.io", "seinodedeployments/status", &["get"], "their status"),
];

/// What the roles `edit` and `admin` get. Not `seinodetasks`: that permission allows calls to sidecars.
pub const EDIT_RULES: &[Rule] = &[
    rule("sei.io", "seinodes", &["create", "delete", "patch", "update"], "nodes"),
    rule("sei.io", "seinodedeployments", &["create", "delete", "patch", "update"], "fleets"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_permission_is_wider_than_what_it_is_for() {
        let own = [RULES, LEADER_RULES, SIDECAR_TOKEN_RULES, METRICS_RULES].concat();
        for rule in own.iter().chain(SIDECAR_CALLER_RULES) {
            assert!(!rule.verbs.contains(&"*") && rule.resource != "*", "{rule:?}");
            for forbidden in ["escalate", "bind", "impersonate", "deletecollection"] {
                assert!(!rule.verbs.contains(&forbidden), "{rule:?}");
            }
            assert!(rule.verbs.is_sorted() && !rule.reason.is_empty(), "{rule:?}");
            if rule.resource == "secrets" {
                assert_eq!(rule.verbs, ["get"], "Secrets are read by name only");
            }
            if rule.resource == "serviceaccounts/token" {
                assert_eq!(rule.names, [SIDECAR_CALLER], "tokens of a powerless account only");
            }
            if rule.resource.ends_with("/status") {
                assert_eq!(
                    rule.group, "sei.io",
                    "the operator writes the status of its own kinds only"
                );
            }
        }
    }
}
