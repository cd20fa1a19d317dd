use sei_api::task::TaskType;
use serde_json::json;

use crate::request::{ClaimView, Failure, Outcome, VolumeView};
use crate::seen::Reading;
use crate::tasks::fixture::{NODE_UID, World, assert_transcript, from, node};
use crate::view::{ObjectView, StatefulSetView};

type Case = (&'static str, fn(&mut World), &'static str);

#[track_caller]
fn check(world: fn() -> World, cases: &[Case]) {
    for (case, change, expected) in cases {
        let mut world = world();
        change(&mut world);
        world.check(case, expected);
    }
}

/// The node's own claim does not exist yet.
fn own() -> World {
    let mut world = World::only(TaskType::EnsureDataPvc, json!({}));
    world.seen.claim = Reading::Live(None);
    world
}

/// A claim that can be imported, with its volume.
fn import() -> World {
    let mut world = World::only(TaskType::EnsureDataPvc, json!({}));
    world.seen.node = node(json!({
        "fullNode": {}, "dataVolume": { "import": { "pvcName": "theirs" } },
    }))
    .into();
    world.seen.claim = Reading::Live(Some(ClaimView {
        uid: "claim-uid".to_owned(),
        phase: "Bound".to_owned(),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        capacity: Some("100Gi".to_owned()),
        volume: Some("pv-1".to_owned()),
        ..ClaimView::default()
    }));
    world.seen.volume = Reading::Live(Some(VolumeView {
        phase: "Bound".to_owned(),
        capacity: Some("102400Mi".to_owned()),
    }));
    world
}

fn claim(world: &mut World) -> &mut ClaimView {
    match &mut world.seen.claim {
        Reading::Live(Some(claim)) => claim,
        _ => panic!("no claim was seen"),
    }
}

fn volume(world: &mut World) -> &mut VolumeView {
    match &mut world.seen.volume {
        Reading::Live(Some(volume)) => volume,
        _ => panic!("no volume was seen"),
    }
}

fn claim_of(controller: Option<&str>) -> Reading<ClaimView> {
    Reading::Live(Some(ClaimView {
        uid: "claim-uid".to_owned(),
        controller: controller.map(str::to_owned),
        ..ClaimView::default()
    }))
}

/// Records a claim of that uid in status.
fn record(world: &mut World, uid: &str) {
    world.seen.node.status = Some(from(json!({ "dataClaim": { "name": "data-n", "uid": uid } })));
}

// PV1, X10
#[test]
fn a_missing_claim_is_created_and_recorded_in_one_step() {
    let mut world = own();
    world.seen.claim = Reading::Unread;
    let created = ObjectView { uid: "claim-uid".to_owned(), ..ObjectView::default() };
    let lines = world.transcript([Outcome::Claim(None), Outcome::Created(created)]);
    let expected = ["read Claim(\"data-n\")", "create claim data-n", "done claim data-n/claim-uid"];
    assert_transcript(&lines, &expected);
}

// PV1
#[test]
fn the_created_claim_is_the_rendered_one() {
    use crate::request::Request;
    let world = own();
    let crate::tasks::Next::Request(request) = world.next() else { panic!("no request") };
    let rendered = world.seen.desired.claim.as_ref().unwrap().unpack();
    let modes = rendered.spec.as_ref().unwrap().access_modes.as_ref().unwrap();
    assert_eq!(*modes, ["ReadWriteOnce"]);
    assert_eq!(*request, Request::CreateClaim(Box::new(rendered)));
}

// PV2, PV3
#[test]
fn an_existing_claim_counts_only_if_it_is_this_nodes() {
    check(
        own,
        &[
            (
                "its own",
                |world| world.seen.claim = claim_of(Some(NODE_UID)),
                "done claim data-n/claim-uid",
            ),
            (
                "of an earlier node of this name",
                |world| world.seen.claim = claim_of(Some("other")),
                "fail: claim data-n already exists and is not owned by this node: import it with \
                 spec.dataVolume.import.pvcName, or delete it",
            ),
            (
                "of an earlier node of this name, being deleted",
                |world| {
                    world.seen.claim = claim_of(Some("other"));
                    claim(world).terminating = true;
                },
                "wait VolumeAttach again 5s: claim data-n of another owner is still being deleted",
            ),
            (
                "without a controller",
                |world| world.seen.claim = claim_of(None),
                "fail: claim data-n already exists and is not owned…",
            ),
            (
                "its own, being deleted",
                |world| {
                    world.seen.claim = claim_of(Some(NODE_UID));
                    claim(world).terminating = true;
                },
                "wait DataVolumeLost: claim data-n is being deleted",
            ),
            (
                "not shown by the cache",
                |world| world.seen.claim = Reading::Cached(None),
                "create claim data-n",
            ),
            (
                "not shown by the cache, and recorded",
                |world| {
                    world.seen.claim = Reading::Cached(None);
                    record(world, "claim-uid");
                },
                "read Claim(\"data-n\")",
            ),
        ],
    );
}

