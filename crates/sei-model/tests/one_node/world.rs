//! One node with an operator whose caches do not lag.

use sei_api::SeiNode;
use sei_api::condition::{self, ConditionStatus, ConditionType};
use sei_api::key::ObjectKey;
use sei_api::names::{NODE_FINALIZER, data_claim};
use sei_api::node::SeiNodeSpec;
use sei_api::status::{SeiNodePhase, SeiNodeStatus};
use sei_model::cluster::{Cluster, pod_key};
use sei_model::fixture::{self, Mode};
use sei_model::operator::{CallFault, Operator, Step};
use sei_model::pod::Pod;
use sei_model::render::Rendered;
use sei_plan::planner::{self, PlanMove};
use sei_plan::request::Request;
use sei_plan::shared::Shared;
use sei_plan::snapshot::Slot;
use sei_plan::view::StatefulSetView;

pub(crate) struct World {
    pub(crate) cluster: Cluster,
    operator: Operator,
    pub(crate) key: ObjectKey,
}

/// What a pass did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    pub(crate) calls: usize,
    pub(crate) writes: usize,
    pub(crate) report: String,
}

const VALIDATOR: Mode = Mode::Validator { key: "a", secret: "signing" };

pub(crate) fn full_node() -> SeiNodeSpec {
    fixture::spec(&Mode::Full, "demo-1")
}

pub(crate) fn validator() -> SeiNodeSpec {
    fixture::spec(&VALIDATOR, "demo-1")
}

/// What the environment can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Observe,
    Scale,
    Kubelet,
}

impl World {
    pub(crate) fn new(spec: SeiNodeSpec) -> Self {
        let mut cluster = fixture::cluster();
        cluster.faults.instant_tasks = true;
        let key = ObjectKey::new("ns", "n");
        fixture::provide(&mut cluster, &key, &VALIDATOR);
        cluster.create_node(&key, spec);
        cluster.change_node(&key, |node| {
            node.metadata.finalizers = Some(vec![NODE_FINALIZER.to_owned()]);
        });
        let operator = Operator::new(&cluster);
        Self { cluster, operator, key }
    }

    pub(crate) fn node(&self) -> &SeiNode {
        &self.cluster.nodes[&self.key]
    }

    pub(crate) fn status(&self) -> SeiNodeStatus {
        self.cluster.status(&self.key)
    }

    pub(crate) fn set(&self) -> Option<&StatefulSetView> {
        self.cluster.sets.get(&self.key).map(|set| &**set)
    }

    pub(crate) fn pod(&self) -> Option<&Pod> {
        self.cluster.own_pod(&self.key).map(|pod| &**pod)
    }

    pub(crate) fn deleted(&self) -> usize {
        self.cluster.safety.deleted.len()
    }

    pub(crate) fn has_claim(&self) -> bool {
        self.cluster.claims.get(&claim_key()).is_some_and(|claim| !claim.terminating)
    }

