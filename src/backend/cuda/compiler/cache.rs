//! Compiled units on disk: one file each, named by the key, checked when read, written as a whole,
//! bounded in size.
//!
//! A file is the magic line, the key (32 bytes), the blake3 hash of the rest (32 bytes), the sizes
//! of the image and of the log (8 bytes each, little-endian), the image, the log. One that is
//! anything else is as good as absent, and replaced when its unit is compiled again.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::nvrtc::Compiled;
use crate::codegen::{Arch, CodeFormat, Key};

/// The first bytes of every file; they change with the form of the file.
const MAGIC: &[u8; 18] = b"fanwise kernels 1\n";

/// The bytes before the image.
const HEADER: usize = MAGIC.len() + 32 + 32 + 8 + 8;

/// The bytes that a cache may take unless its owner says otherwise.
pub const DEFAULT_LIMIT: u64 = 1 << 30;

/// How old a file that was never completed must be before it is removed: its writer may still be at
/// work.
const ABANDONED: Duration = Duration::from_hours(1);

/// The prefix of such files.
const TEMPORARY: &str = ".writing-";

/// A folder of compiled units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: PathBuf,
    limit: u64,
}

/// A file of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// Its name in the folder.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// When it was written or read last.
    pub used: SystemTime,
}

impl Cache {
    /// The cache in this folder, which is made when something is written; its files take `limit`
    /// bytes at most.
    pub fn new(folder: impl Into<PathBuf>, limit: u64) -> Self {
        Self { folder: folder.into(), limit }
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, key: &Key, arch: Arch, form: CodeFormat) -> PathBuf {
        self.folder.join(format!("{key}-{arch}.{form}"))
    }

    /// The unit of this key, unless it is absent or damaged. It counts as used now.
    pub fn get(&self, key: &Key, arch: Arch, form: CodeFormat) -> Option<Compiled> {
        let path = self.path(key, arch, form);
        // To open a pipe would wait for its writer.
        let size = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?.len();
        let file = File::open(path).ok()?;
        if size > self.limit {
            return None;
        }
        let mut bytes = Vec::new();
        // One more than it had: a file that grows is no whole one.
        (&file).take(size + 1).read_to_end(&mut bytes).ok()?;
        let compiled = decode(&bytes, key)?;
        // On a folder that is read-only the order of use stays as it was.
        drop(file.set_modified(SystemTime::now()));
        Some(compiled)
    }