// PV4
#[test]
fn a_create_that_already_exists_is_decided_by_the_next_read() {
    let mut world = own();
    let theirs = ClaimView { controller: Some("other".to_owned()), ..ClaimView::default() };
    let lines =
        world.transcript([Outcome::Failed(Failure::AlreadyExists), Outcome::Claim(Some(theirs))]);
    let expected = [
        "create claim data-n",
        "read Claim(\"data-n\")",
        "fail: …already exists and is not owned…",
    ];
    assert_transcript(&lines, &expected);
}

#[test]
fn a_lost_volume_is_replaced_only_with_approval_for_that_claim() {
    const WAITS: &str = "wait DataVolumeLost: claim data-n (lost) not found; …recreate-volume to …";
    check(
        own,
        &[
            ("no approval", |world| record(world, "lost"), WAITS),
            (
                "approval for another claim",
                |world| {
                    record(world, "lost");
                    approve(world, "earlier");
                },
                WAITS,
            ),
            (
                "approval",
                |world| {
                    record(world, "lost");
                    approve(world, "lost");
                },
                "create claim data-n",
            ),
            (
                "found again under another uid",
                |world| {
                    record(world, "lost");
                    world.seen.claim = claim_of(Some(NODE_UID));
                },
                "done claim data-n/claim-uid",
            ),
        ],
    );
}

#[test]
fn a_volume_that_is_lost_with_the_status_is_replaced_only_with_approval() {
    const WAITS: &str = "wait DataVolumeLost: claim data-n not found, although the node has a \
                         StatefulSet; …recreate-volume to the uid of the node: …";
    fn started(world: &mut World, controller: &str) {
        let controller = Some(controller.to_owned());
        let set = StatefulSetView { controller, ..StatefulSetView::default() };
        world.seen.statefulset = Reading::Cached(Some(set.into()));
    }
    check(
        own,
        &[
            ("no approval", |world| started(world, NODE_UID), WAITS),
            (
                "approval for another node",
                |world| {
                    started(world, NODE_UID);
                    approve(world, "earlier");
                },
                WAITS,
            ),
            (
                "approval",
                |world| {
                    started(world, NODE_UID);
                    approve(world, NODE_UID);
                },
                "create claim data-n",
            ),
            (
                "a cache does not prove it",
                |world| {
                    started(world, NODE_UID);
                    world.seen.claim = Reading::Cached(None);
                },
                "read Claim(\"data-n\")",
            ),
            (
                "the StatefulSet of another node",
                |world| started(world, "another"),
                "create claim data-n",
            ),
        ],
    );
}

fn approve(world: &mut World, uid: &str) {
    let annotations = world.seen.node.metadata.annotations.get_or_insert_default();
    annotations.insert("sei.io/recreate-volume".to_owned(), uid.to_owned());
}

#[test]
fn without_a_rendered_claim_nothing_is_created() {
    check(
        own,
        &[(
            "no claim",
            |world| world.seen.desired.claim = None,
            "fail: no claim is rendered for this node",
        )],
    );
}

// PV5, PV13
#[test]
fn a_valid_import_is_used_and_recorded() {
    const USED: &str = "done claim theirs/claim-uid [ImportPVCReady=True/PVCValidated]";
    check(
        import,
        &[
            ("as needed", |_| {}, USED),
            (
                "ReadWriteOncePod",
                |world| claim(world).access_modes = vec!["ReadWriteOncePod".to_owned()],
                USED,
            ),
            (
                "one valid mode is enough",
                |world| claim(world).access_modes.insert(0, "ReadOnlyMany".to_owned()),
                USED,
            ),
            (
                "larger",
                |world| {
                    claim(world).capacity = Some("1Ti".to_owned());
                    volume(world).capacity = Some("1024Gi".to_owned());
                },
                USED,
            ),
        ],
    );
}

