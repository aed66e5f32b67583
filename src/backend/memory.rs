//! The memory limit of this process.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The bytes of memory that a process of the system whose root folder is `root` may use: those of
/// the machine, or what the control groups that it is in leave of them; without bound where the
/// system does not tell.
///
/// Limits of version 1 and 2 of control groups count, also those of the groups around its own.
pub(crate) fn available(root: &Path) -> u64 {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| group(root, line));
    limits.chain(machine(root)).min().unwrap_or(u64::MAX)
}

/// The memory of the machine.
fn machine(root: &Path) -> Option<u64> {
    let info = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The least limit of the group that a line `number:controllers:path` tells, and of those around
/// it.
fn group(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, Path::new(parts.next()?));
    // A line without controllers is version 2, which may be mounted beside version 1.
    let (mounts, file): (&[&str], &str) = if controllers.is_empty() {
        (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], "memory.max")
    } else if controllers.split(',').any(|c| c == "memory") {
        (&["sys/fs/cgroup/memory"], "memory.limit_in_bytes")
    } else {
        return None;
    };
    let names = path.components().filter(|c| matches!(c, Component::Normal(_)));
    let own = names.collect::<PathBuf>();
    let folders = mounts.iter().flat_map(|mount| {
        // In a container the path may be the host's; its own group is the mount itself then, the
        // last of these.
        own.ancestors().map(move |group| root.join(mount).join(group))
    });
    folders.filter_map(|folder| limit(&folder.join(file))).min()
}

/// The limit that a file holds; none for `max`.
fn limit(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::available;

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");

    /// What a system of these files has.
    fn of(files: &[(&str, &str)]) -> u64 {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        available(root.path())
    }

    #[test]
    fn a_machine_without_groups_has_its_memory() {
        assert_eq!(of(&[]), u64::MAX);
        assert_eq!(of(&[MACHINE]), 16 << 30);
        assert_eq!(of(&[("proc/meminfo", "MemTotal: many kB\n")]), u64::MAX);
        assert_eq!(of(&[("proc/meminfo", "MemTotal: 18446744073709551615 kB\n")]), u64::MAX);
    }

    #[test]
    fn the_least_limit_of_a_group_and_those_around_it_counts() {
        let group = ("proc/self/cgroup", "0::/a/b\n");
        let limit = |path, content| of(&[MACHINE, group, (path, content)]);
        assert_eq!(limit("sys/fs/cgroup/a/b/memory.max", "1048576\n"), 1 << 20);
        assert_eq!(limit("sys/fs/cgroup/a/memory.max", "2097152\n"), 2 << 20);
        assert_eq!(limit("sys/fs/cgroup/memory.max", "3145728\n"), 3 << 20);
        assert_eq!(limit("sys/fs/cgroup/unified/a/b/memory.max", "4194304\n"), 4 << 20);
        assert_eq!(limit("sys/fs/cgroup/a/b/memory.max", "max\n"), 16 << 30);
        assert_eq!(limit("sys/fs/cgroup/other/memory.max", "1\n"), 16 << 30);
        // A limit beyond the machine gives no more than it has.
        assert_eq!(limit("sys/fs/cgroup/a/memory.max", "99999999999999\n"), 16 << 30);
    }

    #[test]
    fn groups_of_version_1_count_by_their_controller() {
        let groups = ("proc/self/cgroup", "7:cpu,cpuacct:/c\n4:memory:/docker/0123\n0::/\n");
        let limit = |path, content| of(&[MACHINE, groups, (path, content)]);
        let own = "sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes";
        assert_eq!(limit(own, "1048576\n"), 1 << 20);
        assert_eq!(limit(own, "9223372036854771712\n"), 16 << 30);
        // As a container sees it: its own group is the mount.
        assert_eq!(limit("sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152\n"), 2 << 20);
        assert_eq!(limit("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "1\n"), 16 << 30);
    }

    #[test]
    fn odd_lines_and_paths_that_lead_out_are_harmless() {
        for line in
            ["", "::", "0::", "0::/../..", "0", "memory", "4:memory", "4:memory:/../../proc"]
        {
            assert_eq!(of(&[MACHINE, ("proc/self/cgroup", line)]), 16 << 30, "{line}");
        }
    }
}
