//! An operator that dies after each of its writes in turn, and the one that comes after it.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use cluster_tests::play::{Play, rpc, validator};
use cluster_tests::wire::{Answer, Write};
use serde_json::Value;

/// What happens to a node in each round.
#[derive(Clone, Copy)]
enum Happening {
    /// It gets another image.
    Update,
    /// It is new.
    Creation,
}

impl Happening {
    /// Begins it; returns the node and how many pods that has when all is over.
    async fn begin(self, play: &Play, round: usize) -> Result<(String, usize)> {
        match self {
            Self::Update => {
                play.set_image("node", &format!("seid:v{round}")).await?;
                Ok(("node".to_owned(), round + 1))
            }
            Self::Creation => {
                let name = format!("node-{round}");
                let (signing, p2p) = (format!("signing-{round}"), format!("p2p-{round}"));
                play.validator_keys(&signing, &p2p).await?;
                play.create(&name, validator("seid:v1", &signing, &p2p)).await?;
                Ok((name, 1))
            }
        }
    }
}

/// Rounds in which the operator dies after a write that no operator before it died after, and the
/// next one takes over, until one comes to its end alive. Returns what they died after.
async fn die_after_each_write(
    play: &mut Play,
    happening: Happening,
    answer: Answer,
) -> Result<BTreeSet<Write>> {
    let mut deaths = BTreeSet::new();
    let mut wire = play.start_operator_on_wire(answer).await?;
    for round in 1.. {
        wire.stop_after_others_than(&deaths);
        let (node, pods) = happening.begin(play, round).await?;
        let Some(last) = play.until_stopped(&wire, &node).await? else { break };
        wire = play.start_operator_on_wire(answer).await?;
        let told = format!("round {round}, died after {last:?}, answer {answer:?}");
        play.settled(&node).await.with_context(|| told.clone())?;
        assert_eq!(play.pods_seen(&node), pods, "{told}");
        deaths.insert(last);
    }
    Ok(deaths)
}

fn assert_died_after(deaths: &BTreeSet<Write>, expected: &[&str]) {
    let kinds: BTreeSet<&str> = deaths.iter().map(|(kind, _)| kind.as_str()).collect();
    let missed: Vec<_> = expected.iter().filter(|kind| !kinds.contains(*kind)).collect();
    assert!(missed.is_empty(), "nobody died after {missed:?}: {deaths:?}");
}

async fn die_in_updates(name: &str, spec: Value, answer: Answer) -> Result<()> {
    let mut play = Play::open(name).await?;
    play.validator_keys("signing", "p2p").await?;
    play.run("node", spec).await?;
    let deaths = die_after_each_write(&mut play, Happening::Update, answer).await?;
    let expected = ["DELETE pods", "PATCH seinodes/status", "PATCH statefulsets", "POST events"];
    assert_died_after(&deaths, &expected);
    play.close().await
}

async fn die_in_creations(name: &str, answer: Answer) -> Result<()> {
    let mut play = Play::open_without_operator(name).await?;
    let deaths = die_after_each_write(&mut play, Happening::Creation, answer).await?;
    let expected = [
        "PATCH configmaps",
        "PATCH seinodes",
        "PATCH seinodes/status",
        "PATCH services",
        "POST events",
        "POST persistentvolumeclaims",
        "POST statefulsets",
    ];
    assert_died_after(&deaths, &expected);
    play.close().await
}

#[tokio::test]
async fn an_update_survives_a_death_after_each_write_that_went_unanswered() -> Result<()> {
    die_in_updates("die-upd", rpc("seid:v0"), Answer::Lost).await
}

#[tokio::test]
async fn an_update_survives_a_death_after_each_write() -> Result<()> {
    die_in_updates("die-upd-told", rpc("seid:v0"), Answer::Given).await
}

#[tokio::test]
async fn a_validators_update_survives_a_death_after_each_write_that_went_unanswered() -> Result<()>
{
    die_in_updates("die-val", validator("seid:v0", "signing", "p2p"), Answer::Lost).await
}

#[tokio::test]
async fn a_validators_update_survives_a_death_after_each_write() -> Result<()> {
    die_in_updates("die-val-told", validator("seid:v0", "signing", "p2p"), Answer::Given).await
}

#[tokio::test]
async fn a_creation_survives_a_death_after_each_write_that_went_unanswered() -> Result<()> {
    die_in_creations("die-new", Answer::Lost).await
}

#[tokio::test]
async fn a_creation_survives_a_death_after_each_write() -> Result<()> {
    die_in_creations("die-new-told", Answer::Given).await
}