// PV6, PV8, PV9, PV10, PV15, PV17
#[test]
fn an_import_that_may_become_valid_is_waited_for() {
    check(
        import,
        &[
            (
                "not there",
                |world| world.seen.claim = Reading::Live(None),
                "wait PVCNotReady again 5s [ImportPVCReady=False/PVCNotReady]: claim theirs not found",
            ),
            (
                "terminating",
                |world| claim(world).terminating = true,
                "wait PVCNotReady again 5s [ImportPVCReady=False/PVCNotReady]: …being deleted",
            ),
            (
                "Pending",
                |world| claim(world).phase = "Pending".to_owned(),
                "wait PVCNotReady again 5s [ImportPVCReady=False/PVCNotReady]: …phase Pending, not Bound",
            ),
            (
                "Released",
                |world| claim(world).phase = "Released".to_owned(),
                "wait PVCNotReady again 5s [ImportPVCReady=False/PVCNotReady]: …phase Released, not Bound",
            ),
            (
                "no capacity",
                |world| claim(world).capacity = None,
                "wait PVCNotReady again 5s [ImportPVCReady=False/PVCNotReady]: …reports no capacity yet",
            ),
            (
                "no volume",
                |world| claim(world).volume = None,
                "wait PVCNotReady again 5s [ImportPVCReady=False/PVCNotReady]: …names no volume yet",
            ),
            (
                "an empty volume",
                |world| claim(world).volume = Some(String::new()),
                "wait PVCNotReady again 5s [ImportPVCReady=False/PVCNotReady]: …names no volume yet",
            ),
            (
                "the volume is missing",
                |world| world.seen.volume = Reading::Live(None),
                "wait PVCNotReady again 5s [ImportPVCReady=False/PVCNotReady]: volume pv-1 not found",
            ),
        ],
    );
}

// PV11, PV12, PV14, PV16, PV18
#[test]
fn an_import_that_can_never_be_valid_fails_the_plan() {
    check(
        import,
        &[
            (
                "Lost",
                |world| claim(world).phase = "Lost".to_owned(),
                "fail [ImportPVCReady=False/PVCInvalid]: claim theirs is in phase Lost",
            ),
            (
                "ReadOnlyMany",
                |world| claim(world).access_modes = vec!["ReadOnlyMany".to_owned()],
                "fail [ImportPVCReady=False/PVCInvalid]: …needs ReadWriteOnce…",
            ),
            (
                "no access mode",
                |world| claim(world).access_modes.clear(),
                "fail [ImportPVCReady=False/PVCInvalid]: …needs ReadWriteOnce…",
            ),
            (
                "too small",
                |world| claim(world).capacity = Some("99Gi".to_owned()),
                "fail [ImportPVCReady=False/PVCInvalid]: …99Gi is less than the required 100Gi",
            ),
            (
                "an unreadable capacity",
                |world| claim(world).capacity = Some("much".to_owned()),
                "fail [ImportPVCReady=False/PVCInvalid]: claim theirs: …",
            ),
            (
                "an unreadable requirement",
                |world| world.seen.desired.claim_size = "much".to_owned(),
                "fail [ImportPVCReady=False/PVCInvalid]: claim theirs: …",
            ),
            (
                "another capacity of the volume",
                |world| volume(world).capacity = Some("120Gi".to_owned()),
                "fail [ImportPVCReady=False/PVCInvalid]: capacity 120Gi of volume pv-1 does not match capacity 100Gi of claim theirs",
            ),
            (
                "no capacity of the volume",
                |world| volume(world).capacity = None,
                "fail [ImportPVCReady=False/PVCInvalid]: …does not match…",
            ),
            (
                "the volume failed",
                |world| volume(world).phase = "Failed".to_owned(),
                "fail [ImportPVCReady=False/PVCInvalid]: volume pv-1 is in phase Failed",
            ),
        ],
    );
}

// PV7, PV19
#[test]
fn each_step_of_an_import_reads_each_object_once() {
    let found = import();
    let mut world = import();
    world.seen.claim = Reading::Unread;
    world.seen.volume = Reading::Unread;
    let lines = world.transcript([Outcome::Claim(None)]);
    assert_transcript(&lines, &["read Claim(\"theirs\")", "wait PVCNotReady again 5s …"]);

    world.seen.claim = Reading::Unread;
    let answers = [
        Outcome::Claim(found.seen.claim.any().cloned()),
        Outcome::Volume(found.seen.volume.any().cloned()),
    ];
    let lines = world.transcript(answers);
    assert_transcript(&lines, &["read Claim(\"theirs\")", "read Volume(\"pv-1\")", "done …"]);
}
