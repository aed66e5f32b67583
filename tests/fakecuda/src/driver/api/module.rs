//! Modules and their functions.

use super::super::code;
use super::super::queue::Work;
use super::super::schedule::Goal;
use super::super::state::{Call, Driver, Function, Image, Module};
use super::device::{MAX_THREADS, SHARED, SHARED_OPT_IN};
use super::{Out, Text, exports};
use crate::decode::{Globals, kernels};
use crate::exec::kernel::Kernel;
use crate::ptx::{self, Space};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

/// The newest PTX that a driver of this version of CUDA takes.
fn newest_ptx(version: u32) -> (u32, u32) {
    match (version / 1000, version % 1000 / 10) {
        (12, minor @ ..6) => (8, minor),
        (12, minor) => (8, minor - 1),
        (_, minor) => (9, minor),
    }
}

/// The compute capability of a fake device, times ten.
const CAPABILITY: u32 = 80;

/// Address and size of a module's variables.
type Variables = BTreeMap<String, (u64, usize)>;

impl Driver {
    /// Loads PTX text; machine code is for other devices than a fake one.
    fn load(&mut self, image: &[u8]) -> Call<u64> {
        let context = self.current()?;
        let device = self.context(context)?.device;
        if image.starts_with(b"\x7fELF") || image.starts_with(&0xba55_ed50u32.to_le_bytes()) {
            return Err(
                self.refuse(code::NO_BINARY_FOR_GPU, "a module of machine code: only PTX can run")
            );
        }
        if !self.images.contains_key(image) {
            let module = self.read(image)?;
            self.images.insert(image.to_vec(), Image { module: Arc::new(module), kernels: None });
        }
        let known = &self.images[image];
        let (module, ready) = (Arc::clone(&known.module), known.kernels.clone());
        let variables = self.variables(&module, device);
        let found = match ready {
            Some(found) => found,
            None => self.decode(image, &module, &variables)?,
        };
        let mut handles = BTreeMap::new();
        for kernel in found {
            let id = self.handle();
            handles.insert(kernel.name.clone(), id);
            let function = Function { context, kernel, max_dynamic: SHARED, alive: true, code: 0 };
            self.functions.insert(id, function);
        }
        let id = self.handle();
        self.modules.insert(id, Module { context, kernels: handles, variables });
        Ok(id)
    }

    /// Reads PTX text that the driver's version and the device take.
    fn read(&mut self, image: &[u8]) -> Call<ptx::Module> {
        let bad = |e: String| (code::INVALID_PTX, e);
        let newest = newest_ptx(self.config.version);
        let text = std::str::from_utf8(image).map_err(|_| code::INVALID_IMAGE)?;
        let parsed = ptx::parse(text).map_err(bad).and_then(|m| {
            if m.version > newest {
                return Err((
                    code::UNSUPPORTED_PTX_VERSION,
                    format!("PTX version {:?}", m.version),
                ));
            }
            let number: String = m.target.chars().filter(char::is_ascii_digit).collect();
            if number.parse::<u32>().is_ok_and(|n| n > CAPABILITY) {
                return Err((code::INVALID_PTX, format!("PTX for {}", m.target)));
            }
            Ok(m)
        });
        parsed.map_err(|(code, e)| self.refuse(code, &format!("a module cannot be loaded: {e}")))
    }

    /// The kernels of a module whose variables lie there.
    fn decode(
        &mut self,
        image: &[u8],
        module: &ptx::Module,
        variables: &Variables,
    ) -> Call<Vec<Arc<Kernel>>> {
        let globals: Globals =
            variables.iter().map(|(n, (at, _))| (n.clone(), (Space::Global, *at))).collect();
        let found: Vec<_> = match kernels(module, &globals) {
            Ok(found) => found.into_iter().map(Arc::new).collect(),
            Err(e) => {
                for variable in variables.values() {
                    self.end_allocation(variable.0, "a failed load");
                }
                return Err(
                    self.refuse(code::INVALID_PTX, &format!("a module cannot be loaded: {e}"))
                );
            }
        };
        if let (true, Some(known)) = (variables.is_empty(), self.images.get_mut(image)) {
            known.kernels = Some(found.clone());
        }
        Ok(found)
    }

