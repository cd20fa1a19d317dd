//! Conditions of a node, with every reason they can carry.
//!
//! One table, [`REASONS`], is the source of the reasons in code, of the reference in the docs and
//! of the output of `kubectl sei explain`.

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
                Self::ALL.iter().copied().find(|name| name.as_str() == text)
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
        Ready = "Ready",
        Reconciling = "Reconciling",
        NodeUpdateInProgress = "NodeUpdateInProgress",
        PodTemplateDrift = "PodTemplateDrift",
        Stalled = "Stalled",
        Paused = "Paused",
        StateSyncReady = "StateSyncReady",
        SidecarReady = "SidecarReady",
        Halted = "Halted",
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
        ImageNotPullable = "ImageNotPullable",
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
        SigningStateLost = "SigningStateLost",
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
        Resolved = "Resolved",
        Ec2TagsNotResolved = "Ec2TagsNotResolved",
        Pending = "Pending",
        Initializing = "Initializing",
        Failed = "Failed",
        Stopped = "Stopped",
        PodNotReady = "PodNotReady",
        Updating = "Updating",
        Terminating = "Terminating",
        Settled = "Settled",
        UpgradeNeeded = "UpgradeNeeded",
        NoNewBlock = "NoNewBlock",
        BlocksAdvance = "BlocksAdvance",
        HandsOff = "HandsOff",
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
    /// What the reason means for the node.
    pub meaning: &'static str,
    /// What a person can do; empty where no action is needed.
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
    row(C::Ready, True, R::Ready, "The node runs and its pod is Ready.", ""),
    row(
        C::Ready,
        True,
        R::NoNewBlock,
        "The pod is Ready, and the node has seen no new block for more than a minute.",
        "See the condition Halted.",
    ),
    row(
        C::Ready,
        False,
        R::Pending,
        "The node has no plan yet.",
        "Read the message: it names what the first plan waits for.",
    ),
    row(C::Ready, False, R::Initializing, "The first start of the node is not complete.", ""),
    row(
        C::Ready,
        False,
        R::Failed,
        "The first start of the node failed and is not retried automatically.",
        "Correct the spec, or repair what the message names and set a new value of annotation sei.io/retry.",
    ),
    row(
        C::Ready,
        False,
        R::Stopped,
        "spec.paused keeps the node at zero replicas.",
        "Set spec.paused to false.",
    ),
    row(
        C::Ready,
        False,
        R::Updating,
        "An update is replacing the pod, and the new pod is not Ready yet.",
        "",
    ),
    row(
        C::Ready,
        False,
        R::PodNotReady,
        "The pod is not Ready, or does not exist.",
        "Read the message and the events of the pod (kubectl describe pod). A pod that stays so for longer than the deadline of its cause is reported as Stalled.",
    ),
    row(C::Ready, False, R::Terminating, "The node is being deleted.", ""),
    row(
        C::Ready,
        True,
        R::HandsOff,
        "The pod is Ready. Annotation sei.io/hands-off is set: the operator changes no object of the node, and does not update other conditions.",
        "Remove the annotation.",
    ),
    row(
        C::Ready,
        False,
        R::HandsOff,
        "The pod is not Ready, or the node is deleted and kept. Annotation sei.io/hands-off is set: the operator changes no object of the node, and does not update other conditions.",
        "Remove the annotation; the operator then repairs or deletes the node.",
    ),
    row(
        C::Reconciling,
        True,
        R::Progressing,
        "A plan is active, or an update waits for its slot or its next attempt.",
        "",
    ),
    row(
        C::Reconciling,
        False,
        R::Settled,
        "The operator has nothing to do for the node, or waits for a person.",
        "",
    ),
    row(
        C::NodeUpdateInProgress,
        True,
        R::UpdateStarted,
        "An update plan is active; status.plan.tasks shows its progress.",
        "",
    ),
    row(
        C::NodeUpdateInProgress,
        False,
        R::UpdateComplete,
        "The last update is complete: the pod was observed running the desired template.",
        "",
    ),
    row(
        C::NodeUpdateInProgress,
        False,
        R::UpdateFailed,
        "The last update plan failed. The operator retries it with a growing delay while the pod differs from the desired template.",
        "Read status.lastUpdate.detail. If the spec is the cause, correct or revert it: a changed spec is tried immediately. Otherwise repair what the detail names and wait for status.pendingUpdate.nextAttemptAt.",
    ),
    row(
        C::NodeUpdateInProgress,
        False,
        R::UpdateSuperseded,
        "A newer change replaced the update, or its plan was removed from the status.",
        "",
    ),
    row(
        C::PodTemplateDrift,
        Unknown,
        R::NotObserved,
        "No pod has been compared with the desired template yet.",
        "",
    ),
    row(
        C::PodTemplateDrift,
        False,
        R::InSync,
        "The pod was created from the desired template.",
        "",
    ),
    row(
        C::PodTemplateDrift,
        False,
        R::Paused,
        "The pod was created from the desired template, and spec.update.paused holds the next update.",
        "Set spec.update.paused to false before the next update.",
    ),
    row(C::PodTemplateDrift, True, R::Rolling, "An update plan is replacing the pod.", ""),
    row(
        C::PodTemplateDrift,
        True,
        R::WaitingForSlot,
        "Other nodes of the chain hold the slots of its budget or roll first. This node rolls when it gets a slot.",
        "Check the node named in the message. If it is rolling, wait. If its roll failed, repair it: the rollout of the chain resumes once that node is Ready. To roll more than one node at a time, raise rollout.maxConcurrentPerChain in the platform configuration.",
    ),
    row(
        C::PodTemplateDrift,
        True,
        R::Held,
        "The pod differs from the desired template because the operator or the platform configuration changed, and this node requires approval for such changes. The pod keeps running unchanged.",
        "Read status.pendingUpdate.changes. To approve the update, set annotation sei.io/approve-update to the value of status.pendingUpdate.targetHash; the node then rolls when it gets a slot of its chain. A later change needs a new approval.",
    ),
    row(
        C::PodTemplateDrift,
        True,
        R::AdoptedWithDrift,
        "Another operator created the pod from a different template. The pod keeps running and is not restarted without approval.",
        "No action is required: the pod is replaced with the next change of the spec. To replace it now, set annotation sei.io/approve-update to the value of status.pendingUpdate.targetHash. To replace all such pods, set rollout.adoption: Auto in the platform configuration.",
    ),
    row(
        C::PodTemplateDrift,
        True,
        R::Paused,
        "spec.update.paused holds the update. The pod keeps running unchanged.",
        "Set spec.update.paused to false.",
    ),
    row(
        C::PodTemplateDrift,
        True,
        R::BackingOff,
        "The update failed; its next attempt is scheduled.",
        "Read status.lastUpdate.detail for the cause. The next attempt is at status.pendingUpdate.nextAttemptAt; a change of the spec, including a revert, is tried immediately.",
    ),
    row(
        C::Stalled,
        False,
        R::Progressing,
        "The node is not blocked, or not yet for longer than the deadline.",
        "",
    ),
    stall(
        R::ImagePullFailed,
        120,
        "An image of the pod cannot be pulled.",
        "Check that the image named in the message exists and that its registry lets the Kubernetes node pull it. Correct spec.image or spec.sidecar.image: an edit takes effect immediately, and so does reverting to the old image.",
    ),
    stall(
        R::ImageNotPullable,
        30,
        "The image of an update cannot be pulled on the machine of the running pod. The update is held before it changes anything, and the old pod keeps running.",
        "Check that the image named in the message exists and that its registry lets the Kubernetes node pull it. Correct spec.image or spec.sidecar.image, or set the old image again: either ends the hold immediately. If the image becomes pullable, the update continues by itself. If only the node's own pod can pull it, set rollout.prePull: Off in the platform configuration.",
    ),
    stall(
        R::CrashLooping,
        300,
        "A container of the pod crashes repeatedly.",
        "Read the log of the crashed container: kubectl logs POD -c CONTAINER --previous, with the names from the message. If seid ends with exit code 2, search it for UPGRADE and NEEDED: the chain may have reached an upgrade height. To roll back, set the old image or setting in the spec: the change takes effect immediately.",
    ),
    stall(
        R::Unschedulable,
        300,
        "The pod cannot be scheduled to any Kubernetes node.",
        "Read the events of the pod (kubectl describe pod) for what the scheduler lacks: a machine in the node pool, a toleration, free memory, or a machine in the zone of the volume.",
    ),
    stall(
        R::PodTerminating,
        240,
        "The old pod does not finish terminating. The operator never force-deletes it, because its process may still sign.",
        "Check the kubelet of the Kubernetes node named in the message, and the pod's finalizers. Do not force-delete the pod while its process may still run: for a validator that means a second signer.",
    ),
    stall(
        R::NodeLost,
        240,
        "The pod was evicted because its Kubernetes node does not respond, or has a taint, and the pod does not end.",
        "Restore the machine. If it is certain that the machine is switched off, delete its Node object, or add the taint node.kubernetes.io/out-of-service: the pod is then rescheduled automatically. Do neither while the machine may still run.",
    ),
    stall(
        R::VolumeAttach,
        480,
        "The volume cannot be attached to the pod.",
        "Read the events of the pod and the output of kubectl get volumeattachments. Kubernetes detaches a volume from a lost machine after six minutes. If another pod uses the volume, stop that pod first.",
    ),
    stall(
        R::StatefulSetNotObserved,
        60,
        "The StatefulSet controller has not observed the newest template, or does not create the pod.",
        "Read the events of the StatefulSet (kubectl describe statefulset NODE): they show whether a quota, Pod Security, a webhook or a missing service account rejects the pod. If there are no events, check kube-controller-manager, which runs the StatefulSet controller.",
    ),
    stall(
        R::StatefulSetTerminating,
        60,
        "The StatefulSet is being deleted. The operator changes neither it nor its pod until the deletion is complete.",
        "Read its metadata.finalizers. Let the controllers that own them finish, or remove the finalizers. The operator then creates the StatefulSet again with the same volume.",
    ),
    stall(
        R::SidecarUnreachable,
        60,
        "The sidecar does not respond.",
        "Read the logs of containers sei-sidecar and kube-rbac-proxy of the pod, and check that a NetworkPolicy lets the operator reach the pod's port 8443. An image update replaces the pod even while its sidecar is broken.",
    ),
    stall(
        R::SidecarAuth,
        60,
        "The sidecar's proxy rejects the operator's token, or the operator cannot request one.",
        "The ServiceAccount sei-sidecar-caller must exist in the operator's namespace, with create, delete and get on seinodetasks.sei.io, and the operator's needs create on its serviceaccounts/token. The pod's ServiceAccount needs create on tokenreviews and subjectaccessreviews. Compare both with the installed roles.",
    ),
    stall(
        R::SidecarTaskFailed,
        300,
        "A task of the sidecar fails, is refused, or does not end. The operator repeats it.",
        "The message comes from the sidecar; its log has more detail (kubectl logs POD -c sei-sidecar). During a genesis ceremony, configure-genesis fails until every validator has uploaded its part.",
    ),
    stall(
        R::SecretMissing,
        60,
        "A Secret that the node needs does not exist, or lacks what the node needs of it.",
        "Create or correct the Secret named in the message, in the node's namespace. The operator reads it again by itself.",
    ),
    stall(
        R::PvcNotReady,
        120,
        "The imported claim does not exist, or cannot be used yet.",
        "Create or bind the claim named in the message. The name in the spec cannot change: to import another claim, create the node again.",
    ),
    stall(
        R::ReplicasNotOne,
        0,
        "The StatefulSet has more than one replica. The operator replaces no pod until it has one.",
        "Find and stop what scales it (an autoscaler, a script, a person). The operator sets one replica again by itself.",
    ),
    stall(
        R::ApplyRejected,
        0,
        "The API server rejects the rendered object. The running pod is unchanged.",
        "The message comes from the API server: an admission policy, a quota, or an invalid field. Change the policy or the spec.",
    ),
    stall(
        R::FieldConflict,
        0,
        "Another field manager owns a field that the operator must own.",
        "Stop the writer named in the message, or remove the field from what it applies.",
    ),
    stall(
        R::Forbidden,
        0,
        "The operator lacks a permission.",
        "Grant the verb on the resource named in the message. The manifests of this version include the roles it needs.",
    ),
    stall(
        R::SchemaTooOld,
        0,
        "The installed CRD drops fields that the operator writes. The operator changes nothing until the CRD has them.",
        "Apply the CRDs of this version: kubectl apply --server-side -f config/crd/bases.",
    ),
    stall(
        R::InvalidSpec,
        0,
        "The spec cannot be applied. The running pod is unchanged.",
        "Correct or revert the field named in the message. chainId, mode, signing key and volume of a running node cannot change: create another node instead.",
    ),
    stall(
        R::DataVolumeLost,
        0,
        "The node's data volume no longer exists. The operator does not recreate it, and keeps a node that signs at zero replicas.",
        "Restore the claim under its name, or accept that the operator creates a new, empty one. Then approve: set annotation sei.io/recreate-volume to the uid of the lost claim, or to the uid of the node if the message names that one.",
    ),
    stall(
        R::SigningKeyConflict,
        0,
        "Another node has the same signing key or volume. This node is not started: a key that signs twice is slashed.",
        "Decide which node signs. Remove the key or the volume from the spec of the other node, or delete that node. Once its pod has terminated, the operator starts the remaining node.",
    ),
    stall(
        R::SigningStateLost,
        0,
        "A deleted node signed with this key, and this node has a new volume: it does not know what was signed, and could sign a block twice. It is not started.",
        "Create the node with the volume of the deleted one: spec.dataVolume.import names its claim, which is retained by default. If the volume no longer exists, make sure that the chain is far above the last height that the key has signed. Then approve: set annotation sei.io/accept-blank-signing-state to the identity named in the message.",
    ),
    row(
        C::Paused,
        True,
        R::Paused,
        "spec.paused keeps the node at zero replicas.",
        "Set spec.paused to false.",
    ),
    row(C::Paused, False, R::NotPaused, "spec.paused is not set: the node runs.", ""),
    row(C::StateSyncReady, True, R::Ready, "At least two state-sync witnesses are known.", ""),
    row(
        C::StateSyncReady,
        False,
        R::NoSyncersConfigured,
        "Fewer than two state-sync witnesses are known. The node is not started before there are two.",
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
    row(C::SidecarReady, True, R::Ready, "The readiness gate of the sidecar is open.", ""),
    row(
        C::SidecarReady,
        False,
        R::NotReady,
        "The readiness gate of the sidecar is closed. The operator opens it immediately.",
        "",
    ),
    row(C::SidecarReady, Unknown, R::Unreachable, "The sidecar does not respond.", "See Stalled."),
    row(
        C::Halted,
        True,
        R::UpgradeNeeded,
        "The chain process ended at the height of an upgrade that its image does not contain.",
        "Set the image of the upgrade named in the message on all nodes of the chain: kubectl sei set image --chain CHAIN IMAGE. See docs/chain-upgrade.md.",
    ),
    row(
        C::Halted,
        True,
        R::NoNewBlock,
        "The node is not catching up and has seen no new block for more than a minute. Its pod can be Ready meanwhile: at an upgrade height some validators keep running and wait one block before it.",
        "Compare the nodes of the chain (kubectl sei status --chain CHAIN). If all of them stand at the same height, the chain is halted: see docs/chain-upgrade.md. If the others advance, check the peers of this node and read its log.",
    ),
    row(C::Halted, False, R::BlocksAdvance, "The node was halted and sees new blocks again.", ""),
    row(
        C::Halted,
        Unknown,
        R::NotObserved,
        "The pod that ended at an upgrade height was replaced, and no new block was seen yet.",
        "",
    ),
    row(C::ImportPvcReady, True, R::PvcValidated, "The imported claim can be used.", ""),
    row(
        C::ImportPvcReady,
        False,
        R::PvcNotReady,
        "The imported claim cannot be used yet.",
        "Create or bind the claim named in the message.",
    ),
    row(
        C::ImportPvcReady,
        False,
        R::PvcInvalid,
        "The imported claim can never be used.",
        "Import another claim, or correct what the message names.",
    ),
    row(
        C::SigningKeyReady,
        True,
        R::SigningKeyValidated,
        "The signing key has the expected format.",
        "",
    ),
    row(
        C::SigningKeyReady,
        False,
        R::SigningKeyNotReady,
        "The signing key's Secret does not exist.",
        "Create the Secret named in the message.",
    ),
    row(
        C::SigningKeyReady,
        False,
        R::SigningKeyInvalid,
        "The content of the signing key's Secret is invalid.",
        "Correct priv_validator_key.json in that Secret.",
    ),
    row(C::NodeKeyReady, True, R::NodeKeyValidated, "The node key has the expected format.", ""),
    row(
        C::NodeKeyReady,
        False,
        R::NodeKeyNotReady,
        "The node key's Secret does not exist.",
        "Create the Secret named in the message.",
    ),
    row(
        C::NodeKeyReady,
        False,
        R::NodeKeyInvalid,
        "The content of the node key's Secret is invalid.",
        "Correct node_key.json in that Secret.",
    ),
    row(
        C::OperatorKeyringReady,
        True,
        R::OperatorKeyringValidated,
        "The keyring and its passphrase have the expected format.",
        "",
    ),
    row(
        C::OperatorKeyringReady,
        False,
        R::OperatorKeyringNotReady,
        "The Secret of the keyring or of its passphrase does not exist.",
        "Create the Secret named in the message.",
    ),
    row(
        C::OperatorKeyringReady,
        False,
        R::OperatorKeyringInvalid,
        "The content of the Secret of the keyring or of its passphrase is invalid.",
        "Correct what the message names.",
    ),
    row(C::WorkflowInProgress, False, R::NoWorkflow, "No workflow occupies the node.", ""),
    row(
        C::WorkflowInProgress,
        True,
        R::WorkflowRunning,
        "A workflow of the Go operator occupies the node. This operator runs no workflows; until this one has ended it starts no plan for the node.",
        "Let the Go operator finish the workflow named in the message. If nothing will finish it, check the data of the node, then remove status.adoptedWorkflow.",
    ),
    row(C::PeersResolved, True, R::Resolved, "All peer sources are resolved.", ""),
    row(
        C::PeersResolved,
        False,
        R::Ec2TagsNotResolved,
        "The operator accepts peer sources by EC2 tags but does not resolve them yet. Other sources are resolved.",
        "List those peers as static addresses for now.",
    ),
];

