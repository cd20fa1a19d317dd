//! All stored versions of a node's status. A test that polls the status could miss a state that
//! lasts only a short time.

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

/// The statuses of one node in order, from its creation on.
pub(crate) struct StatusHistory {
    seen: Arc<Mutex<Seen>>,
    /// The watch; aborted on drop.
    _task: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    statuses: Vec<SeiNodeStatus>,
    is_initialized: bool,
    /// The watch was restarted, so statuses may be missing.
    has_gap: bool,
}

impl StatusHistory {
    /// Starts with the status that is stored now.
    pub(crate) async fn of(scenario: &Scenario, node: &str) -> Result<Self> {
        let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
        let (nodes, seen) = (scenario.nodes(), Arc::<Mutex<Seen>>::default());
        let (mut task, recorded) = (JoinSet::new(), seen.clone());
        task.spawn(async move {
            let mut events = std::pin::pin!(watcher(nodes, config).default_backoff());
            while let Some(event) = events.next().await {
                recorded.lock().unwrap_or_else(PoisonError::into_inner).record(event);
            }
        });
        let history = Self { seen, _task: task };
        history
            .find("its status history has started", |seen| seen.is_initialized.then_some(()))
            .await?;
        Ok(history)
    }

    /// Waits until one of the statuses satisfies the predicate, and returns the first of them.
    pub(crate) async fn first(
        &self,
        claim: &str,
        predicate: impl Fn(&SeiNodeStatus) -> bool,
    ) -> Result<SeiNodeStatus> {
        self.find(claim, |seen| seen.statuses.iter().find(|status| predicate(status)).cloned())
            .await
    }

    /// All statuses so far.
    pub(crate) async fn all(&self) -> Result<Vec<SeiNodeStatus>> {
        self.find("the history is readable", |seen| Some(seen.statuses.clone())).await
    }

    async fn find<T>(&self, claim: &str, select: impl Fn(&Seen) -> Option<T>) -> Result<T> {
        wait_for(claim, async || {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            ensure!(!seen.has_gap, "the history has a gap: its watch was restarted");
            Ok(select(&seen))
        })
        .await
    }
}

impl Seen {
    fn record(&mut self, event: watcher::Result<Event<SeiNode>>) {
        match event {
            Ok(Event::Apply(node) | Event::InitApply(node)) => self.statuses.extend(node.status),
            Ok(Event::InitDone) => self.is_initialized = true,
            Ok(Event::Init) if self.is_initialized => self.has_gap = true,
            // After an error the watch continues, or restarts with `Init`.
            Ok(Event::Init | Event::Delete(_)) | Err(_) => {}
        }
    }
}
