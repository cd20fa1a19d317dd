//! A fleet that is scaled down: which deletions a later edit still prevents.

use super::*;

/// The requests of one pass; the fleet is edited before the request at this place.
fn requests(model: &mut Model, edit_at: Option<usize>) -> (Vec<String>, Option<Failure>) {
    let mut pass = FleetPass::begin(model.snapshot());
    let mut requests = Vec::new();
    loop {
        match pass.ask() {
            FleetAsk::Perform(request) => {
                if edit_at == Some(requests.len()) {
                    model.edit(|spec| spec.replicas = 4);
                }
                requests.push(match &request {
                    FleetRequest::DeleteNode { name, .. } => format!("delete {name}"),
                    FleetRequest::ReadFleet => "read the fleet".to_owned(),
                    request => format!("{request:?}"),
                });
                let outcome = model.perform(&request);
                pass.absorb(outcome);
            }
            FleetAsk::Write(status) => model.fleet.status = Some(*status),
            FleetAsk::Done(ending) => return (requests, ending.failure),
        }
    }
}

fn scaled_down() -> Model {
    let mut model = Model::new(4, None);
    model.settle();
    model.edit(|spec| spec.replicas = 2);
    model
}

#[test]
fn the_fleet_is_read_before_each_deletion_of_a_node() {
    let (requests, failure) = requests(&mut scaled_down(), None);
    let expected = ["read the fleet", "delete edge-3", "read the fleet", "delete edge-2"];
    assert_eq!((requests, failure), (expected.map(str::to_owned).to_vec(), None));
}

#[test]
fn a_node_is_not_deleted_after_its_fleet_was_scaled_up_again() {
    let mut model = scaled_down();
    let (first, failure) = requests(&mut model, Some(2));
    assert_eq!(first, ["read the fleet", "delete edge-3", "read the fleet"]);
    assert!(matches!(failure, Some(Failure::Conflict(_))), "{failure:?}");
    model.settle();
    assert_eq!(model.nodes.len(), 4);
}
