//! The comparison of canaries with nodes that have not got the template: a canary must compute the app
//! hash that the chain agreed on.
//!
//! The application of a canary reports its hash after a height, and the header of the next block on
//! another node has the hash that is right. A node that diverges stops before that block, so its own
//! headers are never wrong. The first hash may have been computed by the image before: it can show a
//! difference, and only one of a later height shows that there is none.
//!
//! What was read is kept in the status, because the next block does not exist yet when a canary is read.
//! A fact that cannot be had is waited for.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sei_api::fleet::{AppHashComparison, AppHashResult, SeiNodeDeployment};

use super::rollout::{Comparison, Member};
use super::{FleetRequest, FleetSnapshot};
use crate::chain::{AppHash, NoFacts, NoHeader};
use crate::planner::later;
use crate::view::{PodView, own_pod};

/// How many nodes a canary is compared with in one pass. Each read can take seconds, and one answer is
/// enough.
const READ_MAX: usize = 3;

const UNREAD: &str = "its app hash is not compared yet";
const NO_REFERENCE: &str =
    "its app hash cannot be compared: no running node is left without the template";
const NO_PROCESS: &str = "its app hash cannot be read: its chain process does not run";
const NO_READS: &str = "its app hash cannot be read: the operator runs with --rpc-reads 0";

/// Whether the fleet asks for comparisons.
fn is_required(fleet: &SeiNodeDeployment) -> bool {
    let rules = fleet.spec.update_strategy.in_place.as_ref();
    let health = rules.and_then(|rules| rules.health.as_ref());
    health.is_some_and(|health| health.require_same_app_hash == Some(true))
}

/// The comparisons of a rollout in one pass.
#[derive(Clone, Debug)]
pub(super) struct Comparisons {
    is_needed: bool,
    canaries: BTreeMap<String, Canary>,
}

/// What is known of a canary.
#[derive(Clone, Debug, Default)]
struct Canary {
    record: Option<AppHashComparison>,
    /// What it waits for.
    waiting: Option<String>,
    /// Nodes without the block that it is compared at.
    without_block: Vec<String>,
    /// The recorded hash shows nothing more; a later one has to be read.
    is_outdated: bool,
    /// This pass reads nothing more for it.
    is_done: bool,
}

impl Comparisons {
    /// The stored comparisons with the template of this hash. The template that every node had before
    /// the rollout is compared with nothing: the nodes that never lost it have nothing else to show.
    pub(super) fn begin(snapshot: &FleetSnapshot, hash: &str) -> Self {
        let status = snapshot.status();
        let before = status.and_then(|status| status.template_hash.as_deref());
        let rollout = status.and_then(|status| status.rollout.as_ref());
        let stored = rollout.filter(|rollout| rollout.target_hash == hash).into_iter();
        let canaries = stored.flat_map(|rollout| &rollout.app_hashes).map(|record| {
            let canary = Canary { record: Some(record.clone()), ..Canary::default() };
            (record.node.clone(), canary)
        });
        Self {
            is_needed: is_required(&snapshot.fleet) && before.is_some_and(|before| before != hash),
            canaries: canaries.collect(),
        }
    }

    pub(super) fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// What is known of a canary.
    pub(super) fn of(&self, name: &str) -> Comparison {
        let canary = self.canaries.get(name);
        let record = canary.and_then(|canary| canary.record.as_ref());
        match record.and_then(|record| record.result) {
            Some(AppHashResult::Equal) => Comparison::Passed,
            Some(AppHashResult::Different) => {
                Comparison::Diverged(record.map(difference).unwrap_or_default())
            }
            None => {
                let why = canary.and_then(|canary| canary.waiting.clone());
                Comparison::Waiting(why.unwrap_or_else(|| UNREAD.to_owned()))
            }
        }
    }

    /// The records of canaries, for the status.
    pub(super) fn records(&self, members: &[Member]) -> Vec<AppHashComparison> {
        let is_member = |name: &String| members.iter().any(|member| member.name == *name);
        let records = self.canaries.iter().filter(|(name, _)| self.is_needed && is_member(name));
        records.filter_map(|(_, canary)| canary.record.clone()).collect()
    }

    /// What has to be read next.
    pub(super) fn step(
        &mut self,
        snapshot: &FleetSnapshot,
        members: &[Member],
    ) -> Option<FleetRequest> {
        let open: Vec<&Member> = members.iter().filter(|member| member.is_compared()).collect();
        let references = references(snapshot, members);
        for member in open {
            let canary = self.canaries.entry(member.name.clone()).or_default();
            if let Some(request) = canary.step(snapshot, &member.name, &references) {
                return Some(request);
            }
        }
        None
    }

    /// Takes in what the application of a canary reports.
    pub(super) fn absorb_app_hash(
        &mut self,
        snapshot: &FleetSnapshot,
        name: &str,
        read: Result<AppHash, NoFacts>,
    ) {
        let pod = pod_of(snapshot, name).map(|pod| pod.uid.clone()).unwrap_or_default();
        let canary = self.canaries.entry(name.to_owned()).or_default();
        canary.is_done = true;
        let AppHash { height, hash } = match read {
            Ok(read) => read,
            Err(why) => {
                canary.waiting = Some(format!("its app hash cannot be read: {why}"));
                return;
            }
        };
        match &mut canary.record {
            Some(record) if height <= record.height => {
                let height = record.height;
                canary.waiting = Some(format!("its height does not grow: {height}"));
            }
            Some(record) => (record.height, record.app_hash) = (height, hash),
            None => {
                canary.record = Some(AppHashComparison {
                    node: name.to_owned(),
                    pod,
                    first_height: height,
                    height,
                    app_hash: hash,
                    ..AppHashComparison::default()
                });
            }
        }
    }

