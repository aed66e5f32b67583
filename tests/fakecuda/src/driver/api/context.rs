//! Contexts.

use super::super::config::{Class, Peers};
use super::super::schedule::{Goal, call, result};
use super::super::state::{Call, Context, Driver};
use super::super::{code, current};
use super::{Out, exports};

impl Driver {
    /// The primary context of a device, made when there is none.
    fn retain(&mut self, device: u32) -> Call<u64> {
        if self.lost.contains(&device) {
            return Err(code::ECC_UNCORRECTABLE);
        }
        let at = device as usize;
        if let Some(id) = self.primary[at] {
            if let Some(context) = self.contexts.get_mut(&id) {
                context.retained += 1;
                context.alive = true;
            }
            return Ok(id);
        }
        let id = self.handle();
        let default = self.new_stream(id, true, true);
        let context = Context { device, retained: 1, error: None, default, alive: true };
        self.contexts.insert(id, context);
        self.primary[at] = Some(id);
        Ok(id)
    }

    /// Gives a primary context back; with the last use everything in it ends.
    fn let_go(&mut self, device: u32) -> Call<()> {
        let Some(id) = self.primary[device as usize] else { return Err(code::INVALID_CONTEXT) };
        let Some(context) = self.contexts.get_mut(&id) else { return Err(code::INVALID_CONTEXT) };
        context.retained -= 1;
        if context.retained > 0 {
            return Ok(());
        }
        context.alive = false;
        self.primary[device as usize] = None;
        self.context_leaks(id);
        let streams: Vec<u64> =
            self.streams.iter().filter(|(_, s)| s.context == id).map(|(&i, _)| i).collect();
        for stream in &streams {
            drop(self.streams.remove(stream));
        }
        let allocations: Vec<u64> =
            self.memory.live().filter(|a| a.device == device).map(|a| a.start).collect();
        for &start in &allocations {
            self.end_allocation(start, "the end of its context");
        }
        self.events.retain(|_, e| e.context != id);
        self.modules.retain(|_, m| m.context != id);
        let graphs: Vec<_> = self.executables.extract_if(.., |_, e| e.context == id).collect();
        for (_, graph) in &graphs {
            self.end_graph(graph);
        }
        let functions = self.functions.values_mut().filter(|f| f.context == id);
        let code: usize = functions.map(|f| std::mem::take(&mut f.code)).sum();
        self.memory.release(device, code);
        Ok(())
    }

    /// A context that may carry an error.
    fn known(&self, id: u64) -> Call<()> {
        if id == 0 || self.contexts.get(&id).is_some_and(|c| c.alive) {
            return Ok(());
        }
        Err(code::INVALID_CONTEXT)
    }
}

/// Gives the primary context of a device back, after its work is done.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> u32 {
    let drained = call("cuDevicePrimaryCtxRelease_v2", Class::Query, |d| {
        let device = d.device(device)? as usize;
        Ok(d.primary[device].map_or(Goal::Nothing, Goal::Drain))
    });
    let released = call("cuDevicePrimaryCtxRelease_v2", Class::Release, |d| {
        let device = d.device(device)?;
        if current::is_pushed() {
            d.report("a thread that has pushed a context and not popped it gives one back");
        }
        d.let_go(device)?;
        Ok(Goal::Nothing)
    });
    result(drained.and(released))
}

