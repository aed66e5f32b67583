//! The scenarios, each in a process of its own.

use crate::{capture, kernels};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg, sys,
};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use std::sync::Arc;

pub(crate) type Done = Result<(), DriverError>;

/// A kernel compiled for the fake device.
pub(crate) fn kernel(
    context: &Arc<CudaContext>,
    source: &str,
    name: &str,
    options: &[&str],
) -> Result<CudaFunction, DriverError> {
    let mut all = vec!["--gpu-architecture=compute_80".to_owned(), "-lineinfo".to_owned()];
    all.extend(options.iter().map(|&o| o.to_owned()));
    let options = CompileOptions { options: all, ..CompileOptions::default() };
    let ptx = compile_ptx_with_opts(source, options).expect("NVRTC compiles the kernel");
    context.load_module(ptx)?.load_function(name)
}

/// Some numbers.
pub(crate) fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0).collect()
}

pub(crate) fn config(grid: u32, block: u32, shared: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (grid, 1, 1), block_dim: (block, 1, 1), shared_mem_bytes: shared }
}

/// A context and a stream of device 0 that is ordered by nothing but what the scenario says.
pub(crate) fn device() -> Result<(Arc<CudaContext>, Arc<CudaStream>), DriverError> {
    let context = CudaContext::new(0)?;
    // SAFETY: the scenarios order their streams themselves.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream()?;
    Ok((context, stream))
}

/// Runs the scenario that the environment names.
#[test]
#[ignore = "is run by the other tests, in a process of its own"]
fn scenario() {
    let Ok(name) = std::env::var("FAKECUDA_SCENARIO") else { return };
    let result = match name.as_str() {
        "reduction" => reduction(),
        "matmul" => matmul(&[]),
        "shared_race" => expect_failure(matmul(&["-DNO_BARRIER"])),
        "softmax" => softmax(),
        "tensor_cores" => tensor(&[]),
        "missing_async_wait" => expect_failure(tensor(&["-DNO_WAIT"])),
        "graph" => graph(),
        "peer_copy" => peer_copy(),
        "pool" => pool(),
        "pipeline" => pipeline(true),
        "missing_wait" => expect_failure(pipeline(false)),
        "functions" => functions(),
        "race" => expect_failure(small("racy", 32)),
        "out_of_bounds" => expect_failure(small("no_guard", 64)),
        "divergent_barrier" => expect_failure(small("divergent", 32)),
        "blocks_conflict" => expect_failure(blocks_conflict()),
        "use_after_free" => expect_failure(use_after_free()),
        "wrong_device" => expect_failure(wrong_device()),
        "unwritten" => expect_failure(unwritten()),
        "leak" => leak(),
        "pinned_freed" => pinned_freed(),
        "two_readers" => expect_failure(two_readers()),
        "host_function" => host_function(),
        "unjoined" => expect_failure(unjoined()),
        "forbidden" => capture::forbidden(),
        "heeded" => capture::heeded(),
        "unloaded_graph" => expect_failure(capture::unloaded(true)),
        "unloaded" => expect_failure(capture::unloaded(false)),
        "pinned_changed" => expect_failure(pinned_changed()),
        "no_device" => no_device(),
        "out_of_memory" => out_of_memory(),
        "fallible" => fallible(),
        other => panic!("no scenario {other}"),
    };
    result.expect("the scenario runs");
}

/// A scenario that must fail on the device.
#[expect(clippy::unnecessary_wraps, reason = "every scenario has this type")]
fn expect_failure(result: Done) -> Done {
    assert!(result.is_err(), "the fault was not noticed");
    Ok(())
}

fn reduction() -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::REDUCTION, "row_sum", &[])?;
    let (rows, n) = (5, 300);
    let host = numbers(rows * n);
    let x = stream.clone_htod(&host)?;
    let mut y = stream.alloc_zeros::<f32>(rows)?;
    let len = n as i32;
    // SAFETY: the parameters are those of the kernel.
    unsafe {
        stream.launch_builder(&f).arg(&mut y).arg(&x).arg(&len).launch(config(
            rows as u32,
            128,
            0,
        ))?
    };
    let got = stream.clone_dtoh(&y)?;
    for (r, got) in got.iter().enumerate() {
        let want: f32 = host[r * n..(r + 1) * n].iter().sum();
        assert!((want - got).abs() < 1e-3, "{want} {got}");
    }
    Ok(())
}

