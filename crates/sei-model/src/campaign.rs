//! The fault campaign: a seed makes a cluster and a script of faults; safety is checked after every
//! event, then everything is healed and every node must converge.

mod act;
mod event;
mod heal;

use std::fmt::Write as _;

use sei_api::key::ObjectKey;

use crate::cluster::Cluster;
use crate::fixture::{self, Mode};
use crate::operator::{CallFault, LateCall, Operator, Step};
use crate::random::Random;

pub use event::{Act, Event, Fault, script};

/// Calls of one reconcile; more is a loop.
const CALLS_MAX: usize = 200;

/// A node of a run.
#[derive(Clone, Debug)]
pub struct Subject {
    pub key: ObjectKey,
    pub mode: Mode,
    pub chain: &'static str,
}

/// What a script begins with.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub subjects: Vec<Subject>,
    /// The nodes run when the script begins; otherwise they were just created.
    pub is_running: bool,
}

/// A cluster with an operator, in the middle of a script.
#[derive(Clone, Debug)]
pub struct Run {
    pub cluster: Cluster,
    pub operator: Operator,
    pub subjects: Vec<Subject>,
    late: Option<LateCall>,
    /// How often a former leader's call may still arrive late.
    steps: usize,
}

/// What a seed has reached.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub marks: std::collections::BTreeSet<String>,
    /// Rounds until everything had converged.
    pub rounds: usize,
}

/// Runs a seed.
pub fn run_seed(seed: u64) -> Result<Report, String> {
    let (scenario, events) = plan_of(seed);
    run_script(&scenario, &events)
}

/// Runs a seed that fails, and returns its shortest script that fails, with the failure.
pub fn explain_seed(seed: u64) -> String {
    let (scenario, events) = plan_of(seed);
    let events = shrink(&scenario, events);
    let error = run_script(&scenario, &events).err().unwrap_or_default();
    explain(seed, &scenario, &events, &error)
}

/// The nodes and the script of a seed.
pub fn plan_of(seed: u64) -> (Scenario, Vec<Event>) {
    let mut random = Random::new(seed);
    let subjects = subjects(&mut random);
    let scenario = Scenario { subjects, is_running: random.chance(75) };
    let events = script(&mut random);
    (scenario, events)
}

fn explain(seed: u64, scenario: &Scenario, events: &[Event], error: &str) -> String {
    let mut text = format!("seed {seed}: {error}\nnodes, running: {}\n", scenario.is_running);
    for subject in &scenario.subjects {
        let _ = writeln!(text, "  {} of {}: {:?}", subject.key, subject.chain, subject.mode);
    }
    text.push_str("events:\n");
    for event in events {
        let _ = writeln!(text, "  {event:?}");
    }
    let _ = write!(text, "replay: SEI_SEED={seed} cargo test -p sei-model --test campaign replay");
    text
}

fn subjects(random: &mut Random) -> Vec<Subject> {
    let count = random.pick(&[1, 1, 2, 2, 3, 4]);
    let shares_keys = random.chance(40);
    let mut all: Vec<Subject> = Vec::new();
    for index in 0..count {
        let namespace = if random.chance(80) { "ns" } else { "there" };
        let key = ObjectKey::new(namespace, ["a", "b", "c", "d"][index]);
        let chain = if random.chance(80) { "demo-1" } else { "demo-2" };
        let own = ["key-a", "key-b", "key-c", "key-d"][index];
        let mode = match random.below(10) {
            0..=3 => Mode::Full,
            4 => Mode::Bootstrap,
            5..=8 if shares_keys => {
                Mode::Validator { key: "shared", secret: random.pick(&["shared", own]) }
            }
            5..=8 => Mode::Validator { key: own, secret: own },
            _ => Mode::Imported { claim: random.pick(&["volume", "volume", own]) },
        };
        all.push(Subject { key, mode, chain });
    }
    all
}

/// Runs a script, then heals everything.
pub fn run_script(scenario: &Scenario, events: &[Event]) -> Result<Report, String> {
    let mut run = Run::new(&scenario.subjects);
    if scenario.is_running {
        run.start()?;
    }
    for event in events {
        run.apply(event);
        run.check()?;
    }
    run.settle()?;
    let rounds = run.heal_and_converge()?;
    Ok(Report { marks: run.cluster.safety.marks, rounds })
}

/// A shorter script that fails too: events are removed as long as that is so.
fn shrink(scenario: &Scenario, mut events: Vec<Event>) -> Vec<Event> {
    let mut size = events.len().div_ceil(2);
    while size > 0 {
        let mut start = 0;
        while start < events.len() {
            let mut fewer = events.clone();
            fewer.drain(start..(start + size).min(events.len()));
            if run_script(scenario, &fewer).is_err() {
                events = fewer;
            } else {
                start += size;
            }
        }
        size /= 2;
    }
    events
}

