//! Pictures in a real browser: what fits by our own measure of glyphs fits in its fonts, too, and
//! pages answer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::fit_cli::two_head;

/// What the browser is asked to do on a page of a graph.
const GRAPH: &str = include_str!("browser/check.js");

/// What it is asked to do on a chart, or on a file of SVG.
const CHART: &str = include_str!("browser/chart.js");

/// A browser that takes longer hangs.
const SECONDS: &str = "120";

/// The longest that a picture may take to be written, and to be shown, in milliseconds.
const TIME: f64 = 2000.0;

/// Tries, of which one has to be in time: the machine may be busy.
const TRIES: usize = 3;

/// A picture: a model, and the arguments of a command with it in place of `MODEL`.
struct Picture {
    model: String,
    args: &'static str,
}

#[test]
#[ignore = "needs Chromium: cargo xtask full browser"]
fn browser_shows_every_picture() {
    let bert = support::root("tests/models/exported/torch_dynamo_bert.onnx");
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("deep.fan");
    let encoder = fanwise::zoo::build("transformer").unwrap().0.to_string();
    fs::write(&deep, support::deep::encoder(&encoder, 12)).unwrap();
    let of = |model: &str, args| Picture { model: model.to_owned(), args };
    let mut pictures: Vec<Picture> = fanwise::zoo::names()
        .map(|name| of(&format!("zoo:{name}"), "compile MODEL --gpus 3 --emit html"))
        .collect();
    pictures.extend([
        of("zoo:mini_googlenet", STEP),
        of("zoo:mini_googlenet", MIRRORED_STEP),
        of("zoo:mini_googlenet", STEP_TIMELINE),
        of("zoo:xception", "compile MODEL --gpus 8 --emit html"),
        of(bert.to_str().unwrap(), "compile MODEL --gpus 3 --emit html"),
        of(deep.to_str().unwrap(), "compile MODEL --gpus 3 --emit html"),
        of("zoo:mini_googlenet", "compile MODEL --gpus 4 --emit timeline=page.html"),
        of("zoo:mini_googlenet", "compile MODEL --gpus 4 --emit timeline=page.svg"),
        of("zoo:xception", "compile MODEL --gpus 8 --emit memory=page.svg"),
        of("zoo:xception", "compile MODEL --gpus 8 --emit svg=page.svg"),
        of("zoo:mini_googlenet", "run MODEL --gpus 3 --batch 7 --repeat 3 --timeline=page.html"),
        of("zoo:two_head", FIT),
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

/// A step of training, one whose devices have parameters of their own, and a timeline.
const STEP: &str = "compile MODEL --gpus 4 --loss mse --optimizer adam --emit html:training";
const MIRRORED_STEP: &str = "compile MODEL --gpus 4 --loss mse --optimizer adam --weights mirrored \
    --emit html:training";
const STEP_TIMELINE: &str =
    "compile MODEL --gpus 4 --loss mse --optimizer adam --emit timeline:training=page.html";

/// Curves of a training.
const FIT: &str = "fit MODEL --data train.npz --validation test.npz --loss score=mse --epochs 5 \
    --metrics score=mae --plot=page.svg";

impl Picture {
    /// What is wrong with it.
    fn faults(&self) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let words =
            self.args.split(' ').map(|word| if word == "MODEL" { &*self.model } else { word });
        let words: Vec<&str> = words.collect();
        let of_graph = words[0] == "compile";
        if words[0] == "fit" {
            two_head(folder.path());
        }
        let tries = if of_graph { TRIES } else { 1 };
        let made = quickest(tries, || {
            let begin = Instant::now();
            let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
            let output = command.current_dir(&folder).args(&words).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            (begin.elapsed().as_secs_f64() * 1e3, output.stdout)
        });
        let file = words.last().and_then(|word| word.split_once('='));
        let shown = match file {
            Some((_, name)) => fs::read_to_string(at(name)).unwrap(),
            None => String::from_utf8(made.1).unwrap(),
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

        let (time, told) = quickest(TRIES, || {
            let told = self.told(&checked);
            (told["shown"].as_f64().unwrap(), told)
        });
        let views = told["views"].as_object().unwrap();
        assert!(views.values().all(|boxes| boxes.as_u64().unwrap() > 1), "{told}");
        let faults = told["faults"].as_array().unwrap().iter();
        let mut faults: Vec<String> = faults.map(|f| f.as_str().unwrap().to_owned()).collect();
        faults.extend((time > TIME).then(|| format!("it is shown after {time} ms")));
        // Runs and trainings take the time that they take.
        let late = of_graph && made.0 > TIME;
        faults.extend(late.then(|| format!("it is written after {} ms", made.0)));
        let shot = at("shot.png");
        visit(&plain, &[&format!("--screenshot={}", shot.display()), "--window-size=1600,1000"]);
        faults.extend(is_empty(&shot).then(|| "the screenshot is empty".to_owned()));
        faults
    }

    /// What a script says of a page.
    fn told(&self, page: &Path) -> serde_json::Value {
        let seen = visit(page, &["--dump-dom"]);
        let title = seen.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
        let title = title.unwrap().replace("&amp;", "&").replace("&gt;", ">").replace("&lt;", "<");
        serde_json::from_str(&title)
            .unwrap_or_else(|e| panic!("{}: the script did not end: {e}: {title}", self.args))
    }
}

/// The first result that took no longer than it may, else the last, with its milliseconds.
fn quickest<T>(tries: usize, mut make: impl FnMut() -> (f64, T)) -> (f64, T) {
    let mut made = make();
    for _ in 1..tries {
        if made.0 <= TIME {
            break;
        }
        made = make();
    }
    made
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

/// Whether less than one pixel in 300 is of a letter, a line or a bar: below the head of a page,
/// which has buttons, is nothing but the light grounds of lanes and panels.
fn is_empty(shot: &Path) -> bool {
    let image = png::Decoder::new(std::io::BufReader::new(fs::File::open(shot).unwrap()));
    let mut reader = image.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    let of_pixel = info.color_type.samples();
    let pixels = &pixels[info.buffer_size() / 10..info.buffer_size()];
    let is_drawn = |pixel: &&[u8]| pixel[..3].iter().any(|channel| *channel < 0xc8);
    pixels.chunks_exact(of_pixel).filter(is_drawn).count() < pixels.len() / of_pixel / 300
}
