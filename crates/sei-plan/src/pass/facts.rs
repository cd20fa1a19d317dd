//! What a pass finds out and records before it decides.

use sei_api::status::{ClaimRef, SeiNodePhase};
use sei_api::{Mode, condition};

use super::Pass;
use crate::planner::stall;
use crate::request::{Outcome, Read, Request};
use crate::signing_key::SigningKey;
use crate::snapshot::{Claim, Snapshot};
use crate::tasks::{Waiting, signing_key_not_ready};
use crate::view::{StatefulSetView, chain_of};

impl Pass {
    /// A claim that has to be read: caches show only own claims, and only a live read proves that a
    /// volume is lost.
    pub(super) fn unproved_claim(&self) -> Option<String> {
        let snapshot = &self.snapshot;
        let recorded = snapshot.status.data_claim.is_some();
        let runs = snapshot.status.phase == Some(SeiNodePhase::Running);
        let unproved = match snapshot.node.spec.imported_claim() {
            Some(_) => recorded || runs,
            // A pod that is Ready has its volume.
            None if snapshot.claim == Claim::Unknown => recorded || (runs && !snapshot.is_ready()),
            None => stall::volume_lost(snapshot).is_some(),
        };
        unproved.then(|| snapshot.claim_name())
    }

    /// The signing key of a node that runs and whose identity is not recorded: it was taken over, or
    /// its status was wiped. No signer of its chain starts until it is known.
    pub(super) fn unknown_key(&self) -> Option<Read> {
        let unknown = self.snapshot.status.signing_identity.is_none();
        let set = self.snapshot.own_statefulset().filter(|_| unknown)?;
        set.identity().signing_secret.clone().map(Read::Secret)
    }

    /// The pods of a node that no longer names a key, and whose template has none: its identity is
    /// free once none of them has the key.
    pub(super) fn released_key(&self) -> Option<Read> {
        let node = &self.snapshot.node;
        let set = self.snapshot.own_statefulset();
        let applied = set.is_some_and(|set| set.identity().signing_secret.is_some());
        let recorded = self.snapshot.status.signing_identity.is_some();
        (recorded && node.spec.signing_secret().is_none() && !applied).then(|| Read::Mounts {
            namespace: node.metadata.namespace.clone().unwrap_or_default(),
            node: node.metadata.name.clone(),
        })
    }

    /// What the node waits for. A task that waits until its StatefulSet is created again has no reason
    /// of its own: the repair that cannot create it has.
    pub(super) fn reported_wait(&self) -> Option<&Waiting> {
        let is_missing = self.snapshot.statefulset.is_none();
        let has_reason = |waiting: &&Waiting| waiting.reason.is_some();
        let repair = self.repair_waits.as_ref();
        let cause =
            repair.filter(|_| is_missing && self.waiting.iter().any(|by| by.reason.is_none()));
        cause.filter(has_reason).or(self.waiting.as_ref()).or(repair)
    }

    pub(super) fn absorb_key(&mut self, request: &Request, outcome: Outcome) {
        if let Outcome::Mounts(mounts) = &outcome {
            if !mounts.iter().any(|mount| mount.signs && !(mount.is_pod() && mount.is_idle)) {
                self.snapshot.status.signing_identity = None;
            }
            return;
        }
        let Request::Read(Read::Secret(name)) = request else { return };
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
    /// Records in the status what the snapshot itself shows: chain, mode, resolved peers, and the claim of
    /// a node that ran before claims were recorded.
    pub(super) fn record_facts(&mut self) {
        if let Some(peers) = self.peers.take() {
            self.status.resolved_peers = (!peers.is_empty()).then_some(peers);
        }
        let chain = chain_of(&self.node, self.statefulset.as_deref());
        if self.status.chain_id.as_deref() != Some(chain) {
            self.status.chain_id = Some(chain.to_owned());
        }
        let runs = self.own_statefulset().and_then(StatefulSetView::role).and_then(Mode::of_role);
        let mode = runs.or_else(|| self.node.spec.mode()).map(Mode::as_str);
        if self.status.mode.as_deref() != mode {
            self.status.mode = mode.map(str::to_owned);
        }
        self.record_claim();
    }

    /// Records the claim of a node that ran before claims were recorded.
    pub(super) fn record_claim(&mut self) {
        let Claim::Present(claim) = &self.claim else { return };
        let own = claim.controller.is_some() && claim.controller == self.node.metadata.uid;
        if self.status.data_claim.is_none()
            && self.status.phase == Some(SeiNodePhase::Running)
            && (own || self.node.spec.imported_claim().is_some())
        {
            let uid = claim.uid.clone();
            self.status.data_claim = Some(ClaimRef { name: self.claim_name(), uid });
        }
    }

    /// Whether the live template has no difference from the rendered one.
    pub fn compare_template(&self) -> bool {
        match (&self.desired, &self.statefulset) {
            (Ok(desired), Some(set)) => {
                !crate::diff::lacks_rendered(&set.template.json(), &desired.template())
            }
            _ => true,
        }
    }
}
