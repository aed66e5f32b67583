//! What a capture forbids, and to whom; what becomes of kernels whose module is unloaded.

use std::ffi::c_void;
use std::ptr::{from_mut, null_mut};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, DriverError, PushKernelArg, sys};
use sys::CUresult::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_SUCCESS,
};
use sys::CUstreamCaptureMode::{
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
};

use crate::child::{Done, config, device, kernel, numbers};
use crate::kernels;

/// What a call is made on: each is there when the call is made, and may end by it.
#[derive(Clone, Copy)]
struct Things {
    memory: u64,
    pinned: usize,
    module: usize,
    event: usize,
    stream: usize,
}

type Unsafe = fn(&Things) -> sys::CUresult;

/// Host memory of this program.
static OWN: [u8; 4096] = [0; 4096];

fn own() -> *mut c_void {
    (&raw const OWN).cast_mut().cast()
}

/// A module without kernels.
fn image() -> *const c_void {
    c".version 9.0\n.target sm_80\n.address_size 64\n".as_ptr().cast()
}

/// Calls that may wait for a device, or change what a graph uses.
#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "in all of them results have a place, and handles are of what is there"
)]
fn calls() -> [(&'static str, Unsafe); 11] {
    [
        ("cuMemAlloc", |_| unsafe { sys::cuMemAlloc_v2(from_mut(&mut 0), 64) }),
        ("cuMemFree", |on| unsafe { sys::cuMemFree_v2(on.memory) }),
        ("cuMemHostAlloc", |_| unsafe { sys::cuMemHostAlloc(from_mut(&mut null_mut()), 64, 0) }),
        ("cuMemFreeHost", |on| unsafe { sys::cuMemFreeHost(on.pinned as *mut c_void) }),
        ("cuMemHostRegister", |_| unsafe { sys::cuMemHostRegister_v2(own(), 64, 0) }),
        ("cuModuleLoadData", |_| unsafe {
            sys::cuModuleLoadData(from_mut(&mut null_mut()), image())
        }),
        ("cuModuleUnload", |on| unsafe { sys::cuModuleUnload(on.module as sys::CUmodule) }),
        ("cuEventQuery", |on| unsafe { sys::cuEventQuery(on.event as sys::CUevent) }),
        ("cuEventSynchronize", |on| unsafe { sys::cuEventSynchronize(on.event as sys::CUevent) }),
        ("cuStreamQuery", |on| unsafe { sys::cuStreamQuery(on.stream as sys::CUstream) }),
        ("cuStreamSynchronize", |on| unsafe {
            sys::cuStreamSynchronize(on.stream as sys::CUstream)
        }),
    ]
}

/// Each call in each mode, by the thread that captures and by another: who may make it can, and who
/// may not makes the capture invalid.
pub(crate) fn forbidden() -> Done {
    let modes = [
        (CU_STREAM_CAPTURE_MODE_GLOBAL, [true, true]),
        (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, [true, false]),
        (CU_STREAM_CAPTURE_MODE_RELAXED, [false, false]),
    ];
    let (context, stream) = device()?;
    for (name, call) in calls() {
        for (mode, forbids) in modes {
            for (is_other, is_forbidden) in forbids.into_iter().enumerate() {
                let what = format!("{name} with {mode:?}, other thread: {is_other}");
                let on = things(&context)?;
                stream.begin_capture(mode)?;
                let result = made(&context, call, &on, is_other == 1);
                let ended = end(&stream);
                let wanted = if is_forbidden {
                    (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
                } else {
                    (CUDA_SUCCESS, CUDA_SUCCESS)
                };
                assert_eq!((result, ended), wanted, "{what}");
            }
        }
    }
    // A context of which a stream is captured is waited for by none.
    stream.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED)?;
    // SAFETY: there is a context.
    let waited = unsafe { sys::cuCtxSynchronize() };
    assert_eq!(waited, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(&stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    Ok(())
}

/// A thread that heeds fewer captures makes each call beside one in global mode: in thread-local
/// mode beside that of another thread, in relaxed mode beside its own, too.
pub(crate) fn heeded() -> Done {
    let modes =
        [(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false), (CU_STREAM_CAPTURE_MODE_RELAXED, true)];
    let (context, stream) = device()?;
    for (name, call) in calls() {
        for (mode, is_own) in modes {
            let on = things(&context)?;
            stream.begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL)?;
            let made = |call: Unsafe| {
                let before = exchange(mode);
                assert_eq!(before, CU_STREAM_CAPTURE_MODE_GLOBAL);
                context.bind_to_thread().expect("the context is alive");
                let result = call(&on);
                assert_eq!(exchange(before), mode);
                result
            };
            let result = if is_own {
                made(call)
            } else {
                std::thread::scope(|scope| scope.spawn(|| made(call)).join().expect("it ends"))
            };
            let what = format!("{name} of a thread in {mode:?}");
            assert_eq!((result, end(&stream)), (CUDA_SUCCESS, CUDA_SUCCESS), "{what}");
        }
    }
    Ok(())
}

/// Changes which captures the thread heeds.
fn exchange(mode: sys::CUstreamCaptureMode) -> sys::CUstreamCaptureMode {
    let mut mode = mode;
    // SAFETY: the mode has a place.
    let result = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    assert_eq!(result, CUDA_SUCCESS);
    mode
}

/// One of each; what the last call left is not given back.
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "each makes one of the things")]
fn things(context: &Arc<CudaContext>) -> Result<Things, DriverError> {
    let (mut memory, mut pinned) = (0, null_mut());
    let (mut module, mut event, mut stream) = (null_mut(), null_mut(), null_mut());
    context.bind_to_thread()?;
    // SAFETY: the results have a place, the image ends in NUL.
    unsafe {
        sys::cuMemHostUnregister(own());
        sys::cuMemAlloc_v2(&raw mut memory, 64).result()?;
        sys::cuMemHostAlloc(&raw mut pinned, 64, 0).result()?;
        sys::cuModuleLoadData(&raw mut module, image()).result()?;
        sys::cuEventCreate(&raw mut event, 0).result()?;
        sys::cuStreamCreate(&raw mut stream, 1).result()?;
    }
    let (pinned, module) = (pinned as usize, module as usize);
    Ok(Things { memory, pinned, module, event: event as usize, stream: stream as usize })
}

