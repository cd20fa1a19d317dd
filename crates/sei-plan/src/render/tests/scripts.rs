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

#[test]
fn bootstrap_runs_to_the_height_and_treats_130_as_success() {
    let script = scripts::bootstrap(7777, 1_200_000);
    let wait = scripts::start(7777);
    let wait = wait.strip_suffix("exec seid start --home /home/nonroot/.sei\n").unwrap();
    expect![[r#"
        set -m
        seid start --home /home/nonroot/.sei --halt-height 1200000 &
        seid=$!
        set +m
        trap 'kill -TERM "$seid" 2>/dev/null' TERM INT
        while kill -0 "$seid" 2>/dev/null; do
          wait "$seid"
        done
        wait "$seid"
        status=$?
        if [ "$status" -eq 130 ]; then
          echo 'reached the halt height'
          exit 0
        fi
        exit "$status"
    "#]]
    .assert_eq(script.strip_prefix(wait).unwrap());
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
