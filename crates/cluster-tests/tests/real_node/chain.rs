//! A chain of its own: keys, genesis, queries and transactions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::{Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::story::{Story, until};

/// Stake and balance of each validator, in the smallest coin.
const STAKE: u64 = 10_000_000_000_000;
const BALANCE: &str = "100000000000000000usei";
/// How much stake is one unit of voting power.
const POWER_UNIT: u64 = 1_000_000;

/// The files by which the sidecar knows that a genesis and a snapshot are in place, so that no bucket
/// and no witness is needed.
const MARKERS: [&str; 3] =
    [".sei-sidecar-genesis-done", ".sei-sidecar-snapshot-done", ".sei-sidecar-statesync-done"];

/// Keys and genesis of a chain.
pub(crate) struct Chain {
    seid: PathBuf,
    pub(crate) id: String,
    pub(crate) validators: Vec<String>,
    folder: TempDir,
}

impl Chain {
    /// Makes the keys of these validators and a genesis in which they have equal stakes.
    pub(crate) fn create(id: &str, validators: &[&str]) -> Result<Self> {
        let seid = sei_rig::real_node_programs()?.join("seid");
        let validators: Vec<String> = validators.iter().map(|name| (*name).to_owned()).collect();
        let chain = Self { seid, id: id.to_owned(), validators, folder: tempfile::tempdir()? };
        for name in &chain.validators {
            chain.seid(name, &["init", name, "--chain-id", id, "--overwrite"])?;
            chain.seid(name, &["keys", "add", "admin", "--keyring-backend", "test"])?;
        }
        let first = &chain.validators[0];
        for name in &chain.validators {
            let show = ["keys", "show", "admin", "-a", "--keyring-backend", "test"];
            let address = chain.seid(name, &show)?;
            let keyring = if name == first { "test" } else { "memory" };
            let add =
                ["add-genesis-account", address.trim(), BALANCE, "--keyring-backend", keyring];
            chain.seid(first, &add)?;
        }
        let genesis = fs::read_to_string(chain.home(first).join("config/genesis.json"))?;
        let mut genesis: Value = serde_json::from_str(&genesis)?;
        let mut signed = Vec::new();
        let mut powers = Vec::new();
        for name in &chain.validators {
            fs::write(chain.home(name).join("config/genesis.json"), genesis.to_string())?;
            let stake = format!("{STAKE}usei");
            chain.seid(
                name,
                &["gentx", "admin", &stake, "--chain-id", id, "--keyring-backend", "test"],
            )?;
            let files: Vec<_> =
                fs::read_dir(chain.home(name).join("config/gentx"))?.flatten().collect();
            ensure!(files.len() == 1, "{name} has one signed transaction for the genesis");
            signed.push(read_json(&files[0].path())?);
            let key = read_json(&chain.home(name).join("config/priv_validator_key.json"))?;
            let power = (STAKE / POWER_UNIT).to_string();
            powers.push(json!({ "pub_key": key["pub_key"], "power": power, "name": name }));
        }
        genesis["app_state"]["genutil"]["gen_txs"] = Value::Array(signed);
        genesis["validators"] = Value::Array(powers);
        let gov = &mut genesis["app_state"]["gov"];
        gov["voting_params"]["voting_period"] = json!("12s");
        gov["voting_params"]["expedited_voting_period"] = json!("6s");
        // Each of four validators has a quarter, which is more than the default allows.
        genesis["app_state"]["staking"]["params"]["max_voting_power_ratio"] =
            json!("1.000000000000000000");
        genesis["consensus_params"]["timeout"]["commit"] = json!("200000000");
        fs::write(chain.genesis(), genesis.to_string())?;
        Ok(chain)
    }

    fn genesis(&self) -> PathBuf {
        self.folder.path().join("genesis.json")
    }

    pub(crate) fn home(&self, validator: &str) -> PathBuf {
        self.folder.path().join(validator)
    }

