//! Flags, tokens, keys, audit policy and kubeconfigs of the components.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pem::Pem;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json;

use super::{Ports, User};

/// Writes every file that must exist before the first component starts.
pub(super) fn write(folder: &Path, ports: &Ports) -> io::Result<()> {
    fs::write(folder.join(TOKENS), tokens())?;
    let (private, public) =
        signing_keys().map_err(|_| io::Error::other("failed to generate a key"))?;
    fs::write(folder.join(SIGNING_KEY), private)?;
    fs::write(folder.join(VERIFYING_KEY), public)?;
    fs::write(folder.join(AUDIT_POLICY), audit_policy())?;
    for user in User::ALL {
        fs::write(kubeconfig_path(folder, user), kubeconfig(folder, ports, user))?;
    }
    Ok(())
}

const TOKENS: &str = "tokens.csv";
const SIGNING_KEY: &str = "service-account.key";
const VERIFYING_KEY: &str = "service-account.pub";
const AUDIT_POLICY: &str = "audit-policy.json";
const CERTIFICATES: &str = "certificates";

pub(super) fn kubeconfig_path(folder: &Path, user: User) -> PathBuf {
    folder.join(format!("{}.kubeconfig", user.name()))
}

pub(super) fn audit_log_path(folder: &Path) -> PathBuf {
    folder.join("audit.log")
}

/// The server signs its certificate itself, and writes it with the signer's.
fn authority_path(folder: &Path) -> PathBuf {
    folder.join(CERTIFICATES).join("apiserver.crt")
}

/// What the token of every user begins with.
pub(crate) const TOKEN_PREFIX: &str = "token-of-";

/// The server listens on loopback only, so the tokens need not be secret.
fn token(user: User) -> String {
    format!("{TOKEN_PREFIX}{}", user.name())
}

fn tokens() -> String {
    let line = |user: User| {
        let group = if user.has_every_permission() { "system:masters" } else { "" };
        format!("{},{},{},\"{group}\"\n", token(user), user.name(), user.name())
    };
    User::ALL.map(line).concat()
}

/// The bytes before the point of a P-256 public key in its DER encoding (RFC 5480).
const PUBLIC_KEY_HEADER: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A new pair for each plane, so that none has to be stored: private, public.
fn signing_keys() -> Result<(String, String), ring::error::Unspecified> {
    let random = SystemRandom::new();
    let private = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)?;
    let pair =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, private.as_ref(), &random)?;
    let public = [&PUBLIC_KEY_HEADER, pair.public_key().as_ref()].concat();
    let text = |tag: &str, bytes: &[u8]| pem::encode(&Pem::new(tag, bytes));
    Ok((text("PRIVATE KEY", private.as_ref()), text("PUBLIC KEY", &public)))
}

/// Logs each request of the operator once: a watch when it starts, because its end may be far off.
fn audit_policy() -> String {
    let users = [User::Operator.name()];
    let begin = json!({ "level": "Metadata", "users": users, "verbs": ["watch"],
        "omitStages": ["RequestReceived", "ResponseComplete"] });
    let end = json!({ "level": "Metadata", "users": users,
        "omitStages": ["RequestReceived", "ResponseStarted"] });
    let others = json!({ "level": "None" });
    let rules = json!([begin, end, others]);
    json!({ "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules }).to_string()
}

/// JSON is YAML.
fn kubeconfig(folder: &Path, ports: &Ports, user: User) -> String {
    let authority = authority_path(folder);
    let server = format!("https://127.0.0.1:{}", ports.apiserver);
    let cluster = json!({ "server": server, "certificate-authority": authority });
    let context = json!({ "cluster": "rig", "user": user.name() });
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "rig", "cluster": cluster }],
        "users": [{ "name": user.name(), "user": { "token": token(user) } }],
        "contexts": [{ "name": "rig", "context": context }],
        "current-context": "rig",
    })
    .to_string()
}

