//! Event files as `TensorBoard` reads them: records of protocol buffers with checksums
//! (`TFRecord`).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use super::drawing::graph_def;
use super::error::failed;
use crate::Error;
use crate::train::history::Logs;
use crate::train::observer::{Observer, TrainState};

/// `Event` of TensorFlow's `event.proto`, as far as it is written here.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    /// An encoded `GraphDef`.
    #[prost(bytes = "vec", optional, tag = "4")]
    graph_def: Option<Vec<u8>>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session: Option<Session>,
}

/// `Summary` of `summary.proto`.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

/// `Summary.Value` with a number.
#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// `SessionLog`: that events from a step on come anew.
#[derive(Clone, PartialEq, Message)]
struct Session {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SessionLog.START`.
const START: i32 = 1;

/// Writes event files into folders of a folder: the numbers of each epoch into `train` and
/// `validation`, and those of each batch into `batches`, with the tags that Keras gives them;
/// beside those of epochs the graph of the model.
///
/// Batches have a folder of their own because a run that goes on lets readers forget the events of
/// a folder from a step on, and steps of epochs and of batches differ.
#[derive(Debug)]
pub struct EventLog {
    folder: PathBuf,
    training: Option<File>,
    validation: Option<File>,
    batches: Option<File>,
}

impl EventLog {
    /// Event files in this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), training: None, validation: None, batches: None }
    }
}

impl Observer for EventLog {
    fn begin(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        let mut training = open(&self.folder.join("train"), watch.at.epoch)?;
        let graph = graph_def(&watch.trainer.model.graph).encode_to_vec();
        append(&mut training, &Event { graph_def: Some(graph), ..event(watch.at.epoch) })?;
        self.training = Some(training);
        self.batches = Some(open(&self.folder.join("batches"), watch.done)?);
        Ok(true)
    }

    fn batch(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        let Some(file) = &mut self.batches else { return Ok(()) };
        let mut scalars = scalars(&watch.logs(), "batch");
        scalars.extend(watch.rate.map(|rate| ("batch_learning_rate".to_owned(), rate)));
        // The batches before count this one.
        append(file, &numbers(watch.done.saturating_sub(1), scalars))
    }

    fn epoch(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        let Some(epoch) = watch.history().epochs.last() else { return Ok(true) };
        if let Some(file) = &mut self.training {
            let mut scalars = scalars(&epoch.training, "epoch");
            scalars.push(("epoch_learning_rate".to_owned(), epoch.learning_rate));
            append(file, &numbers(epoch.epoch, scalars))?;
        }
        if let Some(logs) = &epoch.validation {
            if self.validation.is_none() {
                self.validation = Some(open(&self.folder.join("validation"), epoch.epoch)?);
            }
            if let Some(file) = &mut self.validation {
                append(file, &numbers(epoch.epoch, scalars(logs, "epoch")))?;
            }
        }
        Ok(true)
    }
}

/// The numbers with their tags, which begin with what they are `of`.
fn scalars(logs: &Logs, of: &str) -> Vec<(String, f64)> {
    let metrics = logs.metrics.iter().map(|(name, x)| (format!("{of}_{name}"), *x));
    std::iter::once((format!("{of}_loss"), logs.loss)).chain(metrics).collect()
}

fn numbers(step: u64, scalars: Vec<(String, f64)>) -> Event {
    #[expect(clippy::cast_possible_truncation, reason = "the files hold f32")]
    let scalar = |(tag, x): (String, f64)| Scalar { tag, simple_value: Some(x as f32) };
    let summary = Summary { value: scalars.into_iter().map(scalar).collect() };
    Event { summary: Some(summary), ..event(step) }
}

fn event(step: u64) -> Event {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Event {
        wall_time: now.map_or(0.0, |t| t.as_secs_f64()),
        // No training has so many steps.
        step: i64::try_from(step).unwrap_or(i64::MAX),
        ..Event::default()
    }
}

/// A new file of events from `step` on; of files before it those count no more.
fn open(folder: &Path, step: u64) -> Result<File, Error> {
    let wrong = |e: std::io::Error| failed(format!("{}: {e}", folder.display()));
    std::fs::create_dir_all(folder).map_err(wrong)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    // Readers take files in the order of their names.
    let mut names = (0u32..).map(|i| format!("events.out.tfevents.{now:010}.fanwise.{i:04}"));
    let name = names.find(|name| !folder.join(name).exists()).unwrap_or_default();
    let mut file =
        OpenOptions::new().append(true).create_new(true).open(folder.join(name)).map_err(wrong)?;
    append(&mut file, &Event { file_version: Some("brain.Event:2".to_owned()), ..event(0) })?;
    if step > 0 {
        append(&mut file, &Event { session: Some(Session { status: START }), ..event(step) })?;
    }
    Ok(file)
}

/// Appends a record: its length, a checksum of that, its bytes, a checksum of these.
fn append(file: &mut File, event: &Event) -> Result<(), Error> {
    let data = event.encode_to_vec();
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend(length);
    record.extend(masked(&length).to_le_bytes());
    record.extend(&data);
    record.extend(masked(&data).to_le_bytes());
    file.write_all(&record).and_then(|()| file.flush()).map_err(failed)
}

/// The checksum of a record: CRC-32C, rotated by 15 bits and moved by a constant.
fn masked(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli).
fn crc32c(data: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ 0x82f6_3b78 };
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), bit);
    !data.iter().fold(u32::MAX, byte)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::{Event, append, crc32c, event, masked, numbers, open, scalars};
    use crate::train::Logs;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    fn read(mut bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            let (length, rest) = bytes.split_at(8);
            let (check, rest) = rest.split_at(4);
            assert_eq!(check, masked(length).to_le_bytes());
            let length = usize::try_from(u64::from_le_bytes(length.try_into().unwrap())).unwrap();
            let (data, rest) = rest.split_at(length);
            let (check, rest) = rest.split_at(4);
            assert_eq!(check, masked(data).to_le_bytes());
            events.push(Event::decode(data).unwrap());
            bytes = rest;
        }
        events
    }

    #[test]
    fn events_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let logs = Logs { rows: 2, loss: 0.5, metrics: vec![("accuracy".to_owned(), 0.25)] };
        let mut file = open(folder.path(), 3).unwrap();
        append(&mut file, &numbers(3, scalars(&logs, "epoch"))).unwrap();
        append(&mut file, &event(9)).unwrap();
        open(folder.path(), 0).unwrap();
        let mut paths: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        assert_eq!(paths.len(), 2);
        let events = read(&std::fs::read(&paths[0]).unwrap());
        assert_eq!(events.len(), 4);
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!((events[1].step, events[1].session.as_ref().unwrap().status), (3, 1));
        let values = &events[2].summary.as_ref().unwrap().value;
        assert_eq!((&*values[0].tag, values[0].simple_value), ("epoch_loss", Some(0.5)));
        assert_eq!((&*values[1].tag, values[1].simple_value), ("epoch_accuracy", Some(0.25)));
        assert_eq!(read(&std::fs::read(&paths[1]).unwrap()).len(), 1);
    }
}
