//! Labels, annotations, finalizers, field managers and the names of derived objects.
//!
//! The Go operator uses the same names, so that each operator finds the objects of the other.

/// API group of all kinds of this operator.
pub const GROUP: &str = "sei.io";
/// The only served and stored version.
pub const VERSION: &str = "v1alpha1";

/// Finalizer that keeps a deleted `SeiNode` until the operator has stopped it, if it signs, and has
/// cleaned up its data volume.
pub const NODE_FINALIZER: &str = "sei.io/seinode-finalizer";
/// Finalizer of Kubernetes on an object that is deleted without its dependents.
pub const ORPHAN_FINALIZER: &str = "orphan";
/// Field manager of every server-side apply of a node's own objects. It is the Go operator's name:
/// with another one the fields would be co-owned, and a co-owned field can never be removed.
pub const FIELD_MANAGER: &str = "seinode-controller";
/// Field manager that sets only `spec.image` of a node, on behalf of a task object.
pub const TASK_FIELD_MANAGER: &str = "seinode-task-controller";
/// Finalizer that keeps a deleted `SeiNodeDeployment` until its nodes are released, if they are
/// retained.
pub const FLEET_FINALIZER: &str = "sei.io/seinodedeployment-finalizer";
/// Field manager of what a fleet writes.
pub const FLEET_FIELD_MANAGER: &str = "seinodedeployment-controller";
/// Reporting component of events.
pub const EVENT_COMPONENT: &str = "seinode-controller";
/// Leader lease. It has the Go operator's name, so that the two operators never act at once.
pub const LEASE_NAME: &str = "bc1f5b0a.sei.io";

/// Service account whose tokens sidecars are shown. It may call sidecars, and nothing else.
pub const SIDECAR_CALLER: &str = "sei-sidecar-caller";

pub mod label {
    //! Labels on generated objects.

    /// Owning node; the only key in selectors, because a selector is immutable.
    pub const NODE: &str = "sei.io/node";
    pub const CHAIN: &str = "sei.io/chain";
    pub const ROLE: &str = "sei.io/role";
    /// `bootstrap` on the objects of the bootstrap Job.
    pub const COMPONENT: &str = "sei.io/component";
    pub const COMPONENT_BOOTSTRAP: &str = "bootstrap";
    /// Marks nodes whose snapshots an external job publishes.
    pub const SNAPSHOT_PUBLISH: &str = "sei.io/snapshot-publish";
    /// Copy of the annotation of the same name, for anti-affinity terms.
    pub const DEDICATED_NODE: &str = "sei.io/dedicated-node";
    /// Fleet membership, set by the fleet kinds.
    pub const NODE_DEPLOYMENT: &str = "sei.io/nodedeployment";
    pub const NODE_DEPLOYMENT_ORDINAL: &str = "sei.io/nodedeployment-ordinal";
    /// On the record that a deleted signer leaves.
    pub const SIGNING_RECORD: &str = "sei.io/signing-record";
    /// On the pod that pulls the images of an update, with the name of the node. Such a pod has no
    /// other label of ours: it is not one of the node's own pods, and keeps no pod off its machine.
    pub const PRE_PULL: &str = "sei.io/pre-pull";
    /// Generation of the fleet at which the node last got another template.
    pub const REVISION: &str = "sei.io/revision";
    /// Set by the StatefulSet controller on its pods: the name of a `ControllerRevision`.
    pub const POD_REVISION: &str = "controller-revision-hash";

    /// Labels that the operator sets and that `spec.podLabels` cannot override.
    pub const RESERVED: [&str; 5] = [NODE, CHAIN, ROLE, DEDICATED_NODE, SNAPSHOT_PUBLISH];
}

pub mod annotation {
    //! Annotations that users set on a `SeiNode`, and annotations that the operator writes.