    /// The volume is lost with its claim; the uid of the claim.
    pub(crate) fn lose_claim(&mut self) -> Option<String> {
        let key = claim_key();
        self.cluster.claims.remove(&key).map(|claim| claim.uid)
    }

    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut SeiNodeSpec)) {
        let key = self.key.clone();
        self.cluster.edit(&key, change);
    }

    pub(crate) fn change_status(&mut self, change: impl FnOnce(&mut SeiNodeStatus)) {
        let key = self.key.clone();
        self.cluster.change_node(&key, |node| change(node.status.get_or_insert_default()));
    }

    pub(crate) fn annotate(&mut self, name: &str, value: &str) {
        let key = self.key.clone();
        self.cluster.annotate(&key, name, Some(value));
    }

    pub(crate) fn change_pod(&mut self, change: impl FnOnce(&mut Pod)) {
        let at = pod_key(&self.key);
        self.cluster.change_pod(&at, change);
        self.cluster.report_pod(&at);
    }

    pub(crate) fn wait(&mut self, seconds: i64) {
        self.cluster.wait(seconds);
    }

    /// The pod is deleted by an eviction, not by the operator.
    pub(crate) fn evict(&mut self) {
        let at = pod_key(&self.key);
        self.cluster.delete_pod(&at);
    }

    pub(crate) fn step(&mut self, step: Move) {
        let key = self.key.clone();
        match step {
            Move::Observe => self.cluster.observe_set(&key),
            Move::Scale => self.cluster.scale_set(&key, false),
            Move::Kubelet => {
                self.cluster.pull(&key);
                self.cluster.run_kubelet(&pod_key(&key));
            }
        }
    }

    pub(crate) fn step_all(&mut self) {
        for step in [Move::Observe, Move::Kubelet, Move::Scale, Move::Kubelet] {
            self.step(step);
        }
    }

    /// A crashed operator starts again; progress that it has not written is lost.
    pub(crate) fn restart(&mut self) {
        self.operator = Operator::new(&self.cluster);
    }

    pub(crate) fn pass(&mut self) -> Trace {
        self.pass_crashing_after(usize::MAX)
    }

    /// One pass of the operator; it crashes after `calls` calls.
    pub(crate) fn pass_crashing_after(&mut self, calls: usize) -> Trace {
        let key = self.key.clone();
        self.operator.caches.sync_all(&self.cluster);
        self.operator.probe(&self.cluster, &key);
        self.operator.begin(&mut self.cluster, &key);
        let mut trace = Trace::default();
        while trace.calls < calls {
            let step = self.operator.step(&mut self.cluster, &key, CallFault::None);
            assert_eq!(self.cluster.safety.violations, Vec::<String>::new());
            match step {
                Step::Called(request) if matches!(*request, Request::TakeSlot(_)) => {}
                Step::Called(_) => trace.calls += 1,
                Step::Wrote => {
                    trace.calls += 1;
                    trace.writes += 1;
                }
                Step::Ended(ending) => {
                    let report: Vec<_> = ending.report.iter().map(ToString::to_string).collect();
                    trace.report = report.join("; ");
                    return trace;
                }
                Step::Idle | Step::Locked | Step::Aborted => return trace,
            }
        }
        self.restart();
        trace
    }

    /// The status after one decision, and after deciding again on it.
    pub(crate) fn decide_twice(&mut self) -> (SeiNodeStatus, SeiNodeStatus) {
        let key = self.key.clone();
        self.operator.caches.sync_all(&self.cluster);
        self.operator.probe(&self.cluster, &key);
        let mut snapshot = self.operator.take_snapshot(&mut self.cluster, &key);
        snapshot.slot = Some(Slot::Granted);
        let mut decide = || {
            let decision = planner::plan(&snapshot);
            let mut status = snapshot.status().clone();
            decision.apply(&mut status, snapshot.generation(), snapshot.now);
            snapshot.node.status = Some(status.clone());
            snapshot.status = status.clone();
            // A failure is reported before anything follows it; only then is it decided upon.
            let shown = matches!(decision.plan, PlanMove::Clear);
            (status, shown)
        };
        let (mut once, shown) = decide();
        if shown {
            once = decide().0;
        }
        let (twice, _) = decide();
        (once, twice)
    }

    pub(crate) fn rendered(&self) -> Rendered {
        self.cluster.platforms.render(self.node()).expect("the spec is valid")
    }

    /// Whether the world matches the spec, with nothing left to do.
    pub(crate) fn matches(&self) -> bool {
        let rendered = self.rendered();
        let desired = &rendered.desired;
        let status = self.status();
        let (Some(pod), Some(set)) = (self.pod(), self.set()) else { return false };
        let in_sync = condition::is(
            &status.conditions,
            ConditionType::PodTemplateDrift,
            ConditionStatus::False,
        );
        status.phase == Some(SeiNodePhase::Running)
            && status.plan.is_none()
            && status.current_image.as_deref() == Some(desired.image.as_str())
            && status.pod_template_hash.as_deref() == Some(desired.hash.as_str())
            && set.template == *rendered.template
            && pod.gate_open
            && pod.view.deleted_at.is_none()
            && set.observed_revision() == pod.view.revision.as_deref()
            && in_sync
            && self.cluster.pre_pulls.is_empty()
    }

    /// Nothing fails from here on. Returns the number of passes it took.
    pub(crate) fn converge(&mut self) -> usize {
        for pass in 0..120 {
            if self.matches() {
                // A node must be Ready for a while before its slot is released.
                self.wait(20);
                if self.pass().writes == 0 && self.matches() {
                    self.assert_quiet();
                    return pass;
                }
            }
            self.pass();
            self.step_all();
            self.wait(20);
        }
        let last = self.pass();
        let mut status = self.status();
        let plan = status.plan.take().map(|plan| (plan.kind, plan.target));
        panic!("not converged: {}\n{plan:?}\n{status:?}\n{:?}", last.report, self.pod());
    }

    /// At rest no pass makes a request or a write.
    fn assert_quiet(&mut self) {
        for _ in 0..3 {
            self.wait(3600);
            let trace = self.pass();
            assert_eq!(trace.calls, 0, "{trace:?}");
        }
    }

    /// A younger node with the same key has a StatefulSet.
    pub(crate) fn start_rival(&mut self) {
        self.cluster.wait(1);
        let key = ObjectKey::new("ns", "rival");
        self.cluster.create_node(&key, validator());
        let node = self.cluster.nodes[&key].clone();
        let rendered = self.cluster.platforms.render(&node).expect("the spec is valid");
        let object = rendered.desired.statefulset.unpack();
        self.cluster.sets.insert(key, Shared::new(StatefulSetView::from(&object)));
    }

    pub(crate) fn remove_rival(&mut self) {
        let key = ObjectKey::new("ns", "rival");
        self.cluster.nodes.remove(&key);
        self.cluster.sets.remove(&key);
    }
}

fn claim_key() -> ObjectKey {
    ObjectKey::new("ns", data_claim("n"))
}