fn matmul(options: &[&str]) -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::MATMUL, "matmul", options)?;
    let (m, n, k) = (20usize, 35usize, 50usize);
    let (a, b) = (numbers(m * k), numbers(k * n));
    let (da, db) = (stream.clone_htod(&a)?, stream.clone_htod(&b)?);
    let mut dc = stream.alloc_zeros::<f32>(m * n)?;
    let (mi, ni, ki) = (m as i32, n as i32, k as i32);
    let shape = LaunchConfig { grid_dim: (3, 2, 1), block_dim: (16, 16, 1), shared_mem_bytes: 0 };
    // SAFETY: the parameters are those of the kernel.
    unsafe {
        stream
            .launch_builder(&f)
            .arg(&mut dc)
            .arg(&da)
            .arg(&db)
            .arg(&mi)
            .arg(&ni)
            .arg(&ki)
            .launch(shape)?
    };
    let got = stream.clone_dtoh(&dc)?;
    for r in 0..m {
        for c in 0..n {
            let want = (0..k).fold(0f32, |s, i| a[r * k + i].mul_add(b[i * n + c], s));
            assert_eq!(want.to_bits(), got[r * n + c].to_bits(), "{r} {c}");
        }
    }
    Ok(())
}

fn softmax() -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::SOFTMAX, "softmax", &[])?;
    let (rows, n) = (4, 100);
    let host = numbers(rows * n);
    let x = stream.clone_htod(&host)?;
    let mut y = stream.alloc_zeros::<f32>(rows * n)?;
    let len = n as i32;
    // SAFETY: the parameters are those of the kernel.
    unsafe {
        stream.launch_builder(&f).arg(&mut y).arg(&x).arg(&len).launch(config(
            rows as u32,
            64,
            256,
        ))?
    };
    let got = stream.clone_dtoh(&y)?;
    for r in 0..rows {
        let row = &host[r * n..(r + 1) * n];
        let total: f64 = row.iter().map(|&v| f64::from(v).exp()).sum();
        for (i, &v) in row.iter().enumerate() {
            let want = f64::from(v).exp() / total;
            assert!((want - f64::from(got[r * n + i])).abs() < 1e-7);
        }
    }
    Ok(())
}

fn tensor(options: &[&str]) -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::TENSOR, "tensor", options)?;
    let a: Vec<half::f16> = numbers(256).into_iter().map(half::f16::from_f32).collect();
    let b: Vec<half::f16> = numbers(128).into_iter().map(half::f16::from_f32).collect();
    let (da, db) = (stream.clone_htod(&a)?, stream.clone_htod(&b)?);
    let mut dd = stream.alloc_zeros::<f32>(128)?;
    // SAFETY: the parameters are those of the kernel.
    unsafe { stream.launch_builder(&f).arg(&mut dd).arg(&da).arg(&db).launch(config(1, 32, 0))? };
    let got = stream.clone_dtoh(&dd)?;
    for r in 0..16 {
        for c in 0..8 {
            let want: f64 = (0..16).map(|k| a[r * 16 + k].to_f64() * b[k * 8 + c].to_f64()).sum();
            assert_eq!((want as f32).to_bits(), got[r * 8 + c].to_bits(), "{r} {c}");
        }
    }
    Ok(())
}

