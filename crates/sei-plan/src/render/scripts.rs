//! The shell scripts in the pods. Part of the template: each changed character restarts pods.
//!
//! They use what a minimal image has: a POSIX shell with `sed`, and bash for its `/dev/tcp`. No
//! curl, no wget. Paths are written out instead of `$HOME`, which is not the data directory.

use super::{DATA_DIR, port};

/// Script of `seid-init`: creates a home directory if there is none, on every start of the pod.
///
/// `keyring_backend` (validators only) is written on every boot, because it follows the spec. It
/// is written at the top of the file: at the end it would belong to the last table.
pub(super) fn init(chain_id: &str, keyring_backend: Option<&str>) -> String {
    let chain = quoted(chain_id);
    let home = format!(
        "set -eu
if [ -e {DATA_DIR}/config/genesis.json ]; then
  echo 'genesis.json exists, keeping the home directory as it is'
else
  seid init {chain} --chain-id {chain} --home {DATA_DIR} --overwrite
fi
mkdir -p {DATA_DIR}/tmp
"
    );
    let Some(backend) = keyring_backend else { return home };
    format!(
        "{home}client={DATA_DIR}/config/client.toml
mkdir -p {DATA_DIR}/config
touch \"$client\"
{{
  echo 'keyring-backend = \"{backend}\"'
  sed '/^[[:space:]]*keyring-backend[[:space:]]*=/d' \"$client\"
}} > \"$client.new\"
mv -f \"$client.new\" \"$client\"
"
    )
}

/// Waits until the sidecar lets the chain process start. Holds rely on this gate, so the script
/// calls the sidecar itself on the pod's loopback, not the proxy.
fn wait_for_sidecar(sidecar_port: i32) -> String {
    format!(
        "sidecar_is_ready() (
  exec 3<>/dev/tcp/localhost/{sidecar_port} || exit 1
  printf 'GET /v0/healthz HTTP/1.0\\r\\n\\r\\n' >&3
  IFS= read -r -t 5 status <&3 || exit 1
  [[ $status == *' 200'* ]]
)
echo 'waiting for the sidecar to open the start gate'
until sidecar_is_ready 2>/dev/null; do
  sleep 5
done
"
    )
}

/// Script of `seid`. The last command replaces the shell, so that a stop signal reaches the chain
/// process itself.
pub(super) fn start(sidecar_port: i32) -> String {
    format!("{}exec seid start --home {DATA_DIR}\n", wait_for_sidecar(sidecar_port))
}

/// Script of `cosmos-exporter`, which exits if the chain's gRPC port is closed when it starts.
pub(super) fn exporter() -> String {
    format!(
        "until (exec 3<>/dev/tcp/localhost/{grpc}) 2>/dev/null; do
  sleep 5
done
exec /usr/local/bin/sei-cosmos-exporter --denom usei --denom-coefficient 1000000 \
--bech-prefix sei --listen-address :{metrics}
",
        grpc = port::GRPC,
        metrics = port::COSMOS_METRICS,
    )
}

/// Script of `seid` in the bootstrap Job. The chain process ends itself at the halt height by a
/// signal. It ends with 0 if it handles signals by then, and with 130 or 143 if it is still starting.
/// A stop from outside ends it with the same codes and is no success: the height was not reached.
/// The shell has to stay to translate the status, so it forwards a stop, also one that comes while the
/// child is started; job control (`set -m`) keeps bash from starting the child with SIGINT ignored.
pub(super) fn bootstrap(sidecar_port: i32, halt_height: i64) -> String {
    format!(
        "{wait}stopped=
seid=
trap 'stopped=yes; kill -TERM \"$seid\" 2>/dev/null' TERM INT
set -m
seid start --home {DATA_DIR} --halt-height {halt_height} &
seid=$!
set +m
if [ -n \"$stopped\" ]; then
  kill -TERM \"$seid\" 2>/dev/null
fi
while kill -0 \"$seid\" 2>/dev/null; do
  wait \"$seid\"
done
wait \"$seid\"
status=$?
if [ -n \"$stopped\" ]; then
  echo 'stopped before the halt height'
  exit 143
fi
case $status in
  0 | 130 | 143)
    echo 'reached the halt height'
    exit 0
    ;;
esac
exit \"$status\"
",
        wait = wait_for_sidecar(sidecar_port),
    )
}

/// A shell word, quoted only where necessary.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
