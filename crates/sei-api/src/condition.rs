//! Conditions of a node, with every reason they can carry.
//!
//! One table, [`REASONS`], is the source of the reasons in code, of the reference in the docs and
//! of what `kubectl sei explain` prints.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($variant,)* }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == text)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

names! {
    /// The types of conditions on a `SeiNode`.
    ConditionType {
        NodeUpdateInProgress = "NodeUpdateInProgress",
        PodTemplateDrift = "PodTemplateDrift",
        Stalled = "Stalled",
        Paused = "Paused",
        StateSyncReady = "StateSyncReady",
        SidecarReady = "SidecarReady",
        ImportPvcReady = "ImportPVCReady",
        SigningKeyReady = "SigningKeyReady",
        NodeKeyReady = "NodeKeyReady",
        OperatorKeyringReady = "OperatorKeyringReady",
        WorkflowInProgress = "WorkflowInProgress",
        PeersResolved = "PeersResolved",
    }
}

names! {
    /// The reasons that conditions carry. One reason has one meaning per condition.
    Reason {
        UpdateStarted = "UpdateStarted",
        UpdateComplete = "UpdateComplete",
        UpdateFailed = "UpdateFailed",
        UpdateSuperseded = "UpdateSuperseded",
        NotObserved = "NotObserved",
        InSync = "InSync",
        Rolling = "Rolling",
        WaitingForSlot = "WaitingForSlot",
        Held = "Held",
        AdoptedWithDrift = "AdoptedWithDrift",
        Paused = "Paused",
        NotPaused = "NotPaused",
        BackingOff = "BackingOff",
        Progressing = "Progressing",
        ImagePullFailed = "ImagePullFailed",
        CrashLooping = "CrashLooping",
        Unschedulable = "Unschedulable",
        PodTerminating = "PodTerminating",
        NodeLost = "NodeLost",
        VolumeAttach = "VolumeAttach",
        StatefulSetNotObserved = "StatefulSetNotObserved",
        StatefulSetTerminating = "StatefulSetTerminating",
        SidecarUnreachable = "SidecarUnreachable",
        SidecarAuth = "SidecarAuth",
        SidecarTaskFailed = "SidecarTaskFailed",
        SecretMissing = "SecretMissing",
        ReplicasNotOne = "ReplicasNotOne",
        ApplyRejected = "ApplyRejected",
        FieldConflict = "FieldConflict",
        Forbidden = "Forbidden",
        SchemaTooOld = "SchemaTooOld",
        InvalidSpec = "InvalidSpec",
        DataVolumeLost = "DataVolumeLost",
        SigningKeyConflict = "SigningKeyConflict",
        Ready = "Ready",
        NotReady = "NotReady",
        Unreachable = "Unreachable",
        NoSyncersConfigured = "NoSyncersConfigured",
        NotApplicable = "NotApplicable",
        SyncerSourceError = "SyncerSourceError",
        PvcValidated = "PVCValidated",
        PvcNotReady = "PVCNotReady",
        PvcInvalid = "PVCInvalid",
        SigningKeyValidated = "SigningKeyValidated",
        SigningKeyNotReady = "SigningKeyNotReady",
        SigningKeyInvalid = "SigningKeyInvalid",
        NodeKeyValidated = "NodeKeyValidated",
        NodeKeyNotReady = "NodeKeyNotReady",
        NodeKeyInvalid = "NodeKeyInvalid",
        OperatorKeyringValidated = "OperatorKeyringValidated",
        OperatorKeyringNotReady = "OperatorKeyringNotReady",
        OperatorKeyringInvalid = "OperatorKeyringInvalid",
        NoWorkflow = "NoWorkflow",
        WorkflowRunning = "WorkflowRunning",
        WorkflowFailedHeld = "WorkflowFailedHeld",
        Resolved = "Resolved",
        Ec2TagsNotResolved = "Ec2TagsNotResolved",
    }
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// One row of the table of reasons.
#[derive(Clone, Copy, Debug)]
pub struct ReasonRow {
    pub condition: ConditionType,
    pub status: ConditionStatus,
    pub reason: Reason,
    /// What it says about the node.
    pub meaning: &'static str,
    /// What a person can do; empty where there is nothing to do.
    pub remedy: &'static str,
    /// For `Stalled`: how long the cause may last before it is reported, in seconds.
    pub deadline_seconds: Option<u32>,
}

const fn row(
    condition: ConditionType,
    status: ConditionStatus,
    reason: Reason,
    meaning: &'static str,
    remedy: &'static str,
) -> ReasonRow {
    ReasonRow { condition, status, reason, meaning, remedy, deadline_seconds: None }
}

const fn stall(
    reason: Reason,
    deadline_seconds: u32,
    meaning: &'static str,
    remedy: &'static str,
) -> ReasonRow {
    ReasonRow {
        condition: ConditionType::Stalled,
        status: ConditionStatus::True,
        reason,
        meaning,
        remedy,
        deadline_seconds: Some(deadline_seconds),
    }
}

use ConditionStatus::{False, True, Unknown};
use ConditionType as C;
use Reason as R;

/// Every condition, status and reason the operator can report, with its meaning and remedy.
pub const REASONS: &[ReasonRow] = &[
    row(
        C::NodeUpdateInProgress,
        True,
        R::UpdateStarted,
        "An update plan runs; status.plan.tasks shows how far it is.",
        "",
    ),
    row(C::NodeUpdateInProgress, False, R::UpdateComplete, "The last update arrived.", ""),
    row(
        C::NodeUpdateInProgress,
        False,
        R::UpdateFailed,
        "The last update plan failed. It is tried again after a pause, for as long as the pod differs.",
        "Read status.lastUpdate.detail. If the spec is at fault, correct it or set it back: a changed spec is tried at once. Else mend what the detail names and wait for status.pendingUpdate.nextAttemptAt.",
    ),
    row(
        C::NodeUpdateInProgress,
        False,
        R::UpdateSuperseded,
        "The update was given up for a newer wish, and nothing is left to roll.",
        "",
    ),
    row(C::PodTemplateDrift, Unknown, R::NotObserved, "No pod was compared yet.", ""),
    row(C::PodTemplateDrift, False, R::InSync, "The pod is made from the desired template.", ""),
    row(C::PodTemplateDrift, True, R::Rolling, "A plan replaces the pod.", ""),
    row(
        C::PodTemplateDrift,
        True,
        R::WaitingForSlot,
        "The chain's budget is used by other nodes; this one rolls when its turn comes.",
        "Look at the node that the message names. If it rolls, wait. If its roll failed, mend it: the chain goes on once it is Ready. More than one node at a time is rollout.maxConcurrentPerChain in the platform configuration.",
    ),
    row(
        C::PodTemplateDrift,
        True,
        R::Held,
        "The pod differs from what is desired because the operator or the platform configuration changed, and such changes wait for somebody's approval here. The node runs as before.",
        "Read status.pendingUpdate.changes. To let it roll, set annotation sei.io/approve-update to the value of status.pendingUpdate.targetHash; it then waits for its turn in the chain. A later change needs an approval of its own.",
    ),
    row(
        C::PodTemplateDrift,
        True,
        R::AdoptedWithDrift,
        "The pod was made by another operator from another template. It was left running and is not restarted by surprise.",
        "Nothing has to be done: it rolls with the next change of the spec. To roll it now, set annotation sei.io/approve-update to the value of status.pendingUpdate.targetHash; rollout.adoption: Auto rolls all such nodes.",
    ),
    row(
        C::PodTemplateDrift,
        True,
        R::Paused,
        "spec.update.paused holds the update. The node runs as before.",
        "Set spec.update.paused to false.",
    ),
    row(
        C::PodTemplateDrift,
        True,
        R::BackingOff,
        "The update failed and waits for its next attempt.",
        "Read status.lastUpdate.detail for why it failed. It is tried again at status.pendingUpdate.nextAttemptAt; a change of the spec, also back, is tried at once.",
    ),
    row(C::Stalled, False, R::Progressing, "Nothing has waited too long.", ""),
    stall(
        R::ImagePullFailed,
        120,
        "An image of the pod cannot be pulled.",
        "Check that the image named in the message exists and that its registry lets the Kubernetes node pull it. Correct spec.image or spec.sidecar.image: an edit is taken up at once, and so is an edit back to the old image.",
    ),
    stall(
        R::CrashLooping,
        300,
        "A container of the pod crashes again and again.",
        "Read its last words: kubectl logs POD -c CONTAINER --previous, with the names from the message. To go back, set the old image or setting in the spec again: it is taken up at once.",
    ),
    stall(
        R::Unschedulable,
        300,
        "No Kubernetes node takes the pod.",
        "Read the events of the pod (kubectl describe pod) for what the scheduler misses: a machine in the pool, a toleration, free memory, or one in the zone of the volume.",
    ),
    stall(
        R::PodTerminating,
        240,
        "The old pod does not go away. It is never forced: its process may still sign.",
        "Check the kubelet of the Kubernetes node that the message names, and the pod's finalizers. Do not delete the pod by force while its process may run: of a validator that is a second signer.",
    ),
    stall(
        R::NodeLost,
        60,
        "The Kubernetes node under the pod does not answer.",
        "Bring the machine back. If it is surely switched off, delete its Node object, or taint it node.kubernetes.io/out-of-service: the pod then moves by itself. A machine that may still run must not be treated as gone.",
    ),
    stall(
        R::VolumeAttach,
        480,
        "The volume cannot be attached to the pod.",
        "Read the events of the pod and kubectl get volumeattachments. A volume of a lost machine is released after six minutes; one that is attached elsewhere has another pod to stop first.",
    ),
    stall(
        R::StatefulSetNotObserved,
        60,
        "The StatefulSet controller has not looked at the newest template, or does not make the pod.",
        "Read the events of the StatefulSet (kubectl describe statefulset NODE): a quota, Pod Security, a webhook or a missing service account refuses the pod there. Without any, check kube-controller-manager, which runs the StatefulSet controller.",
    ),
    stall(
        R::StatefulSetTerminating,
        60,
        "The StatefulSet is being deleted; nothing is done to it or to its pod until it is gone.",
        "Read its metadata.finalizers and let whoever set them finish, or remove them. It is created again afterwards, with the same volume.",
    ),
    stall(
        R::SidecarUnreachable,
        60,
        "The sidecar does not answer.",
        "Read the logs of containers sei-sidecar and kube-rbac-proxy of the pod, and check that a NetworkPolicy lets the operator reach the pod's port 8443. An image update goes past a broken sidecar.",
    ),
    stall(
        R::SidecarAuth,
        60,
        "The sidecar's proxy refuses the operator's token.",
        "The operator's ServiceAccount needs create, delete and get on seinodetasks.sei.io, and that of the pod needs create on tokenreviews and subjectaccessreviews; compare with the installed roles.",
    ),
    stall(
        R::SidecarTaskFailed,
        0,
        "The sidecar reports a failed task.",
        "The message is the sidecar's own; its log says more (kubectl logs POD -c sei-sidecar). The task is repeated as far as its retry budget goes.",
    ),
    stall(
        R::SecretMissing,
        60,
        "A Secret that the node needs is not there.",
        "Create the Secret that the message names, in the node's namespace.",
    ),
    stall(
        R::ReplicasNotOne,
        0,
        "The StatefulSet has more than one replica. No pod is replaced while that is so.",
        "Find who scales it (an autoscaler, a script, a hand) and stop that; the operator sets one replica again by itself.",
    ),
    stall(
        R::ApplyRejected,
        0,
        "The API server refuses the rendered object. The running pod was not touched.",
        "The message is the server's: an admission policy, a quota, or a field it does not take. Change the policy or the spec.",
    ),
    stall(
        R::FieldConflict,
        0,
        "Another field manager owns a field that the operator must own.",
        "Stop the other writer that the message names, or have it leave that field out.",
    ),
    stall(
        R::Forbidden,
        0,
        "The operator lacks a permission.",
        "Grant the verb and kind that the message names; the roles of this version are installed with it.",
    ),
    stall(
        R::SchemaTooOld,
        0,
        "The installed CRD drops fields that the operator writes; nothing is done until they are kept.",
        "Apply the CRDs of this version: kubectl apply --server-side -f config/crd/bases.",
    ),
    stall(
        R::InvalidSpec,
        0,
        "The spec cannot be carried out. What runs was not touched.",
        "Correct the field that the message names, or set it back. chainId, mode, signing key and volume of a running node cannot change: make another node.",
    ),
    stall(
        R::DataVolumeLost,
        0,
        "The node's data volume is gone. Nothing is recreated, and a node that signs is held at zero replicas.",
        "Restore the claim under its name, or leave it to be made anew and empty; then consent: annotation sei.io/recreate-volume with the uid of the lost claim.",
    ),
    stall(
        R::SigningKeyConflict,
        0,
        "Another node has the same signing key or volume. This one is not started: two signers are slashed.",
        "Decide which node is to sign, and take the key or the volume out of the spec of the other, or delete it. Wait until its pod is gone; the first is then started by itself.",
    ),
    row(
        C::Paused,
        True,
        R::Paused,
        "spec.paused keeps the node at zero replicas.",
        "Set spec.paused to false.",
    ),
    row(C::Paused, False, R::NotPaused, "The node is meant to run.", ""),
    row(C::StateSyncReady, True, R::Ready, "At least two state-sync witnesses are known.", ""),
    row(
        C::StateSyncReady,
        False,
        R::NoSyncersConfigured,
        "Fewer than two state-sync witnesses are known; the node waits for them before its first start.",
        "Set snapshot.rpcServers, or stateSync.syncers for the chain in the platform configuration.",
    ),
    row(C::StateSyncReady, False, R::NotApplicable, "The node uses no snapshot.", ""),
    row(
        C::StateSyncReady,
        Unknown,
        R::SyncerSourceError,
        "The platform configuration cannot be read.",
        "Correct the file named in the message.",
    ),
    row(C::SidecarReady, True, R::Ready, "The sidecar's gate is open.", ""),
    row(C::SidecarReady, False, R::NotReady, "The gate is closed; it is opened again at once.", ""),
    row(C::SidecarReady, Unknown, R::Unreachable, "The sidecar does not answer.", "See Stalled."),
    row(C::ImportPvcReady, True, R::PvcValidated, "The imported claim can be used.", ""),
    row(
        C::ImportPvcReady,
        False,
        R::PvcNotReady,
        "The imported claim is not usable yet.",
        "Create or bind the claim named in the message.",
    ),
    row(
        C::ImportPvcReady,
        False,
        R::PvcInvalid,
        "The imported claim can never be used.",
        "Give another claim, or correct what the message names.",
    ),
    row(
        C::SigningKeyReady,
        True,
        R::SigningKeyValidated,
        "The signing key has the right shape.",
        "",
    ),
    row(
        C::SigningKeyReady,
        False,
        R::SigningKeyNotReady,
        "The signing key's Secret is not there.",
        "Create the Secret named in the message.",
    ),
    row(
        C::SigningKeyReady,
        False,
        R::SigningKeyInvalid,
        "The signing key's Secret has the wrong content.",
        "Correct priv_validator_key.json in it.",
    ),
    row(C::NodeKeyReady, True, R::NodeKeyValidated, "The node key has the right shape.", ""),
    row(
        C::NodeKeyReady,
        False,
        R::NodeKeyNotReady,
        "The node key's Secret is not there.",
        "Create the Secret named in the message.",
    ),
    row(
        C::NodeKeyReady,
        False,
        R::NodeKeyInvalid,
        "The node key's Secret has the wrong content.",
        "Correct node_key.json in it.",
    ),
    row(
        C::OperatorKeyringReady,
        True,
        R::OperatorKeyringValidated,
        "The keyring and its passphrase have the right shape.",
        "",
    ),
    row(
        C::OperatorKeyringReady,
        False,
        R::OperatorKeyringNotReady,
        "The keyring's Secret or its passphrase's is not there.",
        "Create the Secret named in the message.",
    ),
    row(
        C::OperatorKeyringReady,
        False,
        R::OperatorKeyringInvalid,
        "The keyring's Secret or its passphrase's has the wrong content.",
        "Correct what the message names.",
    ),
    row(C::WorkflowInProgress, False, R::NoWorkflow, "No workflow occupies the node.", ""),
    row(C::WorkflowInProgress, True, R::WorkflowRunning, "A workflow occupies the node.", ""),
    row(
        C::WorkflowInProgress,
        True,
        R::WorkflowFailedHeld,
        "A workflow failed and keeps the node as it left it.",
        "Delete the workflow with annotation sei.io/force-delete-workflow.",
    ),
    row(C::PeersResolved, True, R::Resolved, "Every source of peers is looked at.", ""),
    row(
        C::PeersResolved,
        False,
        R::Ec2TagsNotResolved,
        "A source by EC2 tags is accepted and not looked at yet; the other sources are.",
        "Give those peers as static addresses for now.",
    ),
];

/// The row of a condition with this status and reason.
pub fn reason_row(
    condition: ConditionType,
    status: ConditionStatus,
    reason: Reason,
) -> Option<&'static ReasonRow> {
    REASONS
        .iter()
        .find(|row| row.condition == condition && row.status == status && row.reason == reason)
}