/// Two streams fork and join inside of a captured graph, which is launched three times.
fn graph() -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::SMALL, "add_one", &[])?;
    let side = context.new_stream()?;
    let mut x = stream.clone_htod(&numbers(64))?;
    let mut y = stream.clone_htod(&numbers(64))?;
    stream.synchronize()?;
    let n = 64;
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let fork = stream.record_event(None)?;
    side.wait(&fork)?;
    // SAFETY: the parameters are those of the kernel.
    unsafe { stream.launch_builder(&f).arg(&mut x).arg(&n).launch(config(2, 32, 0))? };
    // SAFETY: as above.
    unsafe { side.launch_builder(&f).arg(&mut y).arg(&n).launch(config(2, 32, 0))? };
    let join = side.record_event(None)?;
    stream.wait(&join)?;
    // SAFETY: as above.
    unsafe { stream.launch_builder(&f).arg(&mut y).arg(&n).launch(config(2, 32, 0))? };
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?.expect("a graph was captured");
    for _ in 0..3 {
        graph.launch()?;
    }
    let (gx, gy) = (stream.clone_dtoh(&x)?, stream.clone_dtoh(&y)?);
    for (i, v) in numbers(64).into_iter().enumerate() {
        assert_eq!(gx[i], ((v + 1.0) + 1.0) + 1.0);
        let want = (0..6).fold(v, |s, _| s + 1.0);
        assert_eq!(gy[i], want);
    }
    Ok(())
}

fn peer_copy() -> Done {
    let first = CudaContext::new(0)?.new_stream()?;
    let second = CudaContext::new(1)?.new_stream()?;
    let x = first.clone_htod(&numbers(100))?;
    first.synchronize()?;
    let mut y = second.alloc_zeros::<f32>(100)?;
    second.memcpy_dtod(&x, &mut y)?;
    assert_eq!(second.clone_dtoh(&y)?, numbers(100));
    Ok(())
}

/// Allocations in the order of a stream, used and freed over and over.
fn pool() -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::SMALL, "add_one", &[])?;
    let n = 256;
    for _ in 0..20 {
        let mut x = stream.alloc_zeros::<f32>(256)?;
        // SAFETY: the parameters are those of the kernel.
        unsafe { stream.launch_builder(&f).arg(&mut x).arg(&n).launch(config(2, 128, 0))? };
        assert_eq!(stream.clone_dtoh(&x)?, vec![1.0; 256]);
    }
    Ok(())
}

/// A copy stream feeds a compute stream through pinned memory; `ordered`: by events.
fn pipeline(ordered: bool) -> Done {
    let (context, compute) = device()?;
    let f = kernel(&context, kernels::SMALL, "add_one", &[])?;
    let copies = context.new_stream()?;
    let n = 128;
    for round in 0..4 {
        let mut x = copies.clone_htod(&vec![round as f32; 128])?;
        if ordered {
            compute.wait(&copies.record_event(None)?)?;
        }
        // SAFETY: the parameters are those of the kernel.
        unsafe { compute.launch_builder(&f).arg(&mut x).arg(&n).launch(config(1, 128, 0))? };
        let got = compute.clone_dtoh(&x)?;
        if ordered {
            assert_eq!(got, vec![round as f32 + 1.0; 128]);
            copies.wait(&compute.record_event(None)?)?;
        }
        drop(x);
        copies.synchronize()?;
        compute.synchronize()?;
    }
    Ok(())
}

fn functions() -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::SMALL, "functions", &[])?;
    let host: Vec<f32> = numbers(400);
    let x = stream.clone_htod(&host)?;
    let mut y = stream.alloc_zeros::<f32>(400)?;
    let n = 400;
    // SAFETY: the parameters are those of the kernel.
    unsafe { stream.launch_builder(&f).arg(&mut y).arg(&x).arg(&n).launch(config(4, 128, 0))? };
    let got = stream.clone_dtoh(&y)?;
    for (i, &v) in host.iter().enumerate() {
        let w = f64::from(v);
        let want = match i % 9 {
            0 => w.exp(),
            1 => w.tanh(),
            3 => w.abs().powf(1.5),
            4 => (w.abs() + 1.0).ln(),
            5 => w * i as f64,
            6 => f64::from([1, 2, 3, 4][i & 3]) * w * (i & 7) as f64,
            7 => w.abs().sqrt() / 3.0,
            8 => (w * 10.0).round_ties_even() + w.cos(),
            _ => continue,
        };
        assert!(
            (want - f64::from(got[i])).abs() <= 2e-6 * want.abs().max(1.0),
            "{i} {want} {}",
            got[i]
        );
    }
    Ok(())
}

