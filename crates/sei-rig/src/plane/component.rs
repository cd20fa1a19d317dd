//! A process of ours that ends when we do.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// Starts what it is given and becomes it, beside a watcher that kills the whole process group when
/// stdin closes. The pipe is held by us alone (Rust opens pipes close-on-exec), so it closes when
/// we drop it, exit, panic, are interrupted or killed: nothing has to be caught for that.
///
/// The watcher reads by descriptor 3, because a shell gives background jobs an empty stdin. Its
/// `$$` is the component, which has taken the shell's place; while the watcher is in the group,
/// nobody else can get that number.
const WATCHED: &str =
    r#"exec 3<&0 </dev/null; (read -r _ <&3; kill -9 -$$) & exec 3<&-; exec "$@""#;

/// Removes a folder when stdin closes. Components may still write for the moment it takes to kill
/// them, and then a removal fails half-way and is tried again.
const REMOVER: &str = r#"read -r _
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    rm -rf "$1" 2>/dev/null && exit; sleep 0.1
done"#;

/// How much of a log goes into an error.
const TAIL_LINES: usize = 12;

/// A running program of the control plane.
#[derive(Debug)]
pub(super) struct Component {
    child: Child,
    log: PathBuf,
}

impl Component {
    /// Starts a program of the folder; what it says goes to a log named like it.
    pub(super) fn start(
        bin_dir: &Path,
        name: &str,
        arguments: &[String],
        folder: &Path,
    ) -> io::Result<Self> {
        let log = log_path(folder, name);
        let output = File::options().create(true).append(true).open(&log)?;
        let child = watched(&bin_dir.join(name), arguments)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        Ok(Self { child, log })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    pub(super) fn log_tail(&self) -> String {
        tail(&std::fs::read_to_string(&self.log).unwrap_or_default())
    }
}

impl Drop for Component {
    /// Hard: a graceful stop of an API server takes a minute, and nothing in it is worth keeping.
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody to tell about anything else.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn watched(program: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", WATCHED, "watched"]).arg(program).args(arguments);
    // A group of its own: Ctrl-C in a terminal reaches us only, and the order of the end is ours.
    command.process_group(0);
    command
}

pub(super) fn log_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.log"))
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let begin = lines.len().saturating_sub(TAIL_LINES);
    lines[begin..].join("\n")
}

/// A folder that is gone when we are.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    remover: Child,
}

impl Folder {
    pub(super) fn create() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("sei-rig-").tempdir()?;
        let mut command = Command::new("sh");
        command.args(["-c", REMOVER, "remover"]).arg(folder.path()).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let remover = command.spawn()?;
        Ok(Self { path: folder.keep(), remover })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Waiting closes its stdin first, which is what it waits for.
        let _ = self.remover.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Members of a process group that are alive.
    fn group(leader: u32) -> Vec<u32> {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter(|id| is_alive_in(*id, leader)).collect()
    }

    /// After the name in parentheses stand the state, the parent and the group.
    fn is_alive_in(id: u32, leader: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let words: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        words.len() > 2 && words[0] != "Z" && words[2] == leader.to_string()
    }

    fn start_sleep(folder: &Path) -> Component {
        Component::start(Path::new("/bin"), "sleep", &["1000".to_owned()], folder).unwrap()
    }

    fn wait_until(claim: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < deadline, "{claim}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Set for the process that the test below starts and kills: where it tells what it owns.
    const OWNER: &str = "SEI_RIG_TEST_OWNER";

    fn own_until_killed(told: &Path) {
        let folder = Folder::create().unwrap();
        let component = start_sleep(folder.path());
        let text = format!("{} {}", component.id(), folder.path().display());
        std::fs::write(told.with_extension("new"), text).unwrap();
        std::fs::rename(told.with_extension("new"), told).unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn a_killed_owner_leaves_nothing() {
        if let Some(told) = std::env::var_os(OWNER) {
            return own_until_killed(Path::new(&told));
        }
        let here = tempfile::tempdir().unwrap();
        let told = here.path().join("told");
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "plane::component::tests::a_killed_owner_leaves_nothing"])
            .env(OWNER, &told)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the owner tells what it owns", || told.exists());
        let text = std::fs::read_to_string(&told).unwrap();
        let (id, folder) = text.split_once(' ').unwrap();
        let id: u32 = id.parse().unwrap();
        wait_until("the program and its watcher run", || group(id).len() == 2);

        owner.kill().unwrap();
        owner.wait().unwrap();
        wait_until("both are gone", || group(id).is_empty());
        wait_until("so is the folder", || !Path::new(folder).exists());
    }

    #[test]
    fn a_dropped_component_leaves_nothing() {
        let folder = Folder::create().unwrap();
        let path = folder.path().to_owned();
        let component = start_sleep(&path);
        let id = component.id();
        wait_until("the program and its watcher run", || group(id).len() == 2);
        drop(component);
        assert!(!Path::new("/proc").join(id.to_string()).exists());
        wait_until("the watcher is gone", || group(id).is_empty());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn the_end_of_a_log_is_told() {
        let lines: Vec<String> = (1..=20).map(|number| format!("line {number}")).collect();
        assert_eq!(tail(&lines.join("\n\n")), lines[8..].join("\n"));
        assert_eq!(tail(""), "");
    }
}
