//! What a pass finds out and records before it decides.

use sei_api::condition;
use sei_api::names::data_claim;
use sei_api::status::{ClaimRef, SeiNodePhase};

use super::Pass;
use crate::request::Outcome;
use crate::signing_key::SigningKey;
use crate::snapshot::{Claim, Snapshot};
use crate::tasks::signing_key_not_ready;

impl Pass {
    /// A claim that caches do not show. Only a live read proves that a volume is lost.
    pub(super) fn unproved_claim(&self) -> Option<String> {
        let unknown = self.snapshot.claim == Claim::Unknown
            && self.snapshot.status.data_claim.is_some()
            && self.snapshot.node.spec.imported_claim().is_none();
        let name = self.snapshot.node.metadata.name.as_deref().unwrap_or_default();
        unknown.then(|| data_claim(name))
    }

    /// The signing key of a node that runs and whose identity is not recorded: it was taken over, or
    /// its status was wiped. No signer of its chain starts until it is known.
    pub(super) fn unknown_key(&self) -> Option<String> {
        let unknown = self.snapshot.status.signing_identity.is_none();
        self.snapshot.own_statefulset().filter(|_| unknown)?.identity().signing_secret
    }

    pub(super) fn absorb_key(&mut self, name: &str, outcome: Outcome) {
        let key = match outcome {
            Outcome::Secret(Some(secret)) => SigningKey::read(&secret),
            Outcome::Secret(None) => Err("not found".to_owned()),
            // It could not be read.
            _ => Err("not readable".to_owned()),
        };
        let (status, now) = (&mut self.snapshot.status, self.snapshot.now);
        match key {
            Ok(key) => status.signing_identity = Some(key.identity),
            Err(text) => {
                let verdict = signing_key_not_ready(&format!("Secret {name}: {text}"));
                let generation = self.snapshot.node.metadata.generation.unwrap_or_default();
                condition::set(&mut status.conditions, &verdict, generation, now);
                self.retry_within(self.snapshot.timing.poll() * 6);
            }
        }
    }
}

impl Snapshot {
    /// Records in the status what the snapshot itself shows: mode, resolved peers, and the claim of
    /// a node that ran before claims were recorded.
    pub(super) fn record_facts(&mut self) {
        if let Some(peers) = self.peers.take() {
            self.status.resolved_peers = (!peers.is_empty()).then_some(peers);
        }
        let mode = self.node.spec.mode().map(sei_api::Mode::as_str);
        if self.status.mode.as_deref() != mode {
            self.status.mode = mode.map(str::to_owned);
        }
        if let Claim::Present(claim) = &self.claim
            && self.status.data_claim.is_none()
            && self.status.phase == Some(SeiNodePhase::Running)
            && claim.controller.is_some()
            && claim.controller == self.node.metadata.uid
            && self.node.spec.imported_claim().is_none()
        {
            let name = data_claim(self.node.metadata.name.as_deref().unwrap_or_default());
            self.status.data_claim = Some(ClaimRef { name, uid: claim.uid.clone() });
        }
    }

    /// Whether the live template has no difference from the rendered one.
    pub fn compare_template(&self) -> bool {
        match (&self.desired, &self.statefulset) {
            (Ok(desired), Some(set)) => {
                crate::diff::against_live(&set.template, &desired.template).is_empty()
            }
            _ => true,
        }
    }
}