/// What a condition is to say from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub condition: ConditionType,
    pub status: ConditionStatus,
    pub reason: Reason,
    pub message: String,
}

impl Verdict {
    pub fn new(
        condition: ConditionType,
        status: ConditionStatus,
        reason: Reason,
        message: impl Into<String>,
    ) -> Self {
        let message = message.into();
        debug_assert!(
            reason_row(condition, status, reason).is_some(),
            "{condition}={}/{reason} is not in the table of reasons",
            status.as_str()
        );
        Self { condition, status, reason, message }
    }
}

/// The condition of a type, if it was ever set.
pub fn find(conditions: &[Condition], condition: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|one| one.type_ == condition.as_str())
}

/// Whether a condition of this type stands with this status.
pub fn is(conditions: &[Condition], condition: ConditionType, status: ConditionStatus) -> bool {
    find(conditions, condition).is_some_and(|one| one.status == status.as_str())
}

/// Writes a verdict into the list. The transition time moves only when the status does; nothing at
/// all changes when the verdict says what stands there already.
pub fn set(conditions: &mut Vec<Condition>, verdict: &Verdict, generation: i64, now: Timestamp) {
    let desired = Condition {
        type_: verdict.condition.as_str().to_owned(),
        status: verdict.status.as_str().to_owned(),
        reason: verdict.reason.as_str().to_owned(),
        message: verdict.message.clone(),
        observed_generation: Some(generation),
        last_transition_time: Time(now),
    };
    match conditions.iter_mut().find(|one| one.type_ == desired.type_) {
        Some(present) => {
            let since = if present.status == desired.status {
                present.last_transition_time.clone()
            } else {
                desired.last_transition_time.clone()
            };
            // A cache may show an older generation; what was said of a newer one stays.
            let observed = present.observed_generation.max(desired.observed_generation);
            *present =
                Condition { last_transition_time: since, observed_generation: observed, ..desired };
        }
        None => conditions.push(desired),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn every_reason_is_explained() {
        for reason in Reason::ALL {
            let rows: Vec<_> = REASONS.iter().filter(|row| row.reason == *reason).collect();
            assert!(!rows.is_empty(), "{reason} stands in no row");
            assert!(rows.iter().all(|row| row.meaning.ends_with('.')), "{reason} has no meaning");
        }
        for condition in ConditionType::ALL {
            assert!(REASONS.iter().any(|row| row.condition == *condition), "{condition}");
        }
    }

    #[test]
    fn no_two_rows_say_the_same() {
        for (index, row) in REASONS.iter().enumerate() {
            let same = |other: &&ReasonRow| {
                (other.condition, other.status, other.reason)
                    == (row.condition, row.status, row.reason)
            };
            assert!(!REASONS[index + 1..].iter().any(|other| same(&other)), "{row:?}");
        }
    }

    #[test]
    fn every_stall_has_a_remedy_and_a_deadline() {
        for row in REASONS.iter().filter(|row| row.condition == C::Stalled && row.status == True) {
            assert!(!row.remedy.is_empty() && row.deadline_seconds.is_some(), "{row:?}");
        }
    }

    #[test]
    fn the_transition_time_moves_with_the_status_only() {
        let mut conditions = Vec::new();
        let started = Verdict::new(C::NodeUpdateInProgress, True, R::UpdateStarted, "a");
        set(&mut conditions, &started, 1, at(10));
        set(&mut conditions, &Verdict { message: "b".into(), ..started.clone() }, 2, at(20));
        assert_eq!(conditions[0].last_transition_time, Time(at(10)));
        assert_eq!(conditions[0].message, "b");
        assert_eq!(conditions[0].observed_generation, Some(2));
        set(
            &mut conditions,
            &Verdict::new(C::NodeUpdateInProgress, False, R::UpdateComplete, ""),
            2,
            at(30),
        );
        assert_eq!(conditions[0].last_transition_time, Time(at(30)));
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn an_older_generation_never_replaces_a_newer_one() {
        let mut conditions = Vec::new();
        let verdict = Verdict::new(C::Paused, False, R::NotPaused, "");
        set(&mut conditions, &verdict, 5, at(10));
        set(&mut conditions, &verdict, 4, at(20));
        assert_eq!(conditions[0].observed_generation, Some(5));
    }
}
