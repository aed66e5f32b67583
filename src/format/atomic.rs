//! Atomic writes of files: a file is written completely or not at all.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

/// Prefix of temporary files, by which files of killed processes are recognised.
const PREFIX: &str = ".fanwise-";

/// The number of attempts to create a temporary file that vanished.
const ATTEMPTS: u32 = 3;

/// Returns true for the name of a temporary file.
pub(crate) fn is_unfinished(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Writes a file through `write` to a temporary file and renames it, so that a reader never sees
/// a part of it and a failure keeps the old file. A device or a pipe is written to directly,
/// because a rename would replace it by a regular file.
pub(super) fn write(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let target = target(path);
    if is_device(&target) {
        return write(&mut File::options().write(true).open(&target)?);
    }
    let mut file = temporary(&target)?;
    if let Ok(old) = target.metadata() {
        file.as_file().set_permissions(old.permissions())?;
    }
    write(file.as_file_mut())?;
    // Without this a crash of the system may leave the new name with the contents lost: some file
    // systems write the rename before the data.
    file.as_file_mut().sync_all()?;
    file.persist(&target).map_err(|e| e.error)?;
    Ok(())
}

/// Fails if the file could not be written. Leaves no file behind.
pub(super) fn check(path: &Path) -> io::Result<()> {
    let target = target(path);
    if target.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if is_device(&target) {
        return Ok(());
    }
    temporary(&target)?.close()
}

/// The path with links resolved, so that the target of a link is replaced and not the link.
fn target(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn is_device(target: &Path) -> bool {
    target.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// A locked temporary file in the folder of `target`, because a rename is atomic only within one
/// file system.
fn temporary(target: &Path) -> io::Result<NamedTempFile> {
    let folder = target.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.map_or_else(|| PathBuf::from("."), Path::to_owned);
    // Its own error, because that of the file beside would name a file that nobody asked for.
    folder.metadata()?;
    remove_abandoned(&folder);
    // Another process may take a file for left over before it is locked, and remove it.
    for _ in 0..ATTEMPTS {
        let file = builder().tempfile_in(&folder).map_err(|e| e.kind())?;
        // A file system without locks leaves the file unlocked, and nobody removes it there.
        let _locked = file.as_file().try_lock();
        if file.path().exists() {
            return Ok(file);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Removes the files that killed processes left in a folder: whoever writes one holds a lock on it
/// while it lives. What cannot be looked at or removed stays.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = folder.read_dir() else { return };
    for entry in entries.flatten() {
        let left = entry.file_name().to_str().is_some_and(is_unfinished)
            && entry.file_type().is_ok_and(|ty| ty.is_file())
            && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        if left {
            // Whoever removed it first did what was to be done.
            drop(std::fs::remove_file(entry.path()));
        }
    }
}

#[cfg(unix)]
fn builder() -> Builder<'static, 'static> {
    use std::os::unix::fs::PermissionsExt;
    let mut builder = Builder::new();
    builder.prefix(PREFIX);
    // What a new file gets, less the mask of the process; a temporary file is private otherwise.
    builder.permissions(std::fs::Permissions::from_mode(0o666));
    builder
}

#[cfg(not(unix))]
fn builder() -> Builder<'static, 'static> {
    let mut builder = Builder::new();
    builder.prefix(PREFIX);
    builder
}

#[cfg(test)]
mod tests {
    use std::io::{Error, Write};

    #[test]
    fn a_failure_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        super::write(&path, |f| f.write_all(b"one")).unwrap();
        let names = || -> Vec<_> {
            let entries = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name());
            entries.map(|name| name.into_string().unwrap()).collect()
        };
        let failed = super::write(&path, |f| {
            f.write_all(b"half of tw")?;
            assert!(names().iter().all(|name| name == "a" || name.starts_with(".fanwise-")));
            assert_eq!(names().len(), 2);
            Err(Error::other("full"))
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        assert_eq!(names(), ["a"]);
    }

    #[test]
    fn files_of_killed_processes_are_removed_and_those_of_living_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path(".fanwise-left"), b"half").unwrap();
        std::fs::write(path(".fanwise"), b"another's").unwrap();
        super::write(&path("a"), |file| {
            assert!(!path(".fanwise-left").exists());
            // Another run in the same folder meanwhile.
            super::write(&path("b"), |other| other.write_all(b"two"))?;
            file.write_all(b"one")
        })
        .unwrap();
        assert_eq!(std::fs::read(path("a")).unwrap(), b"one");
        assert_eq!(std::fs::read(path("b")).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_could_not_be_written_is_known_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), b"old").unwrap();
        for good in ["file", "new"] {
            super::check(&path(good)).unwrap();
        }
        for wrong in ["", "none/new", "file/new"] {
            assert!(super::check(&path(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read(path("file")).unwrap(), b"old");
    }

    #[cfg(unix)]
    #[test]
    fn links_and_devices_stay_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        std::fs::write(&target, b"old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        super::write(&link, |f| f.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        super::write("/dev/null".as_ref(), |f| f.write_all(b"x")).unwrap();
        assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
    }
}