    /// Allocates and initialises a module's variables.
    fn variables(&mut self, module: &ptx::Module, device: u32) -> Variables {
        let mut out = BTreeMap::new();
        let placed = module.vars.iter().filter(|v| matches!(v.space, Space::Global | Space::Const));
        for var in placed.clone().filter(|v| v.size > 0) {
            let at = self.memory.allocate(device, var.size, format!("variable {}", var.name), 0);
            out.insert(var.name.clone(), (at, var.size));
        }
        let run = self.next_run;
        self.next_run += 1;
        for var in placed {
            let Some(&(at, size)) = out.get(&var.name) else { continue };
            let mut bytes = var.init.clone();
            for (offset, name) in &var.pointers {
                let target = out.get(name).map_or(0, |v| v.0);
                bytes[*offset..offset + 8].copy_from_slice(&target.to_le_bytes());
            }
            bytes.resize(size, 0);
            self.memory.initialise(at, &bytes, run);
        }
        out
    }

    /// A function that can be used.
    pub(super) fn function(&mut self, handle: u64) -> Call<&mut Function> {
        if !self.functions.get(&handle).is_some_and(|f| f.alive) {
            let text = "a function that does not exist, or of a module that is unloaded, is used";
            return Err(self.refuse(code::INVALID_HANDLE, text));
        }
        let context = self.functions[&handle].context;
        self.context(context)?;
        self.functions.get_mut(&handle).ok_or(code::INVALID_HANDLE)
    }

    /// Whether it is the launch of a function whose module is unloaded.
    pub(in crate::driver) fn is_unloaded(&self, work: &Work) -> bool {
        let Work::Launch { function, .. } = work else { return false };
        !self.functions.get(function).is_some_and(|f| f.alive)
    }

    /// Blocks of a function that fit one multiprocessor.
    pub(super) fn occupancy(&mut self, function: u64, threads: i32, dynamic: usize) -> Call<i32> {
        let kernel = Arc::clone(&self.function(function)?.kernel);
        if threads <= 0 || threads > MAX_THREADS {
            return Err(code::INVALID_VALUE);
        }
        let shared = kernel.static_shared + dynamic;
        let by_shared = (SHARED_OPT_IN + 1024) / (shared + 1024);
        let by_shared = i32::try_from(by_shared).unwrap_or(i32::MAX);
        Ok((2048 / threads).min(32).min(by_shared))
    }
}

/// The text or code that a pointer leads to.
fn image<'a>(at: Out<c_void>) -> Call<&'a [u8]> {
    if at.0.is_null() {
        return Err(code::INVALID_VALUE);
    }
    // SAFETY: the caller gave a module image, which has at least four bytes.
    let magic = unsafe { at.0.cast::<[u8; 4]>().read_unaligned() };
    if magic == *b"\x7fELF" || magic == 0xba55_ed50u32.to_le_bytes() {
        return Ok(if magic == *b"\x7fELF" { b"\x7fELF" } else { &[0x50, 0xed, 0x55, 0xba] });
    }
    // SAFETY: an image that is no machine code is text that ends in NUL.
    let text = unsafe { CStr::from_ptr(at.0.cast::<c_char>()) };
    Ok(text.to_bytes())
}

