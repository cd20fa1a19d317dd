//! How the operator calls the API server.

use std::time::Duration;

use kube::Config;

/// How long a connection may stay silent while an answer is due. Longer than a watch may, which the
/// server ends after 290 s and `kube` gives up after 295 s: a watch of nothing is no fault. Without
/// a bound, a server that vanished while it was asked for a list would be waited for for ever.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// The configuration of a client that repeats nothing by itself (an unanswered write is looked at,
/// not made again) and waits for nothing without end.
pub fn hardened(config: Config) -> Config {
    hardened_for(config, SILENCE_MAX)
}

fn hardened_for(mut config: Config, silence: Duration) -> Config {
    config.default_retry = false;
    config.read_timeout = Some(silence);
    // The time that a connection lay in the pool is not the server's.
    config.reset_reader_on_write = true;
    config
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::node::Caches;
    use crate::runtime::controller::Source;
    use crate::runtime::metrics::Metrics;

    /// A server that takes every request and answers none; tells what it was asked for.
    async fn silent() -> (String, mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (asked, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let asked = asked.clone();
                tokio::spawn(async move {
                    let mut request = Vec::new();
                    while let Ok(1..) = stream.read_buf(&mut request).await {
                        let text = String::from_utf8_lossy(&request).into_owned();
                        if text.ends_with("\r\n\r\n") {
                            let _ = asked.send(text.lines().next().unwrap_or_default().to_owned());
                        }
                    }
                });
            }
        });
        (address, receiver)
    }

    #[tokio::test]
    async fn a_list_that_is_never_answered_is_asked_for_again() {
        let (address, mut asked) = silent().await;
        let config = Config::new(address.parse().unwrap());
        let client = Client::try_from(hardened_for(config, Duration::from_millis(100))).unwrap();
        let source = Source::new(kube::Api::all(client.clone()));
        let metrics = Metrics::new();
        let _listed = Caches::default().start(&client, None, &source.queue(), &metrics);
        let twice = async {
            let mut lists = 0;
            while lists < 2 {
                let line = asked.recv().await.unwrap();
                lists += usize::from(line.starts_with("GET /api/v1/pods?"));
            }
        };
        timeout(Duration::from_secs(30), twice).await.expect("a second list of pods");
    }

    #[test]
    fn a_watch_in_which_nothing_happens_is_not_cut_off() {
        let config = hardened(Config::new("http://127.0.0.1".parse().unwrap()));
        assert!(config.read_timeout > Some(Duration::from_secs(290 + 5)));
    }
}
