//! Pictures in a real browser: what fits by our own measure of glyphs fits in its fonts, too, and
//! the page answers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the browser is asked to do on every page.
const CHECK: &str = include_str!("browser/check.js");

#[test]
#[ignore = "needs Chromium: cargo xtask full browser"]
fn browser_shows_every_picture() {
    let folder = tempfile::tempdir().unwrap();
    let bert = support::root("tests/models/exported/torch_dynamo_bert.onnx");
    let mut pages: Vec<(String, Vec<&str>)> = fanwise::zoo::names()
        .map(|name| (format!("zoo:{name}"), vec!["--gpus", "3", "--emit", "html"]))
        .collect();
    pages.push(("zoo:xception".to_owned(), vec!["--gpus", "8", "--emit", "html"]));
    pages.push((bert.to_str().unwrap().to_owned(), vec!["--gpus", "3", "--emit", "html"]));
    let step = ["--gpus", "4", "--loss", "mse", "--optimizer", "adam", "--emit", "html:training"];
    pages.push(("zoo:mini_googlenet".to_owned(), step.to_vec()));
    let failed: Vec<String> = pages
        .iter()
        .flat_map(|(model, args)| {
            let faults = faults(folder.path(), model, args);
            faults.into_iter().map(move |fault| format!("{model} {args:?}: {fault}"))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What is wrong with the page that `compile` makes of a model.
fn faults(folder: &Path, model: &str, args: &[&str]) -> Vec<String> {
    let mut compile = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    let compiled = compile.args(["compile", model]).args(args).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let page = String::from_utf8(compiled.stdout).unwrap();
    let (plain, checked) = (folder.join("plain.html"), folder.join("checked.html"));
    fs::write(&plain, &page).unwrap();
    let script = format!("<script>{CHECK}</script></body>");
    fs::write(&checked, page.replacen("</body>", &script, 1)).unwrap();

    let seen = visit(&checked, &["--dump-dom"]);
    let title = seen.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
    let title = title.unwrap_or_default().replace("&amp;", "&").replace("&gt;", ">");
    let told: serde_json::Value = serde_json::from_str(&title.replace("&lt;", "<"))
        .unwrap_or_else(|e| panic!("{model}: the script did not end: {e}: {title}"));
    let views = told["views"].as_object().unwrap();
    assert!(views.values().all(|boxes| boxes.as_u64().unwrap() > 1), "{model}: {told}");
    let faults = told["faults"].as_array().unwrap().iter();
    let mut faults: Vec<String> = faults.map(|f| f.as_str().unwrap().to_owned()).collect();

    let shot = folder.join("shot.png");
    visit(&plain, &[&format!("--screenshot={}", shot.display()), "--window-size=1600,1000"]);
    faults.extend(is_empty(&shot).then(|| "the screenshot is empty".to_owned()));
    fs::remove_file(&shot).unwrap();
    faults
}

/// Opens a page, and returns what the browser prints.
fn visit(page: &Path, how: &[&str]) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new(browser())
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(how)
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The browser of the system.
fn browser() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut all = std::env::split_paths(&path).flat_map(|d| names.map(|name| d.join(name)));
    all.find(|file| file.is_file()).expect("Chromium is installed (Debian: chromium)")
}

/// Whether there is little else than the page's margins: of the lower half, where only the drawing
/// is, less than one pixel in a hundred differs from white.
fn is_empty(shot: &Path) -> bool {
    let image = png::Decoder::new(std::io::BufReader::new(fs::File::open(shot).unwrap()));
    let mut reader = image.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let of_pixel = info.color_type.samples();
    let pixels = &pixels[info.buffer_size() / 2..info.buffer_size()];
    let drawn = pixels.chunks_exact(of_pixel).filter(|p| p[..3] != [255; 3]).count();
    drawn < pixels.len() / of_pixel / 100
}