exports! {
    /// Loads a module from memory.
    fn cuModuleLoadData(Other, module: Out<u64>, data: Out<c_void>) |d| {
        d.unsafe_call("cuModuleLoadData")?;
        module.give(d.load(image(data)?)?)?;
        Ok(Goal::Nothing)
    }

    /// Loads a module from memory; the compiler's options have no effect.
    fn cuModuleLoadDataEx(
        Other,
        module: Out<u64>,
        data: Out<c_void>,
        _count: u32,
        _options: Out<c_void>,
        _values: Out<c_void>
    ) |d| {
        d.unsafe_call("cuModuleLoadDataEx")?;
        module.give(d.load(image(data)?)?)?;
        Ok(Goal::Nothing)
    }

    /// Loads a module from a file.
    fn cuModuleLoad(Other, module: Out<u64>, path: Text) |d| {
        d.unsafe_call("cuModuleLoad")?;
        let bytes = std::fs::read(path.read()?).map_err(|_| code::FILE_NOT_FOUND)?;
        let len = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        let whole = if bytes.starts_with(b"\x7fELF") { &bytes[..] } else { &bytes[..len] };
        module.give(d.load(whole)?)?;
        Ok(Goal::Nothing)
    }

    /// Unloads a module.
    fn cuModuleUnload(Release, module: u64) |d| {
        d.unsafe_call("cuModuleUnload")?;
        let Some(of) = d.modules.remove(&module) else {
            return Err(d.refuse(code::INVALID_HANDLE, "a module is unloaded twice"));
        };
        let mut code = 0;
        for id in of.kernels.values() {
            if let Some(function) = d.functions.get_mut(id) {
                function.alive = false;
                code += std::mem::take(&mut function.code);
            }
        }
        let device = d.contexts.get(&of.context).map_or(0, |context| context.device);
        d.memory.release(device, code);
        of.variables.values().for_each(|v| d.end_allocation(v.0, "cuModuleUnload"));
        d.context(of.context)?;
        Ok(Goal::Nothing)
    }

    /// The handle of a kernel.
    fn cuModuleGetFunction(Other, function: Out<u64>, module: u64, name: Text) |d| {
        let name = name.read()?;
        let of = d.modules.get(&module).ok_or(code::INVALID_HANDLE)?;
        let id = *of.kernels.get(&name).ok_or(code::NOT_FOUND)?;
        function.give(id)?;
        Ok(Goal::Nothing)
    }

    /// The address and size of a variable.
    fn cuModuleGetGlobal_v2(
        Other, address: Out<u64>, len: Out<usize>, module: u64, name: Text
    ) |d| {
        let name = name.read()?;
        let of = d.modules.get(&module).ok_or(code::INVALID_HANDLE)?;
        let found = *of.variables.get(&name).ok_or(code::NOT_FOUND)?;
        address.offer(found.0);
        len.offer(found.1);
        Ok(Goal::Nothing)
    }

    /// A property of a function. Registers are those of the PTX text, not of machine code.
    fn cuFuncGetAttribute(Other, value: Out<i32>, attribute: u32, function: u64) |d| {
        let of = d.function(function)?;
        let (kernel, dynamic) = (&of.kernel, of.max_dynamic);
        let most = kernel.max_threads;
        let threads = if most == 0 { MAX_THREADS.cast_unsigned() } else { most };
        let found = match attribute {
            0 => threads as usize,
            1 => kernel.static_shared,
            3 => kernel.local,
            4 => kernel.registers.min(255) as usize,
            5 | 6 => CAPABILITY as usize,
            8 => dynamic,
            2 | 7 | 10..=16 => 0,
            _ => return Err(code::INVALID_VALUE),
        };
        value.give(i32::try_from(found).map_err(|_| code::UNKNOWN)?)?;
        Ok(Goal::Nothing)
    }

    /// Sets a property of a function: the most dynamic shared memory (8); others are hints.
    fn cuFuncSetAttribute(Other, function: u64, attribute: u32, value: i32) |d| {
        let of = d.function(function)?;
        match attribute {
            8 => {
                let bytes = usize::try_from(value).map_err(|_| code::INVALID_VALUE)?;
                if of.kernel.static_shared + bytes > SHARED_OPT_IN {
                    return Err(code::INVALID_VALUE);
                }
                of.max_dynamic = bytes;
            }
            9 => {}
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(Goal::Nothing)
    }

    /// Cache hints have no effect.
    fn cuFuncSetCacheConfig(Other, function: u64, _config: u32) |d| {
        d.function(function)?;
        Ok(Goal::Nothing)
    }

    /// Blocks of a function that fit one multiprocessor.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        Other,
        blocks: Out<i32>,
        function: u64,
        threads: i32,
        dynamic: usize
    ) |d| {
        blocks.give(d.occupancy(function, threads, dynamic)?)?;
        Ok(Goal::Nothing)
    }

    /// Blocks of a function that fit one multiprocessor.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        Other,
        blocks: Out<i32>,
        function: u64,
        threads: i32,
        dynamic: usize,
        _flags: u32
    ) |d| {
        blocks.give(d.occupancy(function, threads, dynamic)?)?;
        Ok(Goal::Nothing)
    }

    /// Dynamic shared memory that a block may use when so many fit a multiprocessor.
    fn cuOccupancyAvailableDynamicSMemPerBlock(
        Other,
        bytes: Out<usize>,
        function: u64,
        blocks: i32,
        _threads: i32
    ) |d| {
        let fixed = d.function(function)?.kernel.static_shared;
        let blocks = usize::try_from(blocks).ok().filter(|&b| b > 0).ok_or(code::INVALID_VALUE)?;
        let each = (SHARED_OPT_IN + 1024) / blocks;
        bytes.give(each.saturating_sub(1024 + fixed))?;
        Ok(Goal::Nothing)
    }
}
