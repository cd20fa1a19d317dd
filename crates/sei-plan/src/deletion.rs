//! How a deleted node is finalized: its own volume is deleted, everything else is garbage-collected
//! by ownership.

use sei_api::SeiNode;
use sei_api::names::{NODE_FINALIZER, data_claim};
use sei_api::status::SeiNodePhase;

use crate::pass::{Ask, Ending};
use crate::request::{Failure, Outcome, Purpose, Read, Request};
use crate::shared::Shared;

/// One pass over a node that has a deletion timestamp.
#[derive(Clone, Debug)]
pub struct Deletion {
    node: Shared<SeiNode>,
    stage: Stage,
    ending: Ending,
}

#[derive(Clone, Debug, PartialEq)]
enum Stage {
    MarkTerminating,
    ReadClaim,
    DeleteClaim { name: String, uid: String },
    RemoveFinalizer,
    End,
}

impl Deletion {
    pub fn new(node: Shared<SeiNode>) -> Self {
        let held = node.metadata.finalizers.iter().flatten().any(|name| name == NODE_FINALIZER);
        let ending = Ending { is_released: !held, ..Ending::default() };
        let stage = if held { Stage::MarkTerminating } else { Stage::End };
        Self { node, stage, ending }
    }

    pub fn node(&self) -> &Shared<SeiNode> {
        &self.node
    }

    pub fn purpose(&self) -> Purpose {
        Purpose { why: "the node is deleted".to_owned(), ..Purpose::default() }
    }

    pub fn ask(&mut self) -> Ask {
        loop {
            match &self.stage {
                Stage::MarkTerminating => {
                    let mut status = self.node.status.clone().unwrap_or_default();
                    self.stage = Stage::ReadClaim;
                    if status.phase != Some(SeiNodePhase::Terminating) {
                        status.phase = Some(SeiNodePhase::Terminating);
                        return Ask::Write(Box::new(status));
                    }
                }
                // An imported claim is its owner's.
                Stage::ReadClaim if self.node.spec.imported_claim().is_some() => {
                    self.stage = Stage::RemoveFinalizer;
                }
                Stage::ReadClaim => {
                    return perform(Request::Read(Read::Claim(data_claim(self.name()))));
                }
                Stage::DeleteClaim { name, uid } => {
                    let (name, uid) = (name.clone(), uid.clone());
                    return perform(Request::DeleteClaim { name, uid });
                }
                Stage::RemoveFinalizer => {
                    let all = self.node.metadata.finalizers.iter().flatten();
                    return perform(Request::PatchFinalizers {
                        resource_version: self.node.metadata.resource_version.clone(),
                        finalizers: all.filter(|name| *name != NODE_FINALIZER).cloned().collect(),
                    });
                }
                Stage::End => return Ask::Done(Box::new(std::mem::take(&mut self.ending))),
            }
        }
    }

    pub fn absorb(&mut self, outcome: Outcome) {
        match (&self.stage, outcome) {
            (Stage::ReadClaim, Outcome::Claim(found)) => {
                // A claim of the same name that this node does not control is left alone.
                let own = found.filter(|claim| {
                    !claim.terminating && claim.controller == self.node.metadata.uid
                });
                self.stage = own.map_or(Stage::RemoveFinalizer, |claim| {
                    let name = data_claim(self.name());
                    Stage::DeleteClaim { name, uid: claim.uid }
                });
            }
            (Stage::DeleteClaim { .. }, Outcome::Accepted | Outcome::Failed(Failure::NotFound)) => {
                self.stage = Stage::RemoveFinalizer;
            }
            (Stage::RemoveFinalizer, Outcome::Node(found)) => {
                if let Some(node) = found {
                    self.node = Shared::new(*node);
                }
                self.end(|ending| ending.is_released = true);
            }
            (Stage::RemoveFinalizer, Outcome::Failed(Failure::NotFound)) => {
                self.end(|ending| ending.is_released = true);
            }
            (Stage::RemoveFinalizer, Outcome::Failed(Failure::Conflict(_))) => {
                self.end(|ending| ending.is_stale = true);
            }
            (_, Outcome::Failed(failure)) => self.end(|ending| ending.failure = Some(failure)),
            // The write of the status returned the node.
            (_, Outcome::Node(Some(node))) => self.node = Shared::new(*node),
            _ => {}
        }
    }