exports! {
    /// Retains the primary context of a device.
    fn cuDevicePrimaryCtxRetain(Other, context: Out<u64>, device: i32) |d| {
        let device = d.device(device)?;
        let id = d.retain(device)?;
        context.give(id)?;
        Ok(Goal::Nothing)
    }

    /// Whether the primary context of a device is in use.
    fn cuDevicePrimaryCtxGetState(Other, device: i32, flags: Out<u32>, active: Out<i32>) |d| {
        let device = d.device(device)?;
        flags.give(0)?;
        active.give(i32::from(d.primary[device as usize].is_some()))?;
        Ok(Goal::Nothing)
    }

    /// Contexts other than the primary ones are not supported.
    fn cuCtxCreate_v4(Other, context: Out<u64>, _params: u64, _flags: u32, _device: i32) |d| {
        context.give(0)?;
        Err(d.refuse(code::NOT_SUPPORTED, "a context that is not a primary one"))
    }

    /// Contexts other than the primary ones are not supported.
    fn cuCtxDestroy_v2(Release, _context: u64) |d| {
        Err(d.refuse(code::INVALID_CONTEXT, "a primary context is destroyed"))
    }

    /// The current context.
    fn cuCtxGetCurrent(Query, context: Out<u64>) |d| {
        if !d.initialised {
            return Err(code::NOT_INITIALIZED);
        }
        context.give(current::get())?;
        Ok(Goal::Nothing)
    }

    /// Makes a context current.
    fn cuCtxSetCurrent(Query, context: u64) |d| {
        d.known(context)?;
        current::set(context);
        Ok(Goal::Nothing)
    }

    /// Makes a context current on top of the current one.
    fn cuCtxPushCurrent_v2(Query, context: u64) |d| {
        d.known(context)?;
        current::push(context);
        Ok(Goal::Nothing)
    }

    /// Makes the context below the current one current.
    fn cuCtxPopCurrent_v2(Query, context: Out<u64>) |_d| {
        context.offer(current::pop().ok_or(code::INVALID_CONTEXT)?);
        Ok(Goal::Nothing)
    }

    /// The device of the current context.
    fn cuCtxGetDevice(Query, device: Out<i32>) |d| {
        let id = current::get();
        let found = d.contexts.get(&id).ok_or(code::INVALID_CONTEXT)?.device;
        device.give(i32::try_from(found).map_err(|_| code::UNKNOWN)?)?;
        Ok(Goal::Nothing)
    }

    /// Waits for all work of the current context.
    fn cuCtxSynchronize(Sync) |d| {
        d.unsafe_call("cuCtxSynchronize")?;
        let context = d.current()?;
        d.none_captured(context)?;
        Ok(Goal::Context(context))
    }

    /// Scheduling hints have no effect.
    fn cuCtxSetFlags(Other, _flags: u32) |d| {
        d.current()?;
        Ok(Goal::Nothing)
    }

    /// A limit of the context: the default of a device.
    fn cuCtxGetLimit(Other, value: Out<usize>, limit: u32) |d| {
        d.current()?;
        value.give(match limit {
            0 => 1024,
            1 => 1 << 20,
            2 => 8 << 20,
            _ => return Err(code::INVALID_VALUE),
        })?;
        Ok(Goal::Nothing)
    }

    /// Limits have no effect.
    fn cuCtxSetLimit(Other, _limit: u32, _value: usize) |d| {
        d.current()?;
        Ok(Goal::Nothing)
    }

    /// Cache hints have no effect.
    fn cuCtxGetCacheConfig(Other, config: Out<u32>) |d| {
        d.current()?;
        config.give(0)?;
        Ok(Goal::Nothing)
    }

    /// Cache hints have no effect.
    fn cuCtxSetCacheConfig(Other, _config: u32) |d| {
        d.current()?;
        Ok(Goal::Nothing)
    }

    /// The range of stream priorities.
    fn cuCtxGetStreamPriorityRange(Other, least: Out<i32>, greatest: Out<i32>) |d| {
        d.current()?;
        least.offer(0);
        greatest.offer(-5);
        Ok(Goal::Nothing)
    }

    /// Lets the current context's device access another's memory.
    fn cuCtxEnablePeerAccess(Other, peer: u64, _flags: u32) |d| {
        let current = d.current()?;
        let pair = (d.context(current)?.device, d.context(peer)?.device);
        if pair.0 == pair.1 {
            return Err(code::INVALID_DEVICE);
        }
        if d.config.peers == Peers::None {
            return Err(code::PEER_ACCESS_UNSUPPORTED);
        }
        if d.memory.peers.contains(&pair) {
            return Err(code::PEER_ACCESS_ALREADY_ENABLED);
        }
        d.memory.peers.push(pair);
        Ok(Goal::Nothing)
    }

    /// Ends access to another device's memory.
    fn cuCtxDisablePeerAccess(Other, peer: u64) |d| {
        let current = d.current()?;
        let pair = (d.context(current)?.device, d.context(peer)?.device);
        if !d.memory.peers.contains(&pair) {
            return Err(code::PEER_ACCESS_NOT_ENABLED);
        }
        d.memory.peers.retain(|p| *p != pair);
        Ok(Goal::Nothing)
    }

    /// Profiling has no effect.
    fn cuProfilerStart(Other) |d| {
        d.current()?;
        Ok(Goal::Nothing)
    }

    /// Profiling has no effect.
    fn cuProfilerStop(Other) |d| {
        d.current()?;
        Ok(Goal::Nothing)
    }
}
