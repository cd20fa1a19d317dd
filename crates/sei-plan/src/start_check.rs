//! Who may sign: the checks between the decision to start a pod and the write that starts it.
//!
//! Caches are not enough here: of two nodes created at the same time each may not have seen the
//! other, and the pod of a deleted node signs until it has ended. So everything is read live, and
//! the shell lets one start at a time through (see [`StartCheck::is_exclusive`]).

use std::collections::VecDeque;

use sei_api::SeiNode;
use sei_api::key::ObjectKey;

use crate::request::{Failure, Outcome, Read, Request};
use crate::signers;

/// The checks before one request.
#[derive(Clone, Debug)]
pub struct StartCheck {
    /// The request that starts a pod, or lets one sign that did not.
    request: Request,
    exclusive: bool,
    /// The node as the live read returned it.
    live: Option<Box<SeiNode>>,
    reads: VecDeque<Read>,
}

/// How far the checks have come.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Read this next.
    Read(Read),
    /// The request may be performed.
    Allowed(Request),
}

impl StartCheck {
    /// Begins the checks for a request of `node`.
    pub fn new(node: &SeiNode, request: Request) -> Self {
        let exclusive = signers::is_exclusive(node);
        Self { request, exclusive, live: None, reads: VecDeque::from([Read::Node]) }
    }

    /// Whether the node has a key or a volume that only one node may use. The shell lets one such
    /// check run at a time, from its first read until the request is performed.
    pub fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    pub fn request(&self) -> &Request {
        &self.request
    }

    pub fn next(&self) -> Verdict {
        match self.reads.front() {
            Some(read) => Verdict::Read(read.clone()),
            None => Verdict::Allowed(self.request.clone()),
        }
    }

    /// Takes in what the last read brought. An error forbids the request.
    pub fn absorb(&mut self, node: &SeiNode, outcome: Outcome) -> Result<(), Failure> {
        let read = self.reads.pop_front();
        match (read, outcome) {
            (_, Outcome::Failed(failure)) => Err(failure),
            (Some(Read::Node), Outcome::Node(found)) => self.absorb_node(node, found),
            (Some(Read::Nodes), Outcome::Nodes(all)) => self.absorb_nodes(&all),
            (Some(Read::HasStatefulSet(other)), Outcome::HasStatefulSet(exists)) => {
                let message = format!("{other} has started with the same key");
                if exists { Err(Failure::SigningKey(message)) } else { Ok(()) }
            }
            (Some(Read::Mounts), Outcome::Mounts(mounts)) => {
                let user = self.live.as_ref().and_then(|live| signers::still_used(live, &mounts));
                user.map_or(Ok(()), |user| {
                    let message = format!("{user} still has the signing key or volume");
                    Err(Failure::SigningKey(message))
                })
            }
            (read, outcome) => {
                Err(Failure::Indeterminate(format!("{read:?} was answered by {outcome:?}")))
            }
        }
    }

    /// Nothing is started for a node that was deleted, replaced by one of the same name, or edited
    /// since the decision: it may be stopped, or have another key.
    fn absorb_node(&mut self, node: &SeiNode, found: Option<Box<SeiNode>>) -> Result<(), Failure> {
        let (then, uid) = (&node.metadata, &node.metadata.uid);
        let same = found
            .filter(|now| now.metadata.uid == *uid && now.metadata.deletion_timestamp.is_none());
        let Some(live) = same else {
            return Err(Failure::Indeterminate("the node was deleted meanwhile".to_owned()));
        };
        if live.metadata.generation != then.generation {
            return Err(Failure::Indeterminate("the node was edited meanwhile".to_owned()));
        }
        if self.exclusive {
            self.reads.push_back(Read::Nodes);
        }
        self.live = Some(live);
        Ok(())
    }