    fn end(&mut self, change: impl FnOnce(&mut Ending)) {
        change(&mut self.ending);
        self.stage = Stage::End;
    }

    fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }
}

fn perform(request: Request) -> Ask {
    Ask::Perform(Box::new(request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::fixture::{NODE_UID, full_node, node};
    use crate::request::ClaimView;

    fn deleted() -> SeiNode {
        let mut node = node(full_node());
        node.metadata.deletion_timestamp =
            Some(serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap());
        node.metadata.finalizers = Some(vec!["keep".to_owned(), NODE_FINALIZER.to_owned()]);
        node
    }

    fn claim(controller: &str) -> Outcome {
        Outcome::Claim(Some(ClaimView {
            uid: "claim-uid".to_owned(),
            controller: Some(controller.to_owned()),
            ..ClaimView::default()
        }))
    }

    /// A deletion up to the read of its claim.
    fn at_claim() -> Deletion {
        let mut deletion = Deletion::new(deleted().into());
        let Ask::Write(status) = deletion.ask() else { panic!("the phase is written first") };
        assert_eq!(status.phase, Some(SeiNodePhase::Terminating));
        deletion
            .absorb(Outcome::Node(Some(Box::new(SeiNode { status: Some(*status), ..deleted() }))));
        assert_eq!(deletion.ask(), perform(Request::Read(Read::Claim("data-n".to_owned()))));
        deletion
    }

    fn removes_finalizer(deletion: &mut Deletion) -> bool {
        matches!(deletion.ask(), Ask::Perform(request)
            if matches!(&*request, Request::PatchFinalizers { finalizers, .. } if *finalizers == ["keep"]))
    }

    #[test]
    fn its_own_claim_is_deleted_before_the_finalizer_is_removed() {
        let mut deletion = at_claim();
        deletion.absorb(claim(NODE_UID));
        let (name, uid) = ("data-n".to_owned(), "claim-uid".to_owned());
        assert_eq!(deletion.ask(), perform(Request::DeleteClaim { name, uid }));
        deletion.absorb(Outcome::Accepted);
        assert!(removes_finalizer(&mut deletion));
        deletion.absorb(Outcome::Node(None));
        let Ask::Done(ending) = deletion.ask() else { panic!("it ends") };
        assert!(ending.is_released);
    }

    #[test]
    fn a_claim_of_another_owner_is_left_alone() {
        let mut deletion = at_claim();
        deletion.absorb(claim("another"));
        assert!(removes_finalizer(&mut deletion));
    }

    #[test]
    fn an_imported_claim_is_not_even_read() {
        let mut node = deleted();
        let volume = serde_json::json!({ "import": { "pvcName": "disk" } });
        node.spec.data_volume = serde_json::from_value(volume).unwrap();
        let mut deletion = Deletion::new(node.into());
        let Ask::Write(_) = deletion.ask() else { panic!("the phase is written first") };
        assert!(removes_finalizer(&mut deletion));
    }

    #[test]
    fn a_failed_call_keeps_the_finalizer() {
        let mut deletion = at_claim();
        deletion.absorb(claim(NODE_UID));
        let failure = Failure::Forbidden("no".to_owned());
        deletion.ask();
        deletion.absorb(Outcome::Failed(failure.clone()));
        let Ask::Done(ending) = deletion.ask() else { panic!("it ends") };
        assert_eq!((ending.failure, ending.is_released), (Some(failure), false));
    }
}