    /// Writes a unit, in place of what has its key, and removes those used longest ago until the
    /// rest fit. One that alone is too large is not written.
    pub fn put(&self, key: &Key, arch: Arch, form: CodeFormat, unit: &Compiled) -> io::Result<()> {
        let bytes = encode(unit, key);
        if bytes.len() as u64 > self.limit {
            return Ok(());
        }
        fs::create_dir_all(&self.folder)?;
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.folder)?;
        file.write_all(&bytes)?;
        let path = self.path(key, arch, form);
        file.persist(&path).map_err(|error| error.error)?;
        self.trim(&path)
    }

    /// The files of compiled units, those used longest ago first.
    pub fn list(&self) -> io::Result<Vec<Cached>> {
        let mut files = Vec::new();
        for entry in self.entries()? {
            let Some(name) = entry.file_name().into_string().ok().filter(|name| is_unit(name))
            else {
                continue;
            };
            // Another process may have removed it since it was listed.
            let Ok(meta) = entry.metadata() else { continue };
            if let (true, Ok(used)) = (meta.is_file(), meta.modified()) {
                files.push(Cached { name, bytes: meta.len(), used });
            }
        }
        files.sort_by(|a, b| (a.used, &a.name).cmp(&(b.used, &b.name)));
        Ok(files)
    }

    /// Removes every compiled unit; the files and bytes removed. Other files of the folder stay.
    pub fn clear(&self) -> io::Result<(usize, u64)> {
        let files = self.list()?;
        for file in &files {
            self.remove(&file.name)?;
        }
        self.remove_abandoned(Duration::ZERO)?;
        Ok((files.len(), files.iter().map(|file| file.bytes).sum()))
    }

    /// The entries of the folder; none where there is none.
    fn entries(&self) -> io::Result<Vec<fs::DirEntry>> {
        match fs::read_dir(&self.folder) {
            Ok(entries) => entries.collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Removes a file that another process may have removed.
    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn trim(&self, keep: &Path) -> io::Result<()> {
        let unfinished = self.remove_abandoned(ABANDONED)?;
        let files = self.list()?;
        let mut total = unfinished + files.iter().map(|file| file.bytes).sum::<u64>();
        for file in files.iter().filter(|file| self.folder.join(&file.name) != keep) {
            if total <= self.limit {
                break;
            }
            self.remove(&file.name)?;
            total -= file.bytes;
        }
        Ok(())
    }

    /// Removes files that were never completed and are as old as this; the bytes of those that
    /// stay.
    fn remove_abandoned(&self, age: Duration) -> io::Result<u64> {
        let (now, mut kept) = (SystemTime::now(), 0);
        for entry in self.entries()? {
            let name = entry.file_name().into_string().ok().filter(|n| n.starts_with(TEMPORARY));
            let (Some(name), Ok(meta)) = (name, entry.metadata()) else { continue };
            let old =
                // A file from the future is new: clocks differ between machines.
                meta.modified().is_ok_and(|at| now.duration_since(at).unwrap_or_default() >= age);
            if old {
                self.remove(&name)?;
            } else {
                kept += meta.len();
            }
        }
        Ok(kept)
    }
}

/// True for the name of a compiled unit: a key, an architecture and a form.
fn is_unit(name: &str) -> bool {
    let parts = name.split_once('-').and_then(|(key, rest)| Some((key, rest.rsplit_once('.')?)));
    parts.is_some_and(|(key, (arch, form))| {
        key.len() == 64
            && key.bytes().all(|b| b.is_ascii_hexdigit())
            && arch.parse::<Arch>().is_ok()
            && [CodeFormat::Cubin, CodeFormat::Ptx].iter().any(|f| f.name() == form)
    })
}

/// The bytes of a file.
fn encode(unit: &Compiled, key: &Key) -> Vec<u8> {
    let mut rest = Vec::with_capacity(16 + unit.image.len() + unit.log.len());
    rest.extend((unit.image.len() as u64).to_le_bytes());
    rest.extend((unit.log.len() as u64).to_le_bytes());
    rest.extend(&unit.image);
    rest.extend(unit.log.as_bytes());
    let hash = blake3::hash(&rest);
    [&MAGIC[..], key.bytes(), hash.as_bytes(), &rest].concat()
}

/// The unit of a file's bytes, if they are exactly what `encode` writes for this key.
pub fn decode(bytes: &[u8], key: &Key) -> Option<Compiled> {
    if bytes.len() < HEADER {
        return None;
    }
    let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(key.bytes())?;
    let (hash, rest) = rest.split_at_checked(32)?;
    if blake3::hash(rest).as_bytes() != hash {
        return None;
    }
    let (image, rest) = rest.split_first_chunk::<8>()?;
    let (log, rest) = rest.split_first_chunk::<8>()?;
    let image = usize::try_from(u64::from_le_bytes(*image)).ok()?;
    let log = usize::try_from(u64::from_le_bytes(*log)).ok()?;
    if image.checked_add(log)? != rest.len() {
        return None;
    }
    let (image, log) = rest.split_at_checked(image)?;
    let log = std::str::from_utf8(log).ok()?.to_owned();
    Some(Compiled { image: image.to_vec(), log })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use super::{Cache, Compiled, DEFAULT_LIMIT, HEADER, TEMPORARY, decode, encode};
    use crate::codegen::testing::copy;
    use crate::codegen::{Arch, CodeFormat, Key, key, options, units};

    fn arch() -> Arch {
        "sm_80".parse().unwrap()
    }

    fn key_of(number: i32) -> Key {
        let unit = units(&[Arc::new(copy("float"))]).unwrap().remove(0);
        key(&unit, &options(arch(), CodeFormat::Cubin), &number.to_string())
    }

    fn unit(bytes: usize) -> Compiled {
        Compiled { image: vec![7; bytes], log: "said".to_owned() }
    }

    fn cache(limit: u64) -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("new"), limit);
        (folder, cache)
    }

    #[test]
    fn what_is_put_is_got() {
        let (_folder, cache) = cache(DEFAULT_LIMIT);
        assert_eq!(cache.get(&key_of(1), arch(), CodeFormat::Cubin), None);
        assert_eq!((cache.list().unwrap(), cache.clear().unwrap()), (Vec::new(), (0, 0)));
        for bytes in [0, 1, 1000] {
            cache.put(&key_of(1), arch(), CodeFormat::Cubin, &unit(bytes)).unwrap();
            assert_eq!(cache.get(&key_of(1), arch(), CodeFormat::Cubin), Some(unit(bytes)));
        }
        assert_eq!(cache.get(&key_of(2), arch(), CodeFormat::Cubin), None);
        assert_eq!(cache.get(&key_of(1), arch(), CodeFormat::Ptx), None);
        assert_eq!(cache.list().unwrap().len(), 1);
        let other = cache.folder().join("notes.txt");
        fs::write(&other, "mine").unwrap();
        assert_eq!(cache.clear().unwrap(), (1, (HEADER + 1004) as u64));
        assert!(cache.list().unwrap().is_empty() && other.exists());
    }

    #[test]
    fn damaged_files_are_ignored_and_replaced() {
        let (_folder, cache) = cache(DEFAULT_LIMIT);
        let (key, whole) = (key_of(1), unit(100));
        cache.put(&key, arch(), CodeFormat::Cubin, &whole).unwrap();
        let path: PathBuf = cache.folder().join(&cache.list().unwrap()[0].name);
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged, &key), None, "byte {at}");
            assert_eq!(decode(&bytes[..at], &key), None, "cut at {at}");
        }
        assert_eq!(decode(&[&bytes[..], b"x"].concat(), &key), None, "longer");
        assert_eq!(decode(&bytes, &key_of(2)), None, "of another key");
        // Sizes that lie, under a hash that fits them.
        for (image, log) in [(u64::MAX, 104 - u64::MAX % 104), (105, u64::MAX), (u64::MAX, 105)] {
            let mut rest = bytes[HEADER - 16..].to_vec();
            rest[..8].copy_from_slice(&image.to_le_bytes());
            rest[8..16].copy_from_slice(&log.to_le_bytes());
            let hash = blake3::hash(&rest);
            let lying = [&bytes[..HEADER - 48], hash.as_bytes(), &rest].concat();
            assert_eq!(decode(&lying, &key), None, "{image} {log}");
        }
        fs::write(&path, &bytes[..50]).unwrap();
        assert_eq!(cache.get(&key, arch(), CodeFormat::Cubin), None);
        cache.put(&key, arch(), CodeFormat::Cubin, &whole).unwrap();
        assert_eq!(cache.get(&key, arch(), CodeFormat::Cubin), Some(whole));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(cache.get(&key, arch(), CodeFormat::Cubin), None, "a folder");
    }

    #[test]
    fn the_longest_unused_make_place() {
        let one = encode(&unit(1000), &key_of(0)).len() as u64;
        let (_folder, cache) = cache(3 * one);
        for number in 0..3 {
            cache.put(&key_of(number), arch(), CodeFormat::Cubin, &unit(1000)).unwrap();
            let path = cache.path(&key_of(number), arch(), CodeFormat::Cubin);
            let at =
                SystemTime::now() - Duration::from_secs(1000 - u64::from(number.unsigned_abs()));
            fs::File::open(path).unwrap().set_modified(at).unwrap();
        }
        assert!(cache.get(&key_of(0), arch(), CodeFormat::Cubin).is_some(), "used now");
        let left = cache.folder().join(format!("{TEMPORARY}1"));
        fs::write(&left, "half").unwrap();
        let old = SystemTime::now() - Duration::from_hours(2);
        fs::File::open(&left).unwrap().set_modified(old).unwrap();
        cache.put(&key_of(3), arch(), CodeFormat::Cubin, &unit(1000)).unwrap();
        let there: Vec<bool> =
            (0..4).map(|n| cache.get(&key_of(n), arch(), CodeFormat::Cubin).is_some()).collect();
        assert_eq!(there, [true, false, true, true]);
        assert!(!left.exists());
        cache.put(&key_of(4), arch(), CodeFormat::Cubin, &unit(10_000)).unwrap();
        assert_eq!(cache.list().unwrap().len(), 3, "too large to keep");
    }

    /// Writers may be killed again and again.
    #[test]
    fn what_was_never_completed_takes_part_of_the_limit() {
        let one = encode(&unit(1000), &key_of(0)).len() as u64;
        let (_folder, cache) = cache(3 * one);
        cache.put(&key_of(0), arch(), CodeFormat::Cubin, &unit(1000)).unwrap();
        let [old, young] = ["1", "2"].map(|n| cache.folder().join(format!("{TEMPORARY}{n}")));
        for path in [&old, &young] {
            fs::write(path, vec![0; 1000]).unwrap();
        }
        let at = SystemTime::now() - Duration::from_hours(2);
        fs::File::open(&old).unwrap().set_modified(at).unwrap();
        cache.put(&key_of(1), arch(), CodeFormat::Cubin, &unit(1000)).unwrap();
        assert!(!old.exists() && young.exists());
        assert_eq!(cache.list().unwrap().len(), 2);
        cache.put(&key_of(2), arch(), CodeFormat::Cubin, &unit(1000)).unwrap();
        assert!(young.exists());
        assert_eq!(cache.list().unwrap().len(), 2, "no place beside what another writes");
    }

    #[test]
    #[cfg(unix)]
    fn a_pipe_in_place_of_a_file_is_not_waited_for() {
        let (_folder, cache) = cache(DEFAULT_LIMIT);
        fs::create_dir_all(cache.folder()).unwrap();
        let path = cache.path(&key_of(1), arch(), CodeFormat::Cubin);
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        assert_eq!(cache.get(&key_of(1), arch(), CodeFormat::Cubin), None);
        cache.put(&key_of(1), arch(), CodeFormat::Cubin, &unit(10)).unwrap();
        assert_eq!(cache.get(&key_of(1), arch(), CodeFormat::Cubin), Some(unit(10)));
    }

    #[test]
    fn a_folder_that_cannot_be_is_an_error_of_writing_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = Cache::new(&file, DEFAULT_LIMIT);
        assert_eq!(cache.get(&key_of(1), arch(), CodeFormat::Cubin), None);
        assert!(cache.put(&key_of(1), arch(), CodeFormat::Cubin, &unit(1)).is_err());
    }

    #[test]
    fn only_names_of_units_are_units() {
        let (_folder, cache) = cache(DEFAULT_LIMIT);
        let name = cache.path(&key_of(1), arch(), CodeFormat::Ptx);
        let name = name.file_name().unwrap().to_str().unwrap();
        assert!(super::is_unit(name));
        for other in ["", "-", "a-sm_80.ptx", &name[1..], &format!("{name}.bak"), "notes.txt"] {
            assert!(!super::is_unit(other), "{other}");
        }
    }
}
