//! Publishes Kubernetes events without delaying a reconcile.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, Recorder};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How long the server may take for one event, and for the rest of them when the operator ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many events may wait for a slow server. More are lost; client-go has the
/// same limit.
const QUEUE_MAX: usize = 1000;

/// Publishes events one after the other, outside of the reconciles: a reconcile that waited for one
/// would delay its object, and with it others.
pub struct Events(mpsc::Sender<Message>);

enum Message {
    Publish(Box<(Event, ObjectReference)>),
    /// Answered once every event before it is published or lost.
    Flush(oneshot::Sender<()>),
}

impl Events {
    /// Starts to publish, until this is dropped.
    pub fn start(recorder: Recorder) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(publish(recorder, receiver));
        Self(sender)
    }

    /// Publishes events about an object soon.
    pub fn publish(&self, about: &ObjectReference, events: Vec<Event>) {
        for event in events {
            let message = Message::Publish(Box::new((event, about.clone())));
            if self.0.try_send(message).is_err() {
                tracing::debug!("an event was lost: too many wait");
            }
        }
    }

    /// Waits until every event is published, but not longer than five seconds.
    pub async fn flush(&self) {
        let flushed = async {
            let (sender, receiver) = oneshot::channel();
            if self.0.send(Message::Flush(sender)).await.is_ok() {
                let _ = receiver.await;
            }
        };
        if timeout(PATIENCE, flushed).await.is_err() {
            tracing::debug!("the last events were lost: no response");
        }
    }
}

async fn publish(recorder: Recorder, mut queue: mpsc::Receiver<Message>) {
    while let Some(message) = queue.recv().await {
        match message {
            Message::Publish(event) => {
                let (event, about) = *event;
                match timeout(PATIENCE, recorder.publish(&event, &about)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        let error = sei_exec::call::chain(&error);
                        tracing::debug!(%error, "an event was lost");
                    }
                    Err(_) => tracing::debug!("an event was lost: no response"),
                }
            }
            // The receiver may have been dropped.
            Message::Flush(done) => drop(done.send(())),
        }
    }
}