/// One of the small kernels on 32 floats.
fn small(name: &str, threads: u32) -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::SMALL, name, &[])?;
    let mut x = stream.alloc_zeros::<f32>(32)?;
    // SAFETY: the parameter is that of the kernel; what it does wrong is noticed.
    unsafe { stream.launch_builder(&f).arg(&mut x).launch(config(1, threads, 0))? };
    stream.synchronize()
}

fn blocks_conflict() -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::SMALL, "block_racy", &[])?;
    let mut x = stream.alloc_zeros::<f32>(32)?;
    let y = stream.alloc_zeros::<f32>(32)?;
    // SAFETY: the parameters are those of the kernel; what it does wrong is noticed.
    unsafe { stream.launch_builder(&f).arg(&mut x).arg(&y).launch(config(4, 32, 0))? };
    stream.synchronize()
}

fn use_after_free() -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::SMALL, "no_guard", &[])?;
    let x = stream.alloc_zeros::<f32>(32)?;
    let address = x.leak();
    // SAFETY: the memory is freed once.
    unsafe { cudarc::driver::result::free_async(address, stream.cu_stream())? };
    // SAFETY: the kernel gets an address that is no longer valid, which is noticed.
    unsafe { stream.launch_builder(&f).arg(&address).launch(config(1, 32, 0))? };
    stream.synchronize()
}

fn wrong_device() -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::SMALL, "no_guard", &[])?;
    let other = CudaContext::new(1)?.default_stream();
    let mut x = other.alloc_zeros::<f32>(32)?;
    other.synchronize()?;
    // SAFETY: the kernel gets an address of another device, which is noticed.
    unsafe { stream.launch_builder(&f).arg(&mut x).launch(config(1, 32, 0))? };
    stream.synchronize()
}

fn unwritten() -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::SMALL, "add_one", &[])?;
    // SAFETY: the values are not set, which is noticed.
    let mut x = unsafe { stream.alloc::<f32>(32)? };
    let n = 32;
    // SAFETY: the parameters are those of the kernel.
    unsafe { stream.launch_builder(&f).arg(&mut x).arg(&n).launch(config(1, 32, 0))? };
    stream.synchronize()
}

fn leak() -> Done {
    let (_context, stream) = device()?;
    let x = stream.alloc_zeros::<f32>(32)?;
    stream.synchronize()?;
    let _ = x.leak();
    Ok(())
}

fn pinned_freed() -> Done {
    let (context, stream) = device()?;
    // SAFETY: the buffer is filled before it is read.
    let mut host = unsafe { context.alloc_pinned::<f32>(64)? };
    host.as_mut_slice()?.fill(1.0);
    let mut x = stream.alloc_zeros::<f32>(64)?;
    let address = host.as_ptr()?.cast_mut();
    let (to, _guard) = cudarc::driver::DevicePtrMut::device_ptr_mut(&mut x, &stream);
    // SAFETY: the copy reads the buffer, which is freed too early; that is noticed.
    unsafe { sys::cuMemcpyHtoDAsync_v2(to, address.cast(), 256, stream.cu_stream()).result()? };
    std::mem::forget(host);
    // SAFETY: the buffer is freed once.
    unsafe { cudarc::driver::result::free_host(address.cast())? };
    stream.synchronize()
}

/// Two streams read, a third writes after one of them only.
fn two_readers() -> Done {
    let (context, first) = device()?;
    let copy = kernel(&context, kernels::SMALL, "copy", &[])?;
    let add = kernel(&context, kernels::SMALL, "add_one", &[])?;
    let (second, third) = (context.new_stream()?, context.new_stream()?);
    let mut x = first.clone_htod(&numbers(64))?;
    let (mut y, mut z) = (first.alloc_zeros::<f32>(64)?, first.alloc_zeros::<f32>(64)?);
    first.synchronize()?;
    let n = 64;
    for (stream, out) in [(&first, &mut y), (&second, &mut z)] {
        // SAFETY: the parameters are those of the kernel.
        unsafe { stream.launch_builder(&copy).arg(out).arg(&x).arg(&n).launch(config(1, 64, 0))? };
    }
    third.wait(&second.record_event(None)?)?;
    // SAFETY: the parameters are those of the kernel; what is not ordered is noticed.
    unsafe { third.launch_builder(&add).arg(&mut x).arg(&n).launch(config(1, 64, 0))? };
    context.synchronize()
}

