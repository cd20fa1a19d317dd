//! The network of a real node: a bridge, addresses of pods and Services, and what a cluster serves
//! there: the API server and DNS.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// Networks of this machine that are used at the same time.
const NETWORKS: u8 = 250;

/// Addresses that no other process of the machine uses. They are from 198.18.0.0/15, which is
/// reserved for tests of network devices, so no real network has them.
#[derive(Debug)]
pub struct Network {
    number: u8,
    /// The kernel releases the lock when the process ends in any way.
    _lock: File,
}

impl Network {
    /// Locks addresses that no other process has.
    pub fn lock() -> io::Result<Self> {
        let folder = std::env::temp_dir().join("sei-rig-networks");
        std::fs::create_dir_all(&folder)?;
        for number in 0..NETWORKS {
            let Ok(file) = File::create(folder.join(number.to_string())) else { continue };
            if file.try_lock().is_ok() {
                return Ok(Self { number, _lock: file });
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "every network is in use"))
    }

    /// For [`crate::Options`].
    pub fn service_range(&self) -> String {
        format!("198.19.{}.0/24", self.number)
    }

    /// The address of the Service `kubernetes`: the first of the range.
    pub(super) fn apiserver(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 19, self.number, 1)
    }

    /// This machine, as pods see it.
    pub(super) fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 1)
    }

    pub(super) fn pod_range(&self) -> String {
        format!("198.18.{}.0/24", self.number)
    }

    pub(super) fn bridge(&self) -> String {
        format!("sei-rig{}", self.number)
    }

    /// Creates the bridge. The CNI plugin would do it, but only for the first pod.
    pub(super) fn create_bridge(&self) -> io::Result<()> {
        let bridge = self.bridge();
        // An interrupted removal may have left it.
        let _ = ip(&["link", "delete", &bridge]);
        ip(&["link", "add", &bridge, "type", "bridge"])?;
        ip(&["address", "add", &format!("{}/24", self.gateway()), "dev", &bridge])?;
        ip(&["address", "add", &format!("{}/32", self.apiserver()), "dev", &bridge])?;
        ip(&["link", "set", &bridge, "up"])
    }
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("`ip {}` failed: {}", arguments.join(" "), text.trim())))
}

/// Connects the address of the Service `kubernetes` with the API server, as kube-proxy does. Until
/// it is aborted.
pub(super) async fn serve_apiserver(listener: TcpListener, port: u16) {
    loop {
        let Ok((mut from_pod, _)) = listener.accept().await else { continue };
        tokio::spawn(async move {
            if let Ok(mut to_server) = TcpStream::connect(("127.0.0.1", port)).await {
                // An error ends both connections, as it would without us in between.
                let _ = tokio::io::copy_bidirectional(&mut from_pod, &mut to_server).await;
            }
        });
    }
}

/// Longest question that is read; a question with one name is shorter.
const QUESTION_BYTES: usize = 512;

/// Resolves the names of pods of headless Services, and no other name. Until it is aborted.
pub(super) async fn serve_names(socket: UdpSocket, client: Client) {
    let socket = Arc::new(socket);
    let mut buffer = [0; QUESTION_BYTES];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        let Some(question) = Question::parse(&buffer[..length]) else { continue };
        let (socket, client) = (socket.clone(), client.clone());
        tokio::spawn(async move {
            let address = address_of(&client, &question.name).await;
            // Lost answers are asked for again.
            let _ = socket.send_to(&question.answer(address), from).await;
        });
    }
}

/// The address of the pod in `<pod>.<service>.<namespace>.svc.cluster.local`.
async fn address_of(client: &Client, name: &str) -> Option<Ipv4Addr> {
    let labels: Vec<&str> = name.split('.').collect();
    let [pod, _, namespace, "svc", "cluster", "local"] = labels[..] else { return None };
    let pod = Api::<Pod>::namespaced(client.clone(), namespace).get_opt(pod).await.ok()??;
    pod.status?.pod_ip?.parse().ok()
}

/// A question of the DNS (RFC 1035, section 4.1).
#[derive(Debug, PartialEq, Eq)]
struct Question {
    id: [u8; 2],
    name: String,
    /// Whether it asks for IPv4 addresses.
    is_for_addresses: bool,
    /// The question as it was asked; an answer repeats it.
    text: Vec<u8>,
}

/// Bytes before the question.
const HEADER: usize = 12;
/// The code of a question for IPv4 addresses.
const ADDRESSES: [u8; 2] = [0, 1];

impl Question {
    fn parse(message: &[u8]) -> Option<Self> {
        let id = [*message.first()?, *message.get(1)?];
        let mut labels = Vec::new();
        let mut place = HEADER;
        loop {
            let length = usize::from(*message.get(place)?);
            place += 1;
            if length == 0 {
                break;
            }
            let label = message.get(place..place + length)?;
            labels.push(String::from_utf8(label.to_vec()).ok()?);
            place += length;
        }
        let kind = message.get(place..place + 2)?;
        let text = message.get(HEADER..place + 4)?.to_vec();
        let name = labels.join(".").to_lowercase();
        Some(Self { id, name, is_for_addresses: kind == ADDRESSES, text })
    }

    fn answer(&self, address: Option<Ipv4Addr>) -> Vec<u8> {
        let records = address.filter(|_| self.is_for_addresses);
        // Authoritative, recursion available; the code 3 means that there is no such name.
        let code = if address.is_some() { 0x80 } else { 0x83 };
        let count = u8::from(records.is_some());
        let mut message = self.id.to_vec();
        message.extend([0x85, code, 0, 1, 0, count, 0, 0, 0, 0]);
        message.extend(&self.text);
        if let Some(address) = records {
            // The name of the question, an address, valid for one second: pods move.
            message.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
            message.extend(address.octets());
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(kind: u8) -> Vec<u8> {
        let mut message = vec![7, 8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
        message.extend(b"\x03a-0\x01A\x02ns\x03svc\x00");
        message.extend([0, kind, 0, 1]);
        // An additional record, as resolvers of glibc send it.
        message.extend([0, 0, 41, 0, 0, 0, 0, 0, 0, 0, 0]);
        message
    }

    #[test]
    fn a_question_is_answered_with_the_address_of_the_pod() {
        let asked = Question::parse(&question(1)).unwrap();
        assert_eq!(asked.name, "a-0.a.ns.svc");
        let answer = asked.answer(Some(Ipv4Addr::new(198, 18, 0, 9)));
        assert_eq!(answer[..12], [7, 8, 0x85, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        assert!(answer.ends_with(&[0, 4, 198, 18, 0, 9]), "{answer:?}");
        let unknown = asked.answer(None);
        assert_eq!(unknown[2..8], [0x85, 0x83, 0, 1, 0, 0]);
    }

    #[test]
    fn a_question_for_other_records_has_an_empty_answer() {
        let asked = Question::parse(&question(28)).unwrap();
        let answer = asked.answer(Some(Ipv4Addr::new(198, 18, 0, 9)));
        assert_eq!(answer[2..8], [0x85, 0x80, 0, 1, 0, 0]);
    }

    #[test]
    fn a_truncated_question_is_ignored() {
        let message = question(1);
        for length in 0..message.len() - 11 {
            assert_eq!(Question::parse(&message[..length]), None, "{length}");
        }
    }

    #[test]
    fn two_locks_give_two_networks() {
        let (first, second) = (Network::lock().unwrap(), Network::lock().unwrap());
        assert_ne!(first.service_range(), second.service_range());
        assert_ne!(first.bridge(), second.bridge());
    }
}
