use sei_model::campaign::{explain_seed, run_seed};

fn seeds() -> u64 {
    std::env::var("SEI_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(100)
}

#[test]
fn every_seed_keeps_the_rules_and_converges() {
    let start: u64 = std::env::var("SEI_START").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let mut failed = Vec::new();
    let mut kinds = std::collections::BTreeMap::new();
    let mut worst = (0, 0);
    for seed in start..start + seeds() {
        match std::panic::catch_unwind(|| run_seed(seed)) {
            Ok(Ok(report)) => worst = worst.max((report.rounds, seed)),
            Ok(Err(text)) => {
                let first = text.lines().next().unwrap().chars().take(70).collect::<String>();
                *kinds.entry(first.split_once(": ").map(|x| x.1.to_owned())).or_insert(0) += 1;
                failed.push((seed, text));
            }
            Err(_) => {
                println!("PANIC seed {seed}");
            }
        }
    }
    println!("worst {worst:?}");
    for (kind, count) in &kinds {
        println!("{count} x {kind:?}");
    }
    failed.sort_by_key(|(_, text)| text.len());
    println!("{:?}", failed.iter().map(|x| x.0).collect::<Vec<_>>());
    for (seed, _) in failed.iter().take(4) {
        println!("{}\n-----", explain_seed(*seed));
    }
    assert!(failed.is_empty());
}

#[test]
fn replay() {
    let Ok(seed) = std::env::var("SEI_SEED") else { return };
    run_seed(seed.parse().unwrap()).unwrap();
}
