//! The memory of this process: what the machine and its control groups allow, and what is left.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The bytes of memory that a process of the system whose root folder is `root` may use: those of
/// the machine, or what the control groups that it is in leave of them; without bound where the
/// system does not tell.
///
/// Limits of version 1 and 2 of control groups count, also those of the groups around its own.
#[cfg(feature = "cli")]
pub(crate) fn available(root: &Path) -> u64 {
    let limits = groups(root).filter_map(|(folder, version)| version.limit(&folder));
    // A system that tells nothing sets no bound.
    limits.chain(machine(root)).min().unwrap_or(u64::MAX)
}

/// The bytes that the control groups of this process leave it; none where no group has a limit.
/// What a group keeps of files, and can give up at once, is left, too.
pub(crate) fn left(root: &Path) -> Option<u64> {
    let left = |(folder, version): (PathBuf, &Version)| {
        let limit = version.limit(&folder)?;
        let used = number(&folder.join(version.usage))?;
        // Without statistics all that is used stays in use.
        let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let files = statistics.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            version.files.contains(&name).then(|| bytes.trim().parse::<u64>().ok())?
        });
        let files = files.fold(0, u64::saturating_add);
        Some(limit.saturating_sub(used.saturating_sub(files)))
    };
    groups(root).filter_map(left).min()
}

/// The memory of the machine.
#[cfg(feature = "cli")]
fn machine(root: &Path) -> Option<u64> {
    let info = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// A version of control groups: its mounts and the names of its files.
struct Version {
    mounts: &'static [&'static str],
    limit: &'static str,
    usage: &'static str,
    /// The statistics of what is kept in memory of files and given up where memory lacks.
    files: &'static [&'static str],
}

/// It may be mounted beside version 1.
const SECOND: Version = Version {
    mounts: &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
    limit: "memory.max",
    usage: "memory.current",
    files: &["inactive_file", "active_file", "slab_reclaimable"],
};

const FIRST: Version = Version {
    mounts: &["sys/fs/cgroup/memory"],
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: &["total_inactive_file", "total_active_file"],
};

impl Version {
    /// The limit of the group of a folder; none for `max`.
    fn limit(&self, folder: &Path) -> Option<u64> {
        number(&folder.join(self.limit))
    }
}

/// The folders of the groups that this process is in, and of those around them.
fn groups(root: &Path) -> impl Iterator<Item = (PathBuf, &'static Version)> {
    // A system without groups has no such file.
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let folders: Vec<_> = groups.lines().flat_map(|line| of_line(root, line)).collect();
    folders.into_iter()
}

/// The folders of the group that a line `number:controllers:path` tells, and of those around it.
fn of_line(root: &Path, line: &str) -> Vec<(PathBuf, &'static Version)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    // A line without controllers is version 2.
    let version = if controllers.is_empty() {
        &SECOND
    } else if controllers.split(',').any(|c| c == "memory") {
        &FIRST
    } else {
        return Vec::new();
    };
    let names = Path::new(path).components().filter(|c| matches!(c, Component::Normal(_)));
    let own = names.collect::<PathBuf>();
    // In a container the path may be the host's; its own group is the mount itself then, the last
    // of these.
    let folders = version.mounts.iter().flat_map(|mount| {
        own.ancestors().map(move |group| (root.join(mount).join(group), version))
    });
    folders.collect()
}

/// The number that a file holds.
fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
#[cfg(feature = "cli")]
mod tests {
    use std::fs;

    use super::{available, left};

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");

    /// A system of these files.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    /// What a system of these files has.
    fn of(files: &[(&str, &str)]) -> u64 {
        available(system(files).path())
    }

    #[test]
    fn what_is_left_of_a_limit_is_without_what_is_used() {
        let left = |files: &[(&str, &str)]| left(system(files).path());
        assert_eq!(left(&[MACHINE]), None);
        let group = ("proc/self/cgroup", "0::/a/b\n");
        let (limit, used) = ("sys/fs/cgroup/a/b/memory.max", "sys/fs/cgroup/a/b/memory.current");
        assert_eq!(left(&[group, (limit, "max\n"), (used, "1\n")]), None);
        assert_eq!(left(&[group, (limit, "1000\n"), (used, "900\n")]), Some(100));
        assert_eq!(left(&[group, (limit, "1000\n"), (used, "1100\n")]), Some(0));
        let files =
            ("sys/fs/cgroup/a/b/memory.stat", "anon 10\ninactive_file 200\nactive_file 100\n");
        assert_eq!(left(&[group, (limit, "1000\n"), (used, "900\n"), files]), Some(400));
        // The group around it is fuller.
        let (around, of_all) = ("sys/fs/cgroup/a/memory.max", "sys/fs/cgroup/a/memory.current");
        let outer = [(around, "2000\n"), (of_all, "1990\n")];
        let inner = [group, (limit, "1000\n"), (used, "900\n")];
        assert_eq!(left(&[&inner[..], &outer[..]].concat()), Some(10));
        let groups = ("proc/self/cgroup", "4:memory:/c\n");
        let own = "sys/fs/cgroup/memory/c";
        let [limit, used, stat] =
            ["limit_in_bytes", "usage_in_bytes", "stat"].map(|name| format!("{own}/memory.{name}"));
        let files = [(&*limit, "1000"), (&*used, "700"), (&*stat, "total_inactive_file 200\n")];
        assert_eq!(left(&[&[groups][..], &files[..]].concat()), Some(500));
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