/// Sends a number to the host.
unsafe extern "C" fn send(data: *mut std::ffi::c_void) {
    // SAFETY: `data` is the end of a channel, by the call that gave this function.
    let tell = unsafe { &*data.cast::<std::sync::mpsc::Sender<u32>>() };
    tell.send(7).expect("the host waits");
}

/// The host waits for its own function and calls nothing in the meantime.
fn host_function() -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::SMALL, "add_one", &[])?;
    let mut x = stream.alloc_zeros::<f32>(32)?;
    let n = 32;
    // SAFETY: the parameters are those of the kernel.
    unsafe { stream.launch_builder(&f).arg(&mut x).arg(&n).launch(config(1, 32, 0))? };
    let (tell, told) = std::sync::mpsc::channel::<u32>();
    let data = std::ptr::from_ref(&tell).cast_mut().cast();
    // SAFETY: the function gets the channel's end, which lives until it has run.
    unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(send), data).result()? };
    assert_eq!(told.recv(), Ok(7));
    stream.synchronize()
}

/// A capture whose second stream does not come back.
fn unjoined() -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::SMALL, "add_one", &[])?;
    let side = context.new_stream()?;
    let mut x = stream.alloc_zeros::<f32>(32)?;
    stream.synchronize()?;
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    side.wait(&stream.record_event(None)?)?;
    let n = 32;
    // SAFETY: the parameters are those of the kernel.
    unsafe { side.launch_builder(&f).arg(&mut x).arg(&n).launch(config(1, 32, 0))? };
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let error = stream.end_capture(flags).map(|_| ()).expect_err("the capture is not joined");
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    Err(error)
}

/// The host writes to a pinned buffer that a copy still reads.
fn pinned_changed() -> Done {
    let (context, stream) = device()?;
    // SAFETY: the buffer is filled before it is read.
    let mut host = unsafe { context.alloc_pinned::<f32>(64)? };
    host.as_mut_slice()?.fill(1.0);
    let address = host.as_mut_ptr()?;
    let mut x = stream.alloc_zeros::<f32>(64)?;
    {
        let (to, _guard) = cudarc::driver::DevicePtrMut::device_ptr_mut(&mut x, &stream);
        // SAFETY: both sides have 256 bytes.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, address.cast(), 256, stream.cu_stream()).result()? };
    }
    // SAFETY: the buffer has 64 numbers; that the copy still reads it is noticed.
    unsafe { address.write(2.0) };
    stream.synchronize()
}

#[expect(clippy::unnecessary_wraps, reason = "every scenario has this type")]
fn no_device() -> Done {
    let error = CudaContext::new(0).expect_err("there is no device");
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_NO_DEVICE);
    Ok(())
}

fn out_of_memory() -> Done {
    let (_context, stream) = device()?;
    let error = stream.alloc_zeros::<f32>(1 << 20).expect_err("there is not so much memory");
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    for _ in 0..10 {
        drop(stream.alloc_zeros::<f32>(10_000)?);
    }
    Ok(())
}

/// A little of everything; any error ends it, and everything is given back.
fn fallible() -> Done {
    let run = || -> Done {
        let (context, stream) = device()?;
        let f = kernel(&context, kernels::SMALL, "copy", &[])?;
        let x = stream.clone_htod(&numbers(64))?;
        let mut y = stream.alloc_zeros::<f32>(64)?;
        let n = 64;
        // SAFETY: the parameters are those of the kernel.
        unsafe { stream.launch_builder(&f).arg(&mut y).arg(&x).arg(&n).launch(config(2, 32, 0))? };
        let event = stream.record_event(None)?;
        event.synchronize()?;
        assert_eq!(stream.clone_dtoh(&y)?, numbers(64));
        Ok(())
    };
    run().or(Ok(()))
}
