//! Pictures in a real browser: what fits by our own measure of glyphs fits in its fonts, too, and
//! pages answer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the browser is asked to do on a page of a graph.
const GRAPH: &str = include_str!("browser/check.js");

/// What it is asked to do on a chart, or on a file of SVG.
const CHART: &str = include_str!("browser/chart.js");

/// A browser that takes longer hangs.
const SECONDS: &str = "120";

/// A picture: a model, and the arguments of `compile` behind it.
struct Picture {
    model: String,
    args: &'static str,
}

#[test]
#[ignore = "needs Chromium: cargo xtask full browser"]
fn browser_shows_every_picture() {
    let bert = support::root("tests/models/exported/torch_dynamo_bert.onnx");
    let of = |model: &str, args| Picture { model: model.to_owned(), args };
    let mut pictures: Vec<Picture> = fanwise::zoo::names()
        .map(|name| of(&format!("zoo:{name}"), "--gpus 3 --emit html"))
        .collect();
    pictures.extend([
        of("zoo:xception", "--gpus 8 --emit html"),
        of(bert.to_str().unwrap(), "--gpus 3 --emit html"),
        of("zoo:mini_googlenet", "--gpus 4 --loss mse --optimizer adam --emit html:training"),
        of("zoo:mini_googlenet", "--gpus 4 --emit timeline=page.html"),
        of("zoo:mini_googlenet", "--gpus 4 --emit timeline=page.svg"),
        of("zoo:xception", "--gpus 8 --emit memory=page.svg"),
        of("zoo:xception", "--gpus 8 --emit svg=page.svg"),
    ]);
    let failed: Vec<String> = pictures
        .iter()
        .flat_map(|picture| {
            let Picture { model, args } = picture;
            picture.faults().into_iter().map(move |fault| format!("{model} {args}: {fault}"))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

impl Picture {
    /// What is wrong with it.
    fn faults(&self) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut compile = Command::new(env!("CARGO_BIN_EXE_fanwise"));
        let compile = compile.current_dir(&folder).args(["compile", &self.model]);
        let compiled = compile.args(self.args.split(' ')).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let file = self.args.split('=').nth(1);
        let shown = match file {
            Some(name) => fs::read_to_string(at(name)).unwrap(),
            None => String::from_utf8(compiled.stdout).unwrap(),
        };
        let page = if shown.starts_with("<svg") {
            format!("<!DOCTYPE html><title></title><body>{shown}</body>")
        } else {
            shown
        };
        let check = if file.is_some() { CHART } else { GRAPH };
        let (plain, checked) = (at("plain.html"), at("checked.html"));
        fs::write(&plain, &page).unwrap();
        let script = format!("<script>{check}</script></body>");
        fs::write(&checked, page.replacen("</body>", &script, 1)).unwrap();

        let seen = visit(&checked, &["--dump-dom"]);
        let title = seen.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
        let title = title.unwrap().replace("&amp;", "&").replace("&gt;", ">").replace("&lt;", "<");
        let told: serde_json::Value = serde_json::from_str(&title)
            .unwrap_or_else(|e| panic!("{}: the script did not end: {e}: {title}", self.args));
        let views = told["views"].as_object().unwrap();
        assert!(views.values().all(|boxes| boxes.as_u64().unwrap() > 1), "{told}");
        let faults = told["faults"].as_array().unwrap().iter();
        let mut faults: Vec<String> = faults.map(|f| f.as_str().unwrap().to_owned()).collect();

        let shot = at("shot.png");
        visit(&plain, &[&format!("--screenshot={}", shot.display()), "--window-size=1600,1000"]);
        faults.extend(is_empty(&shot).then(|| "the screenshot is empty".to_owned()));
        faults
    }
}

/// Opens a page, and returns what the browser prints.
fn visit(page: &Path, how: &[&str]) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("timeout")
        .arg(SECONDS)
        .arg(browser())
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

/// Whether less than one pixel in a hundred differs from white: below the head of a page, which has
/// buttons, is nothing.
fn is_empty(shot: &Path) -> bool {
    let image = png::Decoder::new(std::io::BufReader::new(fs::File::open(shot).unwrap()));
    let mut reader = image.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let of_pixel = info.color_type.samples();
    let pixels = &pixels[info.buffer_size() / 10..info.buffer_size()];
    let drawn = pixels.chunks_exact(of_pixel).filter(|p| p[..3] != [255; 3]).count();
    drawn < pixels.len() / of_pixel / 100
}
