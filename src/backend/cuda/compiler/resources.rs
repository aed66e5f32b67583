//! Resources of compiled kernels, read from the log of their compilation.

/// The resources of one kernel on a multiprocessor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// The name of its function.
    pub name: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's local memory.
    pub stack: u32,
    /// Bytes of registers that are stored because there are too few, in the code of a thread.
    pub spill_stores: u32,
    /// Bytes of them that are loaded.
    pub spill_loads: u32,
    /// Bytes of static shared memory of a block.
    pub shared: u32,
    /// Barriers of a block.
    pub barriers: u32,
}

/// The kernels that a log tells of, in its order; what it does not tell is 0.
pub fn parse(log: &str) -> Vec<Resources> {
    let mut found: Vec<Resources> = Vec::new();
    // Functions that are no kernels have properties too; those belong to nobody.
    let mut of_entry = false;
    for line in log.lines() {
        let line = line.trim().strip_prefix("ptxas info").unwrap_or(line).trim();
        let line = line.strip_prefix(':').unwrap_or(line).trim();
        if let Some(rest) = line.strip_prefix("Compiling entry function '") {
            let name = rest.split_once('\'').map_or(rest, |(name, _)| name).to_owned();
            found.push(Resources { name, ..Resources::default() });
            of_entry = true;
        } else if let Some(name) = line.strip_prefix("Function properties for ") {
            of_entry = found.last().is_some_and(|last| last.name == name.trim());
        } else if let Some(last) = found.last_mut().filter(|_| of_entry) {
            for part in line.split(',') {
                read(last, part.trim());
            }
        }
    }
    found
}

/// Takes what a part of a line says: `24 bytes stack frame`, `Used 40 registers`.
fn read(of: &mut Resources, part: &str) {
    let part = part.strip_prefix("Used ").or(part.strip_prefix("used ")).unwrap_or(part);
    let Some((number, what)) = part.split_once(' ') else { return };
    let Ok(number) = number.parse() else { return };
    let place = match what {
        "registers" => &mut of.registers,
        "barriers" => &mut of.barriers,
        "bytes stack frame" => &mut of.stack,
        "bytes spill stores" => &mut of.spill_stores,
        "bytes spill loads" => &mut of.spill_loads,
        "bytes smem" => &mut of.shared,
        _ => return,
    };
    *place = number;
}

#[cfg(test)]
mod tests {
    use super::{Resources, parse};

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Function properties for a
    24 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 24 bytes cumulative stack size, 4096 bytes smem
ptxas info    : Compile time = 10.0 ms
ptxas info    : Function properties for helper
    7 bytes stack frame, 7 bytes spill stores, 7 bytes spill loads
ptxas info    : Compiling entry function 'b' for 'sm_90a'
ptxas info    : Function properties for b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 360 bytes cmem[0]
";

    #[test]
    fn a_log_tells_of_each_kernel() {
        let found = parse(LOG);
        let first = Resources {
            name: "a".to_owned(),
            registers: 168,
            stack: 24,
            spill_stores: 4,
            spill_loads: 8,
            shared: 4096,
            barriers: 1,
        };
        let second = Resources { name: "b".to_owned(), registers: 10, ..Resources::default() };
        assert_eq!(found, [first, second]);
    }

    #[test]
    fn other_text_tells_of_nothing() {
        for log in ["", "error", "Used 3 registers", "Compiling entry function", "Used x registers"]
        {
            assert_eq!(parse(log), [], "{log}");
        }
        let log = "Compiling entry function 'a\nUsed 99999999999 registers, used 2 barriers";
        let found = parse(log);
        assert_eq!((found[0].registers, found[0].barriers, found[0].name.as_str()), (0, 2, "a"));
    }
}
