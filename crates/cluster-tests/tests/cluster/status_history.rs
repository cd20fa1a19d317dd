//! Everything that was ever stored of a node's status: what is true for a moment only is missed by
//! whoever begins to look when it is expected.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use cluster_tests::scenario::Scenario;
use cluster_tests::wait_for;
use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use sei_api::SeiNode;
use sei_api::status::SeiNodeStatus;
use tokio::task::JoinSet;

/// The statuses of one node in their order, from a moment on.
pub(crate) struct History {
    seen: Arc<Mutex<Seen>>,
    /// Aborted with it.
    _task: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    all: Vec<SeiNodeStatus>,
    has_begun: bool,
    /// The watch began anew: some may be missing.
    has_gap: bool,
}

impl History {
    /// Begins with what is stored now.
    pub(crate) async fn of(scenario: &Scenario, node: &str) -> Result<Self> {
        let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
        let (nodes, seen) = (scenario.nodes(), Arc::<Mutex<Seen>>::default());
        let (mut task, ours) = (JoinSet::new(), seen.clone());
        task.spawn(async move {
            let mut events = std::pin::pin!(watcher(nodes, config).default_backoff());
            while let Some(event) = events.next().await {
                ours.lock().unwrap_or_else(PoisonError::into_inner).see(event);
            }
        });
        let history = Self { seen, _task: task };
        history.find("its history is written", |seen| seen.has_begun.then_some(())).await?;
        Ok(history)
    }

    /// Waits until one of the statuses is like this, and returns the first that was.
    pub(crate) async fn first(
        &self,
        claim: &str,
        is: impl Fn(&SeiNodeStatus) -> bool,
    ) -> Result<SeiNodeStatus> {
        self.find(claim, |seen| seen.all.iter().find(|status| is(status)).cloned()).await
    }

    /// All of them so far.
    pub(crate) async fn all(&self) -> Result<Vec<SeiNodeStatus>> {
        self.find("there is some", |seen| Some(seen.all.clone())).await
    }

    async fn find<T>(&self, claim: &str, find: impl Fn(&Seen) -> Option<T>) -> Result<T> {
        wait_for(claim, async || {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            ensure!(!seen.has_gap, "the history has a gap: its watch began anew");
            Ok(find(&seen))
        })
        .await
    }
}

impl Seen {
    fn see(&mut self, event: watcher::Result<Event<SeiNode>>) {
        match event {
            Ok(Event::Apply(node) | Event::InitApply(node)) => self.all.extend(node.status),
            Ok(Event::InitDone) => self.has_begun = true,
            Ok(Event::Init) if self.has_begun => self.has_gap = true,
            // After an error it goes on where it was, or begins anew.
            Ok(Event::Init | Event::Delete(_)) | Err(_) => {}
        }
    }
}
