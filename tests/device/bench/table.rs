//! The numbers of a file of JSON as a table.

use std::process::ExitCode;

use serde_json::Value;

use crate::setup::{complain, say};

/// Kernels of each model that are shown: those that lose most against their floors.
const WORST: usize = 5;

/// Rows of a name and what is said of it.
#[derive(Default)]
struct Rows(Vec<(String, String)>);

impl Rows {
    fn add(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.0.push((name.into(), text.into()));
    }
}

/// Prints the table of a file.
pub(crate) fn main(path: &str) -> ExitCode {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string());
    match text.and_then(|text| serde_json::from_str(&text).map_err(|e| e.to_string())) {
        Ok(found) => {
            let Rows(rows) = rows(&found);
            let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
            for (name, text) in rows {
                say(&format!("{name:width$}  {text}"));
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(&format!("error: {path}: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("unknown")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn percent(value: &Value) -> String {
    format!("{:.0} %", 100.0 * number(value))
}

fn rows(found: &Value) -> Rows {
    let mut rows = Rows::default();
    tests(&found["tests"], &mut rows);
    let device =
        format!("{} of {}, {}", found["gpus"], word(&found["device"]), word(&found["arch"]));
    rows.add("device", device);
    rows.add("driver, NVRTC", format!("{}, {}", word(&found["driver"]), word(&found["nvrtc"])));
    rows.add("date, commit", format!("{}, {}", word(&found["date"]), word(&found["commit"])));
    rows.add("rows of a batch", found["batch"].to_string());
    if found["ceilings"].is_object() {
        ceilings(&found["ceilings"], &mut rows);
    }
    for (name, model) in found["models"].as_object().into_iter().flatten() {
        self::model(name, model, &mut rows);
    }
    for name in found["not_measured"].as_array().into_iter().flatten() {
        rows.add(word(name), "not measured: time ran out");
    }
    rows
}

fn tests(found: &Value, rows: &mut Rows) {
    if !found.is_object() {
        return;
    }
    for test in found["results"].as_array().into_iter().flatten() {
        let result = word(&test["result"]);
        let time = test["seconds"].as_f64().map(|seconds| format!(", {seconds:.1} s"));
        rows.add(
            format!("test {}", word(&test["name"])),
            format!("{result}{}", time.unwrap_or_default()),
        );
    }
    let seconds = number(&found["seconds"]);
    let counts = ["passed", "failed", "not_run"].map(|what| found[what].to_string());
    let [passed, failed, left] = counts;
    rows.add("tests", format!("{passed} passed, {failed} failed, {left} not run, {seconds:.0} s"));
}

fn ceilings(found: &Value, rows: &mut Rows) {
    let rate = |name: &str| format!("{:.1} GB/s", number(&found[name]) / 1e9);
    let gap = |name: &str| format!("{:.2} µs", number(&found[name]) * 1e6);
    let flops = |name: &str| match found[name].as_f64() {
        Some(flops) => format!("{:.1} TFLOP/s", flops / 1e12),
        None => "not measured: Python has no torch that uses the GPU".to_owned(),
    };
    rows.add("a kernel that copies", rate("copy_bytes_per_second"));
    rows.add("a copy on the device", rate("memory_bytes_per_second"));
    rows.add("host to device", rate("upload_bytes_per_second"));
    rows.add("device to host", rate("download_bytes_per_second"));
    rows.add("kernel to kernel, launched", gap("launch_gap_seconds"));
    rows.add("kernel to kernel, in a graph", gap("graph_gap_seconds"));
    rows.add("library GEMM", flops("library_flops"));
    rows.add("library GEMM in bf16", flops("library_bf16_flops"));
    rows.add("own GEMM", flops("own_flops"));
    rows.add("floors", word(&found["floors_from"]));
}

fn model(name: &str, found: &Value, rows: &mut Rows) {
    if let Some(cold) = found["cold_seconds"].as_f64() {
        let warm = number(&found["warm_seconds"]);
        rows.add(format!("{name}: start"), format!("{cold:.2} s cold, {warm:.3} s warm"));
    }
    if let Some(floor) = found["floor_images_per_second"].as_f64() {
        let from = word(&found["floor_from"]);
        rows.add(
            format!("{name}: floor"),
            format!("{floor:.0} images/s, of bytes and operations of the {from}"),
        );
    }
    let measured = 1e3 * number(&found["kernel_seconds"]);
    if found["kernel_seconds"].is_number() {
        let expected = found["expected_seconds"].as_f64();
        let expected = expected.map_or("unknown: no model of this GPU".to_owned(), |seconds| {
            format!("{:.3} ms", 1e3 * seconds)
        });
        rows.add(format!("{name}: kernels"), format!("{measured:.3} ms, expected {expected}"));
    }
    for (count, run) in found["replicas"].as_object().into_iter().flatten() {
        let rate = |of: &str| format!("{:.0}", number(&run[of]));
        let (whole, device) = (rate("images_per_second"), rate("device_images_per_second"));
        let share = percent(&run["share_of_floor"]);
        let bf16 = run["share_of_bf16_floor"].as_f64().map_or_else(
            || "that in bf16 is unknown".to_owned(),
            |share| format!("{} of that in bf16", percent(&Value::from(share))),
        );
        let (one, alone) = (percent(&run["against_one"]), percent(&run["device_against_one"]));
        rows.add(
            format!("{name}: {count} replicas"),
            format!(
                "{whole} images/s end to end ({one} of one), {device} on the device ({alone} of \
                 one, {share} of the floor, {bf16})"
            ),
        );
    }
    for count in found["replicas_not_measured"].as_array().into_iter().flatten() {
        rows.add(format!("{name}: {count} replicas"), "not measured");
    }
    let mut kernels: Vec<&Value> = found["kernels"].as_array().into_iter().flatten().collect();
    let lost = |k: &Value| number(&k["seconds"]) - number(&k["floor_seconds"]);
    kernels.sort_by(|a, b| lost(b).total_cmp(&lost(a)));
    for kernel in kernels.into_iter().take(WORST) {
        let (time, from) = (1e6 * number(&kernel["seconds"]), word(&kernel["floor_from"]));
        let share = percent(&kernel["share_of_floor"]);
        rows.add(
            format!("{name}: {}", word(&kernel["label"])),
            format!("{time:.1} µs, {share} of its floor of {from}"),
        );
    }
    if let Some(error) = found["error"].as_str() {
        rows.add(format!("{name}: error"), error.lines().next().unwrap_or_default());
    }
}