    /// Takes in the header that another node has of the block after the canary's height.
    pub(super) fn absorb_header(
        &mut self,
        name: &str,
        reference: &str,
        read: Result<AppHash, NoHeader>,
    ) {
        let Some(canary) = self.canaries.get_mut(name) else { return };
        let Some(record) = &mut canary.record else { return };
        let hash = match read {
            Ok(read) if read.height == record.height => read.hash,
            Ok(_) => return canary.without_block(reference, &NoFacts::Unreadable.into()),
            Err(why) => return canary.without_block(reference, &why),
        };
        let is_equal = hash == record.app_hash;
        if is_equal && record.height == record.first_height {
            canary.is_outdated = true;
            return;
        }
        record.compared_with = Some(reference.to_owned());
        record.expected = (!is_equal).then_some(hash);
        record.result =
            Some(if is_equal { AppHashResult::Equal } else { AppHashResult::Different });
        canary.is_done = true;
    }
}

/// When facts are read again.
pub(super) fn due(snapshot: &FleetSnapshot, members: &[Member]) -> Option<Timestamp> {
    // Another pod of a canary that has diverged is reported by its node.
    let is_open = |member: &&Member| matches!(member.comparison, Comparison::Waiting(_));
    members.iter().find(is_open).map(|_| later(snapshot.now, snapshot.timing.poll()))
}

impl Canary {
    fn step(
        &mut self,
        snapshot: &FleetSnapshot,
        name: &str,
        references: &[(String, String)],
    ) -> Option<FleetRequest> {
        let pod = pod_of(snapshot, name);
        // Another pod may have been given other data, so it is compared again.
        let is_same = |record: &AppHashComparison| {
            record.result == Some(AppHashResult::Equal)
                || pod.is_none_or(|pod| pod.uid == record.pod)
        };
        self.record = self.record.take().filter(is_same);
        let is_compared = self.record.as_ref().is_some_and(|record| record.result.is_some());
        if self.is_done || is_compared {
            return None;
        }
        let chain_id = snapshot.fleet.spec.template.spec.chain_id.clone();
        let ip = pod.filter(|pod| is_running(pod)).and_then(|pod| pod.ip.clone());
        let ip = match ip {
            _ if !snapshot.reads_rpc => return self.wait(NO_READS),
            None => return self.wait(NO_PROCESS),
            Some(ip) => ip,
        };
        let height = self.record.as_ref().map(|record| record.height);
        let Some(height) = height.filter(|_| !self.is_outdated) else {
            return Some(FleetRequest::ReadAppHash { node: name.to_owned(), ip, chain_id });
        };
        if references.is_empty() {
            return self.wait(NO_REFERENCE);
        }
        let is_open = |(name, _): &&(String, String)| !self.without_block.contains(name);
        let Some((reference, ip)) = references.iter().find(is_open) else {
            self.is_done = true;
            return None;
        };
        Some(FleetRequest::ReadHeader {
            canary: name.to_owned(),
            node: reference.clone(),
            ip: ip.clone(),
            chain_id,
            height: height + 1,
        })
    }

    fn wait(&mut self, why: &str) -> Option<FleetRequest> {
        self.waiting = Some(why.to_owned());
        self.is_done = true;
        None
    }

    /// The node has not got the block. One that is pruned does not come back: a later hash is compared.
    fn without_block(&mut self, reference: &str, why: &NoHeader) {
        self.without_block.push(reference.to_owned());
        self.is_outdated |= *why == NoHeader::Pruned;
        self.waiting = Some(format!(
            "its app hash cannot be compared with a node without the template: {why}"
        ));
    }
}

/// The nodes that a canary can be compared with, and their addresses: a few of those that have not got
/// the template and run. A different few each time, so that one that is silent holds up nothing for long.
fn references(snapshot: &FleetSnapshot, members: &[Member]) -> Vec<(String, String)> {
    let outdated = members.iter().filter(|member| !member.has_template());
    let mut all: Vec<_> = outdated
        .filter_map(|member| {
            let pod = pod_of(snapshot, &member.name).filter(|pod| is_running(pod))?;
            Some((member.name.clone(), pod.ip.clone()?))
        })
        .collect();
    if all.len() > READ_MAX {
        let poll = i64::try_from(snapshot.timing.poll().as_millis()).unwrap_or(1).max(1);
        let turn = snapshot.now.as_millisecond() / poll;
        let turn = usize::try_from(turn).unwrap_or(0) % all.len();
        all.rotate_left(turn);
        all.truncate(READ_MAX);
    }
    all
}

/// The pod of a node.
fn pod_of<'a>(snapshot: &'a FleetSnapshot, name: &str) -> Option<&'a PodView> {
    let node = snapshot.nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name))?;
    let objects = snapshot.objects.get(name)?;
    let set = objects.statefulset.as_deref();
    own_pod(&objects.pods, set, node.metadata.uid.as_deref()?).map(|pod| &**pod)
}

fn is_running(pod: &PodView) -> bool {
    pod.seid.running && !pod.is_terminating()
}

fn difference(record: &AppHashComparison) -> String {
    let AppHashComparison { height, app_hash, compared_with, expected, .. } = record;
    let reference = compared_with.as_deref().unwrap_or_default();
    let expected = expected.as_deref().unwrap_or_default();
    format!(
        "it diverges from the chain: its app hash after height {height} is {app_hash}, that of {reference} \
         is {expected}"
    )
}

impl FleetSnapshot {
    /// Whether decisions about this fleet read the objects of its nodes.
    pub fn needs_objects(fleet: &SeiNodeDeployment) -> bool {
        let status = fleet.status.as_ref();
        status.is_some_and(|status| status.plan.is_some()) || is_required(fleet)
    }
}
