//! Streams, the work that is put on them, and events.

#![allow(unsafe_code, reason = "the driver is called through C functions")]

use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::context::{Context, NOT_READY, check};
use super::memory::Pinned;
use super::module::Function;
use super::sys;
use super::waited::Waited;
use crate::backend::DriverError;
use crate::backend::host::lock;

/// The calls at which the driver takes memory for a graph, or for the code of its kernels: it may
/// do so as late as when the graph is first launched.
const FOR_GRAPHS: [&str; 4] = [INSTANTIATE, "cuGraphUpload", "cuGraphLaunch", "cuLaunchKernel"];

/// The call that makes a graph of what was captured.
const INSTANTIATE: &str = "cuGraphInstantiate";

/// True if there is no memory for a graph, or for what it launches.
pub(crate) fn is_short_of_graph(error: &DriverError) -> bool {
    error.is_out_of_memory() && FOR_GRAPHS.contains(&error.call)
}

/// A stream of a device. Work on it is done in order, beside other streams and the host.
///
/// The addresses of device memory that work is given must be of memory that stays until the stream
/// is found idle; a wrong address is an error of the device, not of the host. Pinned memory is kept
/// here until then.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
    held: Mutex<Vec<Arc<Pinned>>>,
}

// SAFETY: the driver's streams may be used from any thread; the handle is only passed to it.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that does not wait for the device's default stream.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        let _current = context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: it stores a stream.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut raw, flags) })?;
        Ok(Self { context: context.clone(), raw, held: Mutex::default() })
    }

    /// True if all work is done. An error is one of the work.
    pub(crate) fn is_idle(&self) -> Result<bool, DriverError> {
        let _current = self.context.enter()?;
        // SAFETY: the stream is valid.
        let result = unsafe { sys::cuStreamQuery(self.raw) };
        if result == NOT_READY {
            return Ok(false);
        }
        check("cuStreamQuery", result)?;
        lock(&self.held).clear();
        Ok(true)
    }

    /// Waits until all work is done, but no longer than `limit`.
    pub(crate) fn finish(&self, limit: Duration) -> Result<(), DriverError> {
        /// The time for which waiting only yields to other threads.
        const EAGER: Duration = Duration::from_micros(100);
        const PAUSE: Duration = Duration::from_micros(50);

        let mut waited = Waited::begin(limit);
        while !self.is_idle()? {
            let time = waited.look();
            if time > limit {
                let text = format!("the device made no progress for {limit:?}");
                let (call, name) = ("cuStreamQuery", "CUDA_ERROR_NOT_READY".to_owned());
                return Err(DriverError { call, code: NOT_READY, name, text });
            }
            if time < EAGER {
                std::thread::yield_now();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Lets what comes after wait for what an event was recorded after.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), DriverError> {
        let _current = self.context.enter()?;
        // SAFETY: the stream and the event are valid.
        let result = unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) };
        check("cuStreamWaitEvent", result)
    }

    /// Records an event: it is reached when all work put here before is done.
    pub(crate) fn record(&self, event: &Event) -> Result<(), DriverError> {
        let _current = self.context.enter()?;
        // SAFETY: the stream and the event are valid.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.raw, self.raw) })
    }

    /// Copies bytes of pinned memory to the device. The range must lie inside.
    pub(crate) fn upload(
        &self,
        from: &Arc<Pinned>,
        offset: usize,
        to: u64,
        bytes: usize,
    ) -> Result<(), DriverError> {
        let source = from.pointer(offset..offset.saturating_add(bytes));
        let source = source.ok_or_else(|| outside("cuMemcpyHtoDAsync"))?;
        let _current = self.context.enter()?;
        lock(&self.held).push(from.clone());
        // SAFETY: the bytes lie inside the block, which is kept until the stream is idle.
        let result =
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, source.as_ptr().cast(), bytes, self.raw) };
        check("cuMemcpyHtoDAsync", result)
    }

    /// Copies bytes of the device to pinned memory. The range must lie inside.
    pub(crate) fn download(
        &self,
        from: u64,
        to: &Arc<Pinned>,
        offset: usize,
        bytes: usize,
    ) -> Result<(), DriverError> {
        let target = to.pointer(offset..offset.saturating_add(bytes));
        let target = target.ok_or_else(|| outside("cuMemcpyDtoHAsync"))?;
        let _current = self.context.enter()?;
        lock(&self.held).push(to.clone());
        // SAFETY: the bytes lie inside the block, which is kept until the stream is idle.
        let result =
            unsafe { sys::cuMemcpyDtoHAsync_v2(target.as_ptr().cast(), from, bytes, self.raw) };
        check("cuMemcpyDtoHAsync", result)
    }

    /// Copies bytes of the stream's device.
    pub(crate) fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), DriverError> {
        let _current = self.context.enter()?;
        // SAFETY: the stream is valid; the addresses are the device's affair.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.raw) };
        check("cuMemcpyDtoDAsync", result)
    }

    /// Copies bytes of another device to the stream's: directly where that is enabled, else the
    /// driver takes them through the host.
    pub(crate) fn copy_from(
        &self,
        other: &Context,
        from: u64,
        to: u64,
        bytes: usize,
    ) -> Result<(), DriverError> {
        let _current = self.context.enter()?;
        let (own, other) = (self.context.raw(), other.raw());
        // SAFETY: the stream and the contexts are valid; the addresses are the devices' affair.
        let result = unsafe { sys::cuMemcpyPeerAsync(to, own, from, other, bytes, self.raw) };
        check("cuMemcpyPeerAsync", result)
    }

    /// Launches a kernel whose only argument is a struct of these members.
    pub(crate) fn launch(
        &self,
        function: &Function,
        grid: [u32; 3],
        arguments: &mut [u64],
    ) -> Result<(), DriverError> {
        let _current = self.context.enter()?;
        let mut parameters = [arguments.as_mut_ptr().cast()];
        // SAFETY: the stream and the function are valid. The function takes one struct of as many
        // members of eight bytes (the kernel's declaration gave both), which the driver reads
        // before it returns.
        let result = unsafe {
            sys::cuLaunchKernel(
                function.raw(),
                grid[0],
                grid[1],
                grid[2],
                function.threads(),
                1,
                1,
                function.shared(),
                self.raw,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", result)
    }

    /// The work that `put` puts on the stream, as a graph that has its memory; it is not done now.
    pub(crate) fn capture<E: From<DriverError>>(
        &self,
        put: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        let _current = self.context.enter()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is valid.
        let result = unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) };
        check("cuStreamBeginCapture", result)?;
        let done = put();
        let mut template = ptr::null_mut();
        // SAFETY: the stream is being captured; the function stores a graph, or null.
        let result = unsafe { sys::cuStreamEndCapture(self.raw, &raw mut template) };
        let template = Template(template);
        done?;
        check("cuStreamEndCapture", result)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the template is a graph; the function stores an executable one.
        let result = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut raw, template.0, 0) };
        check(INSTANTIATE, result)?;
        let graph = Graph { context: self.context.clone(), raw };
        // SAFETY: the graph and the stream are valid.
        check("cuGraphUpload", unsafe { sys::cuGraphUpload(graph.raw, self.raw) })?;
        Ok(graph)
    }

    /// Does the work of a graph.
    pub(crate) fn replay(&self, graph: &Graph) -> Result<(), DriverError> {
        let _current = self.context.enter()?;
        // SAFETY: the graph and the stream are valid.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.raw, self.raw) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_idle() == Ok(false) {
            // A device still copies from and to these blocks; nobody will know when it is done.
            std::mem::take(&mut *lock(&self.held)).into_iter().for_each(std::mem::forget);
        }
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the stream was made by `new` and is destroyed once; work on it is done first.
            let _: sys::Code = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// The error of a copy whose host range lies outside its block.
