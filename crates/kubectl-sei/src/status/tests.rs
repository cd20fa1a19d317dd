use std::sync::{Arc, Mutex};

use expect_test::expect;
use kube::Client;
use sei_api::status::{Blocked, UpdateState};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::table::{Heights, View};
use super::*;
use crate::cluster::Unreadable;
use crate::fixtures::{ago, condition, node, now, pending, plan, ready, with};
use crate::terminal::Terminal;

fn fleet() -> Fleet {
    let stalled = condition(
        ConditionType::Stalled,
        "True",
        "ImagePullFailed",
        "pod rpc-1-0: seid: ErrImagePull:\n  not found",
    );
    let held = "changes of the operator wait for an approval";
    let updating = condition(
        ConditionType::NodeUpdateInProgress,
        "True",
        "UpdateStarted",
        "image drift detected: spec=v2 current=v1",
    );
    let mut rolling = with(pending(node("rpc-2"), UpdateState::Rolling, "Rolling", ""), updating);
    rolling.spec.image = "registry.example.org/seid:v6.6.0".into();
    rolling.status.get_or_insert_default().plan =
        Some(plan(&[("apply-statefulset", true), ("replace-pod", false), ("mark-ready", false)]));
    let mut new = node("rpc-3");
    new.status = None;
    let mut blocked = node("rpc-4");
    blocked.status.get_or_insert_default().blocked = Some(Blocked {
        reason: "SidecarUnreachable".into(),
        since: ago(12),
        message: "the sidecar of pod rpc-4-0 does not run".into(),
    });
    let mut paused = ready(node("rpc-6"), "True", "");
    paused.spec.update.get_or_insert_default().paused = Some(true);
    let stopped = condition(ConditionType::Paused, "True", "Paused", "spec.paused");
    let nodes = vec![
        Ok(ready(node("archive-0"), "True", "")),
        Ok(ready(pending(node("rpc-0"), UpdateState::Held, "Held", held), "True", "")),
        Ok(ready(with(node("rpc-1"), stalled), "False", "pod rpc-1-0 does not run")),
        Ok(rolling),
        Ok(new),
        Ok(blocked),
        Err(Unreadable {
            namespace: "demo".into(),
            name: "rpc-5".into(),
            message: "missing field `image`".into(),
        }),
        Ok(paused),
        Ok(ready(node("rpc-7"), "False", "pod rpc-7-0: seid is not Ready")),
        Ok(ready(with(node("rpc-8"), stopped), "False", "")),
    ];
    let mut fleet = Fleet::default();
    fleet.nodes.extend(nodes.into_iter().map(|found| (crate::cluster::key_of(&found), found)));
    fleet
}

pub(super) fn rows() -> Vec<Row> {
    super::rows(&fleet(), now())
}

/// A table without a terminal.
pub(super) fn view() -> View {
    View {
        scope: Scope::Namespace("demo".into()),
        is_filtered: false,
        is_wide: false,
        heights: Heights::NotRead,
        uses_color: false,
        terminal: None,
    }
}

