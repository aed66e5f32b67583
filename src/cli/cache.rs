//! `fanwise cache`: the compiled kernels that are kept.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::cli::args::{Format, FormatArgs};
use crate::cli::target::CacheArgs;

/// List or remove cached kernels
#[derive(Args)]
#[command(
    after_help = "Examples:\n  fanwise cache list\n  fanwise cache clear --cache-dir /tmp/kernels"
)]
pub(crate) struct CacheCommand {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Clone, Copy, Subcommand)]
enum Action {
    /// List the files, the least recently used first
    List,
    /// Remove all files
    Clear,
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn cache(args: &CacheCommand) -> anyhow::Result<ExitCode> {
    // What only CUDA uses.
    drop((args.action, args.cache.folder(), args.format.format));
    anyhow::bail!("this build has no feature `cuda`, so it caches no kernels")
}

#[cfg(feature = "cuda")]
pub(crate) fn cache(args: &CacheCommand) -> anyhow::Result<ExitCode> {
    use anyhow::Context;

    let Some(cache) = crate::cli::target::cache(&args.cache) else {
        anyhow::bail!("the home folder is unknown; name the cache folder with `--cache-dir`");
    };
    let folder = cache.folder().display().to_string();
    let text = match args.action {
        Action::List => {
            let files = cache.list().with_context(|| folder.clone())?;
            show(args.format.format, &folder, &files)
        }
        Action::Clear => {
            let (files, bytes) = cache.clear().with_context(|| folder.clone())?;
            match args.format.format {
                Format::Text => {
                    format!("{folder}: {files} files removed, {}\n", crate::cli::ui::bytes(bytes))
                }
                Format::Json => {
                    serde_json::json!({ "folder": folder, "removed": files, "bytes": bytes })
                        .to_string()
                }
            }
        }
    };
    crate::cli::ui::out(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The list of files as asked for.
#[cfg(feature = "cuda")]
fn show(format: Format, folder: &str, files: &[crate::backend::cuda::Cached]) -> String {
    let total = files.iter().map(|file| file.bytes).sum();
    // A time that lies ahead, after the clock was set back, counts as now.
    let age = |file: &crate::backend::cuda::Cached| file.used.elapsed().unwrap_or_default();
    match format {
        Format::Text => {
            let row = |file: &crate::backend::cuda::Cached| {
                let ago = format!("{} s ago", age(file).as_secs());
                vec![file.name.clone(), crate::cli::ui::bytes(file.bytes), ago]
            };
            let rows: Vec<_> = files.iter().map(row).collect();
            let table = crate::cli::ui::table(&["kernels", "size", "used"], &rows);
            let total = crate::cli::ui::bytes(total);
            format!("{table}\n{} files, {total} in {folder}\n", files.len())
        }
        Format::Json => {
            let list: Vec<_> = files
                .iter()
                .map(|file| {
                    let seconds = age(file).as_secs_f64();
                    serde_json::json!({
                        "name": file.name,
                        "bytes": file.bytes,
                        "unused_seconds": seconds,
                    })
                })
                .collect();
            serde_json::json!({ "folder": folder, "files": list, "bytes": total }).to_string()
        }
    }
}