    /// `"true"`: the pod gets a Kubernetes node of its own.
    pub const DEDICATED_NODE: &str = "sei.io/dedicated-node";
    /// Approves the held update whose target hash it names.
    pub const APPROVE_UPDATE: &str = "sei.io/approve-update";
    /// A new value replaces the pod, which gets the same annotation.
    pub const RESTARTED_AT: &str = "sei.io/restarted-at";
    /// A new value makes a failed node try again.
    pub const RETRY: &str = "sei.io/retry";
    /// Approves a start on an empty volume; its value is the uid of the lost claim, or of the node if the
    /// claim is not known any more.
    pub const RECREATE_VOLUME: &str = "sei.io/recreate-volume";
    /// `"true"`: of everything that belongs to the node, only its status is written.
    pub const HANDS_OFF: &str = "sei.io/hands-off";
    /// Deletes a node that signs although its pod has not ended; its value is the uid of the node.
    pub const FORCE_FINALIZE: &str = "sei.io/force-finalize";
    /// On the pod that pulls the images of an update: the plan and the machine that it pulls for.
    pub const PRE_PULL: &str = "sei.io/pre-pull";
    /// On a `SeiNode`: the identity that may sign although what it signed before is not known.
    pub const ACCEPT_BLANK_SIGNING_STATE: &str = "sei.io/accept-blank-signing-state";
    /// On a StatefulSet's metadata, never in its template: fingerprint of the applied template.
    pub const TEMPLATE_HASH: &str = "sei.io/template-hash";
    /// On a StatefulSet's metadata: the node has completed its first start. A status can be wiped, and
    /// a first start over a volume in use would destroy its data.
    pub const INITIALISED: &str = "sei.io/initialised";
    /// On a `SeiNode`: hash of the fleet's template that it was given.
    pub const FLEET_TEMPLATE: &str = "sei.io/fleet-template";
    /// On a `SeiNode`: it was down when it was given that template.
    pub const FLEET_RELEASED_DOWN: &str = "sei.io/fleet-released-down";
    /// On a `SeiNode`: the keys of labels and annotations that come from the fleet's template, so that
    /// one that is taken out of the template is removed, and those of others stay.
    pub const FLEET_METADATA: &str = "sei.io/fleet-metadata";
    /// On the Service of a fleet: the kind that it belongs to.
    pub const MANAGED_BY: &str = "sei.io/managed-by";
    /// On the pod: keeps voluntary disruption of its Kubernetes node away from the chain database.
    pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
}

/// Longest node name. The StatefulSet controller appends `-` and a revision hash of up to ten
/// characters to it and puts the result into a label, which may have 63.
pub const NODE_NAME_MAX: usize = 52;

/// The node's only pod.
pub fn pod(node: &str) -> String {
    format!("{node}-0")
}

/// The claim that the operator creates if none is imported.
pub fn data_claim(node: &str) -> String {
    format!("data-{node}")
}

/// `ConfigMap` with the permission that the auth proxy checks.
pub fn proxy_config(node: &str) -> String {
    format!("{node}-rbac-proxy-config")
}

/// Job that restores a snapshot and replays to a height with another image.
pub fn bootstrap_job(node: &str) -> String {
    format!("{node}-bootstrap")
}

/// The pod that pulls the images of an update before the running pod is replaced. No pod of a
/// StatefulSet or Job can have this name: theirs end with a number or a random suffix.
pub fn pre_pull_pod(node: &str) -> String {
    format!("{node}-pre-pull")
}

/// `ConfigMap` that a deleted signer leaves, by the digest of its chain and identity.
pub fn signing_record(digest: &str) -> String {
    format!("sei-signing-record-{digest}")
}

/// The node of a fleet with this ordinal.
pub fn fleet_node(fleet: &str, ordinal: usize) -> String {
    format!("{fleet}-{ordinal}")
}

/// The Service in front of all nodes of a fleet.
pub fn fleet_service(fleet: &str) -> String {
    format!("{fleet}-internal")
}

/// Audience of a token for the sidecar of one node. The proxies of other nodes and the API server
/// reject such a token.
pub fn sidecar_audience(namespace: &str, node: &str) -> String {
    format!("sei-sidecar/{namespace}/{node}")
}

/// DNS name of the node's pod inside the cluster.
pub fn pod_dns(node: &str, namespace: &str) -> String {
    format!("{node}-0.{node}.{namespace}.svc.cluster.local")
}

/// URL of a node's sidecar API, by DNS name. Calls that must reach one specific pod use its IP
/// instead: the name may still resolve to the previous pod.
pub fn sidecar_url(node: &str, namespace: &str) -> String {
    format!("https://{}:8443", pod_dns(node, namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_names_are_those_of_the_go_operator() {
        assert_eq!(pod("a"), "a-0");
        assert_eq!(data_claim("a"), "data-a");
        assert_eq!(proxy_config("a"), "a-rbac-proxy-config");
        assert_eq!(bootstrap_job("a"), "a-bootstrap");
        assert_eq!(sidecar_url("n", "ns"), "https://n-0.n.ns.svc.cluster.local:8443");
    }

    #[test]
    fn the_longest_node_name_fits_a_revision_label() {
        let longest = "n".repeat(NODE_NAME_MAX);
        assert!(format!("{longest}-{}", "0123456789").len() <= 63);
        assert!(proxy_config(&longest).len() <= 253);
        assert!(pre_pull_pod(&longest).len() <= 63, "the name is the host name of the pod");
    }
}