/// What a call gives, on this thread or on another.
fn made(context: &Arc<CudaContext>, call: Unsafe, on: &Things, elsewhere: bool) -> sys::CUresult {
    if !elsewhere {
        return call(on);
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            context.bind_to_thread().expect("the context is alive");
            call(on)
        });
        other.join().expect("the thread ends")
    })
}

/// What the end of a capture gives.
fn end(stream: &Arc<CudaStream>) -> sys::CUresult {
    let mut graph = null_mut();
    // SAFETY: the stream is alive, the result has a place.
    let ended = unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) };
    if !graph.is_null() {
        // SAFETY: the graph is used by nothing else.
        assert_eq!(unsafe { sys::cuGraphDestroy(graph) }, CUDA_SUCCESS);
    }
    ended
}

/// A graph, or a launch that waits its turn, whose kernel goes with its module.
pub(crate) fn unloaded(is_graph: bool) -> Done {
    let (context, stream) = device()?;
    let f = kernel(&context, kernels::SMALL, "add_one", &[])?;
    let mut x = stream.clone_htod(&numbers(64))?;
    stream.synchronize()?;
    if is_graph {
        stream.begin_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    }
    let n = 64;
    // SAFETY: the parameters are those of the kernel.
    unsafe { stream.launch_builder(&f).arg(&mut x).arg(&n).launch(config(2, 32, 0))? };
    if !is_graph {
        drop(f);
        return stream.synchronize();
    }
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags)?.expect("a graph was captured");
    graph.launch()?;
    stream.synchronize()?;
    drop(f);
    let error = graph.launch().expect_err("the kernel is gone");
    assert_eq!(error.0, CUDA_ERROR_INVALID_HANDLE);
    Err(error)
}
