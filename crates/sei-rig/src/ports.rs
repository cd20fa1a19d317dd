//! Ports that the pods of the kubelet need on loopback addresses, and who else has them.

use std::fmt;
use std::net::{Ipv4Addr, TcpListener};

use crate::kubelet::SIDECAR_PORT;
use crate::rpc::PORT as RPC_PORT;

/// A port that another process has on all addresses of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenPort {
    pub port: u16,
    /// Name and id of the process, if this user may see it.
    pub process: Option<String>,
}

impl fmt::Display for TakenPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.process.as_deref();
        let by = process.unwrap_or("a process of another user (see: sudo ss -ltnp)");
        write!(f, "port {} is taken by {by}", self.port)
    }
}

/// The ports that no pod could listen on. A process that listens on one address only is no obstacle:
/// every pod has an address of its own.
pub fn taken_ports() -> Vec<TakenPort> {
    taken_of(&[SIDECAR_PORT, RPC_PORT])
}

fn taken_of(ports: &[u16]) -> Vec<TakenPort> {
    let is_taken = |port: &&u16| TcpListener::bind((unused_address(), **port)).is_err();
    let taken = ports.iter().filter(is_taken);
    taken.map(|port| TakenPort { port: *port, process: process_of(*port) }).collect()
}

/// An address outside of the networks of pods, different for each process.
fn unused_address() -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 63, high, low.clamp(1, 254))
}

/// The process that listens on this port of all addresses.
fn process_of(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    let inode = tables.iter().flatten().find_map(|table| listener(table, port))?;
    let socket = format!("socket:[{inode}]");
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes.map(|entry| entry.path()).find_map(|process| {
        // Not `self`, which is an id too.
        let id: u32 = process.file_name()?.to_str()?.parse().ok()?;
        let mut files = std::fs::read_dir(process.join("fd")).ok()?.flatten();
        files.find(|file| {
            std::fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == socket.as_str())
        })?;
        let name = std::fs::read_to_string(process.join("comm")).ok()?;
        Some(format!("{} (process {id})", name.trim()))
    })
}

/// The inode of the socket that listens on this port of all addresses, in a table of the kernel.
fn listener(table: &str, port: u16) -> Option<&str> {
    const LISTEN: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (address, found) = columns.get(1)?.split_once(':')?;
        let is_any = address.chars().all(|digit| digit == '0');
        let is_port = u16::from_str_radix(found, 16).ok()? == port;
        (is_any && is_port && *columns.get(3)? == LISTEN).then(|| columns.get(9).copied())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_on_all_addresses_is_reported_with_its_process() {
        let listener = TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let taken = taken_of(&[port]);
        let [found] = &taken[..] else { panic!("{taken:?}") };
        let process = found.process.clone().unwrap();
        assert!(process.ends_with(&format!("(process {})", std::process::id())), "{process}");
        assert!(found.to_string().starts_with(&format!("port {port} is taken by ")), "{found}");
    }

    #[test]
    fn a_port_on_another_address_is_free() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        assert_eq!(taken_of(&[listener.local_addr().unwrap().port()]), []);
    }
}