fn outside(call: &'static str) -> DriverError {
    DriverError {
        call,
        code: sys::CUresult::CUDA_ERROR_INVALID_VALUE as u32,
        name: "CUDA_ERROR_INVALID_VALUE".to_owned(),
        text: "the range lies outside the host's block".to_owned(),
    }
}

/// A point in the work of a stream.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: the driver's events may be used from any thread; the handle is only passed to it.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event, reached already. Those that are `timed` know when they were reached.
    pub(crate) fn new(context: &Arc<Context>, timed: bool) -> Result<Self, DriverError> {
        let _current = context.enter()?;
        // Who waits for it sleeps.
        let mut flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        if !timed {
            flags |= sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        }
        let mut raw = ptr::null_mut();
        // SAFETY: it stores an event.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut raw, flags) })?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Waits until it is reached, without using a core. A device that hangs is waited for for
    /// ever. An error is one of work on the device.
    pub(crate) fn block(&self) -> Result<(), DriverError> {
        let _current = self.context.enter()?;
        // SAFETY: the event is valid.
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// True if it is reached. An error is one of work on the device.
    pub(crate) fn is_reached(&self) -> Result<bool, DriverError> {
        let _current = self.context.enter()?;
        // SAFETY: the event is valid.
        let result = unsafe { sys::cuEventQuery(self.raw) };
        if result == NOT_READY {
            return Ok(false);
        }
        check("cuEventQuery", result).map(|()| true)
    }

    /// The milliseconds from another event to this one; both are timed and reached.
    pub(crate) fn since(&self, earlier: &Self) -> Result<f32, DriverError> {
        let _current = self.context.enter()?;
        let mut milliseconds = 0.0;
        // SAFETY: it stores a number; the events are valid.
        let result = unsafe { sys::elapsed(&raw mut milliseconds, earlier.raw, self.raw) };
        check("cuEventElapsedTime", result).map(|()| milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the event was made by `new` and is destroyed once.
            let _: sys::Code = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}

/// A captured graph, before it can be launched.
struct Template(sys::CUgraph);

impl Drop for Template {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the graph came from a capture and is destroyed once.
            let _: sys::Code = unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}

/// Work that is launched at once.
#[derive(Debug)]
pub(crate) struct Graph {
    context: Arc<Context>,
    raw: sys::CUgraphExec,
}

// SAFETY: the handle is only passed to the driver, by one thread at a time.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the graph was instantiated by `capture` and is destroyed once.
            let _: sys::Code = unsafe { sys::cuGraphExecDestroy(self.raw) };
        }
    }
}
