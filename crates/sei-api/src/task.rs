//! The types of tasks that the plan of a node or of a fleet can hold.

/// What performs a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The operator, by calls to the API server.
    Controller,
    /// The sidecar of the node's pod, by a call of the operator.
    Sidecar,
    /// The operator, for all nodes of a fleet.
    Fleet,
}

macro_rules! task_types {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $side:ident;)*) => {
        /// A type of task; plans store its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum TaskType {
            $($(#[$doc])* $variant,)*
        }

        impl TaskType {
            /// Every type, in the order of this list.
            pub const ALL: &'static [TaskType] = &[$(TaskType::$variant,)*];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            pub fn side(self) -> Side {
                match self {
                    $(Self::$variant => Side::$side,)*
                }
            }
        }
    };
}

task_types! {
    EnsureDataPvc = "ensure-data-pvc", Controller;
    ValidateSigningKey = "validate-signing-key", Controller;
    ValidateNodeKey = "validate-node-key", Controller;
    ValidateOperatorKeyring = "validate-operator-keyring", Controller;
    ApplyRbacProxyConfig = "apply-rbac-proxy-config", Controller;
    ApplyStatefulSet = "apply-statefulset", Controller;
    ApplyService = "apply-service", Controller;
    ReplacePod = "replace-pod", Controller;
    ObserveImage = "observe-image", Controller;
    DeployBootstrapService = "deploy-bootstrap-service", Controller;
    DeployBootstrapJob = "deploy-bootstrap-job", Controller;
    AwaitBootstrapComplete = "await-bootstrap-complete", Controller;
    TeardownBootstrap = "teardown-bootstrap", Controller;
    SnapshotRestore = "snapshot-restore", Sidecar;
    ConfigureGenesis = "configure-genesis", Sidecar;
    ConfigApply = "config-apply", Sidecar;
    ConfigPatch = "config-patch", Sidecar;
    ConfigureStateSync = "configure-state-sync", Sidecar;
    ConfigValidate = "config-validate", Sidecar;
    MarkReady = "mark-ready", Sidecar;
    GenerateIdentity = "generate-identity", Sidecar;
    GenerateGentx = "generate-gentx", Sidecar;
    UploadGenesisArtifacts = "upload-genesis-artifacts", Sidecar;
    SetGenesisPeers = "set-genesis-peers", Sidecar;
    AssembleAndUploadGenesis = "assemble-and-upload-genesis", Sidecar;
    CollectAndSetPeers = "collect-and-set-peers", Fleet;
    AwaitNodesRunning = "await-nodes-running", Fleet;
}

impl TaskType {
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|task_type| task_type.as_str() == name)
    }

    /// Maximum number of retries after a failure.
    ///
    /// Both tasks with retries depend on other nodes: the genesis of a ceremony exists only after the
    /// last validator was scheduled. With the back-off of plan tasks, 180 retries are about 90
    /// minutes.
    pub fn max_retries(self) -> i32 {
        match self {
            Self::ConfigureGenesis | Self::AssembleAndUploadGenesis => 180,
            _ => 0,
        }
    }
}

impl std::fmt::Display for TaskType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_name() {
        for task_type in TaskType::ALL {
            assert_eq!(TaskType::parse(task_type.as_str()), Some(*task_type));
        }
        assert_eq!(TaskType::parse("reset-data"), None);
        assert_eq!(TaskType::parse(""), None);
    }
}
