//! Rules by which scenarios change the behaviour of pods.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::rpc::RpcFault;

/// A behaviour and the pods that it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    behaviour: Behaviour,
    node: Option<String>,
    image: Option<Images>,
}

/// The images that a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Images {
    One(String),
    /// All whose name contains this text.
    Containing(String),
}

impl Images {
    fn include(&self, image: &str) -> bool {
        match self {
            Self::One(name) => name == image,
            Self::Containing(text) => image.contains(text.as_str()),
        }
    }
}

/// A fault or a delay of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// The image cannot be pulled, so the container never runs. Without an image in the rule it is the
    /// node's own, which the first init container has too: then the sidecar never starts either.
    ImageUnpullable,
    /// The same only for the node's own pod: the registry lost the image after it was pulled first.
    ImageVanishes,
    /// The chain process ends soon after the readiness gate opened, repeatedly.
    Crashes,
    /// The same before the readiness gate opens, for example because the image has no shell.
    CrashesAtOnce,
    /// The chain is halted: the process runs but is not ready.
    Halted,
    /// Containers start after this time, if it is longer than the default.
    StartsSlowly(Duration),
    /// The chain process becomes ready this long after its start: it catches up first.
    ReadySlowly(Duration),
    /// The pod that pulls the images of an update never ends its pull.
    PullHangs,
    /// A deleted pod keeps terminating.
    StuckTerminating,
    /// No Kubernetes node has enough resources.
    Unschedulable,
    /// The sidecar accepts connections and never responds.
    SidecarHangs,
    /// The sidecar's port is closed.
    SidecarRefuses,
    /// The chain process panics soon after its start, repeatedly, with this termination message;
    /// an empty one is not reported.
    Panics(String),
    /// The RPC of the chain process misbehaves.
    Rpc(RpcFault),
}

impl Rule {
    /// Applies to every pod of the namespace.
    pub fn new(behaviour: Behaviour) -> Self {
        Self { behaviour, node: None, image: None }
    }

    /// Restricts the rule to the pods of this node.
    #[must_use]
    pub fn of_node(mut self, node: &str) -> Self {
        self.node = Some(node.to_owned());
        self
    }

    /// Restricts the rule to pods whose chain process has this image. For `ImageUnpullable` it is the
    /// image that cannot be pulled, in any container.
    #[must_use]
    pub fn of_image(mut self, image: &str) -> Self {
        self.image = Some(Images::One(image.to_owned()));
        self
    }

    /// The same for all images whose name contains this text.
    #[must_use]
    pub fn of_images_containing(mut self, text: &str) -> Self {
        self.image = Some(Images::Containing(text.to_owned()));
        self
    }
}

/// Identifies a rule, to remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(u64);

impl RuleId {
    /// A new id.
    pub(super) fn next() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Self(COUNT.fetch_add(1, Ordering::Relaxed))
    }
}

/// All present rules.
#[derive(Debug, Default)]
pub(super) struct Rules {
    all: Vec<(RuleId, String, Rule)>,
}

/// The properties of a pod that rules select by.
#[derive(Clone, Copy)]
pub(super) struct PodKey<'a> {
    pub(super) namespace: &'a str,
    pub(super) node: &'a str,
    /// Image of the chain process.
    pub(super) image: &'a str,
    pub(super) is_pre_pull: bool,
}

impl Rules {
    pub(super) fn add(&mut self, id: RuleId, namespace: &str, rule: Rule) {
        self.all.push((id, namespace.to_owned(), rule));
    }

    pub(super) fn remove(&mut self, id: RuleId) {
        self.all.retain(|(rule_id, _, _)| *rule_id != id);
    }

    pub(super) fn remove_all(&mut self, namespace: &str) {
        self.all.retain(|(_, rule_namespace, _)| rule_namespace != namespace);
    }

    fn of<'a>(&'a self, pod: PodKey<'a>) -> impl Iterator<Item = &'a Rule> {
        self.all.iter().filter_map(move |(_, namespace, rule)| {
            let applies = namespace == pod.namespace
                && rule.node.as_deref().is_none_or(|node| node == pod.node);
            applies.then_some(rule)
        })
    }

    pub(super) fn has(&self, pod: PodKey<'_>, behaviour: &Behaviour) -> bool {
        self.of(pod).any(|rule| rule.behaviour == *behaviour && is_of_image(rule, pod.image))
    }

    /// How the RPC misbehaves.
    pub(super) fn rpc_faults(&self, pod: PodKey<'_>) -> Vec<RpcFault> {
        RpcFault::ALL.into_iter().filter(|fault| self.has(pod, &Behaviour::Rpc(*fault))).collect()
    }

    /// The termination message with which the chain process panics.
    pub(super) fn panics(&self, pod: PodKey<'_>) -> Option<String> {
        let mut rules = self.of(pod).filter(|rule| is_of_image(rule, pod.image));
        rules.find_map(|rule| match &rule.behaviour {
            Behaviour::Panics(message) => Some(message.clone()),
            _ => None,
        })
    }

    pub(super) fn start_delay(&self, pod: PodKey<'_>) -> Option<Duration> {
        let rules = self.of(pod).filter(|rule| is_of_image(rule, pod.image));
        rules
            .filter_map(|rule| match rule.behaviour {
                Behaviour::StartsSlowly(delay) => Some(delay),
                _ => None,
            })
            .max()
    }

    pub(super) fn ready_delay(&self, pod: PodKey<'_>) -> Option<Duration> {
        let rules = self.of(pod).filter(|rule| is_of_image(rule, pod.image));
        rules
            .filter_map(|rule| match rule.behaviour {
                Behaviour::ReadySlowly(delay) => Some(delay),
                _ => None,
            })
            .max()
    }

    /// Whether this image cannot be pulled.
    pub(super) fn is_unpullable(&self, pod: PodKey<'_>, image: &str) -> bool {
        self.of(pod)
            .filter(|rule| match rule.behaviour {
                Behaviour::ImageUnpullable => true,
                Behaviour::ImageVanishes => !pod.is_pre_pull,
                _ => false,
            })
            .any(|rule| match &rule.image {
                Some(images) => images.include(image),
                None => pod.image == image,
            })
    }
}

fn is_of_image(rule: &Rule, image: &str) -> bool {
    rule.image.as_ref().is_none_or(|images| images.include(image))
}