impl Run {
    pub fn new(subjects: &[Subject]) -> Self {
        let mut cluster = fixture::cluster();
        for Subject { key, mode, chain } in subjects {
            fixture::provide(&mut cluster, key, mode);
            cluster.create_node(key, fixture::spec(mode, chain));
            cluster.wait(1);
        }
        let operator = Operator::new(&cluster);
        Self { cluster, operator, subjects: subjects.to_vec(), late: None, steps: 0 }
    }

    /// The node that a number selects.
    fn key(&self, which: usize) -> ObjectKey {
        self.subjects[which % self.subjects.len()].key.clone()
    }

    /// The violations so far.
    pub fn check(&mut self) -> Result<(), String> {
        self.steps += 1;
        self.cluster.check_signers();
        match self.cluster.safety.violations.first() {
            Some(violation) => Err(format!("event {}: {violation}", self.steps)),
            None => Ok(()),
        }
    }

    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Reconcile(which) => {
                let key = self.key(*which);
                self.operator.begin(&mut self.cluster, &key);
                self.finish(&key);
            }
            Event::Begin(which) => {
                let key = self.key(*which);
                self.operator.begin(&mut self.cluster, &key);
            }
            Event::Call(which, fault) => self.call(*which, *fault),
            Event::Crash => {
                let ahead = self.operator.clock_ahead;
                self.operator = Operator::new(&self.cluster);
                self.operator.clock_ahead = ahead;
                self.cluster.safety.mark("crash");
            }
            Event::LeaderChange(which) => self.change_leader(*which),
            Event::LateCall => self.arrive_late(),
            Event::Sync(kind) => self.operator.caches.sync(&self.cluster, *kind),
            Event::SyncAll => self.operator.caches.sync_all(&self.cluster),
            Event::Probe(which) => {
                let key = self.key(*which);
                self.operator.probe(&self.cluster, &key);
            }
            Event::Wait(seconds) => {
                // A call does not take longer than this.
                self.late = None;
                self.cluster.wait(*seconds);
            }
            Event::ClockAhead(seconds) => self.operator.clock_ahead = *seconds,
            Event::User(which, act) => self.act(*which, *act),
            Event::Fault(which, fault) => self.fault(*which, *fault),
            Event::Round => {
                self.late = None;
                // A violation is found by the check that follows.
                let _ = self.round(20);
            }
            environment => self.run_environment(environment),
        }
    }

    fn run_environment(&mut self, event: &Event) {
        let cluster = &mut self.cluster;
        let subjects = &self.subjects;
        let key = |which: &usize| subjects[which % subjects.len()].key.clone();
        match event {
            Event::ObserveSet(which) => cluster.observe_set(&key(which)),
            Event::ScaleSet(which) => cluster.scale_set(&key(which), false),
            Event::ScaleSetStale(which) => {
                // It may create a signer beside none: a pod of the same name replaces the former one.
                cluster.scale_set(&key(which), true);
                cluster.safety.mark("stale controller");
            }
            Event::Kubelet(which) | Event::Sidecar(which) => {
                let pods: Vec<ObjectKey> = cluster.pods.keys().cloned().collect();
                let Some(pod) = pods.get(which % pods.len().max(1)) else { return };
                if matches!(event, Event::Kubelet(_)) {
                    cluster.run_kubelet(pod);
                } else {
                    cluster.run_tasks(pod);
                }
            }
            Event::CollectGarbage => cluster.collect_garbage(),
            Event::Pull(which) => cluster.pull(&key(which)),
            Event::Job(which) => cluster.run_job(&key(which)),
            _ => cluster.run_all(),
        }
    }

    fn call(&mut self, which: usize, fault: CallFault) {
        let running = self.operator.running();
        if running.is_empty() {
            let key = self.key(which);
            self.operator.begin(&mut self.cluster, &key);
            return;
        }
        let key = running[which % running.len()].clone();
        if fault != CallFault::None {
            self.cluster.safety.mark(format!("call {fault:?}"));
        }
        self.operator.step(&mut self.cluster, &key, fault);
    }

    /// Performs a reconcile up to its end. Returns the number of its calls and writes.
    pub fn finish(&mut self, key: &ObjectKey) -> usize {
        for calls in 0..CALLS_MAX {
            match self.operator.step(&mut self.cluster, key, CallFault::None) {
                Step::Called(_) | Step::Wrote => {}
                Step::Idle | Step::Locked | Step::Ended(_) | Step::Aborted => return calls,
            }
        }
        self.cluster.safety.violations.push(format!("{key}: a reconcile does not end"));
        CALLS_MAX
    }

    fn change_leader(&mut self, which: usize) {
        let running = self.operator.running();
        let key = running.get(which % running.len().max(1)).cloned();
        let late = key.and_then(|key| self.operator.last_call(&key));
        self.late = late.filter(LateCall::is_write);
        self.operator = Operator::new(&self.cluster);
        self.cluster.safety.mark("leader change");
    }

    fn arrive_late(&mut self) {
        if let Some(late) = self.late.take() {
            self.cluster.safety.mark("late call");
            late.arrive(&mut self.cluster);
        }
    }

    /// The calls that are under way arrive, or never do.
    fn settle(&mut self) -> Result<(), String> {
        self.late = None;
        self.check()
    }
}
