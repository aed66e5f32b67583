//! Selection of GPUs from the forms that users write.

use std::str::FromStr;

use crate::pass::error::{DeviceError, MAX_DEVICES};
use crate::types::invariant::int;
use crate::types::{Device, ParseValueError};

/// A selection of GPUs: a count, a list of ids, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// This number of GPUs, from id 0 on.
    Count(i64),
    /// The GPUs with these ids, in this order.
    Ids(Vec<i64>),
    /// All GPUs of the machine.
    All,
}

impl Gpus {
    /// The selected devices on a machine with `found` GPUs. A machine without GPUs runs virtual
    /// devices, so that every id exists there.
    pub fn select(&self, found: usize) -> Result<Vec<Device>, DeviceError> {
        let ids: Vec<i64> = match self {
            Self::All if found == 0 => return Err(DeviceError::AllOfNone),
            Self::All => (0..int::<i64>(found)).collect(),
            Self::Count(n) if *n < 1 => return Err(DeviceError::NoDevice(*n)),
            Self::Count(n) if *n > MAX_DEVICES => return Err(DeviceError::TooMany(*n)),
            Self::Count(n) => (0..*n).collect(),
            Self::Ids(ids) => ids.clone(),
        };
        let asked = || match self {
            Self::Count(n) => n.to_string(),
            Self::All => "all".to_owned(),
            Self::Ids(ids) => ids.iter().map(i64::to_string).collect::<Vec<_>>().join(","),
        };
        if let Self::Ids(ids) = self {
            check_list(ids, &asked)?;
        }
        let exists = |id: &i64| found == 0 || usize::try_from(*id).is_ok_and(|id| id < found);
        let missing: Vec<i64> = ids.iter().copied().filter(|id| !exists(id)).collect();
        if !missing.is_empty() {
            return Err(DeviceError::Absent { asked: asked(), missing, found });
        }
        ids.into_iter()
            .map(|id| u32::try_from(id).map(Device::gpu).map_err(|_| DeviceError::TooMany(id)))
            .collect()
    }
}

/// Checks that a list has at least two ids, each once and in range.
fn check_list(ids: &[i64], asked: &dyn Fn() -> String) -> Result<(), DeviceError> {
    // `3,` is more likely a mistyped count than a list of one.
    if ids.len() < 2 {
        return Err(DeviceError::ShortList { asked: asked(), count: ids.len() });
    }
    if let Some(id) = ids.iter().find(|id| **id < 0) {
        return Err(DeviceError::Negative { asked: asked(), id: *id });
    }
    if let Some(id) = ids.iter().find(|id| **id >= MAX_DEVICES) {
        return Err(DeviceError::TooMany(*id));
    }
    let mut seen = std::collections::BTreeSet::new();
    match ids.iter().find(|id| !seen.insert(**id)) {
        Some(id) => Err(DeviceError::Duplicate { asked: asked(), id: *id }),
        None => Ok(()),
    }
}

/// The error for a text in no known form.
fn wrong(text: &str) -> ParseValueError {
    ParseValueError::new(format!(
        "`{text}` is not a list of GPUs; write a count (`4`), at least two ids (`0,2,5`) or `all`"
    ))
}

impl FromStr for Gpus {
    type Err = ParseValueError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let wrong = || wrong(s);
        if s == "all" {
            return Ok(Self::All);
        }
        if !s.contains(',') {
            return s.trim().parse().map(Self::Count).map_err(|_| wrong());
        }
        let ids = s.split(',').map(|id| id.trim().parse()).collect::<Result<_, _>>();
        ids.map(Self::Ids).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::{Device, DeviceError, Gpus};

    fn select(s: &str, found: usize) -> Result<Vec<Device>, DeviceError> {
        s.parse::<Gpus>().unwrap().select(found)
    }

    #[test]
    fn devices_keep_their_order() {
        assert_eq!(select("2,0", 0), Ok(vec![Device::gpu(2), Device::gpu(0)]));
        assert_eq!(select("3", 8).unwrap().len(), 3);
        assert_eq!(select("all", 2).unwrap().len(), 2);
        assert_eq!(select("1", 0), Ok(vec![Device::gpu(0)]));
    }

    #[test]
    fn wrong_devices_are_told_apart() {
        assert_eq!(select("all", 0), Err(DeviceError::AllOfNone));
        assert_eq!(select("0", 0), Err(DeviceError::NoDevice(0)));
        assert_eq!(select("-2", 4), Err(DeviceError::NoDevice(-2)));
        assert!(matches!(select("0,0", 0), Err(DeviceError::Duplicate { id: 0, .. })));
        assert!(matches!(select("0,-1", 0), Err(DeviceError::Negative { id: -1, .. })));
        assert!(matches!(select("8", 4), Err(DeviceError::Absent { found: 4, .. })));
        let absent = select("0,9", 2).unwrap_err().to_string();
        assert_eq!(
            absent,
            "the devices `0,9` need gpu:9; this machine has 2 GPUs (gpu:0 to gpu:1)"
        );
        assert!(matches!(select("9999999999", 0), Err(DeviceError::TooMany(_))));
        for s in ["", "four", "1,", ",", "1,x", "1.5"] {
            assert!(s.parse::<Gpus>().is_err(), "{s}");
        }
    }
}