/// The row for this condition, status and reason. A stalled node is not Ready for the reason that
/// stalls it.
pub fn reason_row(
    condition: ConditionType,
    status: ConditionStatus,
    reason: Reason,
) -> Option<&'static ReasonRow> {
    let find = |condition, status| {
        REASONS
            .iter()
            .find(|row| row.condition == condition && row.status == status && row.reason == reason)
    };
    let stalls = (condition, status) == (C::Ready, False);
    find(condition, status).or_else(|| stalls.then(|| find(C::Stalled, True)).flatten())
}

/// The status, reason and message to set on a condition.
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
    conditions.iter().find(|present| present.type_ == condition.as_str())
}

/// Whether the condition of this type is set and has this status.
pub fn is(conditions: &[Condition], condition: ConditionType, status: ConditionStatus) -> bool {
    find(conditions, condition).is_some_and(|present| present.status == status.as_str())
}

/// Writes a verdict into the list.
pub fn set(conditions: &mut Vec<Condition>, verdict: &Verdict, generation: i64, now: Timestamp) {
    put(
        conditions,
        Condition {
            type_: verdict.condition.as_str().to_owned(),
            status: verdict.status.as_str().to_owned(),
            reason: verdict.reason.as_str().to_owned(),
            message: verdict.message.clone(),
            observed_generation: Some(generation),
            last_transition_time: Time(now),
        },
    );
}

