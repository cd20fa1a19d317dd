//! What objects of others cost the operator. The figures do not depend on the machine.

use anyhow::Result;
use sei_api::names::{bootstrap_job, proxy_config};
use sei_sandbox::cost::Fleet;
use sei_sandbox::memory::{Key, Store};
use serde_json::{Value, json};

/// What others write of each kind, with the labels of a node: 48 MB.
const OBJECTS: usize = 40;
const SIZE: usize = 1_200_000;

/// The part of a pod that is the name of its image. The kubelet repeats the name twice in the status, and a
/// pod with its status must not be larger than [`STORED_MAX`].
const IMAGE_SIZE: usize = 300_000;

/// The most that etcd stores for an object.
const STORED_MAX: usize = 3 << 19;

/// What the operator may keep of it: the client's buffer for the lines of a watch, which ends with the
/// connection. It doubles while a line does not fit behind the lines before it, and not beyond 4 MiB,
/// because a buffer of twice the longest line always has room.
const KEPT_MAX: i64 = 5_000_000;

/// What a single event may cost while it is decoded: a few times its own size.
const PEAK_MAX: u64 = 16_000_000;

/// Who controls an object of others.
#[derive(Clone, Copy, Debug)]
enum Owner {
    None,
    /// A node that does not exist, by a reference that is right in its form.
    MissingNode,
    /// An existing node, with the uid of another.
    WrongUid,
    /// The bootstrap Job of an existing node.
    Job,
}

const OWNERS: [Owner; 4] = [Owner::None, Owner::MissingNode, Owner::WrongUid, Owner::Job];

fn create(store: &mut Store, plural: &str, owner: Owner) {
    for index in 0..OBJECTS {
        let (namespace, node) = match owner {
            Owner::None | Owner::MissingNode => ("rubbish", format!("rubbish-{index}")),
            Owner::WrongUid => ("default", format!("node-{index:03}")),
            Owner::Job => ("default", "node-000".to_owned()),
        };
        let name = match (owner, plural) {
            (Owner::Job, _) => format!("{node}-bootstrap-{index}"),
            (_, "configmaps") => proxy_config(&node),
            (_, "pods") => format!("{node}-0"),
            _ => node.clone(),
        };
        let (api_version, kind, controller) = match owner {
            Owner::Job => ("batch/v1", "Job", bootstrap_job(&node)),
            _ => ("sei.io/v1alpha1", "SeiNode", node.clone()),
        };
        let reference = json!({ "apiVersion": api_version, "kind": kind, "name": controller,
            "uid": "7a1b4a5e-0000-4000-8000-000000000000", "controller": true });
        let references = match owner {
            Owner::None => json!([]),
            _ => json!([reference]),
        };
        let mut object = body(plural, &"x".repeat(SIZE));
        object["metadata"] = json!({ "name": name, "labels": { "sei.io/node": node },
            "ownerReferences": references });
        let key = Key::new(plural, namespace, &name);
        if store.get(&key).is_none() {
            store.create(&key, object);
        }
    }
}

fn body(plural: &str, text: &str) -> Value {
    let container = json!({ "name": "seid", "image": text });
    match plural {
        "configmaps" => json!({ "kind": "ConfigMap", "data": { "text": text } }),
        "pods" => {
            let (image, rest) = text.split_at(IMAGE_SIZE);
            let rest = json!([{ "name": "TEXT", "value": &rest[IMAGE_SIZE..] }]);
            json!({ "kind": "Pod", "spec": { "containers": [
                { "name": "seid", "image": image, "env": rest },
            ]}})
        }
        "statefulsets" => json!({ "kind": "StatefulSet", "spec": {
            "selector": {}, "serviceName": "rubbish", "replicas": 0,
            "template": { "spec": { "containers": [container] } },
        }}),
        other => unreachable!("no body of {other}"),
    }
}

#[test]
fn labelled_objects_of_others_are_not_kept() -> Result<()> {
    let mut fleet = Fleet::start(OBJECTS / 2)?;
    for plural in ["statefulsets", "configmaps", "pods"] {
        for owner in OWNERS {
            let write = move |store: &mut Store| create(store, plural, owner);
            let counted = fleet.write(write, |run| allocation_counter::measure(run))?;
            let (kept, peak) = (counted.bytes_current, counted.bytes_max);
            eprintln!("{plural} of {owner:?}: {kept} bytes kept, at most {peak} in between");
            assert!(kept < KEPT_MAX, "{plural} of {owner:?}: {kept} bytes are kept");
            assert!(peak < PEAK_MAX, "{plural} of {owner:?}: {peak} bytes at once");
            let largest = fleet.store().all(plural).map(|object| object.to_string().len()).max();
            assert!(largest <= Some(STORED_MAX), "no server stores {plural} of {largest:?} bytes");
        }
    }
    Ok(())
}
