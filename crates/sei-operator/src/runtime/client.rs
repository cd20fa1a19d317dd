//! The operator's client of the API server.

use std::time::Duration;

use kube::client::ClientBuilder;
use kube::{Client, Config};

use super::metrics::Metrics;

/// How long a connection may deliver no data while a response is due. It exceeds the duration of a
/// watch, which the server ends after 290 s and `kube` after 295 s: an idle watch is not an error.
/// Without this timeout, a server that vanishes during a list would block the operator for ever.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// A client whose requests are counted.
pub fn counted(config: Config, metrics: &Metrics) -> kube::Result<Client> {
    let builder = ClientBuilder::try_from(hardened(config))?;
    Ok(builder.with_layer(&metrics.count_requests()).build())
}

/// Configures a client to retry nothing (after a write without a response, the operator reads the
/// object instead of writing again) and to time out.
pub fn hardened(config: Config) -> Config {
    hardened_for(config, READ_TIMEOUT)
}

fn hardened_for(mut config: Config, read_timeout: Duration) -> Config {
    config.default_retry = false;
    config.read_timeout = Some(read_timeout);
    // The time that a connection was idle in the pool does not count.
    config.reset_reader_on_write = true;
    config
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::node::Caches;
    use crate::runtime::controller::Source;

    /// A server that reads every request and never responds. Returns its address and the first
    /// lines of the requests.
    async fn unresponsive_server() -> (String, mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (requests, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let requests = requests.clone();
                tokio::spawn(async move {
                    let mut request = Vec::new();
                    while let Ok(1..) = stream.read_buf(&mut request).await {
                        let text = String::from_utf8_lossy(&request).into_owned();
                        if text.ends_with("\r\n\r\n") {
                            let line = text.lines().next().unwrap_or_default();
                            let _ = requests.send(line.to_owned());
                        }
                    }
                });
            }
        });
        (address, receiver)
    }

    #[tokio::test]
    async fn a_list_without_a_response_is_requested_again() {
        let (address, mut requests) = unresponsive_server().await;
        let config = Config::new(address.parse().unwrap());
        let client = Client::try_from(hardened_for(config, Duration::from_millis(100))).unwrap();
        let metrics = Metrics::new();
        let source = Source::start(&client, &[], &metrics);
        let _listed = Caches::default().start(&client, &[], &source, &metrics);
        let twice = async {
            let mut lists = 0;
            while lists < 2 {
                let line = requests.recv().await.unwrap();
                lists += usize::from(line.starts_with("GET /api/v1/pods?"));
            }
        };
        timeout(Duration::from_secs(30), twice).await.expect("a second list of pods");
    }

    #[test]
    fn an_idle_watch_does_not_time_out() {
        let config = hardened(Config::new("http://127.0.0.1".parse().unwrap()));
        assert!(config.read_timeout > Some(Duration::from_secs(290 + 5)));
    }
}
