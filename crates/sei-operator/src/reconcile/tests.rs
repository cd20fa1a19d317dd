use kube::core::DeserializeGuard;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector;
use kube::{Client, Config};
use sei_api::SeiNodeSpec;
use sei_plan::fingerprint::Algorithm;
use sei_plan::platform::Platform;
use sei_plan::timing::Timing;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};

use super::*;
use crate::caches::{Caches, Wake};
use crate::context::Witnesses;
use crate::events::Events;
use crate::metrics::Metrics;

#[tokio::test]
async fn a_panic_over_one_node_is_a_failed_look_at_it() {
    let look = async { None::<Went>.ok_or_else(|| panic!("no {}", "way")) };
    let failed = contained(look).await.err().expect("a failure");
    assert!(matches!(&failed, Error::Panicked(text) if text == "no way"), "{failed}");
    assert_eq!(failed.category(), "panic");
}

/// A server that says of everything that it is not there, but not before it is told to answer.
/// Tells when it was asked first.
async fn slow_server(asked: Arc<Notify>, answers: Arc<Notify>) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let _ = stream.read(&mut request).await.unwrap();
        asked.notify_one();
        answers.notified().await;
        let head = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
    });
    Client::try_from(Config::new(address.parse().unwrap())).unwrap()
}

fn context(client: Client) -> Arc<Context> {
    let sample = include_str!("../../../../config/samples/install/platform.yaml");
    let platform = Arc::new(Platform::parse(sample, "platform.yaml").unwrap());
    let (sender, _) = mpsc::unbounded_channel();
    let reporter = Reporter { controller: "test".to_owned(), instance: None };
    Arc::new(Context {
        sidecar: sei_exec::sidecar::Sidecar::new(None),
        caches: Caches::default(),
        nodes: reflector::store().0,
        wake: Wake(sender),
        desks: Arc::default(),
        ledger: crate::ledger::Ledger::default(),
        signing: tokio::sync::Mutex::default(),
        namespace: None,
        witnesses: Witnesses::new(None, platform.clone()),
        platform,
        events: Events::start(Recorder::new(client.clone(), reporter)),
        timing: Timing::default(),
        version: String::new(),
        algorithm: Algorithm::CURRENT,
        metrics: Metrics::new(),
        leading_since: Instant::now(),
        node_ids: std::sync::Mutex::default(),
        client,
    })
}

#[tokio::test]
async fn a_look_that_the_controller_drops_comes_to_its_end() {
    let (asked, answers) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let context = context(slow_server(asked.clone(), answers.clone()).await);
    let mut node = SeiNode::new("a", SeiNodeSpec::default());
    node.metadata.namespace = Some("ns".into());
    let node = Arc::new(DeserializeGuard(Ok(node)));
    let dropped = tokio::spawn(reconcile(node, context.clone()));
    asked.notified().await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    let mut closed = Box::pin(context.desks.close());
    assert!(closed.as_mut().now_or_never().is_none(), "its finalizer is still being written");
    answers.notify_one();
    tokio::time::timeout(Duration::from_secs(10), closed).await.expect("an end");
}
