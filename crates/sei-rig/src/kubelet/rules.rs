//! What scenarios want from pods.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A behaviour, and the pods that show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    behaviour: Behaviour,
    node: Option<String>,
    image: Option<String>,
}

/// What a pod does that it would rather not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// The image cannot be had, so the container never runs. Without an image in the rule it is the
    /// node's own, which its first init container has too: then the sidecar never starts either.
    ImageUnpullable,
    /// The chain process ends soon after the gate let it start, again and again.
    Crashes,
    /// The same, without waiting for the gate: the image has no shell, say.
    CrashesAtOnce,
    /// The chain stands still: the process runs and is not ready.
    Halted,
    /// Containers start after this time, if that is longer than usual.
    StartsSlowly(Duration),
    /// The chain process is ready only this long after it was let start: it catches up first.
    ReadySlowly(Duration),
    /// Deleted, it stays.
    StuckTerminating,
    /// No machine has room for it.
    Unschedulable,
    /// The sidecar accepts connections and says nothing.
    SidecarHangs,
    /// Nobody listens where the sidecar should.
    SidecarRefuses,
}

impl Rule {
    /// Of every pod of the namespace.
    pub fn new(behaviour: Behaviour) -> Self {
        Self { behaviour, node: None, image: None }
    }

    /// Of this node's pods only.
    #[must_use]
    pub fn of_node(mut self, node: &str) -> Self {
        self.node = Some(node.to_owned());
        self
    }

    /// Of pods only whose chain process has this image. What cannot be pulled is this image,
    /// whichever container wants it.
    #[must_use]
    pub fn of_image(mut self, image: &str) -> Self {
        self.image = Some(image.to_owned());
        self
    }
}

/// Names a rule, to take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

impl RuleId {
    /// Another one each time.
    pub(super) fn draw() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Self(COUNT.fetch_add(1, Ordering::Relaxed))
    }
}

/// All rules that hold now.
#[derive(Debug, Default)]
pub(super) struct Rules {
    all: Vec<(RuleId, String, Rule)>,
}

/// What a rule is looked up by.
#[derive(Clone, Copy)]
pub(super) struct Whose<'a> {
    pub(super) namespace: &'a str,
    pub(super) node: &'a str,
    /// Of the chain process.
    pub(super) image: &'a str,
}

impl Rules {
    pub(super) fn add(&mut self, id: RuleId, namespace: &str, rule: Rule) {
        self.all.push((id, namespace.to_owned(), rule));
    }

    pub(super) fn remove(&mut self, id: RuleId) {
        self.all.retain(|(one, _, _)| *one != id);
    }

    pub(super) fn remove_all(&mut self, namespace: &str) {
        self.all.retain(|(_, one, _)| one != namespace);
    }

    fn of<'a>(&'a self, whose: Whose<'a>) -> impl Iterator<Item = &'a Rule> {
        self.all.iter().filter_map(move |(_, namespace, rule)| {
            let is_its = namespace == whose.namespace
                && rule.node.as_deref().is_none_or(|node| node == whose.node);
            is_its.then_some(rule)
        })
    }

    pub(super) fn has(&self, whose: Whose<'_>, behaviour: &Behaviour) -> bool {
        self.of(whose).any(|rule| rule.behaviour == *behaviour && is_of_image(rule, whose.image))
    }

    pub(super) fn start_delay(&self, whose: Whose<'_>) -> Option<Duration> {
        let rules = self.of(whose).filter(|rule| is_of_image(rule, whose.image));
        rules
            .filter_map(|rule| match rule.behaviour {
                Behaviour::StartsSlowly(delay) => Some(delay),
                _ => None,
            })
            .max()
    }

    pub(super) fn ready_delay(&self, whose: Whose<'_>) -> Option<Duration> {
        let rules = self.of(whose).filter(|rule| is_of_image(rule, whose.image));
        rules
            .filter_map(|rule| match rule.behaviour {
                Behaviour::ReadySlowly(delay) => Some(delay),
                _ => None,
            })
            .max()
    }

    /// Whether a container that wants this image does not get it.
    pub(super) fn is_unpullable(&self, whose: Whose<'_>, desired: &str) -> bool {
        self.of(whose).filter(|rule| rule.behaviour == Behaviour::ImageUnpullable).any(|rule| {
            let image = rule.image.as_deref().unwrap_or(whose.image);
            image == desired
        })
    }
}

fn is_of_image(rule: &Rule, image: &str) -> bool {
    rule.image.as_deref().is_none_or(|one| one == image)
}