/// Writes a condition into the list. The transition time changes only when the status does; one that
/// is equal to the present condition changes nothing.
pub fn put(conditions: &mut Vec<Condition>, desired: Condition) {
    match conditions.iter_mut().find(|present| present.type_ == desired.type_) {
        Some(present) => {
            let since = if present.status == desired.status {
                present.last_transition_time.clone()
            } else {
                desired.last_transition_time.clone()
            };
            // A cache may return an older generation; the newer one stays recorded.
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
            assert!(!rows.is_empty(), "{reason} has no row");
            assert!(rows.iter().all(|row| row.meaning.ends_with('.')), "{reason} has no meaning");
        }
        for condition in ConditionType::ALL {
            assert!(REASONS.iter().any(|row| row.condition == *condition), "{condition}");
        }
    }

    #[test]
    fn no_two_rows_have_the_same_condition_status_and_reason() {
        for (index, row) in REASONS.iter().enumerate() {
            let same = |later: &&ReasonRow| {
                (later.condition, later.status, later.reason)
                    == (row.condition, row.status, row.reason)
            };
            assert!(!REASONS[index + 1..].iter().any(|later| same(&later)), "{row:?}");
        }
    }

    #[test]
    fn every_stall_has_a_remedy_and_a_deadline() {
        for row in REASONS.iter().filter(|row| row.condition == C::Stalled && row.status == True) {
            assert!(!row.remedy.is_empty() && row.deadline_seconds.is_some(), "{row:?}");
        }
    }

    #[test]
    fn the_transition_time_changes_with_the_status_only() {
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