pub(super) fn etcd_arguments(folder: &Path, ports: &Ports) -> Vec<String> {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    vec![
        flag("data-dir", folder.join("etcd").display()),
        flag("listen-client-urls", &client),
        flag("advertise-client-urls", &client),
        flag("listen-peer-urls", "http://127.0.0.1:0"),
        // The data is not needed after the process, so it need not reach the disk.
        "--unsafe-no-fsync".to_owned(),
        flag("log-level", "warn"),
    ]
}

pub(super) fn apiserver_arguments(
    folder: &Path,
    ports: &Ports,
    service_range: Option<&str>,
) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut arguments = vec![
        flag("etcd-servers", format_args!("http://127.0.0.1:{}", ports.etcd)),
        flag("bind-address", "127.0.0.1"),
        flag("advertise-address", "127.0.0.1"),
        flag("secure-port", ports.apiserver),
        flag("cert-dir", file(CERTIFICATES)),
        flag("token-auth-file", file(TOKENS)),
        flag("authorization-mode", "RBAC"),
        flag("service-account-issuer", "https://kubernetes.default.svc"),
        flag("service-account-key-file", file(VERIFYING_KEY)),
        flag("service-account-signing-key-file", file(SIGNING_KEY)),
        flag("service-cluster-ip-range", service_range.unwrap_or("10.0.0.0/16")),
        // The `kubernetes` service must not point to a loopback address.
        flag("endpoint-reconciler-type", "none"),
        flag("allow-privileged", "true"),
        flag("audit-policy-file", file(AUDIT_POLICY)),
        flag("audit-log-path", audit_log_path(folder).display()),
        // In megabytes. Readers keep an offset, so the file must not rotate.
        flag("audit-log-maxsize", 100_000),
    ];
    if service_range.is_none() {
        // No pod runs here. Without this, a scenario would have to create service accounts.
        arguments.push(flag("disable-admission-plugins", "ServiceAccount"));
    }
    arguments
}

/// Controllers that create pods, collect garbage and empty namespaces. Claims get a finalizer when
/// they are created, and are deleted only if its controller runs.
const CONTROLLERS: &str = "statefulset-controller,job-controller,ttl-after-finished-controller,\
    garbage-collector-controller,namespace-controller,persistentvolumeclaim-protection-controller";

/// What pods on a real kubelet need besides: their claims are bound to volumes, and their mounts of
/// service accounts contain the certificate of the API server.
const CONTROLLERS_FOR_PODS: &str = "persistentvolume-binder-controller,\
    persistentvolume-protection-controller,root-ca-certificate-publisher-controller,\
    endpointslice-controller,node-lifecycle-controller,taint-eviction-controller";

pub(super) fn controller_manager_arguments(
    folder: &Path,
    ports: &Ports,
    service_range: Option<&str>,
) -> Vec<String> {
    let mut controllers = CONTROLLERS.to_owned();
    if service_range.is_some() {
        controllers = format!("{controllers},{CONTROLLERS_FOR_PODS}");
    }
    vec![
        flag("kubeconfig", kubeconfig_path(folder, User::ControllerManager).display()),
        flag("bind-address", "127.0.0.1"),
        flag("secure-port", ports.controller_manager),
        flag("controllers", controllers),
        flag("root-ca-file", authority_path(folder).display()),
        flag("leader-elect", "false"),
        // With the default limit of 20 calls a second, tests of a fleet would measure that limit.
        flag("kube-api-qps", 1000),
        flag("kube-api-burst", 2000),
        flag("concurrent-statefulset-syncs", 20),
    ]
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_operator_starts_without_permissions() {
        expect_test::expect![[r#"
            token-of-admin,admin,admin,"system:masters"
            token-of-sei-operator,sei-operator,sei-operator,""
            token-of-kubelet,kubelet,kubelet,"system:masters"
            token-of-controller-manager,controller-manager,controller-manager,"system:masters"
        "#]]
        .assert_eq(&tokens());
    }

    #[test]
    fn every_plane_has_its_own_signing_key() {
        let (private, public) = signing_keys().unwrap();
        assert!(private.starts_with("-----BEGIN PRIVATE KEY-----"));
        assert!(public.starts_with("-----BEGIN PUBLIC KEY-----"));
        assert_ne!(private, signing_keys().unwrap().0);
    }
}