    fn absorb_nodes(&mut self, all: &[SeiNode]) -> Result<(), Failure> {
        let Some(live) = &self.live else { return Ok(()) };
        if let Some(holder) = signers::older_holder(live, all) {
            let message = format!("{holder} has the same signing key or volume");
            return Err(Failure::SigningKey(message));
        }
        let rivals = signers::rivals(live, all).into_iter();
        let keys = rivals.map(|rival| ObjectKey::of(&rival.metadata));
        self.reads.extend(keys.map(Read::HasStatefulSet));
        self.reads.push_back(Read::Mounts);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::fixture::{full_node, node, validator};
    use crate::request::MountView;

    fn start() -> Request {
        Request::PatchStatefulSet(serde_json::json!({ "spec": { "replicas": 1 } }))
    }

    /// Answers reads in turn; what was read, and how it ended.
    fn check(node: &SeiNode, answers: Vec<Outcome>) -> (Vec<Read>, Result<(), Failure>) {
        let mut check = StartCheck::new(node, start());
        let mut reads = Vec::new();
        for answer in answers {
            let Verdict::Read(read) = check.next() else { panic!("one answer too many") };
            reads.push(read);
            if let Err(failure) = check.absorb(node, answer) {
                return (reads, Err(failure));
            }
        }
        assert_eq!(check.next(), Verdict::Allowed(start()));
        (reads, Ok(()))
    }

    fn live(node: &SeiNode) -> Outcome {
        Outcome::Node(Some(Box::new(node.clone())))
    }

    #[test]
    fn a_node_that_does_not_sign_is_only_read_again() {
        let node = node(full_node());
        assert_eq!(check(&node, vec![live(&node)]), (vec![Read::Node], Ok(())));
    }

    #[test]
    fn a_signer_reads_nodes_and_mounts() {
        let node = node(validator());
        let answers =
            vec![live(&node), Outcome::Nodes(vec![node.clone()]), Outcome::Mounts(vec![])];
        assert_eq!(check(&node, answers), (vec![Read::Node, Read::Nodes, Read::Mounts], Ok(())));
    }

    #[test]
    fn a_deleted_replaced_or_edited_node_starts_nothing() {
        let node = node(full_node());
        let mut replaced = node.clone();
        replaced.metadata.uid = Some("another".to_owned());
        let mut edited = node.clone();
        edited.metadata.generation = Some(7);
        let absent = Outcome::Node(None);
        for (answer, message) in [
            (absent, "the node was deleted meanwhile"),
            (live(&replaced), "the node was deleted meanwhile"),
            (live(&edited), "the node was edited meanwhile"),
        ] {
            let (_, ended) = check(&node, vec![answer]);
            assert_eq!(ended, Err(Failure::Indeterminate(message.to_owned())));
        }
    }

    #[test]
    fn a_younger_node_with_the_key_blocks_once_it_has_a_statefulset() {
        let mut node = node(validator());
        node.metadata.creation_timestamp =
            Some(serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap());
        let mut rival = node.clone();
        rival.metadata.name = Some("rival".to_owned());
        rival.metadata.uid = Some("rival-uid".to_owned());
        rival.metadata.creation_timestamp =
            Some(serde_json::from_value("2026-01-02T00:00:00Z".into()).unwrap());
        let nodes = Outcome::Nodes(vec![node.clone(), rival]);
        let (reads, ended) = check(&node, vec![live(&node), nodes, Outcome::HasStatefulSet(true)]);
        assert_eq!(reads[2], Read::HasStatefulSet(ObjectKey::new("ns", "rival")));
        let message = "ns/rival has started with the same key".to_owned();
        assert_eq!(ended, Err(Failure::SigningKey(message)));
    }

    #[test]
    fn a_pod_that_still_mounts_the_key_blocks() {
        let node = node(validator());
        let pod = MountView {
            kind: "pod",
            name: "old-0".to_owned(),
            node: Some("old".to_owned()),
            secrets: vec!["signing".to_owned()],
            ..MountView::default()
        };
        let answers = vec![live(&node), Outcome::Nodes(vec![]), Outcome::Mounts(vec![pod])];
        let message = "pod old-0 still has the signing key or volume".to_owned();
        assert_eq!(check(&node, answers).1, Err(Failure::SigningKey(message)));
    }
}
