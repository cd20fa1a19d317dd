//! What the process uses, read from `/proc` at each scrape, under the names of Prometheus' own clients.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use sei_api::metric;

use super::{gauge_family, help};

/// Ticks of `/proc` in a second: the same on every machine that Kubernetes supports.
const TICKS: f64 = 100.0;

#[derive(Debug)]
pub(super) struct Process;

/// What `/proc` has; nothing elsewhere than on Linux.
#[derive(Debug, Default, PartialEq)]
struct Usage {
    cpu_seconds: Option<f64>,
    start_seconds: Option<f64>,
    resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    open_fds: Option<f64>,
    max_fds: Option<f64>,
}

impl Usage {
    fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let usage = Self::parse(
            &text("/proc/self/stat"),
            &text("/proc/self/status"),
            &text("/proc/self/limits"),
            &text("/proc/stat"),
        );
        #[allow(clippy::cast_precision_loss, reason = "a process has few files")]
        let open = fs::read_dir("/proc/self/fd").map(|files| files.count() as f64);
        // The folder that is read is open too.
        Self { open_fds: open.ok().map(|count| count - 1.0), ..usage }
    }

    fn parse(stat: &str, status: &str, limits: &str, machine: &str) -> Self {
        // The name of the program is in parentheses and may contain anything.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        // Numbered from 1 in proc(5), of which two come before.
        let ticks = |number: usize| number_at(fields.split_whitespace().nth(number - 3));
        let line = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            number_at(line.and_then(|rest| rest.split_whitespace().next()))
        };
        let kib = |name| line(status, name).map(|kib| kib * 1024.0);
        let in_seconds = |ticks: f64| ticks / TICKS;
        let boot = line(machine, "btime ");
        Self {
            cpu_seconds: ticks(14).zip(ticks(15)).map(|(user, system)| in_seconds(user + system)),
            start_seconds: ticks(22).zip(boot).map(|(start, boot)| boot + in_seconds(start)),
            resident_bytes: kib("VmRSS:"),
            virtual_bytes: kib("VmSize:"),
            open_fds: None,
            max_fds: line(limits, "Max open files"),
        }
    }
}

fn number_at(text: Option<&str>) -> Option<f64> {
    text?.parse().ok()
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let usage = Usage::read();
        let (cpu, kind) = (&metric::PROCESS_CPU, MetricType::Counter);
        if let Some(seconds) = usage.cpu_seconds {
            let mut family = encoder.encode_descriptor(cpu.stem(), &help(cpu), None, kind)?;
            family.encode_counter::<[(&str, &str); 0], f64, f64>(&seconds, None)?;
        }
        for (metric, value) in [
            (&metric::PROCESS_RESIDENT_MEMORY, usage.resident_bytes),
            (&metric::PROCESS_VIRTUAL_MEMORY, usage.virtual_bytes),
            (&metric::PROCESS_OPEN_FDS, usage.open_fds),
            (&metric::PROCESS_MAX_FDS, usage.max_fds),
            (&metric::PROCESS_START_TIME, usage.start_seconds),
        ] {
            if let Some(value) = value {
                gauge_family(&mut encoder, metric)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_process_are_parsed() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 3 0 1234 9 9 9 9";
        let status = "Name:\ta\nVmPeak:\t 9 kB\nVmSize:\t   2000 kB\nVmRSS:\t     100 kB\n";
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
            Max open files            1024                 4096                 files\n";
        let machine = "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n";
        let expected = Usage {
            cpu_seconds: Some(3.0),
            start_seconds: Some(1_700_000_012.34),
            resident_bytes: Some(102_400.0),
            virtual_bytes: Some(2_048_000.0),
            open_fds: None,
            max_fds: Some(1024.0),
        };
        assert_eq!(Usage::parse(stat, status, limits, machine), expected);
        let unlimited = limits.replace("1024", "unlimited");
        assert_eq!(Usage::parse("", "", &unlimited, ""), Usage::default(), "no number, no series");
    }

    #[test]
    fn this_process_is_read() {
        let usage = Usage::read();
        assert!(usage.resident_bytes > Some(1_000_000.0), "{usage:?}");
        assert!(usage.open_fds >= Some(3.0) && usage.open_fds < usage.max_fds, "{usage:?}");
        let now = jiff::Timestamp::now().as_duration().as_secs_f64();
        let age = now - usage.start_seconds.unwrap();
        assert!((-1.0..3600.0).contains(&age), "{usage:?}");
        assert!(usage.cpu_seconds.unwrap() <= (age + 1.0) * 64.0, "{usage:?}");
    }
}
