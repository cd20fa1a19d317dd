//! What the watches of an operator have delivered so far. Each kind lags on its own.

use std::collections::BTreeMap;

use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_plan::request::ClaimView;
use sei_plan::shared::Shared;
use sei_plan::view::{JobView, PodView, StatefulSetView};

use crate::cluster::{Cluster, Object, PrePull};

/// The caches of one operator.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    pub nodes: BTreeMap<ObjectKey, Shared<SeiNode>>,
    pub sets: BTreeMap<ObjectKey, Shared<StatefulSetView>>,
    /// With the node in the label.
    pods: BTreeMap<ObjectKey, (String, Shared<PodView>)>,
    pub pre_pulls: BTreeMap<ObjectKey, PrePull>,
    pub claims: BTreeMap<ObjectKey, ClaimView>,
    pub services: BTreeMap<ObjectKey, Object>,
    pub config_maps: BTreeMap<ObjectKey, Object>,
    pub jobs: BTreeMap<ObjectKey, JobView>,
}

/// The kinds that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Node,
    StatefulSet,
    Pod,
    PrePull,
    Claim,
    Service,
    ConfigMap,
    Job,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Node,
        Self::StatefulSet,
        Self::Pod,
        Self::PrePull,
        Self::Claim,
        Self::Service,
        Self::ConfigMap,
        Self::Job,
    ];
}

impl Caches {
    /// The watch of a kind delivers everything up to now.
    pub fn sync(&mut self, cluster: &Cluster, kind: Kind) {
        match kind {
            Kind::Node => self.nodes.clone_from(&cluster.nodes),
            Kind::StatefulSet => self.sets.clone_from(&cluster.sets),
            Kind::Pod => {
                let view = |pod: &Shared<crate::pod::Pod>| {
                    (pod.label.clone(), Shared::new(pod.view.clone()))
                };
                self.pods =
                    cluster.pods.iter().map(|(key, pod)| (key.clone(), view(pod))).collect();
            }
            Kind::PrePull => self.pre_pulls.clone_from(&cluster.pre_pulls),
            Kind::Claim => self.claims.clone_from(&cluster.claims),
            Kind::Service => self.services.clone_from(&cluster.services),
            Kind::ConfigMap => self.config_maps.clone_from(&cluster.config_maps),
            Kind::Job => {
                let jobs = cluster.jobs.iter();
                self.jobs = jobs.map(|(key, job)| (key.clone(), job.view.clone())).collect();
            }
        }
    }

    pub fn sync_all(&mut self, cluster: &Cluster) {
        for kind in Kind::ALL {
            self.sync(cluster, kind);
        }
    }

    /// The pods with the label of a node.
    pub fn pods_of(&self, node: &ObjectKey) -> Vec<Shared<PodView>> {
        let pods = self.pods.iter();
        pods.filter(|(key, (label, _))| key.namespace == node.namespace && *label == node.name)
            .map(|(_, (_, view))| view.clone())
            .collect()
    }
}
