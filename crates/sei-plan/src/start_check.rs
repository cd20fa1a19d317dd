//! Who may sign: the checks between the decision to start a pod and the write that starts it.
//!
//! Caches are not enough here: of two nodes created at the same time each may not have seen the
//! other, and the pod of a deleted node signs until it has ended. So everything is read live, and
//! the shell lets one start at a time through (see [`StartCheck::is_exclusive`]).

use std::collections::VecDeque;

use sei_api::SeiNode;
use sei_api::condition::Reason;
use sei_api::key::ObjectKey;
use sei_api::names::annotation;
use sei_api::status::SeiNodePhase;

use crate::request::{Failure, MountView, Outcome, Read, Request, SecretView};
use crate::signers;
use crate::signing_key::SigningKey;
use crate::signing_record::{self, SigningRecord};

/// The checks before one request.
#[derive(Clone, Debug)]
pub struct StartCheck {
    /// The request that starts a pod, or lets one sign that did not.
    request: Request,
    exclusive: bool,
    /// The node as the live read returned it.
    live: Option<Box<SeiNode>>,
    /// Whom the node would sign as, by its Secret.
    identity: Option<String>,
    candidates: Vec<SeiNode>,
    mounts: Vec<MountView>,
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
        Self {
            request,
            exclusive: signers::is_exclusive(node),
            live: None,
            identity: None,
            candidates: Vec::new(),
            mounts: Vec::new(),
            reads: VecDeque::from([Read::Node]),
        }
    }

    /// Whether the node has a key or a volume that only one node may use. The shell lets one such
    /// check run at a time, from its first read until the request is performed.
    pub fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Whom the node would sign as, once its Secret was read.
    pub fn identity(&self) -> Option<&String> {
        self.identity.as_ref()
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
            (Some(Read::Secret(name)), Outcome::Secret(found)) => {
                self.absorb_secret(&name, found.as_ref())
            }
            (Some(Read::SigningRecord(_)), Outcome::SigningRecord(found)) => {
                self.absorb_record(found.as_ref())
            }
            (Some(Read::Nodes), Outcome::Nodes(all)) => {
                self.absorb_nodes(&all);
                Ok(())
            }
            (Some(Read::Mounts { .. }), Outcome::Mounts(mounts)) => {
                self.mounts.extend(mounts);
                if self.reads.is_empty() { self.conclude() } else { Ok(()) }
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
            self.reads.extend(live.spec.signing_secret().map(|name| Read::Secret(name.to_owned())));
            self.reads.push_back(Read::Nodes);
        }
        self.live = Some(live);
        Ok(())
    }

    /// The Secret may have another key than the one that was recorded. Others compare with the
    /// record, so it is corrected before the node starts.
    fn absorb_secret(&mut self, name: &str, found: Option<&SecretView>) -> Result<(), Failure> {
        let refuse = |reason, text: &str| {
            Err(Failure::NotStarted { reason, message: format!("Secret {name}: {text}") })
        };
        let Some(secret) = found.filter(|secret| !secret.terminating) else {
            return refuse(Reason::SecretMissing, "not found, or being deleted");
        };
        let key = match SigningKey::read(secret) {
            Ok(SigningKey { disagrees: Some(field), .. }) => {
                let text = format!("{field} does not belong to its private key");
                return refuse(Reason::InvalidSpec, &text);
            }
            Ok(key) => key,
            Err(text) => return refuse(Reason::InvalidSpec, &text),
        };
        let status = self.live.as_ref().and_then(|live| live.status.as_ref());
        let recorded = status.and_then(|status| status.signing_identity.as_ref());
        let is_recorded = recorded == Some(&key.identity);
        let identity = self.identity.insert(key.identity);
        if is_recorded {
            if let Some(live) = self.live.as_ref().filter(|live| starts_on_a_new_volume(live)) {
                let name = signing_record::name(&live.spec.chain_id, identity);
                self.reads.push_front(Read::SigningRecord(name));
            }
            return Ok(());
        }
        let message = "the signing identity has to be recorded in status first";
        Err(Failure::Indeterminate(message.to_owned()))
    }

    /// A node with this key was deleted: what it signed is known to its volume only.
    fn absorb_record(&self, found: Option<&SigningRecord>) -> Result<(), Failure> {
        let (Some(live), Some(record), Some(identity)) = (&self.live, found, &self.identity) else {
            return Ok(());
        };
        let accepted = annotation::ACCEPT_BLANK_SIGNING_STATE;
        let accepted = live.metadata.annotations.as_ref().and_then(|all| all.get(accepted));
        if accepted == Some(identity) || record.is_successor(live) {
            return Ok(());
        }
        let (reason, message) = (Reason::SigningStateLost, record.refusal(identity));
        Err(Failure::NotStarted { reason, message })
    }

    fn absorb_nodes(&mut self, all: &[SeiNode]) {
        let Some(live) = &self.live else { return };
        let found = signers::candidates(live, self.identity.as_deref(), all);
        self.candidates = found.into_iter().cloned().collect();
        let own = ObjectKey::of(&live.metadata);
        let elsewhere = self.candidates.iter().map(|node| ObjectKey::of(&node.metadata));
        let elsewhere = elsewhere
            .filter(|key| key.namespace != own.namespace)
            .map(|key| Read::Mounts { namespace: key.namespace, node: Some(key.name) });
        self.reads.push_back(Read::Mounts { namespace: own.namespace.clone(), node: None });
        self.reads.extend(elsewhere);
    }

    fn conclude(&self) -> Result<(), Failure> {
        let Some(live) = &self.live else { return Ok(()) };
        let candidates: Vec<&SeiNode> = self.candidates.iter().collect();
        let identity = self.identity.as_deref();
        match signers::conflict(live, identity, &candidates, &self.mounts) {
            Some(message) => {
                Err(Failure::NotStarted { reason: Reason::SigningKeyConflict, message })
            }
            None => Ok(()),
        }
    }
}

