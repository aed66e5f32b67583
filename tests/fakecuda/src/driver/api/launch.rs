//! Launches.

use super::super::code;
use super::super::queue::Work;
use super::super::schedule::Goal;
use super::super::state::{Call, Driver};
use super::device::{MAX_THREADS, SHARED};
use super::{Out, exports};
use crate::exec::block::Launch;
use crate::exec::kernel::Kernel;
use std::ffi::c_void;
use std::sync::Arc;

/// The configuration of `cuLaunchKernelEx`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: u64,
    attributes: *const c_void,
    attribute_count: u32,
}

/// What a launch call is given.
struct Asked {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: u64,
    params: Out<*const u8>,
    extra: Out<*const c_void>,
}

/// Collects the parameters into one buffer.
fn gather(kernel: &Kernel, asked: &Asked) -> Call<Vec<u8>> {
    let mut buffer = vec![0; kernel.param_bytes];
    if !asked.params.0.is_null() {
        for (at, &(size, offset)) in kernel.params.iter().enumerate() {
            // SAFETY: the caller gave one pointer for each parameter of the kernel.
            let entry = unsafe { asked.params.0.add(at) };
            let from = Out(entry).read()?;
            if from.is_null() {
                return Err(code::INVALID_VALUE);
            }
            // SAFETY: the pointer leads to a parameter of the size that the kernel declares.
            let bytes = unsafe { std::slice::from_raw_parts(from, size) };
            buffer[offset..offset + size].copy_from_slice(bytes);
        }
        return Ok(buffer);
    }
    if asked.extra.0.is_null() {
        return if kernel.params.is_empty() { Ok(buffer) } else { Err(code::INVALID_VALUE) };
    }
    packed(asked.extra, &mut buffer)?;
    Ok(buffer)
}

/// Reads `CU_LAUNCH_PARAM_BUFFER_POINTER` (1) and `CU_LAUNCH_PARAM_BUFFER_SIZE` (2) up to the end
/// of the list (0).
fn packed(extra: Out<*const c_void>, buffer: &mut [u8]) -> Call<()> {
    let (mut from, mut size) = (std::ptr::null::<u8>(), 0);
    for pair in 0..2 {
        // SAFETY: the caller gave a list of pairs that ends with a 0.
        let key = unsafe { extra.0.add(2 * pair) };
        let key = Out(key).read()?.addr();
        if key == 0 {
            break;
        }
        // SAFETY: a key is followed by its value.
        let value = unsafe { extra.0.add(2 * pair + 1) };
        let value = Out(value).read()?;
        match key {
            1 => from = value.cast(),
            2 => size = Out(value.cast_mut().cast::<usize>()).read()?,
            _ => return Err(code::INVALID_VALUE),
        }
    }
    if from.is_null() || size < buffer.len() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the caller gave a buffer of that size.
    let bytes = unsafe { std::slice::from_raw_parts(from, buffer.len()) };
    buffer.copy_from_slice(bytes);
    Ok(())
}

impl Driver {
    /// Takes the memory of a kernel's code, at its first launch.
    fn load_lazily(&mut self, function: u64, device: u32) -> Call<()> {
        let bytes = self.config.code;
        if self.function(function)?.code == 0 {
            self.reserve(device, bytes)?;
            self.function(function)?.code = bytes;
        }
        Ok(())
    }

    fn launch(&mut self, function: u64, asked: &Asked) -> Call<Goal> {
        let stream = self.stream(asked.stream)?;
        let of = self.function(function)?;
        let (kernel, most, context) = (Arc::clone(&of.kernel), of.max_dynamic, of.context);
        let shared = asked.shared as usize;
        let threads = asked.block.iter().map(|&n| u64::from(n)).product::<u64>();
        let name = &kernel.name;
        if self.streams.get(&stream).is_some_and(|s| s.context != context) {
            let text = format!("{name}: the stream is of another context than the function");
            return Err(self.refuse(code::INVALID_HANDLE, &text));
        }
        let sizes = asked.grid.iter().chain(&asked.block).all(|&n| n > 0)
            && threads <= u64::from(MAX_THREADS.cast_unsigned())
            && asked.block[2] <= 64
            && asked.grid[0] <= i32::MAX.cast_unsigned()
            && asked.grid[1] <= 65535
            && asked.grid[2] <= 65535;
        let allowed = kernel.max_threads == 0 || threads <= u64::from(kernel.max_threads);
        let fits = shared <= most && kernel.static_shared + shared <= most.max(SHARED);
        if !sizes || !allowed || !fits {
            let text = format!(
                "{name}: a launch of grid {:?}, block {:?} and {shared} bytes of dynamic shared \
                 memory (the kernel allows {} threads, {most} bytes)",
                asked.grid, asked.block, kernel.max_threads
            );
            return Err(self.refuse(code::INVALID_VALUE, &text));
        }
        let params = gather(&kernel, asked)?;
        let device = self.context(context)?.device;
        self.load_lazily(function, device)?;
        let launch =
            Launch { grid: asked.grid, block: asked.block, dynamic_shared: shared, params, device };
        self.hang(stream)?;
        self.enqueue(stream, Work::Launch { function, kernel, launch: Arc::new(launch) })?;
        Ok(Goal::Nothing)
    }
}

exports! {
    /// Launches a kernel.
    fn cuLaunchKernel(
        Launch,
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: u64,
        params: Out<*const u8>,
        extra: Out<*const c_void>
    ) |d| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        d.launch(function, &Asked { grid, block, shared, stream, params, extra })
    }

    /// Launches a kernel with a configuration; attributes are not supported.
    fn cuLaunchKernelEx(
        Launch,
        config: Out<LaunchConfig>,
        function: u64,
        params: Out<*const u8>,
        extra: Out<*const c_void>
    ) |d| {
        let LaunchConfig { grid, block, shared, stream, attribute_count, .. } = config.read()?;
        if attribute_count != 0 {
            return Err(d.refuse(code::NOT_SUPPORTED, "attributes of a launch"));
        }
        d.launch(function, &Asked { grid, block, shared, stream, params, extra })
    }

    /// Blocks that wait for each other are not supported.
    fn cuLaunchCooperativeKernel(
        Launch,
        _function: u64,
        _grid_x: u32,
        _grid_y: u32,
        _grid_z: u32,
        _block_x: u32,
        _block_y: u32,
        _block_z: u32,
        _shared: u32,
        _stream: u64,
        _params: Out<*const u8>
    ) |d| {
        Err(d.refuse(code::NOT_SUPPORTED, "a cooperative launch"))
    }
}