#[test]
fn a_fleet_is_printed_as_one_table_with_trouble_first() {
    expect![[r#"
        NODE        CHAIN       MODE       PHASE     READY   IMAGE                        UPDATE    TASK              SINCE   WHY
        rpc-5       -           -          ?         -       -                            -         -                 -       cannot be decoded: missing field `image`
        rpc-1       pacific-1   fullNode   Running   no      seid:v6.5.1                  InSync    -                 5m      ImagePullFailed: pod rpc-1-0: seid: ErrImagePull: not found
        rpc-7       pacific-1   fullNode   Running   no      seid:v6.5.1                  InSync    -                 5m      pod rpc-7-0: seid is not Ready
        rpc-0       pacific-1   fullNode   Running   yes     seid:v6.5.1                  Held      -                 30m     changes of the operator wait for an approval
        rpc-6       pacific-1   fullNode   Running   yes     seid:v6.5.1                  Paused    -                 -       spec.update.paused holds the next update
        rpc-8       pacific-1   fullNode   Stopped   no      seid:v6.5.1                  InSync    -                 5m      spec.paused
        rpc-2       pacific-1   fullNode   Running   -       seid:v6.5.1 -> seid:v6.6.0   Rolling   replace-pod 2/3   20s     image drift detected: spec=v2 current=v1
        rpc-3       pacific-1   fullNode   -         -       -> seid:v6.5.1               -         -                 -
        rpc-4       pacific-1   fullNode   Running   -       seid:v6.5.1                  InSync    -                 12s     the sidecar of pod rpc-4-0 does not run
        archive-0   pacific-1   fullNode   Running   yes     seid:v6.5.1                  InSync    -                 5m

        10 nodes, 3 ready, 1 unreadable, 1 stalled, 1 not ready, 1 held, 1 paused, 1 stopped, 1 updating, 2 waiting
    "#]].assert_eq(&view().text(&fleet(), &rows(), now()));
}

#[test]
fn all_namespaces_and_wide_add_columns() {
    let view = View { scope: Scope::All, is_wide: true, ..view() };
    expect![[r#"
        NAMESPACE   NODE    CHAIN       MODE       PHASE     READY   IMAGE                              UPDATE   TASK   SINCE   REVISION   WAITS FOR     WHY
        demo        rpc-0   pacific-1   fullNode   Running   yes     registry.example.org/seid:v6.5.1   Held     -      30m     -          an approval   changes of the operator wait for an approval

        1 node, 1 ready, 1 held
    "#]].assert_eq(&view.text(&fleet(), &rows()[1..2], now()));
}

#[test]
fn heights_are_columns_and_unknown_ones_are_dashes() {
    let view = View { heights: Heights::Read, is_wide: true, ..view() };
    let mut rows = rows();
    let known =
        Row { height: Some(656), peers: Some(3), block_time: Some(ago(12).0), ..rows.remove(0) };
    expect![[r#"
        NODE        CHAIN       MODE       PHASE     READY   HEIGHT   IMAGE                              UPDATE   TASK   SINCE   PEERS   BLOCK AGE   REVISION   WAITS FOR     WHY
        rpc-0       pacific-1   fullNode   Running   yes     -        registry.example.org/seid:v6.5.1   Held     -      30m     -       -           -          an approval   changes of the operator wait for an approval
        archive-0   pacific-1   fullNode   Running   yes     656      registry.example.org/seid:v6.5.1   InSync   -      5m      3       12s         -          -

        2 nodes, 2 ready, 1 held
    "#]].assert_eq(&view.text(&fleet(), &[known, rows.remove(0)], now()));
}

/// Starts an API server that proxies to pods, except to those whose name begins with `no`.
async fn proxy() -> (Client, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = requests.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let line = request.lines().next().unwrap_or_default().to_owned();
            let is_forbidden = line.contains("/pods/no");
            let status = if is_forbidden { "403 Forbidden" } else { "200 OK" };
            let body = if line.contains("/pods/huge") {
                "[".repeat(1024 * 1024)
            } else if line.contains("net_info") {
                r#"{"n_peers":"3"}"#.to_owned()
            } else {
                let sync = r#"{"latest_block_height":"656","catching_up":false}"#;
                let node = r#"{"network":"pacific-1"}"#;
                format!(r#"{{"node_info":{node},"sync_info":{sync}}}"#)
            };
            log.lock().unwrap().push(line);
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.write_all((head + &body).as_bytes()).await;
        }
    });
    let client = Client::try_from(kube::Config::new(address.parse().unwrap())).unwrap();
    (client, requests)
}

#[tokio::test]
async fn heights_are_read_through_the_api_server_and_failures_are_unknown() {
    let (client, requests) = proxy().await;
    let mut rows: Vec<Row> = ["rpc-0", "no-1", "huge-2"]
        .map(|name| row_of(&node(name), Readiness::default(), now()))
        .into_iter()
        .collect();
    rows.push(Row { phase: Some("Initializing".into()), ..rows[0].clone() });
    heights::read(&mut rows, &client, true).await;
    let heights: Vec<_> = rows.iter().map(|row| (row.height, row.peers)).collect();
    assert_eq!(heights, [(Some(656), Some(3)), (None, None), (None, None), (None, None)]);
    let mut requests = requests.lock().unwrap().clone();
    requests.sort();
    let path = |pod: &str, path: &str| {
        format!("GET /api/v1/namespaces/demo/pods/{pod}:26657/proxy/{path} HTTP/1.1")
    };
    let expected = [
        path("huge-2-0", "status"),
        path("no-1-0", "status"),
        path("rpc-0-0", "net_info"),
        path("rpc-0-0", "status"),
    ];
    assert_eq!(requests, expected, "a node that does not run is not asked");
}

#[test]
fn an_explanation_uses_the_width_of_the_terminal() {
    let at = |width| View { terminal: Some(Terminal { width, height: 50 }), ..view() };
    expect![[r#"
        NODE    CHAIN       MODE       PHASE     READY   IMAGE         UPDATE   TASK   SINCE   WHY
        rpc-1   pacific-1   fullNode   Running   no      seid:v6.5.1   InSync   -      5m      ImagePullFailed: pod rpc-1-0: seid: ErrImagePull: not
                                                                                               found
        rpc-0   pacific-1   fullNode   Running   yes     seid:v6.5.1   Held     -      30m     changes of the operator wait for an approval

        2 nodes, 1 ready, 1 stalled, 1 held
    "#]].assert_eq(&at(140).text(&fleet(), &rows()[1..3], now()));
    expect![[r#"
        NODE    CHAIN       MODE       PHASE     READY   IMAGE         UPDATE   TASK   SINCE   WHY
        rpc-0   pacific-1   fullNode   Running   yes     seid:v6.5.1   Held     -      30m
            changes of the operator wait for an approval

        1 node, 1 ready, 1 held
    "#]]
    .assert_eq(&at(60).text(&fleet(), &rows()[1..2], now()));
}

#[test]
fn colours_mark_readiness_and_trouble() {
    let view = View { uses_color: true, ..view() };
    let text = view.text(&fleet(), &rows()[2..3], now());
    assert!(text.contains("\u{1b}[31mno\u{1b}[0m"), "{text:?}");
    assert!(text.contains("\u{1b}[31mImagePullFailed: pod"), "{text:?}");
    let mut row = rows().remove(2);
    row.why = Some("\u{1b}[2Jgone".into());
    assert!(view.text(&fleet(), &[row], now()).contains("\\u{1b}[2Jgone"));
}

#[test]
fn an_empty_fleet_is_reported_in_a_sentence() {
    expect![[r#"
        No SeiNode found in namespace demo; -A shows all namespaces.
    "#]]
    .assert_eq(&view().text(&fleet(), &[], now()));
    let filtered = View { is_filtered: true, scope: Scope::All, ..view() };
    expect![[r#"
        No matching SeiNode found in any namespace.
    "#]]
    .assert_eq(&filtered.text(&fleet(), &[], now()));
}

#[test]
fn a_node_needs_attention_unless_it_rests_or_makes_progress() {
    let needs: Vec<String> =
        rows().into_iter().filter(|row| row.needs_attention).map(|row| row.describe()).collect();
    expect![[r#"
        [
            "demo/rpc-0 is held: changes of the operator wait for an approval",
            "demo/rpc-1 is stalled: ImagePullFailed: pod rpc-1-0: seid: ErrImagePull: not found",
            "demo/rpc-5 is unreadable: cannot be decoded: missing field `image`",
            "demo/rpc-6 is paused: spec.update.paused holds the next update",
            "demo/rpc-7 is not ready: pod rpc-7-0: seid is not Ready",
            "demo/rpc-8 is stopped: spec.paused",
        ]
    "#]]
    .assert_debug_eq(&needs);
}

#[test]
fn a_node_is_in_sync_once_its_last_edit_was_reconciled() {
    let mut edited = ready(node("rpc-0"), "True", "");
    let check = |node: &SeiNode| {
        let fleet = Fleet::default();
        row_of(node, fleet.readiness(node), now()).is_in_sync()
    };
    assert!(check(&edited));
    edited.metadata.generation = Some(2);
    edited.status.get_or_insert_default().observed_generation = Some(1);
    assert!(!check(&edited), "the operator has not reconciled the edit");
    edited.status.get_or_insert_default().observed_generation = Some(2);
    assert!(check(&edited));
    edited.spec.image = "seid:next".into();
    assert!(!check(&edited), "another image runs");
    let template = &mut edited.status.get_or_insert_default().pod_template;
    template.get_or_insert_default().desired_image = Some("seid:next".into());
    assert!(check(&edited), "admission has rewritten the image");
    let held = pending(edited, UpdateState::Held, "Paused", "spec.update.paused");
    assert!(!check(&held), "an update is pending");
}

#[test]
fn the_json_output_has_all_fields() {
    expect![[r#"
        {
          "namespace": "demo",
          "node": "rpc-1",
          "fleet": null,
          "chain": "pacific-1",
          "mode": "fullNode",
          "phase": "Running",
          "state": "Stalled",
          "needsAttention": true,
          "ready": false,
          "height": null,
          "blockTime": null,
          "catchingUp": null,
          "peers": null,
          "image": "registry.example.org/seid:v6.5.1",
          "desiredImage": null,
          "update": "InSync",
          "task": null,
          "revision": null,
          "since": "2027-01-15T07:55:00Z",
          "waitsFor": "the end of ImagePullFailed",
          "why": "ImagePullFailed: pod rpc-1-0: seid: ErrImagePull: not found"
        }"#]]
    .assert_eq(&json(&rows()[2]));
}

#[test]
fn a_line_for_each_fleet_is_above_its_nodes() {
    let mut fleet = Fleet::default();
    for name in ["edge-0", "edge-1"] {
        let mut node = ready(node(name), "True", "");
        let owner = serde_json::json!([{ "apiVersion": "sei.io/v1alpha1", "controller": true,
            "kind": "SeiNodeDeployment", "name": "edge", "uid": "1" }]);
        node.metadata.owner_references = serde_json::from_value(owner).unwrap();
        fleet.nodes.insert(("demo".into(), name.into()), Ok(node));
    }
    let halted = crate::fixtures::fleet("False");
    fleet.fleets = Some([(("demo".to_owned(), "edge".to_owned()), halted)].into());
    let rows = super::rows(&fleet, now());
    expect![[r#"
        FLEET   REPLICAS   UPDATED   RUNNING   READY   ROLLOUT   SINCE   WHY
        edge    2          0         2         2       Halted    5m      RolloutHalted: edge-0: no

        NODE     CHAIN       MODE       PHASE     READY   IMAGE         UPDATE   TASK   SINCE   WHY
        edge-0   pacific-1   fullNode   Running   yes     seid:v6.5.1   InSync   -      5m
        edge-1   pacific-1   fullNode   Running   yes     seid:v6.5.1   InSync   -      5m

        2 nodes, 2 ready
    "#]]
    .assert_eq(&view().text(&fleet, &rows, now()));
    fleet.nodes.clear();
    assert_eq!(fleet.shown_fleets().count(), 1, "also a fleet without nodes");
}