/// Whether the node has not run yet, and its volume is none that a user has named.
fn starts_on_a_new_volume(node: &SeiNode) -> bool {
    let phase = node.status.as_ref().and_then(|status| status.phase);
    phase != Some(SeiNodePhase::Running) && node.spec.imported_claim().is_none()
}

#[cfg(test)]
pub(crate) mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::planner::fixture::{full_node, node, validator};
    use crate::signing_key;

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

    /// A validator whose identity is recorded, and the Secret of that key.
    fn signer(key: &str) -> (SeiNode, Outcome) {
        let mut node = node(validator());
        let file = (signing_key::FILE.to_owned(), signing_key::made_up(key).to_string().into());
        let secret = SecretView { terminating: false, data: [file].into() };
        let status = node.status.get_or_insert_default();
        status.signing_identity = Some(SigningKey::read(&secret).unwrap().identity);
        (node, Outcome::Secret(Some(secret)))
    }

    fn mounts(namespace: &str, node: Option<&str>) -> Read {
        Read::Mounts { namespace: namespace.to_owned(), node: node.map(str::to_owned) }
    }

    fn refused(reason: Reason, message: &str) -> Result<(), Failure> {
        Err(Failure::NotStarted { reason, message: message.to_owned() })
    }

    #[test]
    fn a_signer_reads_its_key_all_nodes_and_their_mounts() {
        let (node, secret) = signer("a");
        let (mut copy, _) = signer("a");
        copy.metadata.name = Some("copy".to_owned());
        copy.metadata.uid = Some("copy-uid".to_owned());
        copy.metadata.namespace = Some("there".to_owned());
        let nodes = Outcome::Nodes(vec![node.clone(), copy]);
        let nothing = || Outcome::Mounts(vec![]);
        let unrecorded = Outcome::SigningRecord(None);
        let identity = node.status.as_ref().unwrap().signing_identity.clone().unwrap();
        let answers = vec![live(&node), secret, unrecorded, nodes, nothing(), nothing()];
        let reads = vec![
            Read::Node,
            Read::Secret("signing".to_owned()),
            Read::SigningRecord(signing_record::name(&node.spec.chain_id, &identity)),
            Read::Nodes,
            mounts("ns", None),
            mounts("there", Some("copy")),
        ];
        let (read, ended) = check(&node, answers);
        assert_eq!(read, reads);
        // Neither has a creation time; the one whose name comes first starts.
        let message = "there/copy has the same signing key or volume";
        assert_eq!(ended, refused(Reason::SigningKeyConflict, message));
    }

    /// The outcome of the first start of a signer after a node with its key was deleted.
    pub(crate) fn after_record(change: impl Fn(&mut SeiNode)) -> Result<(), Failure> {
        let (mut node, secret) = signer("a");
        node.metadata.creation_timestamp = Some(Time("2026-01-02T00:00:00Z".parse().unwrap()));
        change(&mut node);
        let record = SigningRecord {
            node: "old".to_owned(),
            deleted_at: "2026-01-01T00:00:00Z".to_owned(),
            written_at: Some("2026-01-01T00:01:00Z".parse().unwrap()),
        };
        let mut check = StartCheck::new(&node, start());
        while let Verdict::Read(read) = check.next() {
            let answer = match read {
                Read::Node => live(&node),
                Read::Secret(_) => secret.clone(),
                Read::SigningRecord(_) => Outcome::SigningRecord(Some(record.clone())),
                Read::Nodes => Outcome::Nodes(vec![node.clone()]),
                _ => Outcome::Mounts(Vec::new()),
            };
            check.absorb(&node, answer)?;
        }
        Ok(())
    }

    #[test]
    fn a_signer_does_not_start_on_a_new_volume_after_a_deleted_node_with_its_key() {
        let lost = |result: Result<(), Failure>| {
            matches!(result, Err(Failure::NotStarted { reason: Reason::SigningStateLost, .. }))
        };
        let accept = |identity: Option<&'static str>| {
            move |node: &mut SeiNode| {
                let own = node.status.as_ref().and_then(|status| status.signing_identity.clone());
                let identity = identity.map_or(own.unwrap(), str::to_owned);
                let annotations = node.metadata.annotations.get_or_insert_default();
                annotations.insert(annotation::ACCEPT_BLANK_SIGNING_STATE.to_owned(), identity);
            }
        };
        assert!(lost(after_record(|_| {})));
        assert!(lost(after_record(accept(Some("another")))));
        assert_eq!(after_record(accept(None)), Ok(()), "accepted");
        let waited = |node: &mut SeiNode| {
            let before = "2026-01-01T00:01:00Z".parse().unwrap();
            node.metadata.creation_timestamp = Some(Time(before));
        };
        assert_eq!(after_record(waited), Ok(()), "the key was moved to it");
        let runs = |node: &mut SeiNode| {
            node.status.as_mut().unwrap().phase = Some(SeiNodePhase::Running);
        };
        assert_eq!(after_record(runs), Ok(()), "it has signed on its volume");
        let imports = |node: &mut SeiNode| {
            let import = serde_json::json!({ "import": { "pvcName": "restored" } });
            node.spec.data_volume = serde_json::from_value(import).unwrap();
        };
        assert_eq!(after_record(imports), Ok(()), "the user names the volume");
    }

    #[test]
    fn a_key_that_was_exchanged_is_recorded_before_it_signs() {
        let (node, _) = signer("a");
        let (_, secret) = signer("b");
        let mut check = StartCheck::new(&node, start());
        check.absorb(&node, live(&node)).unwrap();
        let Err(Failure::Indeterminate(_)) = check.absorb(&node, secret) else {
            panic!("it does not start")
        };
        let (exchanged, _) = signer("b");
        assert_eq!(check.identity(), exchanged.status.unwrap().signing_identity.as_ref());
    }

    #[test]
    fn a_signer_does_not_start_without_its_secret() {
        let (node, _) = signer("a");
        let (_, ended) = check(&node, vec![live(&node), Outcome::Secret(None)]);
        let message = "Secret signing: not found, or being deleted";
        assert_eq!(ended, refused(Reason::SecretMissing, message));
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
    fn a_pod_that_still_mounts_the_key_blocks() {
        let (node, secret) = signer("a");
        let pod = MountView {
            kind: "pod",
            namespace: "ns".to_owned(),
            name: "old-0".to_owned(),
            node: Some("old".to_owned()),
            secrets: vec!["signing".to_owned()],
            ..MountView::default()
        };
        let unrecorded = Outcome::SigningRecord(None);
        let (nodes, pods) = (Outcome::Nodes(vec![]), Outcome::Mounts(vec![pod]));
        let answers = vec![live(&node), secret, unrecorded, nodes, pods];
        let message = "pod old-0 still has the signing key or volume";
        assert_eq!(check(&node, answers).1, refused(Reason::SigningKeyConflict, message));
    }
}
