//! Everything that follows from the mode of a node.

use crate::node::{
    GenesisCeremony, KeyringSecret, SeiNodeSpec, SnapshotGeneration, SnapshotSource,
};

/// The kind of node that the spec defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    FullNode,
    Archive,
    Replayer,
    Validator,
    Seed,
}

impl Mode {
    pub const ALL: [Mode; 5] =
        [Mode::FullNode, Mode::Archive, Mode::Replayer, Mode::Validator, Mode::Seed];

    /// Name of the spec field that sets it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FullNode => "fullNode",
            Self::Archive => "archive",
            Self::Replayer => "replayer",
            Self::Validator => "validator",
            Self::Seed => "seed",
        }
    }

    /// Value of the label `sei.io/role`.
    pub fn role(self) -> &'static str {
        match self {
            Self::FullNode => "node",
            Self::Archive => "archive",
            Self::Replayer => "replayer",
            Self::Validator => "validator",
            Self::Seed => "seed",
        }
    }

    /// The mode of a pod with this value of the label `sei.io/role`.
    pub fn of_role(role: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.role() == role)
    }

    /// Name of the mode in the chain's configuration library.
    pub fn config_mode(self) -> &'static str {
        match self {
            Self::FullNode | Self::Replayer => "full",
            Self::Archive => "archive",
            Self::Validator => "validator",
            Self::Seed => "seed",
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl SeiNodeSpec {
    /// The modes that are set. Admission accepts exactly one; an object stored before that rule may
    /// have another number.
    pub fn modes(&self) -> Vec<Mode> {
        let set = [
            (self.full_node.is_some(), Mode::FullNode),
            (self.archive.is_some(), Mode::Archive),
            (self.replayer.is_some(), Mode::Replayer),
            (self.validator.is_some(), Mode::Validator),
            (self.seed.is_some(), Mode::Seed),
        ];
        set.into_iter().filter_map(|(is_set, mode)| is_set.then_some(mode)).collect()
    }

    /// The mode, if exactly one is set.
    pub fn mode(&self) -> Option<Mode> {
        match self.modes()[..] {
            [mode] => Some(mode),
            _ => None,
        }
    }

    pub fn snapshot(&self) -> Option<&SnapshotSource> {
        let full = self.full_node.as_ref().and_then(|full| full.snapshot.as_ref());
        let validator =
            || self.validator.as_ref().and_then(|validator| validator.snapshot.as_ref());
        full.or_else(|| self.replayer.as_ref().map(|replayer| &replayer.snapshot))
            .or_else(validator)
    }

    pub fn snapshot_generation(&self) -> Option<&SnapshotGeneration> {
        let full = self.full_node.as_ref().and_then(|full| full.snapshot_generation.as_ref());
        full.or_else(|| {
            self.archive.as_ref().and_then(|archive| archive.snapshot_generation.as_ref())
        })
    }

    pub fn genesis_ceremony(&self) -> Option<&GenesisCeremony> {
        self.validator.as_ref().and_then(|validator| validator.genesis_ceremony.as_ref())
    }

    /// Name of the Secret with the consensus key.
    pub fn signing_secret(&self) -> Option<&str> {
        let key = self.validator.as_ref()?.signing_key.as_ref()?;
        key.secret.as_ref().map(|secret| secret.secret_name.as_str())
    }

    /// Name of the Secret with the p2p key, of a validator or a seed.
    pub fn node_key_secret(&self) -> Option<&str> {
        let validator = self.validator.as_ref().and_then(|validator| validator.node_key.as_ref());
        let key = validator.or_else(|| self.seed.as_ref().map(|seed| &seed.node_key))?;
        key.secret.as_ref().map(|secret| secret.secret_name.as_str())
    }

    pub fn keyring(&self) -> Option<&KeyringSecret> {
        self.validator.as_ref()?.operator_keyring.as_ref()?.secret.as_ref()
    }

    /// Whether the node signs blocks. Two nodes that sign with one key at once are slashed.
    pub fn signs(&self) -> bool {
        self.validator.as_ref().is_some_and(|validator| {
            validator.signing_key.is_some() || validator.genesis_ceremony.is_some()
        })
    }

    /// Whether a bootstrap Job first replays to a height with another image.
    pub fn needs_bootstrap(&self) -> bool {
        self.snapshot().is_some_and(|source| {
            source.bootstrap_image.as_ref().is_some_and(|image| !image.is_empty())
                && source.s3.as_ref().is_some_and(|s3| s3.target_height > 0)
        })
    }

    /// Name of the imported claim; the operator creates one where there is none.
    pub fn imported_claim(&self) -> Option<&str> {
        self.data_volume.as_ref()?.import.as_ref().map(|import| import.pvc_name.as_str())
    }

    pub fn is_paused(&self) -> bool {
        self.paused == Some(true)
    }

    pub fn updates_are_paused(&self) -> bool {
        self.update.as_ref().is_some_and(|update| update.paused == Some(true))
    }

    /// Port of the sidecar; the default if it is missing or 0.
    pub fn sidecar_port(&self) -> i32 {
        match self.sidecar.as_ref().map(|sidecar| sidecar.port) {
            None | Some(0) => crate::node::DEFAULT_SIDECAR_PORT,
            Some(port) => port,
        }
    }

    /// The sidecar image of the spec; without one the platform's image is used.
    pub fn sidecar_image(&self) -> Option<&str> {
        let image = self.sidecar.as_ref()?.image.as_deref()?;
        (!image.is_empty()).then_some(image)
    }
}
