//! Records of runs: what is asked for, and the files that they are written to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;

use crate::Error;
use crate::backend::{Peak, Trace};
use crate::cli::{paths, ui};
use crate::format;

/// The records of runs that are asked for.
#[derive(Args)]
pub(crate) struct TraceArgs {
    /// Write a timeline of all streams or virtual devices, for Perfetto or Chrome
    ///
    /// The file is also written if the run fails.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Draw a timeline of all streams or virtual devices to a .svg or .html file
    ///
    /// It has the last 8 runs, and is also drawn if a run fails. For the plan, see `compile --emit
    /// timeline`.
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Print the time of each operator on standard error, or write it to a .json file
    ///
    /// On the CPU it is beside the most that these threads multiply and move in a second, which is
    /// measured before the run. The first of several runs is left out: it is slower.
    #[arg(
        long,
        value_name = "FILE.json",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "-"
    )]
    profile: Option<PathBuf>,
}

impl TraceArgs {
    /// Fails where a file could not be written, before the runs that it would lose.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if let Some(path) = &self.timeline {
            PlanForm::of_timeline(path)?;
        }
        self.trace.as_ref().map_or(Ok(()), |path| paths::check_form("trace", path, "json"))?;
        let profile = self.profile.clone().filter(|path| !is_printed(path));
        if let Some(path) = profile.iter().find(|path| path.extension().is_none_or(|e| e != "json"))
        {
            bail!(
                "cannot write a profile to {}: profiles are .json files; name one",
                path.display()
            );
        }
        let files = [("trace", &self.trace), ("timeline", &self.timeline), ("profile", &profile)];
        for (option, path) in files {
            path.as_ref().map_or(Ok(()), |path| check_written(option, path))?;
        }
        Ok(())
    }

    /// The files that are written, in words.
    pub(crate) fn files(&self) -> impl Iterator<Item = String> {
        let files = [&self.trace, &self.timeline, &self.profile].into_iter().flatten();
        files.filter(|path| !is_printed(path)).map(|path| path.display().to_string())
    }

    /// The trace, if a file of it is asked for.
    pub(crate) fn traced(&self) -> Option<Traced> {
        let files = [&self.trace, &self.timeline, &self.profile];
        files.iter().any(|file| file.is_some()).then(|| {
            // A picture alone needs no more runs than it shows.
            let trace = if self.trace.is_some() { Trace::new() } else { Trace::of_timeline() };
            let trace = if self.profile.is_some() { trace.profiled() } else { trace };
            Traced {
                trace: Arc::new(trace),
                json: self.trace.clone(),
                timeline: self.timeline.clone(),
                profile: self.profile.clone(),
                peak: None,
            }
        })
    }
}

/// A trace, and the files that it is written to.
pub(crate) struct Traced {
    trace: Arc<Trace>,
    json: Option<PathBuf>,
    timeline: Option<PathBuf>,
    profile: Option<PathBuf>,
    /// What the machine does at most, where it was measured.
    peak: Option<Peak>,
}

/// Whether a profile is printed, and not written to this file.
fn is_printed(path: &Path) -> bool {
    path == Path::new("-")
}

impl Traced {
    /// The trace, for a backend to add to.
    pub(crate) fn trace(&self) -> Arc<Trace> {
        Arc::clone(&self.trace)
    }

    /// The same with what the machine does at most, where a profile is to be beside it.
    pub(crate) fn beside(self, peak: impl FnOnce() -> Peak) -> Self {
        Self { peak: self.profile.is_some().then(peak), ..self }
    }

    /// Writes the files.
    pub(crate) fn write(&self) -> Result<(), Error> {
        if let Some(path) = &self.json {
            format::write_text(path, &self.trace.to_json())?;
        }
        if let Some(path) = &self.timeline {
            let chart = self.trace.timeline();
            let is_page = PlanForm::of(path) == Some(PlanForm::Html);
            let text = if is_page { chart.to_html() } else { chart.to_svg() };
            format::write_text(path, &text)?;
        }
        if let (Some(path), Some(profile)) = (&self.profile, self.trace.take_profile()) {
            if is_printed(path) {
                ui::say(&profile.to_text(self.peak));
            } else {
                format::write_text(path, &profile.to_json(self.peak))?;
            }
        }
        Ok(())
    }
}

/// What a memory plan or a timeline is written as.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlanForm {
    /// A picture.
    Svg,
    /// A page that zooms.
    Html,
    /// A table; timelines have none.
    Table,
}

impl PlanForm {
    /// What the name of a file says.
    fn of(path: &Path) -> Option<Self> {
        let Some(extension) = path.extension() else { return Some(Self::Table) };
        let forms = [("svg", Self::Svg), ("html", Self::Html), ("txt", Self::Table)];
        let form = forms.into_iter().find(|(name, _)| extension.eq_ignore_ascii_case(name));
        form.map(|(_, form)| form)
    }

    /// The form of a file with a timeline.
    pub(crate) fn of_timeline(path: &Path) -> anyhow::Result<Self> {
        match Self::of(path) {
            Some(form @ (Self::Svg | Self::Html)) => Ok(form),
            Some(Self::Table) | None => {
                bail!(
                    "cannot draw to {}: timelines are .svg or .html files; name one",
                    path.display()
                )
            }
        }
    }

    /// The form of a file with a memory plan.
    pub(crate) fn of_memory(path: &Path) -> anyhow::Result<Self> {
        Self::of(path).with_context(|| {
            let name = path.display();
            format!(
                "cannot write a memory plan to {name}: .svg and .html files are pictures, .txt \
                 files and those without extension are tables"
            )
        })
    }
}

/// Fails where the file of an option could not be written, before the work that it would lose.
pub(crate) fn check_written(option: &str, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("{}: the folder {} does not exist; make it first", path.display(), folder.display());
    }
    let refused = || format!("the file of `--{option}` cannot be written");
    format::check_write(path).map_err(Error::from).with_context(refused)
}