    /// Runs a command of the chain's program in the home of a validator; returns its stdout.
    pub(crate) fn seid(&self, validator: &str, arguments: &[&str]) -> Result<String> {
        let mut seid = Command::new(&self.seid);
        let output = seid.args(arguments).arg("--home").arg(self.home(validator)).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`seid {}` failed: {error}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Creates a validator in a story: its Secrets, its volume with the genesis, and its node.
    pub(crate) async fn start_validator(
        &self,
        story: &Story,
        name: &str,
        image: &str,
    ) -> Result<()> {
        self.fill_volume(story, name, name).await?;
        let file = |file: &str| fs::read_to_string(self.home(name).join("config").join(file));
        let (signing, node) = (format!("{name}-signing"), format!("{name}-p2p"));
        story
            .create_secret(&signing, "priv_validator_key.json", &file("priv_validator_key.json")?)
            .await?;
        story.create_secret(&node, "node_key.json", &file("node_key.json")?).await?;
        let keys = json!({ "validator": {
            "signingKey": { "secret": { "secretName": signing } },
            "nodeKey": { "secret": { "secretName": node } },
        }});
        self.create_node(story, name, image, keys).await
    }

    /// Creates a node that does not sign, of the mode in these fields of its spec.
    pub(crate) async fn start_node(
        &self,
        story: &Story,
        name: &str,
        image: &str,
        mode: Value,
    ) -> Result<()> {
        self.fill_volume(story, name, &self.validators[0]).await?;
        self.create_node(story, name, image, mode).await
    }

    async fn create_node(&self, story: &Story, name: &str, image: &str, mode: Value) -> Result<()> {
        let addresses = self.peers(story, name)?;
        let mut spec = json!({ "chainId": self.id, "image": image });
        if !addresses.is_empty() {
            spec["peers"] = json!([{ "static": { "addresses": addresses } }]);
        }
        for (key, value) in mode.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        story.create(name, spec).await
    }

    /// Creates the volume of a node with the genesis and what `seid init` writes, which the pod does
    /// not run when a genesis is in place. It is taken from the home of a validator.
    async fn fill_volume(&self, story: &Story, name: &str, home: &str) -> Result<()> {
        let volume = story.volume(name).await?;
        for folder in ["config", "data"] {
            fs::create_dir_all(volume.join(folder))?;
        }
        fs::copy(self.genesis(), volume.join("config/genesis.json"))?;
        // Without the chain id in the first, `seid start` panics.
        for file in ["config/client.toml", "data/priv_validator_state.json"] {
            fs::copy(self.home(home).join(file), volume.join(file))?;
        }
        for marker in MARKERS {
            fs::write(volume.join(marker), "")?;
        }
        own(&volume)
    }

    /// The addresses of all other validators.
    fn peers(&self, story: &Story, name: &str) -> Result<Vec<String>> {
        let others = self.validators.iter().filter(|peer| *peer != name);
        let address = |peer: &String| {
            let id = self.seid(peer, &["tendermint", "show-node-id"])?;
            let namespace = &story.namespace;
            Ok(format!("{}@{peer}-0.{peer}.{namespace}.svc.cluster.local:26656", id.trim()))
        };
        others.map(address).collect()
    }

    /// Sends a transaction of a validator to its own node.
    pub(crate) async fn send(
        &self,
        story: &Story,
        validator: &str,
        arguments: &[&str],
    ) -> Result<Value> {
        let node = format!("tcp://{}:26657", story.address(validator).await?);
        let common = [
            "--from",
            "admin",
            "--keyring-backend",
            "test",
            "--chain-id",
            &self.id,
            "--node",
            &node,
            "--fees",
            "200000usei",
            "--gas",
            "2000000",
            "-b",
            "sync",
            "-y",
            "--output",
            "json",
        ];
        let sent = self.seid(validator, &[&["tx"], arguments, &common].concat())?;
        let sent: Value = serde_json::from_str(sent.trim())?;
        ensure!(sent["code"] == 0, "the transaction was refused: {sent}");
        Ok(sent)
    }
}

/// Gives files to the user of the pods.
fn own(folder: &Path) -> Result<()> {
    let status = Command::new("chown").args(["-R", "65532:65532"]).arg(folder).status()?;
    ensure!(status.success(), "chown failed");
    Ok(())
}

fn read_json(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path);
    Ok(serde_json::from_str(&text.with_context(|| format!("failed to read {}", path.display()))?)?)
}

/// A client of the RPC port of a node's pod.
pub(crate) async fn rpc_client(story: &Story, node: &str) -> Result<Client> {
    let url = format!("http://{}:26657", story.address(node).await?);
    let mut config = Config::new(url.parse()?);
    config.connect_timeout = Some(Duration::from_secs(2));
    config.read_timeout = Some(Duration::from_secs(5));
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// The response to a GET. The result of some queries is wrapped and of others not.
pub(crate) async fn query(client: &Client, path: &str) -> Result<Value> {
    let text = client.request_text(http::Request::get(path).body(Vec::new())?).await?;
    let value: Value = serde_json::from_str(&text)?;
    Ok(if value["result"].is_null() { value } else { value["result"].clone() })
}

pub(crate) async fn rpc(story: &Story, node: &str, path: &str) -> Result<Value> {
    query(&rpc_client(story, node).await?, path).await
}

/// The height of a node; none if its RPC port does not answer.
pub(crate) async fn height(story: &Story, node: &str) -> Option<u64> {
    let status = rpc(story, node, "/status").await.ok()?;
    status["sync_info"]["latest_block_height"].as_str()?.parse().ok()
}

/// Waits until a node has at least this height.
pub(crate) async fn until_height(
    story: &Story,
    node: &str,
    desired: u64,
    within: Duration,
) -> Result<u64> {
    until(&format!("{node} is at {desired}"), within, async || {
        Ok(height(story, node).await.filter(|height| *height >= desired))
    })
    .await
}
