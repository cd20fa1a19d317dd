//! The text of the scripts. They are part of the template, so the whole text is the expectation.

use expect_test::expect;

use super::super::scripts;

#[test]
fn init_creates_a_home_once() {
    expect![[r"
        set -eu
        if [ -e /home/nonroot/.sei/config/genesis.json ]; then
          echo 'genesis.json exists, keeping the home directory as it is'
        else
          seid init demo-1 --chain-id demo-1 --home /home/nonroot/.sei --overwrite
        fi
        mkdir -p /home/nonroot/.sei/tmp
    "]]
    .assert_eq(&scripts::init("demo-1", None));
}

#[test]
fn init_sets_a_validators_keyring_backend_on_every_boot() {
    let script = scripts::init("demo-1", Some("file"));
    let rest = script.strip_prefix(&scripts::init("demo-1", None)).unwrap();
    expect![[r#"
        client=/home/nonroot/.sei/config/client.toml
        mkdir -p /home/nonroot/.sei/config
        touch "$client"
        {
          echo 'keyring-backend = "file"'
          sed '/^[[:space:]]*keyring-backend[[:space:]]*=/d' "$client"
        } > "$client.new"
        mv -f "$client.new" "$client"
    "#]]
    .assert_eq(rest);
    assert!(scripts::init("demo-1", Some("test")).contains(r#"keyring-backend = "test""#));
}

#[test]
fn a_chain_id_cannot_escape_its_shell_quotes() {
    let script = scripts::init("a'; rm -rf / #", None);
    assert!(
        script.contains(r"seid init 'a'\''; rm -rf / #' --chain-id 'a'\''; rm -rf / #' --home")
    );
}

#[test]
fn seid_waits_for_the_sidecar_and_then_replaces_the_shell() {
    expect![[r"
        sidecar_is_ready() (
          exec 3<>/dev/tcp/localhost/7788 || exit 1
          printf 'GET /v0/healthz HTTP/1.0\r\n\r\n' >&3
          IFS= read -r -t 5 status <&3 || exit 1
          [[ $status == *' 200'* ]]
        )
        echo 'waiting for the sidecar to open the start gate'
        until sidecar_is_ready 2>/dev/null; do
          sleep 5
        done
        exec seid start --home /home/nonroot/.sei
    "]]
    .assert_eq(&scripts::start(7788));
}

#[test]
fn the_exporter_waits_for_grpc() {
    expect![[r"
        until (exec 3<>/dev/tcp/localhost/9090) 2>/dev/null; do
          sleep 5
        done
        exec /usr/local/bin/sei-cosmos-exporter --denom usei --denom-coefficient 1000000 --bech-prefix sei --listen-address :9300
    "]].assert_eq(&scripts::exporter());
}

/// The script of the bootstrap Job without the wait for the sidecar.
fn bootstrap_after_wait(halt_height: i64) -> String {
    let script = scripts::bootstrap(7777, halt_height);
    let wait = scripts::start(7777);
    let wait = wait.strip_suffix("exec seid start --home /home/nonroot/.sei\n").unwrap();
    script.strip_prefix(wait).unwrap().to_owned()
}

#[test]
fn bootstrap_runs_to_the_height() {
    expect![[r#"
        stopped=
        seid=
        trap 'stopped=yes; kill -TERM "$seid" 2>/dev/null' TERM INT
        set -m
        seid start --home /home/nonroot/.sei --halt-height 1200000 &
        seid=$!
        set +m
        if [ -n "$stopped" ]; then
          kill -TERM "$seid" 2>/dev/null
        fi
        while kill -0 "$seid" 2>/dev/null; do
          wait "$seid"
        done
        wait "$seid"
        status=$?
        if [ -n "$stopped" ]; then
          echo 'stopped before the halt height'
          exit 143
        fi
        case $status in
          0 | 130 | 143)
            echo 'reached the halt height'
            exit 0
            ;;
        esac
        exit "$status"
    "#]]
    .assert_eq(&bootstrap_after_wait(1_200_000));
}

/// Runs the script of the bootstrap Job with this body instead of the chain process, and returns its
/// exit code.
fn bootstrap_exit_code(seid: &str) -> Option<i32> {
    // A function in a subshell: signals that it sends to itself end it like a process.
    let script = format!("seid() (\n{seid}\n)\n{}", bootstrap_after_wait(5));
    let mut bash = std::process::Command::new("bash");
    bash.args(["-c", &script]).stdout(std::process::Stdio::null()).status().unwrap().code()
}

#[test]
fn bootstrap_succeeds_at_the_height_and_not_when_it_is_stopped_before() {
    assert_eq!(bootstrap_exit_code("exit 0"), Some(0));
    assert_eq!(bootstrap_exit_code("kill -INT $BASHPID; sleep 2"), Some(0));
    assert_eq!(bootstrap_exit_code("kill -TERM $BASHPID; sleep 2"), Some(0));
    assert_eq!(bootstrap_exit_code("exit 2"), Some(2));
    // The kubelet stops the script, whose process is `$$`; the chain process then ends gracefully, or
    // is killed while it starts.
    let graceful = "trap 'exit 0' TERM; kill -TERM $$; sleep 2 & wait";
    assert_eq!(bootstrap_exit_code(graceful), Some(143));
    assert_eq!(bootstrap_exit_code("kill -TERM $$; exec sleep 2"), Some(143));
}

// B16, for every script
#[test]
fn scripts_need_no_curl_and_name_the_data_directory() {
    let all = [
        scripts::init("demo-1", Some("file")),
        scripts::start(7777),
        scripts::exporter(),
        scripts::bootstrap(7777, 5),
    ];
    for script in all {
        // The kubelet would expand the last two.
        for forbidden in ["curl", "wget", "$HOME", "~", "$(", "$$"] {
            assert!(!script.contains(forbidden), "{forbidden} in {script}");
        }
        assert!(script.ends_with('\n') && !script.contains('\r'));
    }
}
